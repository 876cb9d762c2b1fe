"""Turn an owner's git commits into versions that keep the ids of the commits.

A push is one transaction: rows of versions, texts, blocks, and the tip of the chain. The policy of
each changed block decides, as for any other writer.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ricordo.domain.block import Block, Chain, new_in
from ricordo.domain.git_objects import GitObject
from ricordo.domain.scope import Scope
from ricordo.domain.text import is_normal_name, is_normal_text
from ricordo.domain.version import ChangeMetadata
from ricordo.errors import Conflict, Forbidden, Stale
from ricordo.features.sync.git.objects import Commit
from ricordo.storage import blocks, git_objects, history, rewriting, versions
from ricordo.storage.engine.store import Transaction
from ricordo.storage.quotas import require_room
from ricordo.storage.versions import Change

# A function that returns the metadata of a commit's versions. The commit's author may be somebody
# else than the caller who pushed it.
Describe = Callable[[Commit], ChangeMetadata]


class MainCommit(NamedTuple):
    """A commit of the main line, with its block changes in order.

    The changes are relative to the commit before it.
    """

    commit: Commit
    changes: tuple[Change, ...]


class Adoption(NamedTuple):
    """Commits to add to a chain whose head must be `expected`.

    `main` are the commits of the main line, oldest first; `merged` are other commits with their
    trees, and `texts` are their texts.
    """

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
    *,
    describe: Callable[[Transaction, Chain], Describe] | None = None,
    is_push: bool = False,
) -> Chain:
    """Turn the commits into versions of a user's chain.

    Args:
        tx: The transaction.
        scope: The organization of the chain's user.
        chain_id: The chain, which is locked here.
        adoption: The commits, and the head that the chain must have.
        metadata: The author who pushed or pulled the commits; the policies apply to this author.
        describe: A function of the transaction and the chain. It returns a function that returns
            the metadata of a commit's versions. With None, the versions get `metadata` with the
            commit's message as the reason.
        is_push: Refuse changes of read-only blocks even by their owner.

    Raises:
        Stale: if the tip moved meanwhile.
        Forbidden: if the policy of a block refuses the change.
        TooLong: if a text or the memory would exceed its limit.
        Conflict: if the memory was erased, the commits are from before a text was forgotten, or an
            agent would have two blocks with one label.
    """
    chain = versions.lock(tx, chain_id)
    if chain is None:
        raise Conflict("This memory was just erased, so nothing was changed.")
    if chain.head != adoption.expected:
        raise Stale(
            "The memory changed since you fetched it. Fetch and merge first, then push again."
        )
    brought = (git_object.id for git_object in adoption.merged)
    require_not_rewritten(tx, chain_id, [*(commit.id for commit, _ in adoption.main), *brought])
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
    for main_commit in adoption.main:
        commit_metadata = metadata_of(main_commit.commit)
        chain, added = _versions(tx, chain, main_commit, metadata=commit_metadata, rows=rows)
        grown += added
    for text in adoption.texts:
        grown += versions.put_text(tx, chain_id, text, None).added_bytes
    if grown:
        # The size of many texts is known only once they are packed.
        tx.quotas.require_history(chain.history_bytes + grown)
    grown += versions.insert_rows(tx, rows)
    commits = [GitObject("commit", commit.id, commit.body) for commit, _ in adoption.main]
    grown += git_objects.insert_pushed(tx, chain_id, [*commits, *adoption.merged])
    versions.advance(tx, chain, grown)
    _store_blocks(tx, chain, before, after=after, metadata=metadata)
    return _normalise_texts(tx, chain, before, after=after)


def require_not_rewritten(tx: Transaction, chain_id: str, commit_ids: Collection[bytes]) -> None:
    """Raise Conflict if the push contains commits from before the history was rewritten.

    Args:
        tx: The transaction.
        chain_id: The chain.
        commit_ids: The 20 bytes of the id of each pushed commit or other object.

    Raises:
        Conflict: One of them is the former id of a rewritten commit.
    """
    if not rewriting.rewritten_ids(tx, chain_id).isdisjoint(commit_ids):
        raise Conflict(
            "This push is based on versions from before a text was forgotten, and would restore "
            "that text. Clone the memory again, and repeat your changes there."
        )


def _normalise_texts(
    tx: Transaction, chain: Chain, before: Mapping[str, Block], *, after: Mapping[str, Block]
) -> Chain:
    """Add a version for each changed block whose text is not in normal form.

    The pushed commits keep their ids. Returns the chain with its new tip.
    """
    ids = [id for id, block in after.items() if block != before.get(id) and not is_normal(block)]
    if not ids:
        return chain
    for block in blocks.ROWS.by_ids(tx, ids):
        blocks.normalise(tx, replace(block, label=after[block.id].label))
    return versions.lock(tx, chain.id) or chain


def is_normal(block: Block) -> bool:
    """Return True if the block's label and text have the normal form in which they are stored.

    Args:
        block: The block.
    """
    return is_normal_name(block.label) and is_normal_text(block.value)


def _require_no_read_only(now: Mapping[str, Block], main: Sequence[MainCommit]) -> None:
    for change in (change for _, changes in main for change in changes):
        block = now.get(change.old_label or change.label)
        if block and block.is_read_only:
            raise Forbidden(
                f'{block.label}.md: block "{block.label}" is read-only. Give it another policy '
                "first, then push again."
            )


def _after(
    tx: Transaction,
    chain: Chain,
    now: Mapping[str, Block],
    main: Sequence[MainCommit],
    metadata: ChangeMetadata,
) -> dict[str, Block]:
    """Return the blocks by id as they are after the commits.

    The policy and the limit of each changed block are checked.
    """
    live = dict(now)
    deleted: dict[str, Block] = {}
    for commit, changes in main:
        for change in changes:
            block = live.pop(change.old_label or change.label, None)
            block = block or deleted.pop(change.label, None)
            if block is None and change.value is not None:
                # A block that this push deletes may be created again under its old label.
                in_use = (*now.values(), *live.values(), *deleted.values())
                used_ids = {other.id for other in in_use}
                block = _new(tx, chain, change.label, metadata=metadata, used_ids=used_ids)
            if block is None:
                continue
            metadata.require(block.label, block.rule, chain)
            if change.value is None:
                deleted[change.label] = block
                continue
            block.require_fits(change.value)
            live[change.label] = replace(
                block, label=change.label, value=change.value, head=commit.id
            )
    for label in sorted(live.keys() - now.keys()):
        replace(chain, files=dict.fromkeys(live, (b"", 0))).require_distinct_label(label)
    return {block.id: block for block in live.values()}


def _new(
    tx: Transaction,
    chain: Chain,
    label: str,
    *,
    metadata: ChangeMetadata,
    used_ids: Collection[str],
) -> Block:
    """Return a new block; it gets the settings of a deleted block with this label.

    It also gets the deleted block's id, if that id is not in use.
    """
    fields = dict[str, Any]()
    if deleted := history.take_deleted(tx, chain, label):
        fields |= deleted.settings
        if deleted.block_id not in used_ids:
            fields["id"] = deleted.block_id
    return new_in(chain, label, metadata.author.id, tx.clock.now(), **fields)


def _versions(
    tx: Transaction,
    chain: Chain,
    main_commit: MainCommit,
    *,
    metadata: ChangeMetadata,
    rows: list[dict[str, Any]],
) -> tuple[Chain, int]:
    """Store the texts of a commit, and append its versions to `rows`.

    Returns the chain with the commit as its tip, and the bytes that the texts add to the history.
    """
    grown = 0
    files = dict(chain.files)
    commit, changes = main_commit
    other = next((parent for parent in commit.parents if parent != chain.head), None)
    now = tx.clock.now()
    for before, change in enumerate(changes, chain.versions):
        stored = files.pop(change.old_label or change.label, None)
        blob = None
        if change.value is not None:
            if stored and change.before is not None:
                base = (*stored, change.before)
            else:
                base = None
            text = versions.put_text(tx, chain.id, change.value, base)
            files[change.label] = (text.id, text.depth)
            blob = text.id
            grown += text.added_bytes
        row = versions.row_of(
            replace(chain, versions=before),
            change,
            metadata=metadata,
            id=commit.id,
            blob=blob,
            now=now,
        )
        rows.append({**row, "other_parent": other})
    count = chain.versions + len(changes)
    return replace(chain, head=commit.id, versions=count, files=files), grown


def _store_blocks(
    tx: Transaction,
    chain: Chain,
    before: Mapping[str, Block],
    *,
    after: Mapping[str, Block],
    metadata: ChangeMetadata,
) -> None:
    """Change the rows of blocks from `before` to `after`, both by id."""
    for id, block in before.items():
        if id not in after:
            git_objects.delete_block(tx, block)
            settings = {name: getattr(block, name) for name in blocks.SETTINGS}
            blocks.log(tx, block, {"deleted": settings}, metadata)
    renamed = [
        block for id, block in after.items() if id in before and block.label != before[id].label
    ]
    git_objects.relabel(tx, renamed, before)
    for id, block in after.items():
        stored = before.get(id)
        if stored is None:
            git_objects.insert_block(tx, block)
        elif block != stored:
            changed = replace(
                block,
                version=stored.version + 1,
                is_untrusted=block.is_untrusted and not metadata.is_owners_of(chain),
                updated_by=metadata.author.id,
                updated_at=tx.clock.now(),
            )
            git_objects.write_block(tx, changed, stored)
