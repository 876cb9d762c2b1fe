"""`ricordo serve`: starting, refusing to start, and ending."""

import asyncio
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from typer.testing import CliRunner

from ricordo.app import create_app
from ricordo.cli import app
from ricordo.cli.serve import Server, background_server
from ricordo.cli.sockets import address_of, listening
from ricordo.domain.model import ModelRequest
from ricordo.errors import Conflict, Unavailable
from ricordo.llm.scripted import ScriptedModel
from ricordo.runtime import Runtime
from ricordo.settings import ProviderSettings, Settings
from tests.cli.conftest import Shell, environment

LIMIT = 180


@pytest.mark.usefixtures("quiet_logs")
def test_a_server_starts_refuses_a_second_one_and_ends_cleanly_on_sigterm(new_shell: Shell) -> None:
    with new_shell.serving() as serving:
        assert f"data in {new_shell.data}" in serving.said
        assert "model: ricordo/librarian" in serving.said
        assert "stop it with Ctrl-C" in serving.said
        health = httpx2.get(f"{serving.address}/v1/health", trust_env=False)
        assert health.json()["status"] == "ok"
        port = serving.address.rpartition(":")[2]
        # Runs in this process, which has already imported the slow modules.
        taken = CliRunner().invoke(app, ["serve", "--port", port], env=environment(new_shell.data))
        assert (taken.exit_code, taken.stdout) == (2, "")
        assert taken.stderr.startswith(f"ricordo: Port {port} of 127.0.0.1 is in use")
        assert len(taken.stderr.splitlines()) == 1
        in_use = CliRunner().invoke(app, ["serve", "--port", "0"], env=environment(new_shell.data))
        assert (in_use.exit_code, in_use.stdout) == (2, "")
        assert in_use.stderr.startswith("ricordo: Another Ricordo server is using")
        assert len(in_use.stderr.splitlines()) == 1
        serving.process.send_signal(signal.SIGTERM)
        said, warned = serving.process.communicate(timeout=LIMIT)
        assert (
            said,
            [
                line
                for line in warned.splitlines()
                if "slow write" not in line and "ricordo.cli.serve request" not in line
            ],
        ) == (
            "",
            [],
        )
        assert serving.process.returncode == 0


async def test_a_request_is_logged_in_one_line_with_its_user_and_run_but_no_query(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "ricordo.cli.serve")
    with running(tmp_path, ScriptedModel(("Hello.",))) as (_, address):
        async with httpx2.AsyncClient(base_url=address, trust_env=False, timeout=LIMIT) as http:
            assert (await http.get("/v1/agents/?query_text=secret")).status_code == 200
            assert (await http.get("/v1/health/live")).status_code == 200
            assert (await http.get("/nothing-of-this-name")).status_code == 404
            agent = await _ask(http)
            answer = await http.post(f"/v1/agents/{agent}/messages", json={"input": "Hi"})
            key = await http.post(
                "/v1/keys/", json={"user": "ada", "name": "laptop", "role": "admin"}
            )
            header = {"authorization": f"Bearer {key.json()['key']}"}
            await http.get("/users/ada/blocks", headers=header)
    lines = [vars(record) for record in caplog.records if record.getMessage() == "request"]
    listed, missing, _, said, _, blocks = lines
    assert (listed["method"], listed["route"], listed["status"]) == ("GET", "/v1/agents/", 200)
    assert (missing["route"], missing["status"]) == ("none", 404)
    assert said["run"] == answer.json()["messages"][0]["run_id"]
    assert (blocks["key"], blocks["route"]) == ("laptop", "/users/{user_id}/blocks")
    assert all(line["user"].startswith("user-") and line["ms"] >= 0 for line in lines)
    assert "secret" not in str(lines)


@contextmanager
def running(tmp_path: Path, model: ScriptedModel, **given: Any) -> Iterator[tuple[Server, str]]:
    settings = Settings(data_dir=tmp_path, find_local_models=False, api_key=None, **given)
    app = create_app(settings, ProviderSettings.model_construct(), extra_models=[model])
    ready = threading.Event()

    async def announce(_runtime: Runtime) -> None:
        ready.set()

    server = Server(app, settings, announce=announce)
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
    """Return the server's refusal once it stops taking requests; until then the agent is busy."""
    async with asyncio.timeout(LIMIT):
        while True:
            response = await http.post(
                f"/v1/agents/{agent_id}/messages", json={"input": "And now?"}
            )
            if response.status_code == 503:
                return response.text
            await asyncio.sleep(0.02)


async def test_at_shutdown_a_running_turn_may_finish_and_no_other_begins(tmp_path: Path) -> None:
    asked, answering = threading.Event(), threading.Event()

    async def answer(_request: ModelRequest) -> str:
        asked.set()
        await asyncio.to_thread(answering.wait, LIMIT)
        return "Here I am."

    with running(tmp_path, ScriptedModel(answer), shutdown_grace=LIMIT) as (server, address):
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


async def test_an_unfinished_turn_is_stopped_after_the_grace_period_and_its_reader_is_told(
    tmp_path: Path,
) -> None:
    async def answer(_request: ModelRequest) -> str:
        await asyncio.Event().wait()
        return "never"

    with running(tmp_path, ScriptedModel(answer), shutdown_grace=0.2) as (server, address):
        async with httpx2.AsyncClient(base_url=address, trust_env=False, timeout=LIMIT) as http:
            lines = _begin(http, await _ask(http))
            first = await anext(lines)
            server.should_exit = True
            told = "".join([first, *[line async for line in lines]])
    assert '"message_type":"error_message"' in told
    assert told.endswith("data: [DONE]")


@pytest.mark.usefixtures("quiet_logs")
def test_a_background_server_has_its_own_port_and_releases_the_folder(
    tmp_path: Path,
) -> None:
    settings = Settings(data_dir=tmp_path, find_local_models=False, api_key=None, host="127.0.0.1")
    providers = ProviderSettings.model_construct()
    for _ in range(2):
        with background_server(settings, providers) as address:
            assert httpx2.get(f"{address}/v1/agents/", trust_env=False).json() == []
            refused = r"Another Ricordo server is using .* give its address with --server"
            with pytest.raises(Conflict, match=refused), background_server(settings, providers):
                pass
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(address, trust_env=False)


def test_an_invalid_host_is_refused_and_a_used_port_is_named() -> None:
    for host, sentence in (
        ("192.0.2.1", "192.0.2.1 is not an address of this machine"),
        ("nowhere.invalid", 'The host "nowhere.invalid" is unknown'),
    ):
        with pytest.raises(Unavailable, match=sentence), listening(host, 0):
            pass
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with (
            pytest.raises(Unavailable, match=f"Port {port} of 127.0.0.1 is in use"),
            listening("127.0.0.1", port),
        ):
            pass


def test_every_address_of_a_name_gets_the_same_port_and_releases_it() -> None:
    with listening("localhost", 0) as sockets:
        (port,) = {opened.getsockname()[1] for opened in sockets}
        assert port != 0
        assert "127.0.0.1" in {opened.getsockname()[0] for opened in sockets}
    with listening("localhost", port):
        pass


def test_addresses_are_printed_as_callable_urls() -> None:
    assert address_of("0.0.0.0", 80) == "http://127.0.0.1:80"  # noqa: S104
    assert address_of("::1", 80) == "http://[::1]:80"
    assert address_of("nina.local", 8283) == "http://nina.local:8283"


@pytest.mark.parametrize(
    ("proxies", "scheme"),
    [("127.0.0.1", "https"), ("10.0.0.0/8,127.0.0.0/8", "https"), ("10.0.0.0/8", "http")],
)
def test_only_a_trusted_proxy_can_say_that_the_browser_uses_https(
    tmp_path: Path, proxies: str, scheme: str
) -> None:
    """Seen from a container, a proxy on the host has the address of a bridge."""
    with running(tmp_path, ScriptedModel("ok"), trusted_proxies=proxies) as (_, url):
        answer = httpx2.get(
            f"{url}/v1/agents", headers={"x-forwarded-proto": "https"}, trust_env=False
        )
    assert answer.headers["location"].partition(":")[0] == scheme


HEAPS = """
import ctypes, sys, threading
if sys.argv[1:]:
    from ricordo.cli.heaps import limit_heaps
    limit_heaps()
meeting = threading.Barrier(8)

def live():
    kept = [bytes(5000) for _ in range(100)]
    meeting.wait()

threads = [threading.Thread(target=live) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
library = ctypes.CDLL(None)
library.fopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(library.fopen(b"heaps.xml", b"w"))
library.malloc_info(0, file)
library.fclose(file)
print(open("heaps.xml").read().count("<heap nr="))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc")
def test_threads_share_two_heaps(tmp_path: Path) -> None:
    """With a heap for each thread, every thread of a burst kept the memory that it had used.

    That was 24 of 186 MB after 200 turns of students.
    """
    variables = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}
    counts = [
        int(
            subprocess.run(
                [sys.executable, "-c", HEAPS, *how],
                cwd=tmp_path,
                env=variables,
                check=True,
                capture_output=True,
            ).stdout
        )
        for how in ([], ["limited"])
    ]
    assert counts[0] > counts[1] == 2
