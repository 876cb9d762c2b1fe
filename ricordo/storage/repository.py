"""What the repositories share: conditions, inserts and updates, and rows to values and back."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Insert, Row, Table, bindparam
from sqlalchemy import update as update_table
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.dml import Update

from ricordo.domain.usage import Usage
from ricordo.errors import NotFound

V = TypeVar("V")
_USAGE = ("prompt_tokens", "completion_tokens", "cached_tokens", "cache_write_tokens", "reasoning_tokens")


def usage_values(usage: Usage) -> dict[str, Any]:
    """The columns that hold a Usage."""
    return {name: getattr(usage, name) for name in _USAGE}


def usage_of(row: Row[Any]) -> Usage:
    """The Usage in a row of runs or steps."""
    return Usage(*(getattr(row, name) for name in _USAGE))


def found(value: V | None, kind: str, id: str) -> V:
    """The value; raises NotFound where there is none."""
    if value is None:
        raise NotFound(f"{kind} with ID {id} not found")
    return value


def setter(table: Table, *names: str, where: ColumnElement[bool]) -> Update:
    """An UPDATE that sets these columns from parameters of the same names with `new_` before them.

    SQLAlchemy keeps the bare column names for itself in an UPDATE, so values and conditions need names of their own.
    """
    return update_table(table).where(where).values({name: bindparam(f"new_{name}") for name in names})


def new_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters for a `setter`."""
    return {f"new_{name}": value for name, value in values.items()}


def plain(value: Any) -> dict[str, Any]:
    """A small dataclass as JSON, fields at None left out."""
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
