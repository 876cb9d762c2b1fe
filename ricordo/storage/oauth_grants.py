"""Queries of grants.

An OAuth grant is a row among its user's keys, but no caller can use it as a key. Its `hash` is the
hash of the refresh token, with a mark in front. Programs use keys of the kind `access`, which end
with the grant.
"""

from typing import Any

from sqlalchemy import bindparam, delete

from ricordo.storage.engine.repository import Missing, Repository, equal, new_values, setter
from ricordo.storage.engine.store import Transaction
from ricordo.storage.keys import ApiKey
from ricordo.storage.schema.core_tables import api_keys

# The mark; no hash of a key begins like this.
REFRESH = "refresh "
_ROWS = Repository(ApiKey, api_keys)
_BY_ID = _ROWS.select.where(equal(api_keys, "id"))
_BY_HASH = _ROWS.select.where(equal(api_keys, "hash"))
_INSERT = Missing(api_keys)
_IS_GRANT = (api_keys.c.id == bindparam("this")) & api_keys.c.hash.startswith(REFRESH)
_ROTATE = setter(
    api_keys,
    *("hash", "expires_at", "last_used_at"),
    where=_IS_GRANT & (api_keys.c.hash == bindparam("old")) & api_keys.c.revoked_at.is_(None),
)
_REVOKE = setter(api_keys, "revoked_at", where=_IS_GRANT & api_keys.c.revoked_at.is_(None))
_DELETE_ACCESS = delete(api_keys).where(
    api_keys.c.kind == "access", api_keys.c.created_by == bindparam("this")
)
insert_access = _ROWS.insert


def find(tx: Transaction, id: str) -> ApiKey | None:
    """Return the grant with this id, of any person, even if it has ended.

    Args:
        tx: The transaction.
        id: The grant's id.
    """
    grant = _ROWS.first(tx, _BY_ID, {"id": id})
    if grant and grant.hash.startswith(REFRESH):
        return grant
    return None


def find_access(tx: Transaction, hash: str) -> ApiKey | None:
    """Return the access key with this hash, even if it has ended; None if there is none.

    Args:
        tx: The transaction.
        hash: The hash of the key, as it is stored.
    """
    access = _ROWS.first(tx, _BY_HASH, {"hash": hash})
    if access and access.kind == "access":
        return access
    return None


def insert(tx: Transaction, grant: ApiKey) -> bool:
    """Store a grant; return False if its id exists.

    Args:
        tx: The transaction.
        grant: The new grant, whose hash begins with the mark `REFRESH`.
    """
    return tx.run(_INSERT, _ROWS.values(grant)) > 0


def rotate(tx: Transaction, grant: ApiKey, changed: dict[str, Any]) -> bool:
    """Change the grant, and return True, if it is still as it was read.

    Args:
        tx: The transaction.
        grant: The grant as it was read.
        changed: The new `hash`, `expires_at` and `last_used_at`. Times are in microseconds UTC.

    Returns:
        False if another transaction changed or revoked it meanwhile; then nothing changes.
    """
    return tx.run(_ROTATE, {"this": grant.id, "old": grant.hash, **new_values(changed)}) > 0


def revoke(tx: Transaction, id: str) -> None:
    """End a grant, and delete its access keys.

    Args:
        tx: The transaction.
        id: The grant's id. If there is no such grant, nothing happens.
    """
    tx.run(_REVOKE, {"this": id, **new_values({"revoked_at": tx.clock.now()})})
    delete_access(tx, id)


def delete_access(tx: Transaction, id: str) -> None:
    """Delete the access keys of a grant.

    Args:
        tx: The transaction.
        id: The grant's id.
    """
    tx.run(_DELETE_ACCESS, {"this": id})
