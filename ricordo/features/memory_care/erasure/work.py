"""The work of a job in portions; the state is saved with each portion.

Each portion is one transaction that also saves its counts. So after a kill any worker can continue,
and nothing is counted twice.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from ricordo.domain.clock import to_datetime
from ricordo.domain.job import Job, Report
from ricordo.errors import Collision, Unavailable
from ricordo.features.memory_care.erasure import queries
from ricordo.features.memory_care.erasure.files import note_sweep
from ricordo.features.memory_care.erasure.receipts import ErasureFacts
from ricordo.runtime import Runtime
from ricordo.search import rebuild
from ricordo.search.vector_index import portions
from ricordo.storage import jobs
from ricordo.storage.engine.database import folders_of
from ricordo.storage.engine.store import Transaction
from ricordo.storage.engine.work_folders import Sweep, sweep
from ricordo.storage.jobs import FencedStore
from ricordo.storage.scrub import scrub

_TRIES = 300
_PAUSE = 0.1  # seconds between two tries


S = TypeVar("S", bound=ErasureFacts)
# The work of one transaction; it returns True to be called again.
Portion = Callable[[Transaction, S], object]


class PortionedWork(Generic[S]):
    """Work in progress; `state` is its state, as its job saves it."""

    def __init__(self, runtime: Runtime, job: Job, report: Report, state: S) -> None:
        self.state = state
        self._runtime = runtime
        self._job = job
        self._report = report
        self._store = FencedStore(runtime.store, job)

    async def _each(
        self, change: Callable[..., object], items: Sequence[Any], size: int = queries.PORTION
    ) -> None:
        for portion in portions(items, size):
            await self._repeat(partial(change, items=portion))

    async def _repeat(self, portion: Portion[S]) -> None:
        while await self._write(portion):
            pass

    async def _write(self, portion: Portion[S]) -> bool:
        """Run one transaction, and save its results in it."""

        def work(tx: Transaction) -> tuple[S, bool]:
            state = self.state.model_copy(deep=True)
            is_more = portion(tx, state) is True
            # `+` removes counts of zero.
            state.removed = +state.removed
            state.changed = +state.changed
            if state != self.state:
                queries.save(tx, self._job.id, state)
            return state, is_more

        work.__qualname__ = "portioned work: a portion"
        self.state, is_more = await self._store.write(work)
        count = self.state.removed.total()
        self._report(count, count)
        return is_more

    async def _note_elsewhere(self, sentences: Iterable[str]) -> None:
        """Add sentences about data that remains to the receipt."""
        await self._write(lambda _tx, state: state.note_elsewhere(sentences))

    async def _finish(self, table_names: Iterable[str]) -> None:
        """Rewrite the files of these tables, from which rows were deleted, and end the work."""
        # Imports numpy, which a server loads at its first search.
        from ricordo.search.reader import drop_caches

        # The caches contain words of the user; they are filled again when needed.
        await self._store.write(drop_caches)
        remains = await scrub(self._store, table_names)

        def finish(tx: Transaction, state: S) -> None:
            state.note_elsewhere(remains)
            state.finished_at = to_datetime(tx.clock.now()).isoformat()

        await self._write(finish)

    async def _wait(
        self, work: Callable[[Transaction], Any], otherwise: str, transact: Any = None
    ) -> Any:
        """Repeat the work until it returns a true value, and return that value.

        `transact` runs each try; by default it is a read transaction. After all tries, raises
        Unavailable with the text `otherwise`.
        """
        for _ in range(_TRIES):
            with suppress(Collision):
                if outcome := await (transact or self._store.read)(work):
                    return outcome
            await asyncio.sleep(_PAUSE)
        raise Unavailable(otherwise)

    async def _flush(self, owner_id: str) -> None:
        """Remove the words of deleted documents from a partition of the index.

        Wait for a job that rebuilds the partition, and for texts that are just being embedded.
        """
        await self._wait(
            lambda tx: not queries.is_embedding(tx, owner_id),
            f"Texts of {owner_id} are being embedded. The erasure is tried again after that.",
        )
        job = await self._wait(
            partial(queries.claim_flush, erasure=self.state, owner_id=owner_id),
            f"The search index of {owner_id} is being rebuilt. It is retried after that.",
            self._store.write,
        )
        store = FencedStore(self._runtime.store, job)
        try:
            while await store.write(lambda tx: rebuild.drop_remains(tx, owner_id)):
                pass
            await self._runtime.indexing.fenced(job).flush(job, self._report)
        except BaseException:
            await self._runtime.store.write(lambda tx: jobs.put_back(tx, job))
            raise
        await self._runtime.store.write(lambda tx: jobs.finish(tx, job))

    async def _sweep_copies(self) -> None:
        """Remove remains of killed copies of the database, once no copy is in progress.

        A copy that is still being written may contain erased data. Each sweep is recorded, since
        the next one cannot find the removed files. Raises Unavailable.
        """
        settings = self._runtime.settings
        for _ in range(_TRIES):
            swept = await asyncio.to_thread(sweep, *folders_of(settings))
            await self._write(partial(_note_sweep, swept=swept, data_dir=settings.data_dir))
            if not swept.copies_in_use:
                return
            await asyncio.sleep(_PAUSE)
        raise Unavailable(
            "A copy of the database is being made, and it may hold this user's data. The "
            "erasure is tried again after that."
        )


def _note_sweep(_tx: Transaction, state: Any, swept: Sweep, data_dir: Path) -> None:
    note_sweep(state, swept, data_dir)
