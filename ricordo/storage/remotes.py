"""SQL of remotes: lookups by chain or address, their state, and a list of remotes that are due."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import bindparam, delete, exists, or_, select

from ricordo.domain.remote import Remote
from ricordo.errors import NotFound
from ricordo.storage.deletion import DELETED
from ricordo.storage.engine.repository import Repository, equal, one_of
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import organizations, users
from ricordo.storage.schema.memory_tables import chains, memory_remotes, proposals

_REMOTES = Repository(Remote, memory_remotes)
_SELECT = _REMOTES.select
_AT = _SELECT.where(equal(memory_remotes, "kind", "address"))
_OF_CHAIN = _SELECT.where(equal(memory_remotes, "chain_id")).order_by(memory_remotes.c.seq)
_OF_KIND = _SELECT.where(equal(memory_remotes, "kind"))
_OWNER = select(chains.c.owner_id).where(equal(chains, "id"))
_CHANGED = exists().where(
    proposals.c.chain_id == memory_remotes.c.chain_id,
    or_(
        proposals.c.created_at >= memory_remotes.c.last_at,
        proposals.c.resolved_at >= memory_remotes.c.last_at,
    ),
)
_DUE = (
    _SELECT.join(chains, chains.c.id == memory_remotes.c.chain_id)
    .where(
        one_of(memory_remotes.c.kind, "kinds"),
        or_(
            memory_remotes.c.last_at.is_(None),
            memory_remotes.c.last_at <= bindparam("before"),
            memory_remotes.c.followed != chains.c.versions,
            _CHANGED,
        ),
    )
    .order_by(memory_remotes.c.seq)
)
_WITHOUT = (
    select(chains.c.seq, chains.c.id, users.c.identifier)
    .join(users, users.c.id == chains.c.owner_id)
    .where(
        equal(chains, "organization_id"),
        chains.c.owner_kind == "user",
        chains.c.seq > bindparam("after"),
        ~exists().where(
            memory_remotes.c.chain_id == chains.c.id,
            equal(memory_remotes, "kind"),
            one_of(memory_remotes.c.address, "addresses"),
        ),
    )
    .order_by(chains.c.seq)
    .limit(bindparam("limit"))
)
_ORGANIZATIONS = (
    select(organizations.c.id).where(organizations.c.id != DELETED).order_by(organizations.c.id)
)
_DELETE = delete(memory_remotes).where(equal(memory_remotes, "id"))
get = _REMOTES.get
# One sync of a remote runs at a time, and nothing else writes these columns.
note = _REMOTES.updates("followed", "seen", "last_error", "last_at", locked=None)


def insert_one(tx: Transaction, remote: Remote) -> None:
    """Store a new remote.

    Args:
        tx: The transaction.
        remote: The remote.

    Raises:
        Collision: The chain has a remote of this kind at this address.
    """
    _REMOTES.insert(tx, remote)


def of_chain(tx: Transaction, chain_id: str) -> list[Remote]:
    """Return the chain's remotes, the oldest first.

    Args:
        tx: The transaction.
        chain_id: The chain; the caller's access to it is checked before.
    """
    return _REMOTES.all(tx, _OF_CHAIN, {"chain_id": chain_id})


def at(tx: Transaction, kind: str, address: str) -> list[Remote]:
    """Return the remotes of this kind at this address, of all chains and organizations.

    Args:
        tx: The transaction.
        kind: The kind of the remote, such as "git".
        address: The whole address as it is stored.
    """
    return _REMOTES.all(tx, _AT, {"kind": kind, "address": address})


def of_kind(tx: Transaction, kind: str) -> list[Remote]:
    """Return the remotes of this kind, of all organizations.

    Args:
        tx: The transaction.
        kind: The kind, such as "git".
    """
    return _REMOTES.all(tx, _OF_KIND, {"kind": kind})


def chains_without(
    tx: Transaction,
    organization_id: str,
    kind: str,
    addresses: Sequence[str],
    *,
    after: int,
    limit: int,
) -> Sequence[Any]:
    """Return users' chains without a remote of the kind at these addresses.

    Args:
        tx: The transaction.
        organization_id: The organization.
        kind: The kind of the remotes, such as "git".
        addresses: The addresses. A chain with a remote at any of them is left out.
        after: The number (`seq`) of the last chain of the page before; 0 for the first page.
        limit: The most chains.

    Returns:
        Rows with the chain's `seq` and `id`, and the user's `identifier`, in the order of `seq`.
    """
    parameters = {
        "organization_id": organization_id,
        "kind": kind,
        "addresses": list(addresses),
        "after": after,
        "limit": limit,
    }
    return tx.all(_WITHOUT, parameters)


def organization_ids(tx: Transaction) -> list[str]:
    """Return the ids of all organizations, without the organization that holds deleted rows.

    Args:
        tx: The transaction.
    """
    return [row.id for row in tx.all(_ORGANIZATIONS)]


def owner_of(tx: Transaction, chain_id: str) -> str:
    """Return the id of the chain's owner, a user.

    Args:
        tx: The transaction.
        chain_id: The chain.

    Raises:
        NotFound: The chain was erased.
    """
    row = tx.first(_OWNER, {"id": chain_id})
    if row is None:
        raise NotFound("This memory was erased.")
    return str(row.owner_id)


def due(tx: Transaction, kinds: Sequence[str], before: int) -> list[Remote]:
    """Return the remotes of these kinds that have to be synced, of all organizations.

    Args:
        tx: The transaction.
        kinds: The kinds of remotes.
        before: A time in microseconds UTC. Remotes that were last synced before it are due, even
            without changes to push.
    """
    return _REMOTES.all(tx, _DUE, {"kinds": list(kinds), "before": before})


def remove(tx: Transaction, remote: Remote) -> None:
    """Delete a remote. Its content there stays.

    Args:
        tx: The transaction.
        remote: The remote.
    """
    tx.run(_DELETE, {"id": remote.id})
