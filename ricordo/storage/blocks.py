"""Blocks, the chains they belong to, and their attachment to agents."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Row, bindparam, delete, func, insert, select

from ricordo.domain.block import Block, Chain
from ricordo.domain.scope import Scope
from ricordo.errors import NotFound
from ricordo.storage.paging import Page, read_page
from ricordo.storage.rows import new_values, setter
from ricordo.storage.store import Overtaken, Transaction, each
from ricordo.storage.tables import agents_blocks, blocks, blocks_tags, chains

_COLUMNS = [column for column in blocks.c if column.name != "seq"]
_SELECT = select(*_COLUMNS)
_BY_IDS = _SELECT.where(
    blocks.c.id.op("IN")(each(bindparam("ids", type_=blocks.c.metadata.type))),
    blocks.c.organization_id == bindparam("organization_id"),
)
_HELD = select(blocks.c.id).where(blocks.c.id == bindparam("id")).with_for_update(key_share=True)
_OF_AGENT = (
    _SELECT.join(agents_blocks, agents_blocks.c.block_id == blocks.c.id)
    .where(agents_blocks.c.agent_id == bindparam("agent_id"))
    .order_by(agents_blocks.c.seq)
)
_TAGS = (
    select(blocks_tags.c.block_id, blocks_tags.c.tag)
    .where(blocks_tags.c.block_id.op("IN")(each(bindparam("ids", type_=blocks.c.metadata.type))))
    .order_by(blocks_tags.c.tag)
)
_CHAIN_OF = select(chains.c.id).where(
    chains.c.owner_kind == bindparam("owner_kind"), chains.c.owner_id == bindparam("owner_id")
)
_INSERT, _INSERT_CHAIN, _INSERT_TAG, _ATTACH = (
    insert(blocks),
    insert(chains),
    insert(blocks_tags),
    insert(agents_blocks),
)
_WRITE = setter(
    blocks,
    "value",
    "version",
    "updated_by",
    "updated_at",
    where=(blocks.c.id == bindparam("block_id")) & (blocks.c.version == bindparam("expected")),
)
_CHANGED = (
    "label",
    "value",
    "description",
    "limit",
    "read_only",
    "hidden",
    "metadata",
    "version",
    "updated_by",
    "updated_at",
)
_UPDATE = setter(
    blocks, *_CHANGED, where=(blocks.c.id == bindparam("block_id")) & (blocks.c.version == bindparam("expected"))
)
_RELABEL = setter(agents_blocks, "label", where=agents_blocks.c.block_id == bindparam("relabelled"))
_DELETE = delete(blocks).where(blocks.c.id == bindparam("block_id"))
_DELETE_CHAIN = delete(chains).where(chains.c.id == bindparam("chain_id"))
_DELETE_TAGS = delete(blocks_tags).where(blocks_tags.c.block_id == bindparam("block_id"))
_DETACH = delete(agents_blocks).where(
    agents_blocks.c.agent_id == bindparam("agent_id"), agents_blocks.c.block_id == bindparam("block_id")
)
_AGENT_IDS = (
    select(agents_blocks.c.agent_id)
    .where(agents_blocks.c.block_id == bindparam("block_id"))
    .order_by(agents_blocks.c.seq)
)


@dataclass(frozen=True, slots=True)
class BlockFilter:
    """Which blocks are wanted; empty means: any. `pieces` are to be found in these columns."""

    label: str | None = None
    chain_id: str | None = None
    agent_id: str | None = None
    pieces: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    all_tags: bool = False


ONE = Page(limit=1)


def insert_all(tx: Transaction, new: Sequence[Block], chains_of: Sequence[Chain]) -> None:
    """Store new blocks, and the chains that are new with them."""
    tx.run(
        _INSERT_CHAIN,
        [
            {
                "id": chain.id,
                "organization_id": chain.organization_id,
                "owner_kind": chain.owner_kind,
                "owner_id": chain.owner_id,
                "head": chain.head,
                "versions": chain.versions,
            }
            for chain in chains_of
        ],
    )
    tx.run(_INSERT, [_values(block) for block in new])
    tx.run(_INSERT_TAG, [{"block_id": block.id, "tag": tag} for block in new for tag in block.tags])


def chain_of(tx: Transaction, owner_kind: str, owner_id: str) -> str | None:
    """The id of the chain this owner has, if any."""
    row = tx.first(_CHAIN_OF, {"owner_kind": owner_kind, "owner_id": owner_id})
    return row.id if row else None


def get(tx: Transaction, scope: Scope, id: str) -> Block:
    """One block; raises NotFound."""
    return by_ids(tx, scope, [id])[0]


def by_ids(tx: Transaction, scope: Scope, ids: Sequence[str]) -> list[Block]:
    """The blocks with these ids, in their order; raises NotFound for the first that is missing."""
    rows = {row.id: row for row in tx.all(_BY_IDS, {"ids": list(ids), "organization_id": scope.organization_id})}
    for id in ids:
        if id not in rows:
            raise NotFound(f"Block with id '{id}' not found")  # these words are a wire fact
    return _with_tags(tx, [rows[id] for id in ids])


def hold(tx: Transaction, id: str) -> None:
    """Let nobody else change the block until this transaction ends."""
    tx.hold(_HELD, {"id": id})


def of_agent(tx: Transaction, agent_id: str) -> tuple[Block, ...]:
    """The blocks attached to the agent, in the order of attachment, without their tags."""
    return tuple(_block(row) for row in tx.all(_OF_AGENT, {"agent_id": agent_id}))


def page(tx: Transaction, scope: Scope, wanted: Page, which: BlockFilter) -> list[Block]:
    """One page of the blocks that pass the filter."""
    statement = _SELECT.where(blocks.c.organization_id == scope.organization_id)
    if which.label is not None:
        statement = statement.where(blocks.c.label == which.label)
    if which.chain_id is not None:
        statement = statement.where(blocks.c.chain_id == which.chain_id)
    for name, piece in which.pieces.items():
        statement = statement.where(blocks.c[name].icontains(piece, autoescape=True))
    if which.agent_id is not None:
        attached = select(agents_blocks.c.block_id).where(agents_blocks.c.agent_id == which.agent_id)
        statement = statement.where(blocks.c.id.in_(attached))
    if which.tags:
        tagged = select(blocks_tags.c.block_id).where(blocks_tags.c.tag.in_(which.tags))
        if which.all_tags:
            tagged = tagged.group_by(blocks_tags.c.block_id).having(func.count() == len(set(which.tags)))
        statement = statement.where(blocks.c.id.in_(tagged))
    return _with_tags(tx, read_page(tx, statement, blocks, wanted))


def count(tx: Transaction, scope: Scope) -> int:
    """How many blocks there are."""
    statement = select(func.count()).select_from(blocks).where(blocks.c.organization_id == scope.organization_id)
    return int(tx.all(statement)[0][0])


def write(tx: Transaction, block: Block, value: str, *, by: str) -> Block | None:
    """Make `value` the block's text if nobody wrote since `block` was read; None where somebody did."""
    written = replace(block, value=value, version=block.version + 1, updated_by=by, updated_at=tx.clock.now())
    values = new_values({name: getattr(written, name) for name in ("value", "version", "updated_by", "updated_at")})
    done = tx.run(_WRITE, {**values, "block_id": block.id, "expected": block.version})
    return written if done else None


def update(tx: Transaction, block: Block, changed: Block) -> Block:
    """Store changed fields of a block that was read in this transaction; tags are replaced, attachments follow its label."""
    changed = replace(changed, version=block.version + 1, updated_at=tx.clock.now())
    values = {name: getattr(changed, name) for name in _CHANGED}
    if not tx.run(_UPDATE, {**new_values(values), "block_id": block.id, "expected": block.version}):
        raise Overtaken(f'Block "{block.label}" changed since you read it. Read it again and retry.')
    if changed.label != block.label:
        tx.run(_RELABEL, {"new_label": changed.label, "relabelled": block.id})
    if changed.tags != block.tags:
        tx.run(_DELETE_TAGS, {"block_id": block.id})
        tx.run(_INSERT_TAG, [{"block_id": block.id, "tag": tag} for tag in changed.tags])
    return changed


def remove(tx: Transaction, block: Block) -> None:
    """Delete the block, its attachments and tags, and a chain that was its own."""
    tx.run(_DELETE, {"block_id": block.id})
    tx.run(
        _DELETE_CHAIN.where(chains.c.owner_kind == "block", chains.c.owner_id == block.id), {"chain_id": block.chain_id}
    )


def attach(tx: Transaction, agent_id: str, attached: Sequence[Block]) -> None:
    """Put the blocks into the agent's prompt, after those it has."""
    tx.run(_ATTACH, [{"agent_id": agent_id, "block_id": block.id, "label": block.label} for block in attached])


def detach(tx: Transaction, agent_id: str, block_id: str) -> bool:
    """Take the block out of the agent's prompt; False where it was not there."""
    return tx.run(_DETACH, {"agent_id": agent_id, "block_id": block_id}) > 0


def agent_ids(tx: Transaction, block_id: str) -> list[str]:
    """The agents the block is attached to."""
    return [row.agent_id for row in tx.all(_AGENT_IDS, {"block_id": block_id})]


def _values(block: Block) -> dict[str, Any]:
    return {column.name: getattr(block, column.name) for column in _COLUMNS}


def _block(row: Row[Any]) -> Block:
    return Block(**row._asdict())


def _with_tags(tx: Transaction, rows: Sequence[Row[Any]]) -> list[Block]:
    if not rows:
        return []
    tags: dict[str, list[str]] = {}
    for row in tx.all(_TAGS, {"ids": [row.id for row in rows]}):
        tags.setdefault(row.block_id, []).append(row.tag)
    return [replace(_block(row), tags=tuple(tags.get(row.id, ()))) for row in rows]
