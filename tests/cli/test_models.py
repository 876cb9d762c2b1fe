"""The models in use.

A start reports the default model, and an agent with the librarian can get a better one.
"""

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx2
import pytest
from anyio.from_thread import start_blocking_portal

from ricordo.cli import chat as chatting
from ricordo.cli.client import Client
from ricordo.domain.model import LIBRARIAN
from ricordo.settings import ProviderSettings
from tests.cli.conftest import Serving, Shell
from tests.seams.server import ServerInThread, serving
from tests.support.model_server import Answer, ModelServer, Seen, completion

MODEL = "openai/gpt-4.1"
OFFER = f"{MODEL} is configured, but old uses the librarian. Change it with: /model {MODEL}"


def provider(seen: Seen) -> Answer:
    """A provider with three models; the second in its list is the best."""
    rows = [{"id": name} for name in ("babbage-002", "gpt-4.1", "gpt-4.1-nano")]
    return Answer({"data": rows}) if seen.method == "GET" else completion("Good morning.")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerInThread, ModelServer]]:
    """A provider, and a server that is configured with the provider's address."""
    answering = ModelServer(provider)
    with start_blocking_portal() as portal:
        portal.call(answering.start)
        providers = ProviderSettings.model_construct(openai_base_url=answering.url)
        with serving(tmp_path_factory.mktemp("data"), providers=providers) as server:
            yield server, answering
        portal.call(answering.stop)


@pytest.fixture
def http(both: tuple[ServerInThread, ModelServer]) -> Iterator[httpx2.Client]:
    """The server, with an agent `old` that was made with the librarian and remembers a fact."""
    with both[0].http() as http:
        made = http.post(
            "/v1/agents/", json={"name": "old", "model": LIBRARIAN, "memory_blocks": []}
        ).json()
        http.post(
            f"/v1/agents/{made['id']}/messages", json={"input": "My favourite tea is jasmine."}
        )
        yield http
        http.delete(f"/v1/agents/{made['id']}")


def read_output_until(serving: Serving, *words: str) -> None:
    """Read a server's output until it prints one of these texts."""
    said = serving.said
    while not any(each in said for each in words):
        assert serving.process.stdout
        line = serving.process.stdout.readline()
        assert line, said
        said += line


def test_a_start_reports_the_default_model_its_reason_and_what_is_wrong(
    shell: Shell, both: tuple[ServerInThread, ModelServer]
) -> None:
    address, reason = both[1].url, f"{MODEL} (OPENAI_BASE_URL is set)"
    with shell.serving(OPENAI_BASE_URL=address) as serving:
        read_output_until(serving, f"model: {reason}\n", f"New agents use the model {reason}.\n")
    with shell.serving(OPENAI_BASE_URL=address, RICORDO_MODEL="openai/gpt-4.1-nona") as serving:
        assert "model: openai/gpt-4.1-nona (by RICORDO_MODEL" in serving.said
        near = "Did you mean openai/gpt-4.1-nano or openai/gpt-4.1?"
        read_output_until(serving, f"RICORDO_MODEL=openai/gpt-4.1-nona cannot be used. {near}\n")
        refused = httpx2.post(f"{serving.address}/v1/agents/", json={"name": "x"}, trust_env=False)
        assert (refused.status_code, near in refused.text) == (404, True)


def test_a_start_reports_an_embedding_model_that_cannot_be_used(shell: Shell) -> None:
    with shell.serving(RICORDO_EMBEDDING="openai/nothing") as serving:
        fault = "RICORDO_EMBEDDING=openai/nothing cannot be used, so search finds"
        read_output_until(serving, fault)


def test_a_start_does_not_wait_for_a_slow_provider_and_reports_it_later(
    shell: Shell,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as slow:
        address = f"http://127.0.0.1:{slow.getsockname()[1]}/v1"
        with shell.serving(OPENAI_BASE_URL=address) as serving:
            assert "(built in, no language model; see `" in serving.said
            assert "doctor`; providers are still asked)\n" in serving.said
            assert httpx2.get(f"{serving.address}/v1/health/", trust_env=False).status_code == 200
            with slow.accept()[0] as connection:
                connection.recv(4096)
                connection.sendall(
                    b'HTTP/1.1 200 OK\r\ncontent-length: 27\r\n\r\n{"data":[{"id":"gpt-4.1"}]}'
                )
                read_output_until(
                    serving, f"New agents use the model {MODEL} (OPENAI_BASE_URL is set).\n"
                )


def test_an_agent_without_a_model_gets_the_default_which_the_list_marks(
    http: httpx2.Client,
) -> None:
    made = http.post("/v1/agents/", json={"name": "new"}).json()
    said = http.post(f"/v1/agents/{made['id']}/messages", json={"input": "Hello."}).json()
    assert (made["model"], said["messages"][-1]["content"]) == (MODEL, "Good morning.")
    assert [row["handle"] for row in http.get("/v1/models/").json() if row["is_default"]] == [MODEL]


def test_an_agent_of_the_librarian_keeps_its_memory_with_a_real_model(
    http: httpx2.Client, both: tuple[ServerInThread, ModelServer]
) -> None:
    server, answering = both
    assert server.runtime.models.better_than(LIBRARIAN) == MODEL
    assert server.runtime.models.better_than(MODEL) is None
    (agent,) = http.get("/v1/agents/", params={"name": "old"}).json()
    changed = http.patch(f"/v1/agents/{agent['id']}", json={"model": MODEL}).json()
    assert (changed["model"], changed["llm_config"]["context_window"]) == (MODEL, 1_047_576)
    said = http.post(
        f"/v1/agents/{agent['id']}/messages", json={"input": "Which tea do I like?"}
    ).json()
    assert said["messages"][-1]["content"] == "Good morning."
    assert "jasmine" in str(answering.requests[-1].body), "the agent keeps its messages"
    refused = http.patch(f"/v1/agents/{agent['id']}", json={"model": "anthropic/claude-x"})
    assert (refused.status_code, "Set ANTHROPIC_API_KEY." in refused.text) == (404, True)


def test_the_chat_and_the_agent_command_offer_a_better_model(
    http: httpx2.Client, shell: Shell, both: tuple[ServerInThread, ModelServer]
) -> None:
    at = ("--server", both[0].url)
    told = shell.run("chat", "--agent", "old", *at, said="What is my favourite tea?\n")
    assert (told.returncode, told.stderr) == (0, f"{OFFER}\n")
    assert "jasmine" in told.stdout
    shown = shell.run("agent", "model", "old", *at)
    assert shown.stdout.startswith(f"old uses {LIBRARIAN}.\n{MODEL} is configured. Use it with `")
    assert shown.stdout.endswith(f" agent model old {MODEL}`.\n")
    changed = shell.run("agent", "model", "old", MODEL, *at)
    assert (changed.returncode, changed.stdout) == (0, f"old uses {MODEL}.\n")
    again = shell.run("chat", "--agent", "old", *at, said="Hello.\n")
    assert (again.stdout, again.stderr) == ("Good morning.\n", "")
    wrong = shell.run("agent", "model", "nobody", *at)
    assert (wrong.returncode, 'There is no agent "nobody"' in wrong.stderr) == (2, True)


def test_without_a_better_model_nothing_is_offered(tmp_path: Path) -> None:
    with serving(tmp_path) as server, closing(Client(server.url)) as client:
        assert client.default_model() == LIBRARIAN
        made = client.create_agent("nina", {})
        assert made["model"] == LIBRARIAN
        assert chatting.better_model(client, made) is None
