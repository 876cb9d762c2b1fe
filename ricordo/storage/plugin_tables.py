"""Tables of plugins: created where they are missing. A plugin changes them later by itself."""

from collections.abc import Iterable

from sqlalchemy import Table, inspect

from ricordo.storage.store import Transaction


def create_missing(tx: Transaction, tables: Iterable[Table]) -> None:
    """Create those of these tables, with their indexes, that the database does not have."""
    existing = set(inspect(tx.connection).get_table_names())
    for table in tables:
        if table.name not in existing:
            table.create(tx.connection)
