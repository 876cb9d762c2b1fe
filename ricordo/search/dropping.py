"""Forgetting a whole space, portion by portion, once nobody can search it any more."""

from typing import Any

from sqlalchemy import Table, bindparam, delete, select

from ricordo.storage.search_tables import (
    search_documents,
    search_postings,
    search_spaces,
    search_tail,
    search_terms,
    search_vectors,
)
from ricordo.storage.store import Transaction

# A row of the index is a blob of some kilobytes, so a portion of them is smaller than one of messages.
PORTION = 200

_SPACE = select(search_spaces.c.seq).where(search_spaces.c.owner_id == bindparam("owner_id")).with_for_update()
_MODELS = (
    select(search_vectors.c.embedding)
    .join(search_spaces, search_spaces.c.seq == search_vectors.c.space)
    .where(search_spaces.c.owner_id == bindparam("owner_id"))
    .distinct()
)
_DROP_SPACE = delete(search_spaces).where(search_spaces.c.seq == bindparam("space"))


def _some(table: Table, column: str) -> tuple[Any, Any]:
    """Statements that find the keys of some rows, and that delete a row by its key: neither looks at the rest of the table."""
    key = tuple(table.primary_key.columns)
    by_key = delete(table).where(*(part == bindparam(f"old_{part.name}") for part in key))
    found = select(*(part.label(f"old_{part.name}") for part in key)).where(table.c[column] == bindparam(column))
    return found.limit(PORTION), by_key


_SOME_TAIL = _some(search_tail, "owner_id")
_SOME_OF_SPACE = [_some(table, "space") for table in (search_documents, search_postings, search_terms, search_vectors)]


def drop_portion(tx: Transaction, owner_id: str) -> bool:
    """Delete some rows of the space, at last the space itself; tells whether there is more to delete."""
    if _drop(tx, _SOME_TAIL, {"owner_id": owner_id}):
        return True
    space = tx.first(_SPACE, {"owner_id": owner_id})
    if space is None:
        return False
    if any(_drop(tx, statements, {"space": space.seq}) for statements in _SOME_OF_SPACE):
        return True
    tx.run(_DROP_SPACE, {"space": space.seq})
    return False


def models_of(tx: Transaction, owner_id: str) -> list[str]:
    """The models of which the space has vectors, here or in an outside index."""
    return [row.embedding for row in tx.all(_MODELS, {"owner_id": owner_id})]


def _drop(tx: Transaction, statements: tuple[Any, Any], values: dict[str, Any]) -> bool:
    find, remove = statements
    keys = [row._asdict() for row in tx.all(find, values)]
    tx.run(remove, keys)
    return bool(keys)
