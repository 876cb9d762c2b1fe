"""What the repositories share: conditions, inserts and updates, and rows to values and back."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from operator import attrgetter
from typing import Any, Generic, TypeVar

from sqlalchemy import JSON, Column, ColumnElement, Insert, Row, Table, and_, bindparam, func, select
from sqlalchemy import update as update_table
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.dml import Update

from ricordo.domain.scope import Actor, Scope
from ricordo.domain.usage import Usage
from ricordo.errors import NotFound
from ricordo.storage.engine.store import Transaction, each

V = TypeVar("V")
USAGE = ("prompt_tokens", "completion_tokens", "cached_tokens", "cache_write_tokens", "reasoning_tokens")


class RowMapper(Generic[V]):
    """Rows of a table as values of a class with fields of the columns' names; `tuples` are tuples there, and lists as JSON."""

    def __init__(self, kind: type[V], table: Table, *, tuples: Sequence[str] = (), with_seq: bool = False) -> None:
        self.columns: list[Column[Any]] = list(table.c) if with_seq else columns_of(table)
        self.names = [_plain_name(column) for column in self.columns]
        self._kind = kind
        self._tuples = tuples
        self._fields = attrgetter(*(name for name in self.names if name != "seq"))

    def values(self, item: V) -> dict[str, Any]:
        """Return the columns of a new row, without `seq`."""
        values = dict(zip((name for name in self.names if name != "seq"), self._fields(item), strict=True))
        for name in self._tuples:
            values[name] = list(values[name])
        return values

    def of(self, row: Sequence[Any]) -> V:
        """Return the value of a row of exactly these columns."""
        values = dict(zip(self.names, row))  # noqa: B905 - strict costs a tenth of it, for each row of a turn
        for name in self._tuples:
            values[name] = tuple(values[name])
        return self._kind(**values)


def columns_of(table: Table, *without: str) -> list[Column[Any]]:
    return [column for column in table.c if column.name not in ("seq", *without)]


def names_of(table: Table, *without: str) -> list[str]:
    return [_plain_name(column) for column in columns_of(table, *without)]


def _plain_name(column: Column[Any]) -> str:
    # Names are of a class of SQLAlchemy's. As keyword arguments they would be compared letter by letter in each call.
    return sys.intern(str(column.name))


def equal(table: Table, *names: str) -> ColumnElement[bool]:
    return and_(*(table.c[name] == bindparam(name) for name in names))


def one_of(column: ColumnElement[Any], parameter: str) -> ColumnElement[bool]:
    return column.op("IN", is_comparison=True)(each(bindparam(parameter, type_=JSON())))


def setter(table: Table, *names: str, where: ColumnElement[bool]) -> Update:
    """Return an UPDATE that sets these columns from parameters of the same names with `new_` before them.

    SQLAlchemy keeps the bare column names for itself in an UPDATE, so values and conditions need names of their own.
    """
    return update_table(table).where(where).values({name: bindparam(f"new_{name}") for name in names})


def new_values(values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"new_{name}": value for name, value in values.items()}


def values_of(item: Any, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(item, name) for name in names}


def found(value: V | None, kind: str, id: str) -> V:
    """Return the value; raises NotFound where there is none."""
    if value is None:
        raise NotFound(f"{kind} with ID {id} not found")
    return value


def count_in(tx: Transaction, table: Table, scope: Scope) -> int:
    statement = select(func.count()).select_from(table).where(table.c.organization_id == scope.organization_id)
    return int(tx.all(statement)[0][0])


def ids_in(tx: Transaction, table: Table, scope: Scope) -> list[str]:
    """Return the ids of the rows of the table that the scope's organization has, the oldest first."""
    statement = select(table.c.id).where(table.c.organization_id == scope.organization_id)
    return [row.id for row in tx.all(statement.order_by(table.c.seq))]


def tagged_with(links: Table, column: Column[Any], tags: Sequence[str], *, all_tags: bool) -> ColumnElement[bool]:
    """Return the condition that `links` has any of these tags, or all of them, for what the column names."""
    of_item = links.c[column.table.name.removesuffix("s") + "_id"]
    tagged = select(of_item).where(links.c.tag.in_(tags))
    if all_tags:
        tagged = tagged.group_by(of_item).having(func.count() == len(set(tags)))
    return column.in_(tagged)


def author_values(author: Actor) -> dict[str, str]:
    return {"author_kind": author.kind, "author_id": author.id, "author_name": author.name}


def usage_values(usage: Usage) -> dict[str, Any]:
    return values_of(usage, USAGE)


def usage_of(row: Row[Any]) -> Usage:
    return Usage(*(getattr(row, name) for name in USAGE))


def plain(value: Any) -> dict[str, Any]:
    """Return a small dataclass as JSON, without fields at None."""
    return {name: item for name, item in asdict(value).items() if item is not None}


class Appending(Insert):
    """Insert rows; the `data` of one that is there already grows by the new row's."""

    inherit_cache = False


class Missing(Insert):
    """Insert the rows that are not there yet."""

    inherit_cache = False


@compiles(Appending)
def _append(insert: Any, compiler: Any, **options: Any) -> str:
    table: Table = insert.table
    joined = f"{table.name}.data || excluded.data"
    if compiler.dialect.name == "sqlite":
        joined = f"CAST({joined} AS BLOB)"  # there || makes text even of blobs; NUL bytes survive it
    keys = ", ".join(column.name for column in table.primary_key)
    return f"{compiler.visit_insert(insert, **options)} ON CONFLICT ({keys}) DO UPDATE SET data = {joined}"


@compiles(Missing)
def _skip(insert: Any, compiler: Any, **options: Any) -> str:
    return f"{compiler.visit_insert(insert, **options)} ON CONFLICT DO NOTHING"
