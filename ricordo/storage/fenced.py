"""The store as a job may use it: every write sees first that the job is still its worker's, and else changes nothing.

A server that was frozen and wakes up does not know that another took its job over. Its next write tells it.
"""

from collections.abc import Callable
from typing import TypeVar

from ricordo.domain.job import Job
from ricordo.errors import LeaseLost
from ricordo.storage import jobs
from ricordo.storage.store import Store, Transaction

T = TypeVar("T")


class FencedStore:
    """A store whose writes raise LeaseLost once the job was taken over, cancelled or ended. Reads are as ever."""

    def __init__(self, store: Store, job: Job) -> None:
        self.clock = store.clock
        self._store = store
        self._job = job

    async def read(self, work: Callable[[Transaction], T]) -> T:
        """As the store does."""
        return await self._store.read(work)

    async def write(self, work: Callable[[Transaction], T]) -> T:
        """As the store does, while the job is held; nobody can take it over before this is committed."""

        def fenced(tx: Transaction) -> T:
            if not jobs.lock(tx, self._job):
                raise LeaseLost(f"{self._job.id} goes on elsewhere, or was cancelled. This server has stopped it.")
            return work(tx)

        # Slow writes are logged by the name of what they do.
        fenced.__qualname__ = getattr(work, "__qualname__", repr(work))
        return await self._store.write(fenced)

    async def close(self) -> None:
        """Nothing: the store is closed by whoever opened it."""
