"""One run of an import from the retired Letta V1 server: what was taken already, and how each further thing is."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import islice

from pydantic import ValidationError
from starlette.requests import Request

from ricordo.api.call import CallContext
from ricordo.domain.job import Report
from ricordo.domain.scope import Scope
from ricordo.errors import Conflict, Forbidden, Invalid, NotFound
from ricordo.features.imports import queries
from ricordo.features.imports.letta_tables import BATCH, LettaTables, Row
from ricordo.features.imports.queries import Outcome
from ricordo.runtime import Runtime
from ricordo.storage.engine.store import Transaction

SOURCE = "letta"
Work = Callable[[Transaction, Outcome], None]
# They say that one thing cannot be taken. With any other error the run ends, and the next goes on.
REFUSALS = (
    Invalid,
    Conflict,
    NotFound,
    Forbidden,
    ValidationError,
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
)


class LettaRun:
    """Where things come from and where they go. `refused` is what cannot be taken now, which the next run tries again."""

    def __init__(self, runtime: Runtime, scope: Scope, letta: LettaTables, report: Report) -> None:
        self.runtime, self.scope, self.store, self.organization = (
            runtime,
            scope,
            runtime.store,
            scope.organization_id,
        )
        self.context = CallContext(Request({"type": "http"}), runtime, scope)
        self.refused = Outcome()
        self.done: set[str] = set()
        self.users: dict[str, str] = {}  # ids of users by those of identities
        self._letta, self._report, self._progress, self._total = letta, report, 0, 0

    async def begin(self, counted: Iterable[str]) -> None:
        """Read what was taken before; the rows of the counted tables are the progress."""
        self.done = {
            *await self.store.read(lambda tx: queries.done_items(tx, self.organization, SOURCE))
        }
        self._total = sum([await self.count(name) for name in counted])

    async def count(self, table: str) -> int:
        return await asyncio.to_thread(self._letta.count, table)

    async def batches(
        self, table: str, columns: str, *, order: str = "", size: int = BATCH, **equal: str
    ) -> AsyncIterator[list[Row]]:
        """Yield rows as `LettaTables.rows` does, so many at a time."""
        rows = self._letta.rows(table, columns, order=order, **equal)
        while batch := await asyncio.to_thread(_some, rows, size):
            yield batch

    async def rows(self, table: str, columns: str, *, order: str = "", **equal: str) -> list[Row]:
        """Return all rows: of a table that is never long, or has few with these values."""
        return await asyncio.to_thread(
            lambda: [*self._letta.rows(table, columns, order=order, **equal)]
        )

    def id(self, kind: str, theirs: str) -> str:
        return queries.kept_id(self.organization, kind, theirs)

    def step(self, count: int = 1) -> None:
        self._progress += count
        self._report(min(self._progress, self._total), max(self._total, 1))

    async def once(self, item: str, kind: str, name: str, work: Work) -> bool:
        """Take something in one transaction, unless it was taken; False where it cannot be, which is noted with the reason."""
        if item in self.done:
            return True

        def take(tx: Transaction) -> None:
            outcome = Outcome()
            work(tx, outcome)
            queries.insert_item(tx, self.scope, SOURCE, item, outcome)

        try:
            await self.store.write(take)
        except REFUSALS as error:
            self.refused.leave(kind, str(name), reason_of(error))
            return False
        self.done.add(item)
        return True


def reason_of(error: BaseException) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    is_ours = isinstance(error, Invalid | Conflict | NotFound | Forbidden)
    return (
        str(error) if is_ours else f"it cannot be read ({type(error).__name__}: {str(error)[:100]})"
    )


def _some(rows: Iterator[Row], size: int) -> list[Row]:
    return [*islice(rows, size)]
