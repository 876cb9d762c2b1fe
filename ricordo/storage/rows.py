"""Rows to values and back: what the repositories of all nouns share."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Row, Table, bindparam
from sqlalchemy import update as update_table
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
