"""Forgetting a whole partition, portion by portion, once nobody can search it any more."""

from typing import Any

from sqlalchemy import Table, bindparam, delete, select

from ricordo.storage.search_tables import (
    search_buffer,
    search_documents,
    search_partitions,
    search_postings,
    search_terms,
    search_vectors,
)
from ricordo.storage.store import Transaction

# A row of the index is a blob of some kilobytes, so a portion of them is smaller than one of messages.
PORTION = 200

_PARTITION = (
    select(search_partitions.c.seq).where(search_partitions.c.owner_id == bindparam("owner_id")).with_for_update()
)
_MODELS = (
    select(search_vectors.c.embedding)
    .join(search_partitions, search_partitions.c.seq == search_vectors.c.partition)
    .where(search_partitions.c.owner_id == bindparam("owner_id"))
    .distinct()
)
_DROP_PARTITION = delete(search_partitions).where(search_partitions.c.seq == bindparam("partition"))


def _some(table: Table, column: str) -> tuple[Any, Any]:
    """Statements that find the keys of some rows, and that delete a row by its key: neither looks at the rest of the table."""
    key = tuple(table.primary_key.columns)
    by_key = delete(table).where(*(part == bindparam(f"old_{part.name}") for part in key))
    found = select(*(part.label(f"old_{part.name}") for part in key)).where(table.c[column] == bindparam(column))
    return found.limit(PORTION), by_key


_SOME_BUFFER = _some(search_buffer, "owner_id")
_SOME_OF_PARTITION = [
    _some(table, "partition") for table in (search_documents, search_postings, search_terms, search_vectors)
]


def drop_portion(tx: Transaction, owner_id: str) -> bool:
    """Delete some rows of the partition, at last the partition itself; tells whether there is more to delete."""
    if _drop(tx, _SOME_BUFFER, {"owner_id": owner_id}):
        return True
    partition = tx.first(_PARTITION, {"owner_id": owner_id})
    if partition is None:
        return False
    if any(_drop(tx, statements, {"partition": partition.seq}) for statements in _SOME_OF_PARTITION):
        return True
    tx.run(_DROP_PARTITION, {"partition": partition.seq})
    return False


def models_of(tx: Transaction, owner_id: str) -> list[str]:
    """The models of which the partition has vectors, here or in an outside index."""
    return [row.embedding for row in tx.all(_MODELS, {"owner_id": owner_id})]


def _drop(tx: Transaction, statements: tuple[Any, Any], values: dict[str, Any]) -> bool:
    find, remove = statements
    keys = [row._asdict() for row in tx.all(find, values)]
    tx.run(remove, keys)
    return bool(keys)
