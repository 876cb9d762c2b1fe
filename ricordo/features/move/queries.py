"""Everything a database holds, row by row in the order of each table's key, and a hash of it that is the same on every database."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson
from sqlalchemy import Column, Connection, LargeBinary, Table, UniqueConstraint, bindparam, func, select, tuple_

from ricordo.storage.schema import core_tables as _tables  # noqa: F401 - it declares tables
from ricordo.storage.schema import memory_tables as _memory_tables  # noqa: F401 - it declares tables
from ricordo.storage.schema import search_tables as _search_tables  # noqa: F401 - it declares tables
from ricordo.storage.schema.columns import metadata

Row = dict[str, Any]
_PORTION = 500
# A row of vectors may have a megabyte and more.
_VECTORS_PORTION = 16


def all_tables() -> list[Table]:
    """Return the tables in the order in which rows can be written: first what others refer to."""
    return list(metadata.sorted_tables)


def key_of(table: Table) -> tuple[Column[Any], ...]:
    """Return the columns that tell the table's rows apart."""
    if table.primary_key.columns:
        return tuple(table.primary_key.columns)
    unique = next(one for one in table.constraints if isinstance(one, UniqueConstraint))
    return tuple(unique.columns)


def count(connection: Connection, table: Table) -> int:
    return connection.execute(select(func.count()).select_from(table)).scalar_one()


def portions(connection: Connection, table: Table) -> Iterator[list[Row]]:
    """Yield all rows in the order of the key, some hundred at a time. They are one state only within one snapshot."""
    key = key_of(table)
    start = select(table).order_by(*key).limit(_VECTORS_PORTION if table.name == "search_vectors" else _PORTION)
    after = start.where(tuple_(*key) > tuple_(*(bindparam(f"after_{c.name}", type_=c.type) for c in key)))
    rows = connection.execute(start).mappings().all()
    while rows:
        yield [dict(row) for row in rows]
        last = rows[-1]
        rows = connection.execute(after, {f"after_{c.name}": last[c.name] for c in key}).mappings().all()


class TableHash:
    """A hash over the rows of one table, in whatever order. Equal content makes it equal on every database."""

    def __init__(self, table: Table) -> None:
        self.rows = 0
        # The sum of the rows' hashes: rows have keys, so none is there twice.
        self._sum = 0
        self._columns = [(column.name, isinstance(column.type, LargeBinary)) for column in table.columns]

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add the next rows."""
        for row in rows:
            self.rows += 1
            values = [_hash_of_bytes(row[name]) if is_bytes else row[name] for name, is_bytes in self._columns]
            row_hash = hashlib.sha256(orjson.dumps(values))
            self._sum = (self._sum + int.from_bytes(row_hash.digest())) % 2**256

    def hexadecimal(self) -> str:
        return f"{self._sum:064x}"


def _hash_of_bytes(value: bytes | None) -> str | None:
    return None if value is None else hashlib.sha256(value).hexdigest()
