"""`ricordo serve`: starting, refusing to start, and ending."""

import asyncio
import json
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2

from ricordo.app import create_app
from ricordo.cli.listening import listening
from ricordo.cli.serve import Server
from ricordo.domain.model import ModelRequest
from ricordo.llm.scripted import ScriptedModel
from ricordo.settings import ProviderSettings, Settings
from tests.cli.conftest import Shell

LIMIT = 10


def test_it_serves_refuses_company_and_ends_well_on_sigterm(shell: Shell) -> None:
    with shell.serving() as serving:
        assert f"data in {shell.data}" in serving.said
        assert "model: ricordo/librarian" in serving.said
        health = httpx2.get(f"{serving.address}/v1/health", trust_env=False)
        assert health.json()["status"] == "ok"
        port = serving.address.rpartition(":")[2]
        taken = shell.run("serve", "--port", port)
        assert (taken.returncode, taken.stdout) == (2, "")
        assert taken.stderr.startswith(f"ricordo: Port {port} of 127.0.0.1 is taken")
        in_use = shell.run("serve", "--port", "0")
        assert (in_use.returncode, in_use.stdout) == (2, "")
        assert in_use.stderr.startswith("ricordo: Another Ricordo server is using")
        assert len((taken.stderr + in_use.stderr).splitlines()) == 2
        serving.process.send_signal(signal.SIGTERM)
        out, err = serving.process.communicate(timeout=LIMIT)
        assert serving.process.returncode == 0
        assert "stop it with Ctrl-C" in out
        assert err == ""


def test_at_debug_each_request_is_one_line_without_its_query(shell: Shell) -> None:
    with shell.serving(RICORDO_LOG_LEVEL="debug", RICORDO_LOG_FORMAT="json") as serving:
        httpx2.get(f"{serving.address}/v1/agents/?query_text=secret", trust_env=False)
        serving.process.send_signal(signal.SIGINT)
        _, err = serving.process.communicate(timeout=LIMIT)
    assert serving.process.returncode == 0
    assert "secret" not in err
    records = [json.loads(line) for line in err.splitlines()]
    (request,) = [record for record in records if record["message"] == "request"]
    assert (request["method"], request["path"], request["status"]) == ("GET", "/v1/agents/", 200)


@contextmanager
def running(tmp_path: Path, model: ScriptedModel, grace: float) -> Iterator[tuple[Server, str]]:
    """A server in a thread, with its address."""
    settings = Settings(data_dir=tmp_path, find_local_models=False, shutdown_grace=grace)
    app = create_app(settings, ProviderSettings.model_construct(), extra_models=[model])
    ready = threading.Event()
    server = Server(app, settings, announce=lambda _: ready.set())
    with listening("127.0.0.1", 0) as sockets:
        thread = threading.Thread(target=lambda: asyncio.run(server.live(sockets)))
        thread.start()
        try:
            assert ready.wait(LIMIT)
            yield server, f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(LIMIT)
    assert not thread.is_alive()


async def _ask(http: httpx2.AsyncClient) -> str:
    made = await http.post("/v1/agents/", json={"name": "Nina", "model": "scripted/model"})
    return str(made.json()["id"])


async def _begin(http: httpx2.AsyncClient, agent_id: str) -> AsyncIterator[str]:
    body = {"messages": [{"role": "user", "content": "Hello."}]}
    async with http.stream("POST", f"/v1/agents/{agent_id}/messages/stream", json=body) as response:
        async for line in response.aiter_lines():
            yield line


async def _refusal(http: httpx2.AsyncClient, agent_id: str) -> str:
    """What the server says once it takes nothing more; until then, the agent is busy."""
    async with asyncio.timeout(LIMIT):
        while True:
            response = await http.post(f"/v1/agents/{agent_id}/messages", json={"input": "And now?"})
            if response.status_code == 503:
                return response.text
            await asyncio.sleep(0.02)


async def test_a_running_turn_may_finish_while_no_other_begins(tmp_path: Path) -> None:
    asked, answering = threading.Event(), threading.Event()

    async def answer(_request: ModelRequest) -> str:
        asked.set()
        await asyncio.to_thread(answering.wait, LIMIT)
        return "Here I am."

    with running(tmp_path, ScriptedModel(answer), grace=LIMIT) as (server, address):
        async with httpx2.AsyncClient(base_url=address, trust_env=False, timeout=LIMIT) as http:
            agent_id = await _ask(http)
            lines = _begin(http, agent_id)
            first = await anext(lines)
            await asyncio.to_thread(asked.wait, LIMIT)
            server.should_exit = True
            refused = await _refusal(http, agent_id)
            answering.set()
            told = "".join([first, *[line async for line in lines]])
    assert "shutting down" in refused
    assert "Here I am." in told
    assert "end_turn" in told
    assert told.endswith("data: [DONE]")


async def test_a_turn_that_does_not_finish_is_stopped_after_the_grace_and_its_reader_is_told(tmp_path: Path) -> None:
    async def answer(_request: ModelRequest) -> str:
        await asyncio.Event().wait()
        return "never"

    started = 0.0
    with running(tmp_path, ScriptedModel(answer), grace=0.2) as (server, address):
        async with httpx2.AsyncClient(base_url=address, trust_env=False, timeout=LIMIT) as http:
            lines = _begin(http, await _ask(http))
            first = await anext(lines)
            started = time.monotonic()
            server.should_exit = True
            told = "".join([first, *[line async for line in lines]])
    assert time.monotonic() - started < 2
    assert '"message_type":"error_message"' in told
    assert told.endswith("data: [DONE]")
