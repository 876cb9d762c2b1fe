"""Programs in the sandbox: input, output, limits, network access, and leftovers."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from ricordo.app import open_runtime
from ricordo.errors import Forbidden, Invalid, Unavailable
from ricordo.sandbox import process as sandbox_process
from ricordo.sandbox.backends import Confinement, Landlock, candidates, why_none
from ricordo.sandbox.options import SandboxSettings
from ricordo.sandbox.service import (
    Sandbox,
    SandboxCall,
    SandboxLimits,
    examine_sandbox,
)
from ricordo.sandbox.slots import Slot, Slots
from ricordo.sandbox.watch import descendants
from ricordo.settings import ProviderSettings, Settings
from ricordo.storage.engine.work_folders import FOLDER, sweep
from tests.support.sandboxes import bubblewrap

# Tests with this mark share one event loop, because they share one sandbox.
in_one_loop = pytest.mark.asyncio(loop_scope="module")
BACKENDS = ("bubblewrap", "landlock")
ANSWERS = (
    "import json, os, sys\nasked = json.load(sys.stdin)\nos.write(3, json.dumps({'sum': "
    "asked['one'] + 1}).encode())"
)


def opened(data_dir: Path, **options: Any) -> Sandbox:
    bubblewrap()
    return Sandbox(Settings(data_dir=data_dir), SandboxSettings(**options))


@pytest_asyncio.fixture(params=BACKENDS, scope="module", loop_scope="module")
async def sandbox(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Sandbox]:
    made = opened(tmp_path_factory.mktemp("sandbox") / "data", sandbox=request.param)
    yield made
    await made.close()


@in_one_loop
async def test_a_program_gets_its_request_and_files_and_returns_its_answer_and_output(
    sandbox: Sandbox,
) -> None:
    said: list[tuple[str, bytes]] = []
    result = await sandbox.run_python(
        f"{ANSWERS}\nprint(open('notes/a.txt').read())\nprint(os.environ['NAME'], file=sys.stderr)",
        b'{"one": 1}',
        files={"notes/a.txt": "Grüße".encode()},
        environment={"NAME": "Ada"},
        on_output=lambda stream, text: said.append((stream, text)),
    )
    assert (result.exit_code, result.answer, result.stdout, result.stderr) == (
        0,
        b'{"sum": 2}',
        "Grüße\n".encode(),
        b"Ada\n",
    )
    assert sorted(said) == [("stderr", b"Ada\n"), ("stdout", "Grüße\n".encode())]
    result = await sandbox.run(SandboxCall(("sh", "-c", "cat; pwd; exit 3"), stdin=b"in "))
    assert (result.exit_code, result.stdout.startswith(b"in /")) == (3, True)


@in_one_loop
async def test_an_exception_of_a_program_is_shown_with_the_programs_own_lines(
    sandbox: Sandbox,
) -> None:
    result = await sandbox.run_python("def halve(n):\n    return n / 0\nhalve(1)", b"")
    assert result.exit_code == 1
    assert result.stderr.decode().splitlines()[:3] == [
        "Traceback (most recent call last):",
        '  File "<program>", line 3, in <module>',
        "    halve(1)",
    ]
    assert "launcher" not in result.stderr.decode()
    assert (
        b"is not there in the sandbox"
        in (await sandbox.run(SandboxCall(("no-such-program",)))).stderr
    )


@in_one_loop
async def test_each_call_has_its_own_process_and_workspace(sandbox: Sandbox) -> None:
    program = (
        "import os\nprint(os.path.exists('seen'), len(os.listdir('.')))\nopen('seen', "
        "'w').write('x')"
    )
    results = await asyncio.gather(*(sandbox.run_python(program, b"") for _ in range(4)))
    assert {result.stdout for result in results} == {b"False 0\n"}


@in_one_loop
async def test_folders_of_any_depth_are_removed_with_their_workspace(sandbox: Sandbox) -> None:
    program = (
        "import os\nfor _ in range(1500):\n    os.mkdir('d')\n    os.chdir('d')\nopen('x', "
        "'w').write('x')\nprint('made')"
    )
    for _ in range(2):
        assert (await sandbox.run_python(program, b"")).stdout == b"made\n"
    await sandbox.close()
    assert (await sandbox.run_python("print(1)", b"")).stdout == b"1\n"


@in_one_loop
async def test_a_file_outside_the_workspace_is_refused(sandbox: Sandbox) -> None:
    for path in ("/etc/x", "../x", "a/../../x", ""):
        with pytest.raises(Invalid, match="within its workspace"):
            await sandbox.run_python("", b"", files={path: b"x"})


@in_one_loop
async def test_a_cancelled_call_ends_its_program_and_the_next_one_runs(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    began = asyncio.Event()
    (tmp_path / "mark").mkdir()
    call = sandbox.run_python(
        "import time; print('on', flush=True); time.sleep(500)",
        b"",
        readable=(tmp_path / "mark",),
        on_output=lambda *_: began.set(),
    )
    task = asyncio.create_task(call)
    await asyncio.wait_for(began.wait(), 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await sandbox.run_python("print(1)", b"")).stdout == b"1\n"
    await sandbox.close()
    assert running(str(tmp_path / "mark")) == []


def running(words: str) -> list[str]:
    listed = subprocess.run(
        ["ps", "-eo", "args"], capture_output=True, text=True, check=True
    ).stdout
    return [line[:200] for line in listed.splitlines() if words in line]


@in_one_loop
async def test_a_long_running_program_can_be_talked_to_and_ends_with_its_block(
    sandbox: Sandbox,
) -> None:
    limits = SandboxLimits(cpu_seconds=0, seconds=0)
    async with sandbox.open(SandboxCall(("cat",), limits=limits)) as process:
        for line in (b"one\n", b"two\n"):
            process.stdin.write(line)
            assert await asyncio.wait_for(process.stdout.readline(), 10) == line
    assert not process.is_running


async def test_a_network_that_does_not_open_in_time_makes_the_sandbox_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = opened(tmp_path, sandbox="bubblewrap", sandbox_network=True)
    await sandbox.run_python("", b"", has_network=True)
    # Two processes are confined before the change, so only the wait for their network can exceed
    # its time limit.
    ready = [task for tasks in sandbox._warm.values() for task in tasks]
    await asyncio.gather(*ready)
    monkeypatch.setattr(sandbox_process, "_READY", 0)
    with pytest.raises(Unavailable, match="The sandbox could not start"):
        await sandbox.run_python("", b"", has_network=True)
    with pytest.raises(Unavailable, match="The sandbox could not start"):
        async with sandbox.open(SandboxCall(has_network=True), "pass"):
            pass
    await sandbox.close()
    assert not any([(await task).is_running for task in ready])


async def test_calls_beyond_the_limit_wait_or_are_refused(tmp_path: Path) -> None:
    sandbox = opened(tmp_path, sandbox_calls=1)
    began = asyncio.Event()
    sleeps = "import time; print('on', flush=True); time.sleep(500)"
    slow = asyncio.create_task(sandbox.run_python(sleeps, b"", on_output=lambda *_: began.set()))
    await asyncio.wait_for(began.wait(), 20)
    with pytest.raises(Unavailable, match="RICORDO_SANDBOX_CALLS"):
        await sandbox.run_python("", b"", limits=SandboxLimits(seconds=0.05))
    slow.cancel()
    await asyncio.wait([slow])
    assert (await sandbox.run_python("", b"")).exit_code == 0
    await sandbox.close()


async def test_an_opened_program_counts_as_a_call_except_while_it_waits(tmp_path: Path) -> None:
    sandbox = opened(tmp_path, sandbox_calls=1)
    short = SandboxLimits(seconds=0.05)
    async with sandbox.open(SandboxCall(("cat",))) as process:
        with pytest.raises(Unavailable, match="RICORDO_SANDBOX_CALLS"):
            await sandbox.run_python("", b"", limits=short)
        with pytest.raises(Unavailable, match="RICORDO_SANDBOX_CALLS"):
            async with sandbox.open(SandboxCall(("cat",), limits=short)):
                pass
        async with process.waiting():
            assert (await sandbox.run_python("", b"")).exit_code == 0
        with pytest.raises(Unavailable, match="RICORDO_SANDBOX_CALLS"):
            await sandbox.run_python("", b"", limits=short)
    with pytest.raises(KeyError):
        async with sandbox.open(SandboxCall(("cat",))) as process, process.waiting():
            raise KeyError
    # The limit does not count programs without a time limit.
    async with sandbox.open(SandboxCall(("cat",), limits=SandboxLimits(seconds=0))):
        assert (await sandbox.run_python("", b"")).exit_code == 0
    await sandbox.close()


ASK = """
import os, sys, threading, urllib.request
def ask(url):
    print(urllib.request.urlopen(url, timeout=30).read().decode(), flush=True)
asking = [threading.Thread(target=ask, args=(url,)) for url in sys.stdin.read().split()]
[one.start() for one in asking]
[one.join() for one in asking]
"""


@pytest.mark.parametrize("begins_early", [False, True])
async def test_a_program_that_waits_for_its_server_leaves_its_slot_to_the_programs_it_causes(
    tmp_path: Path, *, begins_early: bool
) -> None:
    """The answer may begin early, as a stream does, and several may be awaited at once."""
    sandbox = opened(tmp_path, sandbox="bubblewrap", sandbox_calls=1)
    short = SandboxLimits(seconds=8)
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if begins_early:
            writer.write(head)
        inner = await sandbox.run_python("print('inner')", b"", limits=short)
        writer.write((b"" if begins_early else head) + inner.stdout.strip())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    ours = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    outer = SandboxLimits(seconds=20)
    urls = f"{ours}/a {ours}/b".encode()
    result = await sandbox.run_python(ASK, urls, limits=outer, may_call_server=ours)
    assert result.stdout.split() == [b"inner", b"inner"], result
    # The program has exactly one slot again afterwards, and gives it back.
    gate = asyncio.create_task(sandbox.run_python("import time; time.sleep(500)", b""))
    await asyncio.sleep(0.5)
    with pytest.raises(Unavailable, match="RICORDO_SANDBOX_CALLS"):
        await sandbox.run_python("", b"", limits=SandboxLimits(seconds=0.05))
    gate.cancel()
    await asyncio.wait([gate])
    server.close()
    await sandbox.close()


async def test_a_program_with_one_of_two_answers_still_leaves_its_slot_to_the_other(
    tmp_path: Path,
) -> None:
    sandbox = opened(tmp_path, sandbox="bubblewrap", sandbox_calls=1)
    has_first = asyncio.Event()
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.3)
        if b" /first " in request:
            writer.write(head + b"first")
            has_first.set()
        else:
            await has_first.wait()
            await asyncio.sleep(0.3)
            limits = SandboxLimits(seconds=8)
            inner = await sandbox.run_python("print('second')", b"", limits=limits)
            writer.write(head + inner.stdout.strip())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    ours = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    urls = f"{ours}/first {ours}/second".encode()
    limits = SandboxLimits(seconds=20)
    result = await sandbox.run_python(ASK, urls, limits=limits, may_call_server=ours)
    assert result.stdout.split() == [b"first", b"second"], result
    server.close()
    await sandbox.close()


async def test_a_wait_that_ends_after_its_program_takes_no_slot() -> None:
    slots = Slots(1)
    slot = Slot(slots)
    await slot.take()
    async with slot.left():
        slot.close()
    await asyncio.wait_for(Slot(slots).take(), 10)

    other = Slot(slots)
    taking = asyncio.create_task(other.take())
    await asyncio.sleep(0)
    other.close()
    slots.free.release()
    await taking
    await asyncio.wait_for(slots.free.acquire(), 10)


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"{self.path} {self.headers.get('authorization')}".encode())

    def log_message(self, *_: Any) -> None:
        pass


FETCH = """
import urllib.request, urllib.error, sys
for url in sys.stdin.read().split():
    try:
        asked = urllib.request.Request(url, headers={"Authorization": "Bearer k"})
        print(urllib.request.urlopen(asked, timeout=10).read().decode())
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode().strip())
    except urllib.error.URLError as error:
        print(error.reason)
"""


BY_HAND = """
import os, socket, sys
from urllib.parse import urlsplit
ours, proxy = sys.stdin.read(), urlsplit(os.environ["HTTP_PROXY"])
def send(text):
    with socket.create_connection((proxy.hostname, proxy.port)) as opened:
        opened.sendall(text.encode())
        answer = b""
        while part := opened.recv(4096):
            answer += part
        return answer.decode()
end = "\\r\\n\\r\\n"
print(send(f"GET {ours}/x HTTP/1.1\\r\\nHost: x\\r\\nAUTHORIZATION: Bearer mine\\r\\nCookie: ricordo_session=x{end}").split(end)[1])
print(send(f"GET {ours}/x HTTP/1.1\\r\\nA: b\\nAuthorization: Bearer mine{end}")[9:12],
      send(f"CONNECT {urlsplit(ours).netloc} HTTP/1.1{end}")[9:12])
"""


async def test_only_the_named_local_address_and_public_addresses_can_be_reached(
    tmp_path: Path,
) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    ours = f"http://127.0.0.1:{server.server_port}"
    sandbox = opened(tmp_path, sandbox="bubblewrap", sandbox_network=True)

    async def fetch(url: str, program: str = FETCH, **how: Any) -> str:
        return (await sandbox.run_python(program, url.encode(), **how)).stdout.decode()

    assert await fetch(f"{ours}/v1/agents?x=1", may_call_server=ours) == "/v1/agents?x=1 Bearer k\n"
    with_key = {"may_call_server": ours, "server_key": "of this call"}
    assert await fetch(f"{ours}/x", **with_key) == "/x Bearer of this call\n"
    assert await fetch(ours, program=BY_HAND, **with_key) == "/x Bearer of this call\n403 403\n"
    assert "Permission denied" in await fetch(f"{ours}/")
    for how in ({"may_call_server": "http://127.0.0.1:1"}, {"has_network": True}):
        assert "403" in await fetch(f"{ours}/", **how)
    hosts = (
        "localhost",
        "169.254.169.254",
        "[::1]",
        "10.0.0.1",
        "2130706433",
        "0x7f.1",
        "[::ffff:127.0.0.1]",
        "100.100.100.200",
    )
    urls = [f"{scheme}://{host}/" for host in hosts for scheme in ("http", "https")]
    answers = (await fetch("\n".join(urls), has_network=True)).splitlines()
    assert [url for url, answer in zip(urls, answers, strict=True) if "403" not in answer] == []
    assert "ports 80 and 443" in await fetch("http://93.184.216.34:22/", has_network=True)
    await sandbox.close()
    server.shutdown()
    server.server_close()


async def test_without_the_operators_setting_there_is_no_network(tmp_path: Path) -> None:
    sandbox = opened(tmp_path)
    with pytest.raises(Forbidden, match="RICORDO_SANDBOX_NETWORK=true"):
        await sandbox.run_python("", b"", has_network=True)
    other = opened(tmp_path, sandbox="landlock", sandbox_network=True)
    with pytest.raises(Unavailable, match="install bubblewrap"):
        await other.run_python("", b"", has_network=True)
    for each in (sandbox, other):
        await each.close()


async def test_without_any_sandbox_code_is_refused_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr("ricordo.sandbox.backends.landlock_version", lambda: 0)
    sandbox = Sandbox(Settings(data_dir=tmp_path), SandboxSettings())
    why = sandbox.why_not()
    assert why is not None
    assert "apt-get install bubblewrap" in why
    with pytest.raises(Unavailable, match="Code cannot be run here: bubblewrap is not installed"):
        await sandbox.run_python("print(1)", b"")
    assert candidates("auto", tmp_path) == []
    assert "Linux 6.2" in why_none("landlock")
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\necho 'bwrap: No permission to make namespaces' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(
        Unavailable, match=r"No permission to make namespaces.* and landlock needs Linux"
    ):
        await sandbox.run_python("print(1)", b"")
    unsafe = Sandbox(Settings(data_dir=tmp_path), SandboxSettings(sandbox="none-i-accept-the-risk"))
    assert unsafe.why_not() is None
    assert (await unsafe.run_python("print(1)", b"")).stdout == b"1\n"
    await unsafe.close()


async def test_a_call_cancelled_while_its_process_starts_leaves_no_process(
    tmp_path: Path,
) -> None:
    bubblewrap()
    before = set(descendants(os.getpid()))
    sandbox = Sandbox(Settings(data_dir=tmp_path), SandboxSettings())
    await sandbox.run_python("print(1)", b"")  # further processes start, and wait for a call
    calls = [asyncio.create_task(sandbox.run_python("print(1)", b"")) for _ in range(4)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for call in calls:
        call.cancel()
    assert all(
        isinstance(end, asyncio.CancelledError)
        for end in await asyncio.gather(*calls, return_exceptions=True)
    )
    assert (await sandbox.run_python("print(2)", b"")).stdout == b"2\n"
    await sandbox.close()
    async with asyncio.timeout(10):
        while set(descendants(os.getpid())) - before:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("missing", ["workspaces", "interpreter"])
async def test_a_process_that_cannot_start_leaves_no_descriptor_and_no_folder(
    missing: str, tmp_path: Path
) -> None:
    backend = Landlock(abi=6)
    workspaces = tmp_path / "workspaces"
    confinement = Confinement(Path(sys.executable))
    if missing == "interpreter":
        workspaces.mkdir()
        confinement = Confinement(tmp_path / "python")
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        with pytest.raises(Unavailable, match="could not start: No such file or directory"):
            await sandbox_process.start(backend, confinement, workspaces)
    assert len(os.listdir("/proc/self/fd")) == len(before)
    assert list(tmp_path.rglob("*")) == [workspaces] * (missing == "interpreter")


async def test_a_servers_sandbox_ends_with_the_server(tmp_path: Path) -> None:
    bubblewrap()
    before = set(descendants(os.getpid()))
    settings = Settings(data_dir=tmp_path)
    async with open_runtime(settings, ProviderSettings()) as runtime:
        await runtime.sandbox.run_python("print(1)", b"")
        assert set(descendants(os.getpid())) - before
    assert not set(descendants(os.getpid())) - before


def test_doctor_says_which_sandbox_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bubblewrap()
    assert examine_sandbox(Settings(data_dir=tmp_path)) == "bubblewrap, without network"
    monkeypatch.setenv("RICORDO_SANDBOX", "none-i-accept-the-risk")
    assert examine_sandbox(Settings(data_dir=tmp_path)).startswith(
        "!none: code of users and models can read"
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_killed_server_leaves_no_process_and_the_next_one_cleans_its_workspaces(
    backend: str, tmp_path: Path, quick_command: Sequence[str]
) -> None:
    bubblewrap()
    (tmp_path / "mark").mkdir()
    (tmp_path / "data").mkdir()
    program = f"""
import asyncio, sys
from pathlib import Path
from ricordo.sandbox.options import SandboxSettings
from ricordo.sandbox.service import Sandbox, SandboxCall
from ricordo.settings import Settings
async def main():
    sandbox = Sandbox(Settings(data_dir=Path({str(tmp_path)!r}) / "data"), SandboxSettings(sandbox={backend!r}))
    sleeps = "import os, time; os.fork(); print('on', flush=True); time.sleep(700)"
    show = lambda *_: print("on", flush=True)
    await sandbox.run_python(sleeps, b"", readable=(Path({str(tmp_path / "mark")!r}),), on_output=show)
asyncio.run(main())
"""
    with subprocess.Popen(
        [*quick_command, "-c", program], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout
        assert server.stdout.readline() == "on\n"
        server.send_signal(signal.SIGKILL)
    left = [
        Path(note.read_text()) for note in (tmp_path / "data" / FOLDER).glob("sandbox-*.elsewhere")
    ]
    # Under bubblewrap the workspace is in main memory.
    assert [folder.is_dir() for folder in left] == [True] * (backend == "landlock")
    for _ in range(100):
        if not running(str(tmp_path / "mark")):
            break
        with contextlib.suppress(TimeoutError):
            threading.Event().wait(0.05)
    assert running(str(tmp_path / "mark")) == []

    async def next_one() -> None:
        for _ in range(100):
            # Every start of a server sweeps too.
            sweep(tmp_path / "data")
            if not any(folder.exists() for folder in left):
                break
            # The last process of the killed server may hold the lock for a moment.
            await asyncio.sleep(0.05)
        sandbox = opened(tmp_path / "data", sandbox="landlock")
        await sandbox.run_python("", b"")
        mine = sandbox._folder()
        assert not any(folder.exists() for folder in left)
        await sandbox.close()
        assert not mine.exists()

    asyncio.run(next_one())
