"""Work on large inputs, outside the event loop.

A thread that parses shares the interpreter's lock with the event loop, and so delays it. The work
must therefore take linear time, and the size of its input must be limited.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from importlib import import_module
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")
_WORKS_AT_ONCE = 2
_GATES: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Semaphore]] = (
    WeakKeyDictionary()
)

# Bytes. Smaller inputs cost less to handle directly than to pass to a thread.
SMALL = 64 * 1024
# Two threads, since each working thread delays the loop by the interpreter's switch interval.
_THREADS = ThreadPoolExecutor(2, "offload")
# Modules by name. Each was imported completely by a thread.
_IMPORTED: dict[str, Any] = {}


def few_at_once(kind: str = "comparisons") -> asyncio.Semaphore:
    """Return a semaphore that lets two pieces of work of this kind run at once.

    Enter it with `async with`. It is meant for work on long texts, which takes a second. Short work
    needs another `kind`, so that it does not wait for long work.

    Args:
        kind: A name for work that competes. Each event loop has one semaphore of each name.
    """
    gates = _GATES.setdefault(asyncio.get_running_loop(), {})
    return gates.setdefault(kind, asyncio.Semaphore(_WORKS_AT_ONCE))


async def offload(work: Callable[[], T], size: int) -> T:
    """Run the work, and return its result.

    An input of at most `SMALL` bytes is handled directly, and a larger one in a thread.

    Args:
        work: The work, with its input bound to it. In a thread it sees the caller's context
            variables.
        size: The bytes of its input.
    """
    if size <= SMALL:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_THREADS, copy_context().run, work)


async def import_in_thread(module: str) -> Any:
    """Import a module in a thread, and return it.

    It is meant for modules whose import would take too long at the start or on the event loop.

    Args:
        module: The full name of the module.

    Raises:
        ImportError: The module cannot be imported.
    """
    if module not in _IMPORTED:
        _IMPORTED[module] = await asyncio.to_thread(import_module, module)
    return _IMPORTED[module]
