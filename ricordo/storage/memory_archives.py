"""SQL of memory archives: read and insert a chain's settings log, git objects and tags.

A restored row is stored unchanged. Policies, quotas and redaction do not apply to it, since the
other server has stored the same text already.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import bindparam, insert, select

from ricordo.domain.block import Block
from ricordo.domain.scope import Actor
from ricordo.storage.engine.repository import equal
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.memory_tables import (
    blocks_log,
    blocks_tags,
    git_objects,
    is_in_chain,
    number_of_chain,
)

ObjectKind = Literal["blob", "tree", "commit", "forgotten"]
_LOG = (
    select(
        blocks_log.c.seq,
        blocks_log.c.block_id,
        blocks_log.c.changed,
        blocks_log.c.author_kind,
        blocks_log.c.author_id,
        blocks_log.c.author_name,
        blocks_log.c.created_at,
        blocks_log.c.deleted_label,
    )
    .where(equal(blocks_log, "chain_id"), blocks_log.c.seq > bindparam("after"))
    .order_by(blocks_log.c.seq)
    .limit(bindparam("limit"))
)
_OBJECTS = (
    select(git_objects.c.seq, git_objects.c.kind, git_objects.c.id, git_objects.c.data)
    .where(is_in_chain(git_objects), git_objects.c.seq > bindparam("after"))
    .order_by(git_objects.c.seq)
    .limit(bindparam("limit"))
)
_INSERT_LOG = insert(blocks_log)
_INSERT_OBJECT = insert(git_objects).values(chain=number_of_chain())
_INSERT_TAG = insert(blocks_tags)


@dataclass(frozen=True, slots=True)
class LoggedSettings:
    """A change of a block's settings, or its deletion.

    Attributes:
        changed: As `blocks.log` stores it: the block's label and the changed settings.
        created_at: The time in microseconds UTC.
        deleted_label: The label of a deleted block; None: the block was not deleted.
    """

    block_id: str
    changed: Mapping[str, Any]
    author: Actor
    created_at: int
    deleted_label: str | None


@dataclass(frozen=True, slots=True)
class ChainObject:
    """An object that a git client pushed, or the tombstone of a rewritten version.

    A tombstone has the kind `forgotten`. Its body is the id of the new version.
    """

    kind: ObjectKind
    id: bytes
    body: bytes


def logged_after(
    tx: Transaction, chain_id: str, after: int, limit: int
) -> tuple[list[LoggedSettings], int]:
    """Return the chain's next changes of settings, and the `seq` of the last one.

    Args:
        tx: The transaction.
        chain_id: The chain.
        after: The changes have a greater `seq` than this. It is returned if there are none.
        limit: The most changes.
    """
    rows = tx.all(_LOG, {"chain_id": chain_id, "after": after, "limit": limit})
    logged = [
        LoggedSettings(
            row.block_id,
            row.changed,
            Actor(row.author_kind, row.author_id, row.author_name),
            row.created_at,
            row.deleted_label,
        )
        for row in rows
    ]
    return logged, rows[-1].seq if rows else after


def objects_after(
    tx: Transaction, chain_id: str, after: int, limit: int
) -> tuple[list[ChainObject], int]:
    """Return the chain's next git objects, and the `seq` of the last one.

    Args:
        tx: The transaction.
        chain_id: The chain.
        after: The objects have a greater `seq` than this. It is returned if there are none.
        limit: The most objects.
    """
    rows = tx.all(_OBJECTS, {"chain_id": chain_id, "after": after, "limit": limit})
    objects = [ChainObject(row.kind, bytes(row.id), bytes(row.data)) for row in rows]
    return objects, rows[-1].seq if rows else after


def insert_log(tx: Transaction, chain_id: str, logged: Sequence[LoggedSettings]) -> None:
    tx.run(
        _INSERT_LOG,
        [
            {
                "chain_id": chain_id,
                "block_id": change.block_id,
                "changed": dict(change.changed),
                "author_kind": change.author.kind,
                "author_id": change.author.id,
                "author_name": change.author.name,
                "created_at": change.created_at,
                "deleted_label": change.deleted_label,
            }
            for change in logged
        ],
    )


def insert_objects(tx: Transaction, chain_id: str, objects: Sequence[ChainObject]) -> None:
    tx.run(
        _INSERT_OBJECT,
        [
            {"chain_id": chain_id, "id": one.id, "kind": one.kind, "data": one.body}
            for one in objects
        ],
    )


def insert_tags(tx: Transaction, block: Block) -> None:
    tx.run(_INSERT_TAG, [{"block_id": block.id, "tag": tag} for tag in block.tags])
