"""Reads of stored versions: pages, single versions, old texts, changes of runs, deletions.

A block keeps its history when it is renamed. To follow a label back, the queries use the block's
former labels.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, Row, bindparam, func, or_, select, update

from ricordo.domain.block import Chain
from ricordo.domain.scope import Scope
from ricordo.domain.version import BlockVersion
from ricordo.errors import Conflict, NotFound
from ricordo.storage import rewriting, versions
from ricordo.storage.blocks import SETTINGS
from ricordo.storage.engine.repository import Repository, equal, one_of
from ricordo.storage.engine.store import Transaction
from ricordo.storage.history_size import is_full, recount
from ricordo.storage.schema.memory_tables import blocks, blocks_log, chains, commits, is_in_chain
from ricordo.storage.versions import PARENT

SHORTEST_ID = 7
_ID = re.compile(rf"[0-9a-f]{{{SHORTEST_ID},40}}")
_NEWEST = 1 << 62  # more than any chain has versions
_ROWS = Repository(BlockVersion, commits)
_WIDTH = len(_ROWS.columns)
_SELECT = select(*_ROWS.columns, PARENT, commits.c.other_parent)
_IN_CHAIN = is_in_chain(commits)
_PAGE = (
    _SELECT.where(_IN_CHAIN, commits.c.number < bindparam("before"))
    .order_by(commits.c.number.desc())
    .limit(bindparam("limit"))
)
_LABELLED = _PAGE.where(equal(commits, "label"), commits.c.number > bindparam("after"))
_COUNT = select(func.count().label("total")).where(
    _IN_CHAIN,
    commits.c.number > bindparam("after"),
    commits.c.number < bindparam("before"),
)
_COUNT_LABELLED = _COUNT.where(equal(commits, "label"))
_BETWEEN = _SELECT.where(_IN_CHAIN, commits.c.id.between(bindparam("low"), bindparam("high")))
_FIRST = _BETWEEN.order_by(commits.c.id, commits.c.number.desc()).limit(1)
_LAST = _BETWEEN.order_by(commits.c.id.desc(), commits.c.number.desc()).limit(1)
_END = select(func.max(commits.c.number).label("number")).where(_IN_CHAIN, equal(commits, "id"))
# The last version of a commit, and another version if the commit has several.
_OF_COMMIT = (
    _SELECT.where(_IN_CHAIN, equal(commits, "id")).order_by(commits.c.number.desc()).limit(2)
)
# The number of the chain's last version up to a time, and the last version of each label.
_LAST_AT = select(func.max(commits.c.number).label("number")).where(
    _IN_CHAIN, commits.c.created_at <= bindparam("time")
)
_LAST_NUMBERS = (
    select(func.max(commits.c.number).label("number"))
    .where(_IN_CHAIN, commits.c.number <= bindparam("end"))
    .group_by(commits.c.label)
)
_NUMBERED = _SELECT.where(_IN_CHAIN, one_of(commits.c.number, "numbers"))
# The version that deleted the block with this label. It is older than the entry in the log.
_DELETION = select(func.max(commits.c.number).label("number")).where(
    _IN_CHAIN,
    equal(commits, "label"),
    commits.c.blob.is_(None),
    commits.c.created_at <= bindparam("deleted_at"),
)
_RENAMES = (
    select(commits.c.number, commits.c.label, commits.c.old_label)
    .where(_IN_CHAIN, commits.c.old_label.is_not(None))
    .order_by(commits.c.number.desc())
)
_OF_ORGANIZATION = equal(chains, "organization_id")
_OF_RUNS = (
    _SELECT.add_columns(chains.c.id.label("chain_id"))
    .join(chains, chains.c.seq == commits.c.chain)
    .where(_OF_ORGANIZATION)
)
_OF_RUN = _OF_RUNS.where(equal(commits, "run_id")).order_by(chains.c.id, commits.c.number)
_CHAINS_OF = (
    select(blocks.c.id, blocks.c.chain_id, blocks.c.label)
    .join(chains, chains.c.id == blocks.c.chain_id)
    .where(one_of(blocks.c.id, "ids"), _OF_ORGANIZATION)
)
_CHAINS_OF_DELETED = (
    select(
        blocks_log.c.block_id,
        blocks_log.c.chain_id,
        blocks_log.c.deleted_label.label("label"),
        blocks_log.c.created_at,
    )
    .join(chains, chains.c.id == blocks_log.c.chain_id)
    .where(
        one_of(blocks_log.c.block_id, "ids"),
        _OF_ORGANIZATION,
        blocks_log.c.deleted_label.is_not(None),
    )
    .order_by(blocks_log.c.seq)
)
_DELETED = (
    select(blocks_log.c.block_id, blocks_log.c.changed)
    .where(equal(blocks_log, "chain_id", "deleted_label"))
    .order_by(blocks_log.c.seq.desc())
    .limit(1)
)

_LARGE_SETTINGS = {"description", "metadata"}
_SHORTEN_DELETED = (
    update(blocks_log)
    .where(
        blocks_log.c.chain_id == bindparam("in_chain"),
        blocks_log.c.deleted_label == bindparam("label_then"),
        blocks_log.c.block_id == bindparam("of_block"),
    )
    .values(changed=bindparam("new_changed"))
)


@dataclass(frozen=True, slots=True)
class DeletedBlock:
    """A deleted block: its id, and its settings at that time."""

    block_id: str
    settings: Mapping[str, Any]


def page(
    tx: Transaction,
    chain_id: str,
    *,
    label: str | None = None,
    limit: int = 50,
    before: int | None = None,
) -> list[BlockVersion]:
    """Return versions of a chain, newest first.

    Args:
        tx: The transaction.
        chain_id: The chain.
        label: Only versions of the block with this label, or of the last block that had it: a
            deleted block, or one that was renamed since. Versions under the block's other labels
            are included. None: of all blocks.
        limit: The most versions.
        before: Only versions with a smaller number; None: from the newest on.
    """
    end = _NEWEST if before is None else before
    if label is not None:
        renames = _renames_of(tx, chain_id)
        label, upper = _last_of(tx, chain_id, label, renames)
        return _of_label(tx, chain_id, label, renames, upper=upper, end=end - 1, limit=limit)
    rows = tx.all(_PAGE, {"chain_id": chain_id, "before": end, "limit": limit})
    return [_version(row, chain_id) for row in rows]


def count(tx: Transaction, chain_id: str, label: str | None = None) -> int:
    """Return the number of versions that `page` returns without a limit.

    Args:
        tx: The transaction.
        chain_id: The chain.
        label: As in `page`.
    """
    if label is None:
        return int(tx.first(_COUNT, {"chain_id": chain_id, "after": 0, "before": _NEWEST}).total)
    total = 0
    renames = _renames_of(tx, chain_id)
    label, upper = _last_of(tx, chain_id, label, renames)
    for name, after, before in _stretches(renames, label, upper):
        bounds = {"label": name, "after": after, "before": before}
        total += tx.first(_COUNT_LABELLED, {"chain_id": chain_id, **bounds}).total
    return total


def get(tx: Transaction, chain_id: str, id: str) -> BlockVersion:
    """Return the version with this id or its first digits.

    If a commit has several versions, the last one is returned. If the history was rewritten, a full
    old id leads to the new version.

    Args:
        tx: The transaction.
        chain_id: The chain.
        id: Hex digits in upper or lower case, at least 7.

    Raises:
        NotFound: There is no such version, or these are not 7 to 40 hex digits.
        Conflict: Several versions begin with these digits.
    """
    digits = id.lower()
    if not _ID.fullmatch(digits):
        raise NotFound(
            f'There is no version "{id[:40]}". An id has 40 hex digits; give at least the first '
            f"{SHORTEST_ID}."
        )
    ends = {
        name: bytes.fromhex(digits.ljust(40, digit))
        for name, digit in (("low", "0"), ("high", "f"))
    }
    row = tx.first(_FIRST, {"chain_id": chain_id, **ends})
    if row is None and len(digits) == 40:
        new_id = rewriting.new_id_of(tx, chain_id, bytes.fromhex(digits))
        row = new_id and tx.first(_FIRST, {"chain_id": chain_id, "low": new_id, "high": new_id})
    if row is None:
        raise NotFound(f"There is no version {digits} of this memory.")
    if len(digits) < 40 and tx.first(_LAST, {"chain_id": chain_id, **ends}).id != row.id:
        raise Conflict(f"Several versions begin with {digits}. Give more of the id.")
    return _version(row, chain_id)


def text_at(tx: Transaction, chain_id: str, label: str, version: BlockVersion) -> str | None:
    """Return the text of the block with this label at a version; None if it did not exist.

    Args:
        tx: The transaction.
        chain_id: The chain.
        label: As in `block_at`.
        version: A version of the chain, perhaps of another block.

    Raises:
        Conflict: The stored text is damaged.
    """
    past = block_at(tx, chain_id, label, version)
    if past is None or past.blob is None:
        return None
    return versions.read_text(tx, chain_id, past.blob)


def block_at(
    tx: Transaction, chain_id: str, label: str, version: BlockVersion
) -> BlockVersion | None:
    """Return the block's newest version up to this version of the chain.

    It is None if the block was not created yet. A version without a text is a deletion.

    Args:
        tx: The transaction.
        chain_id: The chain.
        label: The block's current label, or the last one that it had. The last block with this
            label may have been created after the version. Then the block that had the label at the
            version is meant.
        version: A version of the chain, perhaps of another block. Versions of the same commit that
            follow it count too.
    """
    # Versions of one commit share its id and its tree.
    end = tx.first(_END, {"chain_id": chain_id, "id": version.id}).number or version.number
    return _newest(tx, chain_id, label, _NEWEST, end) or _newest(tx, chain_id, label, end + 1, end)


def known_block_at(
    tx: Transaction, chain_id: str, label: str, version: BlockVersion
) -> BlockVersion | None:
    """Return what `block_at` returns, also for a block that was renamed before the version.

    Args:
        tx: The transaction.
        chain_id: The chain.
        label: A label that the block has or had. If several had it, the last one is meant.
        version: As in `block_at`.
    """
    block_then = block_at(tx, chain_id, label, version)
    return block_then or block_at(tx, chain_id, last_label(tx, chain_id, label), version)


def all_at(tx: Transaction, chain_id: str, time: int) -> list[BlockVersion]:
    """Return the version of each block that was current at a time, ordered by label.

    Blocks that did not exist then are left out.

    Args:
        tx: The transaction.
        chain_id: The chain.
        time: A time in microseconds UTC.
    """
    end = tx.first(_LAST_AT, {"chain_id": chain_id, "time": time}).number
    if end is None:
        return []
    numbers = [row.number for row in tx.all(_LAST_NUMBERS, {"chain_id": chain_id, "end": end})]
    rows = tx.all(_NUMBERED, {"chain_id": chain_id, "numbers": numbers})
    last = [_version(row, chain_id) for row in rows]
    renames = [row for row in tx.all(_RENAMES, {"chain_id": chain_id}) if row.number <= end]
    renamed_at = {row.old_label: row.number for row in reversed(renames)}
    return sorted(
        (
            version
            for version in last
            if version.blob is not None and version.number > renamed_at.get(version.label, 0)
        ),
        key=lambda version: version.label,
    )


def before(tx: Transaction, version: BlockVersion) -> BlockVersion | None:
    """Return the block's version before this version; None for its first version.

    Args:
        tx: The transaction.
        version: A stored version, whose chain is read.
    """
    label = version.old_label or version.label
    return _newest(tx, version.chain_id, label, version.number, version.number - 1)


def label_now(tx: Transaction, version: BlockVersion) -> str:
    """Return the current label of the block of this version.

    Args:
        tx: The transaction.
        version: A stored version. For a deleted block, its last label is returned.
    """
    label = version.label
    for rename in reversed(tx.all(_RENAMES, {"chain_id": version.chain_id})):
        if rename.number > version.number and rename.old_label == label:
            label = rename.label
    return label


def last_label(tx: Transaction, chain_id: str, label: str) -> str:
    """Return the current or last label of the last block that had this label.

    It is the given label itself unless that block was renamed since.

    Args:
        tx: The transaction.
        chain_id: The chain.
        label: A label.
    """
    return _last_of(tx, chain_id, label, _renames_of(tx, chain_id))[0]


def of_run(tx: Transaction, scope: Scope, run_id: str) -> list[BlockVersion]:
    """Return a run's changes in all chains, the oldest of each chain first.

    They include its approved proposals.

    Args:
        tx: The transaction.
        scope: The caller; chains of other users are left out.
        run_id: The run.
    """
    rows = tx.all(
        _OF_RUN.where(*_visible(scope)),
        {"organization_id": scope.organization_id, "run_id": run_id},
    )
    return [_version(row, row.chain_id) for row in rows]


def of_runs(
    tx: Transaction, scope: Scope, run_ids: Sequence[str], limit: int
) -> list[BlockVersion]:
    """Return versions by these runs, the oldest of each chain first.

    Args:
        tx: The transaction.
        scope: The caller; chains of other users are left out.
        run_ids: The runs.
        limit: The most versions.
    """
    conditions = (commits.c.run_id.in_(run_ids), *_visible(scope))
    statement = _OF_RUNS.where(*conditions).order_by(chains.c.id, commits.c.number)
    rows = tx.all(statement.limit(limit), {"organization_id": scope.organization_id})
    return [_version(row, row.chain_id) for row in rows]


def of_step(tx: Transaction, scope: Scope, run_id: str, step_id: str) -> list[BlockVersion]:
    """Return the changes of one step in all chains, the oldest of each chain first.

    Args:
        tx: The transaction.
        scope: The caller; chains of other users are left out.
        run_id: The run of the step.
        step_id: The step.
    """
    return [version for version in of_run(tx, scope, run_id) if version.step_id == step_id]


def of_blocks(tx: Transaction, scope: Scope, ids: Mapping[str, str]) -> dict[str, BlockVersion]:
    """Return the versions of blocks, by block id; erased ones are left out.

    Args:
        tx: The transaction.
        scope: The caller; chains of other users are left out.
        ids: The full hex id of a version for each block id. An id may name a commit with several
            versions; the one of the block is returned.
    """
    parameters = {"ids": list(ids), "organization_id": scope.organization_id}
    chains_of_blocks = {
        row.block_id: (row.chain_id, row.label, row.created_at)
        for row in tx.all(_CHAINS_OF_DELETED.where(*_visible(scope)), parameters)
    }
    chains_of_blocks |= {
        row.id: (row.chain_id, row.label, None)
        for row in tx.all(_CHAINS_OF.where(*_visible(scope)), parameters)
    }
    versions_of_blocks = {}
    for block_id, (chain_id, label, deleted_at) in chains_of_blocks.items():
        id = bytes.fromhex(ids[block_id])
        rows = tx.all(_OF_COMMIT, {"chain_id": chain_id, "id": id})
        if not rows and (new_id := rewriting.new_id_of(tx, chain_id, id)):
            rows = tx.all(_OF_COMMIT, {"chain_id": chain_id, "id": new_id})
        if len(rows) == 1:
            versions_of_blocks[block_id] = _version(rows[0], chain_id)
        elif rows:
            upper = _NEWEST
            if deleted_at is not None:
                parameters = {"chain_id": chain_id, "label": label, "deleted_at": deleted_at}
                upper = (tx.first(_DELETION, parameters).number or _NEWEST - 1) + 1
            if version := _newest(tx, chain_id, label, upper, rows[0].number):
                versions_of_blocks[block_id] = version
    return versions_of_blocks


def _visible(scope: Scope) -> list[ColumnElement[bool]]:
    """Return the condition that a chain is shared or belongs to the scope's user."""
    if scope.subject_id is None:
        return []
    return [or_(chains.c.owner_kind != "user", chains.c.owner_id == scope.subject_id)]


def last_deleted(tx: Transaction, chain_id: str, label: str) -> DeletedBlock | None:
    """Return the block that was last deleted under this label, or None.

    Args:
        tx: The transaction.
        chain_id: The chain.
        label: The label at the time of the deletion.
    """
    row = tx.first(_DELETED, {"chain_id": chain_id, "deleted_label": label})
    if row is None:
        return None
    settings = row.changed["deleted"]
    return DeletedBlock(
        row.block_id, {name: settings[name] for name in SETTINGS if name in settings}
    )


def take_deleted(tx: Transaction, chain: Chain, label: str) -> DeletedBlock | None:
    """Return the last deleted block with this label in a locked chain, to restore it.

    If the history is full, the log does not keep large settings of deleted blocks. Otherwise
    repeated deletions would grow it without limit.

    Args:
        tx: The transaction.
        chain: The chain as it was read under the lock.
        label: The label at the time of the deletion.
    """
    deleted = last_deleted(tx, chain.id, label)
    if deleted is None or not is_full(tx, chain):
        return deleted
    small_settings = {
        name: deleted.settings[name] for name in deleted.settings.keys() - _LARGE_SETTINGS
    }
    values = {"in_chain": chain.id, "label_then": label, "of_block": deleted.block_id}
    tx.run(_SHORTEN_DELETED, {**values, "new_changed": {"label": label, "deleted": small_settings}})
    recount(tx, chain.id)
    return deleted


def _newest(
    tx: Transaction, chain_id: str, label: str, upper: int, end: int
) -> BlockVersion | None:
    renames = _renames_of(tx, chain_id)
    rows = _of_label(tx, chain_id, label, renames, upper=upper, end=end, limit=1)
    return next(iter(rows), None)


def _renames_of(tx: Transaction, chain_id: str) -> Sequence[Row[Any]]:
    """Return the versions of a chain that gave a block another label, newest first."""
    return tx.all(_RENAMES, {"chain_id": chain_id})


def _last_of(
    tx: Transaction, chain_id: str, label: str, renames: Sequence[Row[Any]]
) -> tuple[str, int]:
    """Return the last label of the last block that had this label, and the end of its versions.

    The end is the number of the version with which another block took that last label.
    """
    last = next((row for row in renames if label in (row.label, row.old_label)), None)
    if last is None or last.label == label:
        return label, _NEWEST
    bounds = {"label": label, "after": last.number, "before": _NEWEST}
    if tx.first(_COUNT_LABELLED, {"chain_id": chain_id, **bounds}).total:
        return label, _NEWEST  # a newer block has the label
    for rename in reversed(renames):
        if rename.number >= last.number:
            if rename.old_label == label:
                label = rename.label
            elif rename.label == label:
                return label, rename.number
    return label, _NEWEST


def _of_label(
    tx: Transaction,
    chain_id: str,
    label: str,
    renames: Sequence[Row[Any]],
    *,
    upper: int,
    end: int,
    limit: int,
) -> list[BlockVersion]:
    """Return versions up to the number `end` of a block, newest first.

    The block is the last block that had this label before the number `upper`.
    """
    block_versions: list[BlockVersion] = []
    for name, after, before in _stretches(renames, label, upper):
        if len(block_versions) < limit and after < end:
            parameters = {
                "label": name,
                "after": after,
                "before": min(before, end + 1),
                "limit": limit - len(block_versions),
            }
            block_versions += [
                _version(row, chain_id)
                for row in tx.all(_LABELLED, {"chain_id": chain_id, **parameters})
            ]
    return block_versions


def _stretches(renames: Sequence[Any], label: str, before: int) -> Iterator[tuple[str, int, int]]:
    """Yield the block's labels, newest first, each with two numbers that bound its versions."""
    for rename in renames:
        if rename.number >= before:
            continue
        if rename.old_label == label:
            # Another block had this label before, so our block was created after that.
            yield label, rename.number, before
            return
        if rename.label == label:
            yield label, rename.number - 1, before
            label, before = rename.old_label, rename.number
    yield label, 0, before


def _version(row: Row[Any], chain_id: str) -> BlockVersion:
    parents = tuple(parent for parent in (row.parent, row.other_parent) if parent is not None)
    return replace(_ROWS.of(row[:_WIDTH]), chain_id=chain_id, parents=parents)
