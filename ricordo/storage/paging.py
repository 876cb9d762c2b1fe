"""Pages by cursor: before or after an object, in either order, exact under equal times."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import ColumnElement, Row, Select, Table, select, tuple_

from ricordo.storage.engine.store import Transaction


@dataclass(frozen=True, slots=True)
class Page:
    """Which part of a list is wanted. `before` and `after` are ids of items, in the order asked for."""

    limit: int = 50
    before: str | None = None
    after: str | None = None
    order: Literal["asc", "desc"] = "desc"


def read_page(
    tx: Transaction, statement: Select[Any], table: Table, wanted: Page, *, by: Sequence[str] = ("created_at", "seq")
) -> Sequence[Row[Any]]:
    """Return the rows of the statement on the page, ordered by these columns, the last of which is unique.

    A cursor that was deleted gives no rows.
    """
    columns = [table.c[name] for name in by]
    place = tuple_(*columns)
    ascending = wanted.order == "asc"
    if wanted.after:
        mark = _mark(columns, table, wanted.after)
        statement = statement.where(place > mark if ascending else place < mark)
    if wanted.before:
        mark = _mark(columns, table, wanted.before)
        statement = statement.where(place < mark if ascending else place > mark)
    # With `before` alone the wanted rows are the last ones ahead of the mark, so read backwards and turn the page around.
    backwards = bool(wanted.before and not wanted.after)
    statement = statement.order_by(*(column.asc() if ascending != backwards else column.desc() for column in columns))
    rows = tx.all(statement.limit(wanted.limit))
    return rows[::-1] if backwards else rows


def _mark(columns: Sequence[ColumnElement[Any]], table: Table, id: str) -> ColumnElement[Any]:
    return select(*columns).where(table.c.id == id).scalar_subquery()
