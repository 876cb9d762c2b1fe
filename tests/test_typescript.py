"""The client in `clients/typescript`: its types, its requests, and its examples."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from deploy.typescript_types import TYPES, types
from tests.seams.http import bearer, ok
from tests.seams.server import MODEL, ServerInThread, serving
from tests.support.node import node, packages

KEY = "the-operator"
_LIMIT = 180


def output_of(command: list[str], folder: Path, **environment: str) -> str:
    """Run a program, which must succeed; return its output."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=_LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built() -> Path:
    """The client's folder; the client and its examples are checked and compiled."""
    folder = packages()
    output_of([node(), "node_modules/typescript/bin/tsc", "-p", "."], folder)
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    folder = tmp_path_factory.mktemp("typescript")
    with serving(folder, api_key=KEY, model=MODEL, facts="model") as server:
        yield server


def test_the_types_match_the_openapi_document() -> None:
    packages()
    assert TYPES.read_text("utf-8") == types(), "run: make types"


def test_the_client_methods_do_what_they_promise(built: Path, server: ServerInThread) -> None:
    output_of(
        [node(), "--test", "test/client.test.mjs"],
        built,
        RICORDO_URL=server.url,
        RICORDO_API_KEY=KEY,
    )


def test_an_agent_answers_in_the_vercel_ai_sdk(built: Path, server: ServerInThread) -> None:
    with server.http(headers=bearer(KEY)) as http:
        add_agent(http)
    server.says("You like tea.")
    said = output_of(
        [node(), "dist/examples/vercel-ai.js", "Nina", "What do I like?"],
        built,
        RICORDO_URL=server.url,
        RICORDO_API_KEY=KEY,
    )
    assert said.startswith("You like tea.\n(")
    assert server.model.requests[-1].messages[-1].text == "What do I like?"


def add_agent(http: httpx2.Client) -> None:
    ok(http.post("/v1/agents/", json={"name": "Nina", "model": MODEL, "memory_blocks": []}))
