"""Child processes behave the same on a server's loop and on Python's own."""

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from ricordo.sandbox.child import STDOUT, start_child


async def read_and_write() -> None:
    child = await start_child(["/bin/cat"])
    assert child.stdin
    assert child.stdout
    child.stdin.write(b"Hello.\n" * 100_000)
    written = asyncio.create_task(child.stdin.drain())
    assert await child.stdout.readline() == b"Hello.\n"
    child.stdin.close()
    assert len(await child.stdout.read()) == 7 * 99_999
    await written
    assert (await child.wait(), child.returncode) == (0, 0)
    child.close()


async def report_exit_codes() -> None:
    for program, code in (
        ("raise SystemExit(3)", 3),
        ("import os, signal; os.kill(os.getpid(), 15)", -15),
    ):
        child = await start_child([sys.executable, "-S", "-c", program])
        assert await child.wait() == code
        child.close()


async def continue_after_a_cancelled_wait() -> None:
    child = await start_child(["/bin/sleep", "60"])
    waiting = asyncio.create_task(child.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert (waiting.cancelled(), child.returncode) == (True, None)
    child.kill()
    assert await child.wait() == -signal.SIGKILL
    child.close()


async def merge_errors_into_output() -> None:
    child = await start_child(["/bin/sh", "-c", "echo one; echo two >&2"], stderr=STDOUT)
    assert child.stdout
    assert await child.stdout.read() == b"one\ntwo\n"
    assert child.stderr is None
    assert await child.wait() == 0
    child.close()


async def refuse_a_missing_program() -> None:
    with pytest.raises(FileNotFoundError):
        await start_child(["/nothing/here"])


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_child_process_behaves_like_an_asyncio_subprocess_on_both_loops(
    loop_factory: Callable[[], Any],
) -> None:
    works: tuple[Callable[[], Coroutine[Any, Any, None]], ...] = (
        read_and_write,
        report_exit_codes,
        continue_after_a_cancelled_wait,
        merge_errors_into_output,
        refuse_a_missing_program,
    )
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        for work in works:
            runner.run(work())
