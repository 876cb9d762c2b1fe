"""Connecting to whichever address of a name answers first: one that is dead must not hold up the others."""

import asyncio
import socket

HEAD_START = 0.25  # seconds that an address has before the next one is tried beside it


async def dial(host: str, port: int) -> socket.socket:
    """A connected socket that waits for nothing; raises OSError where no address of the host takes the connection."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    untried = _interleaved(list(dict.fromkeys((family, address) for family, _, _, _, address in found)))
    running: set[asyncio.Task[socket.socket]] = set()
    error: OSError = OSError(f"{host} has no address.")
    try:
        while untried or running:
            if untried:
                running.add(asyncio.create_task(_connected(*untried.pop(0))))
            done, running = await asyncio.wait(
                running, timeout=HEAD_START if untried else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                if isinstance(failed := task.exception(), OSError):
                    error = failed
                else:
                    return task.result()
        raise error
    finally:
        for task in running:
            task.cancel()
            task.add_done_callback(_let_go)


async def _connected(family: int, address: tuple[str, int]) -> socket.socket:
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setblocking(False)
        await asyncio.get_running_loop().sock_connect(opened, address)
    except BaseException:
        opened.close()
        raise
    return opened


def _let_go(task: "asyncio.Task[socket.socket]") -> None:
    # It came second.
    if not task.cancelled() and task.exception() is None:
        task.result().close()


def _interleaved(addresses: list[tuple[int, tuple[str, int]]]) -> list[tuple[int, tuple[str, int]]]:
    """The families in turns, so that where one of them does not work the second try is of the other."""
    first = [one for one in addresses if one[0] == addresses[0][0]]
    other = [one for one in addresses if one[0] != addresses[0][0]]
    mixed = [one for pair in zip(first, other, strict=False) for one in pair]
    return mixed + first[len(other) :] + other[len(first) :]
