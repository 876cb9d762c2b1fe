"""A server with the operator's key, OpenAI's client, and Open WebUI's headers."""

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from openai import OpenAI

from tests.seams.http import OPERATOR, bearer, ok
from tests.seams.server import LIMIT, MODEL, ServerInThread, serving


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    with serving(tmp_path_factory.mktemp("openai"), api_key=OPERATOR) as server:
        yield server


@pytest.fixture
def server(running: ServerInThread) -> ServerInThread:
    running.forget()
    return running


@pytest.fixture(scope="module")
def http(running: ServerInThread) -> Iterator[httpx2.Client]:
    with running.http(headers=bearer(OPERATOR)) as opened:
        yield opened


@pytest.fixture
def agent(server: ServerInThread, http: httpx2.Client, request: pytest.FixtureRequest) -> str:
    """Make an agent with a persona; return its name."""
    name = f"Nina {request.node.name}"
    blocks = [{"label": "persona", "value": "I am Nina."}]
    ok(http.post("/v1/agents/", json={"name": name, "model": MODEL, "memory_blocks": blocks}))
    return name


@pytest.fixture
def client(server: ServerInThread) -> Iterator[OpenAI]:
    with openai_client(server) as opened:
        yield opened


def openai_client(server: ServerInThread, key: str = OPERATOR, **headers: str) -> OpenAI:
    """OpenAI's client, with a key of this server; it retries no request."""
    return OpenAI(
        base_url=f"{server.url}/v1",
        api_key=key,
        max_retries=0,
        timeout=LIMIT,
        default_headers=headers,
    )


def user(text: str) -> Any:
    return {"role": "user", "content": text}


def assistant(text: str) -> Any:
    return {"role": "assistant", "content": text}


def asked_texts(server: ServerInThread, place: int = -1) -> list[str]:
    """Return the texts of users and of the agent in the last request to the model, in order."""
    said = server.model.requests[place].messages[1:]
    return [message.text for message in said if message.role in ("user", "assistant", "system")]
