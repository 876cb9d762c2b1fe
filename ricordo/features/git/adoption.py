"""Commits that an owner made with git become versions of their memory, with the ids they have.

All of a push happens in one transaction: rows of versions, texts, blocks, the tip of the chain. The policy of every block that it
changes is asked, as it is for any other writer.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ricordo.domain.block import Block, Chain, new_in
from ricordo.domain.scope import Scope
from ricordo.domain.text import is_normal_name, is_normal_text
from ricordo.domain.version import ChangeMetadata
from ricordo.errors import Conflict, Forbidden, Stale
from ricordo.features.git import queries
from ricordo.features.git.objects import Commit, GitObject
from ricordo.storage import blocks, history, versions
from ricordo.storage.engine.store import Transaction
from ricordo.storage.quotas import require_room
from ricordo.storage.versions import Change

# Gives the metadata of a commit's versions: its author, who may be another than whoever brought it.
Describe = Callable[[Commit], ChangeMetadata]


class MainCommit(NamedTuple):
    """One commit of the main line, and what it changes against the one before it, as changes of blocks in order."""

    commit: Commit
    changes: tuple[Change, ...]


class Adoption(NamedTuple):
    """What a push brings to a chain at `expected`: `main` commits, oldest first, and `merged` commits with trees and `texts`."""

    expected: bytes | None
    main: tuple[MainCommit, ...]
    merged: tuple[GitObject, ...] = ()
    texts: tuple[str, ...] = ()


def adopt(
    tx: Transaction,
    scope: Scope,
    chain_id: str,
    adoption: Adoption,
    metadata: ChangeMetadata,
    describe: Callable[[Transaction, Chain], Describe] | None = None,
    *,
    is_push: bool = False,
) -> Chain:
    """Make the commits versions of a user's chain; policies are asked with `metadata`, of whoever brought them.

    A push carries whatever was committed, so it leaves read-only blocks as they are also where it is the owner's.

    Raises Stale where the tip moved meanwhile, Forbidden by the policy of a block, TooLong, Conflict for a label that an agent
    has twice then.
    """
    chain = versions.lock(tx, chain_id)
    if chain is None:
        raise Conflict("This memory was erased a moment ago. Nothing was changed.")
    if chain.head != adoption.expected:
        raise Stale(
            "The memory changed since you fetched it. Fetch and merge first, then push again."
        )
    now = {block.label: block for block in blocks.of_user(tx, scope, chain.owner_id)}
    if is_push:
        _require_no_read_only(now, adoption.main)
    after = _after(tx, chain, now, adoption.main, metadata)
    before = {block.id: block for block in now.values()}
    touched = [id for id in {**before, **after} if before.get(id) != after.get(id)]
    require_room(tx, chain, [(before.get(id), after.get(id)) for id in touched])
    rows: list[dict[str, Any]] = []
    metadata_of = (
        describe(tx, chain) if describe else lambda commit: replace(metadata, reason=commit.message)
    )
    grown = 0
    for one in adoption.main:
        chain, added = _versions(tx, chain, one, metadata_of(one.commit), rows)
        grown += added
    for text in adoption.texts:
        grown += versions.put_text(tx, chain_id, text, None).added_bytes
    if grown:
        # A push brings many texts at once, which are known to fit when they are packed.
        tx.quotas.require_history(chain.history_bytes + grown)
    grown += versions.insert_rows(tx, rows)
    commits = [GitObject("commit", one.commit.id, one.commit.body) for one in adoption.main]
    grown += queries.insert_pushed(tx, chain_id, [*commits, *adoption.merged])
    versions.advance(tx, chain, grown)
    _store_blocks(tx, chain, before, after, metadata)
    return _normalised(tx, chain, now, after)


def _normalised(
    tx: Transaction, chain: Chain, now: Mapping[str, Block], after: Mapping[str, Block]
) -> Chain:
    """The chain with a version for each text that came in another form than the normal one: commits keep their ids."""
    before = {block.id: block for block in now.values()}
    odd = [block for id, block in after.items() if block != before.get(id) and not is_normal(block)]
    for block in blocks.ROWS.by_ids(tx, [one.id for one in odd]):
        blocks.normalise(tx, replace(block, label=after[block.id].label))
    return (versions.lock(tx, chain.id) or chain) if odd else chain


def is_normal(block: Block) -> bool:
    return is_normal_name(block.label) and is_normal_text(block.value)


def _require_no_read_only(now: Mapping[str, Block], main: Sequence[MainCommit]) -> None:
    for change in (change for one in main for change in one.changes):
        block = now.get(change.old_label or change.label)
        if block and block.is_read_only:
            raise Forbidden(
                f'{block.label}.md: block "{block.label}" is read-only. Give it another policy first, then push again.'
            )


def _after(
    tx: Transaction,
    chain: Chain,
    now: Mapping[str, Block],
    main: Sequence[MainCommit],
    metadata: ChangeMetadata,
) -> dict[str, Block]:
    """The blocks by id as they are after the commits. Asks the policy of each that is touched, and its limit."""
    live = dict(now)
    deleted: dict[str, Block] = {}
    for one in main:
        for change in one.changes:
            block = live.pop(change.old_label or change.label, None) or deleted.pop(
                change.label, None
            )
            if block is None and change.value is not None:
                # Also an id that was deleted in this push may come back, under the label that it had.
                taken = {each.id for each in (*now.values(), *live.values(), *deleted.values())}
                block = _new(tx, chain, change.label, metadata, taken)
            if block is None:
                continue
            metadata.require(block.label, block.rule, chain)
            if change.value is None:
                deleted[change.label] = block
                continue
            block.require_fits(change.value)
            live[change.label] = replace(
                block, label=change.label, value=change.value, head=one.commit.id
            )
    for label in sorted(live.keys() - now.keys()):
        replace(chain, files=dict.fromkeys(live, (b"", 0))).require_told_apart(label)
    return {block.id: block for block in live.values()}


def _new(
    tx: Transaction, chain: Chain, label: str, metadata: ChangeMetadata, taken: Collection[str]
) -> Block:
    """A new block; one that was deleted comes back with the settings it had, and its id unless that is taken."""
    given = dict[str, Any]()
    if deleted := history.take_deleted(tx, chain, label):
        given = {
            **deleted.settings,
            **({} if deleted.block_id in taken else {"id": deleted.block_id}),
        }
    return new_in(chain, label, metadata.author.id, tx.clock.now(), **given)


def _versions(
    tx: Transaction,
    chain: Chain,
    one: MainCommit,
    metadata: ChangeMetadata,
    rows: list[dict[str, Any]],
) -> tuple[Chain, int]:
    """Store the texts of a commit and note the rows of its versions.

    Returns the chain with the commit as its tip, and what the texts add to its history.
    """
    grown = 0
    files, commit = dict(chain.files), one.commit
    other = next((parent for parent in commit.parents if parent != chain.head), None)
    now = tx.clock.now()
    for before, change in enumerate(one.changes, chain.versions):
        stored = files.pop(change.old_label or change.label, None)
        blob = None
        if change.value is not None:
            base = (*stored, change.before) if stored and change.before is not None else None
            text = versions.put_text(tx, chain.id, change.value, base)
            files[change.label] = text.file
            blob = text.id
            grown += text.added_bytes
        row = versions.row_of(
            replace(chain, versions=before), change, metadata, commit.id, blob, now
        )
        rows.append({**row, "other_parent": other})
    count = chain.versions + len(one.changes)
    return replace(chain, head=commit.id, versions=count, files=files), grown


def _store_blocks(
    tx: Transaction,
    chain: Chain,
    now: Mapping[str, Block],
    after: Mapping[str, Block],
    metadata: ChangeMetadata,
) -> None:
    """Bring the rows of blocks from what they are now to what they are after, both by id."""
    for id, block in now.items():
        if id not in after:
            queries.delete_block(tx, block)
            blocks.log(
                tx,
                block,
                {"deleted": {name: getattr(block, name) for name in blocks.SETTINGS}},
                metadata,
            )
    queries.relabel(
        tx,
        [block for id, block in after.items() if id in now and block.label != now[id].label],
        now,
    )
    for id, block in after.items():
        before = now.get(id)
        if before is None:
            queries.insert_block(tx, block)
        elif block != before:
            changed = replace(
                block,
                version=before.version + 1,
                is_untrusted=block.is_untrusted and not metadata.is_owners_of(chain),
                updated_by=metadata.author.id,
                updated_at=tx.clock.now(),
            )
            queries.write_block(tx, changed, before)
