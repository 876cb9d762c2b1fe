"""One run of an import from a Letta database: its records, its progress and its refusals."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import islice

from pydantic import ValidationError

from ricordo.agents.call_context import CallContext
from ricordo.domain.job import Report
from ricordo.domain.scope import Scope
from ricordo.errors import Conflict, Forbidden, Invalid, NotFound
from ricordo.features.documents.imports import queries
from ricordo.features.documents.imports.letta_tables import BATCH, LettaTables, Row
from ricordo.features.documents.imports.queries import Outcome
from ricordo.runtime import Runtime
from ricordo.storage.engine.store import Transaction

SOURCE = "letta"
Work = Callable[[Transaction, Outcome], None]
# Errors after which only one item is left out. Any other error ends the run; the next run
# continues.
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
    """One run of an import: its source, its target and its progress.

    `refused` notes items that cannot be imported now; the next run tries them again.
    """

    def __init__(self, runtime: Runtime, scope: Scope, letta: LettaTables, report: Report) -> None:
        self.runtime = runtime
        self.scope = scope
        self.store = runtime.store
        self.organization = scope.organization_id
        self.context = CallContext(runtime, scope)
        self.refused = Outcome()
        self.done: set[str] = set()
        self.users: dict[str, str] = {}  # user ids by identity ids
        self._letta = letta
        self._report = report
        self._progress = 0
        self._total = 0

    async def begin(self, tables: Iterable[str]) -> None:
        """Read the records of earlier runs, and count the rows of these tables for the progress.

        Args:
            tables: The names of the tables that the run imports.

        Raises:
            Unavailable: The Letta database cannot be read.
        """
        items = await self.store.read(lambda tx: queries.done_items(tx, self.organization, SOURCE))
        self.done = set(items)
        self._total = sum([await self.count(name) for name in tables])

    async def count(self, table: str) -> int:
        """Return the number of rows that are not deleted; 0 for a missing table.

        Args:
            table: The name of the table.

        Raises:
            Unavailable: The Letta database cannot be read.
        """
        return await asyncio.to_thread(self._letta.count, table)

    async def batches(
        self, table: str, columns: str, *, order: str = "", size: int = BATCH, **equal: str
    ) -> AsyncIterator[list[Row]]:
        """Yield rows as `LettaTables.rows` does, in lists of at most `size`.

        Args:
            table: The name of the table.
            columns: The names of the columns, separated by blanks.
            order: The names of the columns to sort by, separated by blanks; "" for any order.
            size: The most rows of a list.
            **equal: Values that the rows must have, by column.

        Raises:
            Unavailable: The database cannot be read.
        """
        rows = self._letta.rows(table, columns, order=order, **equal)
        while batch := await asyncio.to_thread(_next_batch, rows, size):
            yield batch

    async def rows(self, table: str, columns: str, *, order: str = "", **equal: str) -> list[Row]:
        """Return all rows of a query that yields few rows.

        Args:
            table: The name of the table.
            columns: The names of the columns, separated by blanks.
            order: The names of the columns to sort by, separated by blanks; "" for any order.
            **equal: Values that the rows must have, by column.

        Raises:
            Unavailable: The database cannot be read.
        """
        return await asyncio.to_thread(
            lambda: [*self._letta.rows(table, columns, order=order, **equal)]
        )

    def id(self, kind: str, letta_id: str) -> str:
        """Return the id that a Letta item has on this server.

        Args:
            kind: The prefix of the id here, such as "source" for a folder.
            letta_id: The id of the item in the Letta database.
        """
        return queries.kept_id(self.organization, kind, letta_id)

    def step(self, count: int = 1) -> None:
        """Report that rows were handled.

        Args:
            count: The number of rows since the last report.
        """
        self._progress += count
        self._report(min(self._progress, self._total), max(self._total, 1))

    async def import_once(self, item: str, kind: str, name: str, work: Work) -> bool:
        """Import an item in one transaction, if it was not imported before.

        Returns False if it cannot be imported; the reason is noted.

        Args:
            item: The name of the item in the records, such as its Letta id.
            kind: The kind of the item in the report, such as "agents".
            name: The name of the item for people.
            work: Imports the item in the transaction, and counts it in the outcome.
        """
        if item in self.done:
            return True

        def import_item(tx: Transaction) -> None:
            outcome = Outcome()
            work(tx, outcome)
            queries.insert_item(tx, self.scope, SOURCE, item=item, outcome=outcome)

        try:
            await self.store.write(import_item)
        except REFUSALS as error:
            self.refused.leave(kind, str(name), reason_of(error))
            return False
        self.done.add(item)
        return True


def reason_of(error: BaseException) -> str:
    """Return the reason of a refusal as a sentence for the report.

    Args:
        error: One of `REFUSALS`.
    """
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    if isinstance(error, Invalid | Conflict | NotFound | Forbidden):
        return str(error)
    return f"it cannot be read ({type(error).__name__}: {str(error)[:100]})"


def _next_batch(rows: Iterator[Row], size: int) -> list[Row]:
    return [*islice(rows, size)]
