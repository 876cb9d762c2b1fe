"""Large inputs are processed in a thread outside the event loop, small ones at once."""

import asyncio
import threading

import pytest

from ricordo.offload import SMALL, offload


async def test_only_large_inputs_run_in_another_thread() -> None:
    here = threading.get_ident()

    assert await offload(threading.get_ident, SMALL) == here
    assert await offload(threading.get_ident, SMALL + 1) != here


async def test_errors_are_raised_in_the_caller() -> None:
    with pytest.raises(ZeroDivisionError):
        await offload(lambda: 1 // 0, SMALL + 1)


async def test_the_event_loop_continues_and_at_most_two_inputs_run_at_once() -> None:
    at_work, most, lock, go = 0, 0, threading.Lock(), threading.Event()

    def work() -> None:
        nonlocal at_work, most
        with lock:
            at_work += 1
            most = max(most, at_work)
        go.wait(10)
        with lock:
            at_work -= 1

    waiting = [asyncio.ensure_future(offload(work, SMALL + 1)) for _ in range(5)]
    await asyncio.sleep(0.05)
    go.set()
    await asyncio.gather(*waiting)

    assert 1 <= most <= 2
