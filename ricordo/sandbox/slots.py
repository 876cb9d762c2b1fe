"""The limit on programs that run in the sandbox at once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ricordo.errors import Unavailable


class Slots:
    """The slots of a sandbox: one for each program that may run at once."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.free = asyncio.Semaphore(count)


class Slot:
    """A program's right to run. The program gives it up while it waits for the server.

    A tool that the program calls may need a slot too. If waiting programs kept their slots, such a
    tool might never get one, and both would wait forever.
    """

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._is_taken = False
        self._taking = asyncio.Lock()
        self._waits = 0
        self._is_over = False

    async def take(self, seconds: float = 0) -> None:
        """Wait for a free slot, except if it is taken already or the program has ended.

        Args:
            seconds: The longest wait; 0: no limit.

        Raises:
            Unavailable: No slot became free in time.
        """
        try:
            async with asyncio.timeout(seconds or None), self._taking:
                if not self._is_taken and not self._is_over:
                    await self._slots.free.acquire()
                    self._is_taken = True
                    # Meanwhile another wait may have begun, or the program may have ended.
                    if self._waits or self._is_over:
                        self.give_up()
        except TimeoutError:
            raise Unavailable(
                f"{self._slots.count} programs are already running in the sandbox "
                "(RICORDO_SANDBOX_CALLS). Try again later."
            ) from None

    @asynccontextmanager
    async def left(self) -> AsyncIterator[None]:
        """Free the slot while the program waits for the server, and take it again afterwards.

        A program may wait for several answers at once. It takes the slot after the last of these
        waits, since an answer that is still missing may need the slot.
        """
        self._waits += 1
        self.give_up()
        try:
            yield
        finally:
            self._waits -= 1
        if not self._waits:
            await self.take()

    def close(self) -> None:
        """Free the slot after the program's end. A wait that ends later does not take it again."""
        self._is_over = True
        self.give_up()

    def give_up(self) -> None:
        """Free the slot, if it is taken."""
        if self._is_taken:
            self._is_taken = False
            self._slots.free.release()
