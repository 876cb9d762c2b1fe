"""Searches for canary words that must not be stored anywhere.

They look into every row of every table, and into the bytes of every file. All canaries begin with
CANARY, so that one search finds them all. `LogWatch` checks in every test that no log line holds
one.
"""

import logging
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import inspect, text

from ricordo.features.operations.move.service import portions
from ricordo.logs import JsonFormatter, TextFormatter
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.columns import metadata
from tests.support import postgres

CANARY = "vuqkzoq"


class LogWatch(logging.Handler):
    """Collects the log lines, in both formats, that hold a canary."""

    _FORMATTERS = (TextFormatter(), JsonFormatter())

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Look at one line."""
        lines = (formatter.format(record) for formatter in self._FORMATTERS)
        self.found += [line for line in lines if CANARY in line.lower()]


def canary(kind: str) -> str:
    return f"{CANARY}{kind}"


def rows(tx: Transaction) -> dict[str, set[str]]:
    return {
        table.name: {shown(row) for some in portions(tx.connection, table) for row in some}
        for table in metadata.sorted_tables
    }


def shown(row: Mapping[str, Any]) -> str:
    return repr(
        {
            name: _unpacked(value) if isinstance(value, bytes) else value
            for name, value in row.items()
        }
    )


def in_tables(tx: Transaction, needle: str = CANARY) -> list[str]:
    names = inspect(tx.connection).get_table_names()
    foreign = [
        name for name in names if name not in {table.name for table in metadata.sorted_tables}
    ]
    found = rows(tx) | {
        name: {repr(row) for row in tx.all(text(f'SELECT * FROM "{name}"'))}  # noqa: S608
        for name in foreign
    }
    return [
        f"{name}: {row[:400]}"
        for name, some in found.items()
        for row in some
        if needle in row.lower()
    ]


def in_files(folder: Path, needle: str = CANARY) -> list[str]:
    return [str(path) for path in _files(folder) if needle.encode() in path.read_bytes().lower()]


def in_heap(url: str) -> list[str]:
    """Return the PostgreSQL files of this database that hold a canary, by table.

    The write-ahead log is left out.
    """
    server, name = postgres.server(), postgres.name_in(url)
    server.run("CHECKPOINT")
    ((oid,),) = server.run(f"SELECT oid FROM pg_database WHERE datname = '{name}'")  # noqa: S608
    tables = dict(server.run("SELECT relfilenode::text, relname FROM pg_class", name))
    found = in_files(server.folder / "data" / "base" / str(oid))
    return [tables.get(Path(path).name.partition(".")[0], path) for path in found]


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def _unpacked(data: bytes) -> bytes:
    try:
        return data + zlib.decompress(data)
    except zlib.error:
        return data
