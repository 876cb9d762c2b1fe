"""Commits that an owner made with git become versions of her memory, with the ids they have: beside `blocks`, the other door.

All of a push happens in one transaction: rows of versions, texts, blocks, the tip of the chain. The policy of every block that it
changes is asked, as it is for any other writer.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import bindparam, delete, insert

from ricordo.domain.block import Block, Chain, new_in
from ricordo.domain.git_reading import Commit, GitObject
from ricordo.domain.scope import Scope
from ricordo.domain.version import ChangeMetadata
from ricordo.errors import Conflict, Stale
from ricordo.storage import blobs, history, proposals, versions
from ricordo.storage import blocks as blocks_now
from ricordo.storage.memory_tables import number_of_chain
from ricordo.storage.repository import Missing, new_values, setter
from ricordo.storage.store import Overtaken, Transaction
from ricordo.storage.tables import agents_blocks, blocks, git_objects
from ricordo.storage.versions import Change

_COLUMNS = [column.name for column in blocks.c if column.name != "seq"]
_INSERT = insert(blocks)
_INSERT_RAW = Missing(git_objects).values(chain=number_of_chain())
_WRITTEN = ("label", "value", "version", "head", "is_untrusted", "updated_by", "updated_at")
_WRITE = setter(
    blocks, *_WRITTEN, where=(blocks.c.id == bindparam("block_id")) & (blocks.c.version == bindparam("expected"))
)
_RELABEL = setter(blocks, "label", where=blocks.c.id == bindparam("relabelled"))
_RELABEL_ATTACHED = setter(agents_blocks, "label", where=agents_blocks.c.block_id == bindparam("relabelled"))
_DELETE = delete(blocks).where(blocks.c.id == bindparam("block_id"), blocks.c.version == bindparam("expected"))


@dataclass(frozen=True, slots=True)
class Adopted:
    """One commit of the main line, and what it changes against the one before it, as changes of blocks in order."""

    commit: Commit
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Adoption:
    """What a push brings to a chain whose tip is `expected`.

    `main` are the commits from there to the new tip, the oldest first; `beside` the commits that were merged, with all their
    trees, and `texts` the texts in these.
    """

    expected: bytes | None
    main: tuple[Adopted, ...]
    beside: tuple[GitObject, ...] = ()
    texts: tuple[str, ...] = ()


def adopt(tx: Transaction, scope: Scope, chain_id: str, adoption: Adoption, metadata: ChangeMetadata) -> Chain:
    """Make the commits versions of a user's chain; `metadata` tells whose credential brought them.

    Raises Stale where the tip moved meanwhile, Forbidden by the policy of a block, TooLong, Conflict for a label that an agent
    has twice then.
    """
    chain = versions.lock(tx, chain_id)
    if chain is None:
        raise Conflict("This memory was erased a moment ago. Nothing was changed.")
    if chain.head != adoption.expected:
        raise Stale("The memory changed since you fetched it. Fetch and merge first, then push again.")
    if chain.owner_kind != "user":
        raise Conflict("Only the memory of a user can be pushed to.")
    now = {block.label: block for block in blocks_now.of_user(tx, scope, chain.owner_id)}
    after = _after(tx, chain, now, adoption.main, metadata)
    rows: list[dict[str, Any]] = []
    for adopted in adoption.main:
        chain = _versions(tx, chain, adopted, metadata, rows)
    versions.insert_rows(tx, rows)
    raw = [_raw(chain_id, adopted.commit) for adopted in adoption.main]
    raw += [{"chain_id": chain_id, "id": one.id, "kind": one.kind, "data": one.body} for one in adoption.beside]
    tx.run(_INSERT_RAW, raw)
    for text in adoption.texts:
        blobs.put(tx, chain_id, text, None)
    versions.advance(tx, chain)
    _store_blocks(tx, {block.id: block for block in now.values()}, after, metadata)
    return chain


def _after(
    tx: Transaction, chain: Chain, now: Mapping[str, Block], main: Sequence[Adopted], metadata: ChangeMetadata
) -> dict[str, Block]:
    """The blocks by id as they are after the commits. Asks the policy of each that is touched, and its limit."""
    live = dict(now)
    gone: dict[str, Block] = {}
    for adopted in main:
        for change in adopted.changes:
            block = live.pop(change.old_label or change.label, None) or gone.pop(change.label, None)
            if block is None and change.value is not None:
                # Also an id that went in this push may come back yet, under the label that it had.
                taken = {one.id for one in (*now.values(), *live.values(), *gone.values())}
                block = _new(tx, chain, change.label, metadata, taken)
            if block is None:
                continue
            metadata.require(block.label, block.rule)
            if change.value is None:
                gone[change.label] = block
                continue
            block.require_fits(change.value)
            live[change.label] = replace(block, label=change.label, value=change.value, head=adopted.commit.id)
    for label in sorted(live.keys() - now.keys()):
        replace(chain, files=dict.fromkeys(live, (b"", 0))).require_told_apart(label)
    return {block.id: block for block in live.values()}


def _new(tx: Transaction, chain: Chain, label: str, metadata: ChangeMetadata, taken: Collection[str]) -> Block:
    """A block that was not there; one that was deleted comes back with the settings it had, and its id unless that is taken."""
    given = dict[str, Any]()
    if deleted := history.last_deleted(tx, chain.id, label):
        given = {**deleted.settings, **({} if deleted.block_id in taken else {"id": deleted.block_id})}
    return new_in(chain, label, metadata.author.id, tx.clock.now(), **given)


def _versions(
    tx: Transaction, chain: Chain, adopted: Adopted, metadata: ChangeMetadata, rows: list[dict[str, Any]]
) -> Chain:
    """Store the texts of a commit and note the rows of its versions; returns the chain with the commit as its tip."""
    files, commit = dict(chain.files), adopted.commit
    metadata = replace(metadata, reason=commit.message)
    other = next((parent for parent in commit.parents if parent != chain.head), None)
    now = tx.clock.now()
    for before, change in enumerate(adopted.changes, chain.versions):
        standing = files.pop(change.old_label or change.label, None)
        blob = None
        if change.value is not None:
            base = (*standing, change.before) if standing and change.before is not None else None
            files[change.label] = blobs.put(tx, chain.id, change.value, base)
            blob = files[change.label][0]
        row = versions.row_of(replace(chain, versions=before), change, metadata, commit.id, blob, now)
        rows.append({**row, "other_parent": other})
    return replace(chain, head=commit.id, versions=chain.versions + len(adopted.changes), files=files)


def _raw(chain_id: str, commit: Commit) -> dict[str, Any]:
    return {"chain_id": chain_id, "id": commit.id, "kind": "commit", "data": commit.body}


def _store_blocks(
    tx: Transaction, now: Mapping[str, Block], after: Mapping[str, Block], metadata: ChangeMetadata
) -> None:
    """Bring the rows of blocks from what they are now to what they are after, both by id."""
    for id, block in now.items():
        if id not in after:
            _remove(tx, block, metadata)
    renamed = [block for id, block in after.items() if id in now and block.label != now[id].label]
    for statement in (_RELABEL, _RELABEL_ATTACHED):
        # By way of names that nobody has: two blocks may have exchanged theirs.
        tx.run(statement, [{"new_label": block.id, "relabelled": block.id} for block in renamed])
    tx.run(_RELABEL_ATTACHED, [{"new_label": block.label, "relabelled": block.id} for block in renamed])
    for block in renamed:
        proposals.follow(tx, block.chain_id, now[block.id].label, block.id)
    for block in renamed:
        proposals.follow(tx, block.chain_id, block.id, block.label)
    moment = tx.clock.now()
    for id, block in after.items():
        before = now.get(id)
        if before is None:
            values = {name: getattr(replace(block, version=1), name) for name in _COLUMNS}
            tx.run(_INSERT, values)
        elif block != before:
            written = replace(
                block,
                version=before.version + 1,
                is_untrusted=block.is_untrusted and not metadata.is_owners,
                updated_by=metadata.author.id,
                updated_at=moment,
            )
            values = new_values({name: getattr(written, name) for name in _WRITTEN})
            _require_written(tx.run(_WRITE, {**values, "block_id": id, "expected": before.version}), before)


def _remove(tx: Transaction, block: Block, metadata: ChangeMetadata) -> None:
    _require_written(tx.run(_DELETE, {"block_id": block.id, "expected": block.version}), block)
    blocks_now.log(tx, block, {"deleted": {name: getattr(block, name) for name in blocks_now.SETTINGS}}, metadata)


def _require_written(rows: int, block: Block) -> None:
    if not rows:
        raise Overtaken(f'Block "{block.label}" changed a moment ago. Fetch and merge, then push again.')
