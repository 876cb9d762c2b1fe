"""Counting what reaches the database, as the budgets count it: one execution at the cursor is one statement.

executemany counts once; BEGIN, COMMIT and ROLLBACK are no statements, and the BEGINs are counted as transactions. What adds jobs
does not count.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import event

from ricordo.storage.engine.store import SqlStore

_BOUNDARIES = ("BEGIN", "COMMIT", "ROLLBACK")
_JOBS = re.compile(r"(?:INTO|UPDATE|FROM) jobs\b|procrastinate_")


@dataclass
class Counted:
    """What ran since the count began: the SQL of each statement, and how many transactions were opened."""

    statements: list[str] = field(default_factory=list)
    transactions: int = 0

    def note(self, statement: str) -> None:
        """Count one execution."""
        word = statement.lstrip().split(None, 1)[0].upper()
        if word == "BEGIN":
            self.transactions += 1
        elif word not in _BOUNDARIES and not _JOBS.search(statement):
            self.statements.append(statement)


@contextmanager
def count_statements(store: SqlStore) -> Iterator[Counted]:
    """Count all that the store's connections run inside the `with`: `with count_statements(store) as counted`."""
    counted = Counted()

    def note(_connection: Any, _cursor: Any, statement: str, _parameters: Any, _context: Any, _many: bool) -> None:
        counted.note(statement)

    # Prepared statements go to the driver by themselves, all others through SQLAlchemy.
    store.statements.observers.append(counted.note)
    event.listen(store.engine, "before_cursor_execute", note)
    try:
        yield counted
    finally:
        event.remove(store.engine, "before_cursor_execute", note)
        store.statements.observers.remove(counted.note)
