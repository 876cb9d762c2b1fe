"""What a database holds, row by row in the order of each table's key, and a hash of it that is the same on every database."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import orjson
from sqlalchemy import Column, Connection, LargeBinary, Table, UniqueConstraint, bindparam, func, select, tuple_

from ricordo.storage import tables as _tables  # noqa: F401
from ricordo.storage.columns import metadata

Row = dict[str, Any]
AT_ONCE = 500
# A row of vectors may have a megabyte and more.
_VECTORS_AT_ONCE = 16

# In the order in which rows can be written: first what others refer to.
TABLES: tuple[Table, ...] = tuple(metadata.sorted_tables)


def key_of(table: Table) -> tuple[Column[Any], ...]:
    """The columns that tell the table's rows apart."""
    if table.primary_key.columns:
        return tuple(table.primary_key.columns)
    unique = next(one for one in table.constraints if isinstance(one, UniqueConstraint))
    return tuple(unique.columns)


def count(connection: Connection, table: Table) -> int:
    """How many rows there are."""
    return connection.execute(select(func.count()).select_from(table)).scalar_one()


def portions(connection: Connection, table: Table) -> Iterator[list[Row]]:
    """All rows in the order of the key, some hundred at a time. They are one state only within one snapshot."""
    key = key_of(table)
    most = _VECTORS_AT_ONCE if table.name == "search_vectors" else AT_ONCE
    start = select(table).order_by(*key).limit(most)
    after = start.where(tuple_(*key) > tuple_(*(bindparam(f"after_{c.name}", type_=c.type) for c in key)))
    rows = connection.execute(start).mappings().all()
    while rows:
        yield [dict(row) for row in rows]
        last = rows[-1]
        rows = connection.execute(after, {f"after_{c.name}": last[c.name] for c in key}).mappings().all()


class Digest:
    """A hash over the rows of one table, in whatever order. Equal content makes it equal on every database."""

    def __init__(self, table: Table) -> None:
        self.rows = 0
        # The sum of the rows' hashes: rows have keys, so none is there twice.
        self._sum = 0
        self._columns = [(column.name, _encoder(column)) for column in table.columns]

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take in the next rows."""
        for row in rows:
            self.rows += 1
            values = [encode(row[name]) if encode else row[name] for name, encode in self._columns]
            row_hash = hashlib.sha256(orjson.dumps(values))
            self._sum = (self._sum + int.from_bytes(row_hash.digest())) % 2**256

    def text(self) -> str:
        """The hash so far, in hexadecimal digits."""
        return f"{self._sum:064x}"


def hash_of(connection: Connection) -> str:
    """The hash of everything a database holds, for whoever wants to compare two; read within one snapshot."""
    whole = hashlib.sha256()
    for table in TABLES:
        digest = Digest(table)
        for rows in portions(connection, table):
            digest.add(rows)
        whole.update(digest.text().encode())
    return whole.hexdigest()


def _encoder(column: Column[Any]) -> Callable[[Any], Any] | None:
    """How a value becomes JSON, where it is none."""
    return _hash_of_bytes if isinstance(column.type, LargeBinary) else None


def _hash_of_bytes(value: bytes | None) -> str | None:
    return None if value is None else hashlib.sha256(value).hexdigest()
