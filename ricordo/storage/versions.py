"""Chains of versions: one owner's history and its texts.

Versions are written in the transaction that changes their blocks. The repository of blocks uses
`begin`, `record` and `store`. Imports of whole histories, git and erasure use `put_text`,
`insert_rows` and `advance`. The chain's row is locked first, so writers of one chain wait for each
other. Its `files` are the tree for the next id.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    bindparam,
    exists,
    func,
    insert,
    select,
    update,
)

from ricordo.domain.authors import signature
from ricordo.domain.block import Chain
from ricordo.domain.git_objects import blob_id, commit_body, object_id, tree_of
from ricordo.domain.quotas import size_of
from ricordo.domain.remote import SETTLES, sync_job
from ricordo.domain.scope import Scope
from ricordo.domain.version import ChangeMetadata
from ricordo.errors import Conflict, Invalid, NotFound
from ricordo.storage import jobs
from ricordo.storage.engine.repository import Missing, Repository, equal
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.history_sum import ROW_BYTES
from ricordo.storage.schema.memory_tables import (
    blobs,
    chains,
    commits,
    is_in_chain,
    memory_remotes,
    number_of_chain,
)

# At this number of deltas from a whole text, a text is stored whole.
_DEEPEST = 32
_READ_AT_ONCE = 500
# The size of zlib's window, in bytes.
_WINDOW = 32_768
_LENGTH = 4

_CHAINS = Repository(
    Chain,
    chains,
    forms={
        "files": (
            lambda files: {label: (blob.hex(), depth) for label, (blob, depth) in files.items()},
            lambda files: {
                label: (bytes.fromhex(blob), depth) for label, (blob, depth) in files.items()
            },
        )
    },
)
_METADATA = Repository(ChangeMetadata, commits)
# Read with the row, which is locked anyway. So chains without remotes need no further statement.
_IS_FOLLOWED = exists().where(memory_remotes.c.chain_id == chains.c.id).label("is_followed")
_LOCK = (
    select(*_CHAINS.columns, _IS_FOLLOWED)
    .where(equal(chains, "id"))
    .with_for_update(key_share=True)
)
_REMOTES = (
    select(memory_remotes.c.organization_id, memory_remotes.c.id)
    .where(equal(memory_remotes, "chain_id"))
    .order_by(memory_remotes.c.seq)
)
_OF_OWNER = _CHAINS.select.where(equal(chains, "owner_kind", "owner_id", "organization_id"))
_UNKNOWN = -1
_before = commits.alias("before")
_ID_BEFORE = select(_before.c.id)
# The parent commit of a version: the stored parent, or else the commit of the previous version. The
# first commit of a history has no parent. A previous version in the same commit does not count.
PARENT = func.coalesce(
    commits.c.parent,
    _ID_BEFORE.where(
        _before.c.chain == commits.c.chain,
        _before.c.number == commits.c.number - 1,
        _before.c.id != commits.c.id,
    )
    .correlate(commits)
    .scalar_subquery(),
).label("parent")
_INSERT_COMMIT = insert(commits).values(
    chain=number_of_chain(),
    parent=func.nullif(
        bindparam("made_from", type_=commits.c.parent.type),
        _ID_BEFORE.where(
            _before.c.chain == number_of_chain(), _before.c.number == bindparam("versions_before")
        ).scalar_subquery(),
    ),
)
_ADVANCE = (
    update(chains)
    .where(chains.c.id == bindparam("this_id"))
    .values(
        head=bindparam("new_head"),
        versions=bindparam("new_versions"),
        files=bindparam("new_files"),
        history_bytes=chains.c.history_bytes + bindparam("grown", type_=BigInteger),
    )
)
# An older text's id, depth and content. A new text may be stored as a delta from it.
TextBase = tuple[bytes, int, str]

_INSERT_TEXT = Missing(blobs).values(chain=number_of_chain())
_DEPTH = select(blobs.c.depth).where(is_in_chain(blobs), blobs.c.id == bindparam("blob"))


def _lineage(condition: ColumnElement[bool]) -> Select[Any]:
    """Return the statement for texts of a chain and the bases of their deltas."""
    line = (
        select(blobs.c.chain, blobs.c.id, blobs.c.base)
        .where(is_in_chain(blobs), condition)
        .cte("line", recursive=True)
    )
    bases = select(blobs.c.chain, blobs.c.id, blobs.c.base)
    # Texts with the same base share the remaining bases.
    line = line.union(bases.where(blobs.c.chain == line.c.chain, blobs.c.id == line.c.base))
    return select(blobs.c.id, blobs.c.base, blobs.c.data).join(
        line, (blobs.c.chain == line.c.chain) & (blobs.c.id == line.c.id)
    )


_LINEAGE = _lineage(blobs.c.id == bindparam("blob"))


class StoredText(NamedTuple):
    """A text in a chain.

    Attributes:
        id: The id of its git blob.
        depth: The number of deltas from a text that is stored whole.
        added_bytes: The bytes that it added to the history; 0 if the chain had it.
    """

    id: bytes
    depth: int
    added_bytes: int


@dataclass(frozen=True, slots=True)
class Change:
    """A block's next state.

    Attributes:
        label: The label after the change.
        value: The new text; None: the block is deleted.
        before: The text before; None: the block is new.
        old_label: The label before a rename; None: it was not renamed.
    """

    label: str
    value: str | None
    before: str | None
    old_label: str | None = None


@dataclass(frozen=True, slots=True)
class VersionPlan:
    """A chain after planned changes.

    Attributes:
        chain: The chain after them. The depth of new texts is not known yet.
        ids: The id of each change's version; None for a change without effect.
        at: The time of the versions in microseconds UTC.
    """

    chain: Chain
    ids: tuple[bytes | None, ...]
    at: int


def insert_chain(tx: Transaction, chain: Chain) -> None:
    """Store a new chain as it is, without versions.

    Args:
        tx: The transaction.
        chain: The chain.

    Raises:
        Collision: The owner has a chain already.
    """
    _CHAINS.insert(tx, chain)


def lock(tx: Transaction, chain_id: str) -> Chain | None:
    """Lock a chain and its blocks for a change; None if the chain was deleted.

    Jobs to sync the chain's remotes are added, even if the transaction changes nothing.

    Args:
        tx: The transaction.
        chain_id: The chain. Its row is locked until the transaction ends.
    """
    row = tx.first(_LOCK, {"id": chain_id})
    if row is None:
        return None
    tx.locked_ids.add(chain_id)
    if row.is_followed:
        for remote in tx.all(_REMOTES, {"chain_id": chain_id}):
            jobs.add(tx, sync_job(remote.organization_id, remote.id, tx.clock.now() + SETTLES))
    return _CHAINS.of(row[:-1])


def lock_all(tx: Transaction, chain_ids: Iterable[str]) -> None:
    """Lock several chains in the order of their ids, to avoid deadlocks.

    Args:
        tx: The transaction.
        chain_ids: The chains in any order; deleted ones are ignored.
    """
    for chain_id in sorted(set(chain_ids)):
        lock(tx, chain_id)


def of_owner(tx: Transaction, scope: Scope, owner_kind: str, owner_id: str) -> Chain | None:
    """Return the chain of this owner; None if there is none.

    Args:
        tx: The transaction.
        scope: The organization; the caller's right to read it is checked elsewhere.
        owner_kind: The kind of the owner: "user", "agent", "block" or "organization".
        owner_id: The id of the owner.
    """
    parameters = {
        "owner_kind": owner_kind,
        "owner_id": owner_id,
        "organization_id": scope.organization_id,
    }
    return _CHAINS.first(tx, _OF_OWNER, parameters)


def plan(
    chain: Chain, changes: Sequence[Change], metadata: ChangeMetadata, now: int
) -> VersionPlan:
    """Plan the changes of a locked chain.

    Args:
        chain: The chain as it was read under the lock.
        changes: The changes in order. One without effect makes no version.
        metadata: The author and the reason of all versions. Its `made_at` is used in place of
            `now`, if set.
        now: The time of the versions in microseconds UTC.

    Raises:
        Invalid: The reason has a NUL character, which git cannot store in a message.
    """
    if "\0" in metadata.reason:
        raise Invalid(
            "The reason of a change of memory cannot hold NUL characters. Leave them out."
        )
    if metadata.made_at is not None:
        now = metadata.made_at
    ids: list[bytes | None] = []
    for change in changes:
        files = dict(chain.files)
        before = files.pop(change.old_label or change.label, None)
        if change.value is not None:
            blob = blob_id(change.value)
            # Its depth is known only when it is stored.
            if before and before[0] == blob:
                files[change.label] = before
            else:
                files[change.label] = (blob, _UNKNOWN)
        if files == chain.files:
            ids.append(None)
            continue
        tree = tree_of({label: blob for label, (blob, _) in files.items()}).id
        parents = (chain.head,) if chain.head else ()
        body = commit_body(tree, parents, signature(metadata.author), now, metadata.reason)
        chain = replace(
            chain, head=object_id("commit", body), versions=chain.versions + 1, files=files
        )
        ids.append(chain.head)
    return VersionPlan(chain, tuple(ids), now)


def store(
    tx: Transaction,
    chain: Chain,
    changes: Sequence[Change],
    metadata: ChangeMetadata,
    planned: VersionPlan,
) -> Chain:
    """Store the planned changes of the chain, and return its new state.

    Args:
        tx: The transaction, which holds the lock of the chain.
        chain: The chain before the changes.
        changes: The changes that were planned.
        metadata: The metadata with which they were planned.
        planned: The plan, as `plan` returned it.
    """
    rows = []
    grown = 0
    for change, id in zip(changes, planned.ids, strict=True):
        if id is None:
            continue
        files = dict(chain.files)
        before = files.pop(change.old_label or change.label, None)
        if change.value is not None:
            if before and change.before is not None:
                base = (*before, change.before)
            else:
                base = None
            text = put_text(tx, chain.id, change.value, base)
            files[change.label] = (text.id, text.depth)
            grown += text.added_bytes
        if change.value is not None:
            blob = files[change.label][0]
        else:
            blob = None
        rows.append(row_of(chain, change, metadata, id=id, blob=blob, now=planned.at))
        chain = replace(chain, head=id, versions=chain.versions + 1, files=files)
    if rows:
        tx.run(_INSERT_COMMIT, rows)
        grown += _size_of(rows)
        advance(tx, chain, grown)
    return replace(chain, history_bytes=chain.history_bytes + grown)


def begin(
    tx: Transaction, chain: Chain, changes: Sequence[Change], metadata: ChangeMetadata
) -> tuple[bytes | None, ...]:
    """Store a new chain with its first versions, all of new blocks; return their ids.

    Args:
        tx: The transaction.
        chain: The chain, which is not stored yet.
        changes: The new blocks, each with another label.
        metadata: The author and the reason of all versions.

    Raises:
        Invalid: The reason has a NUL character.
        Collision: The owner has a chain already.
    """
    planned = plan(chain, changes, metadata, tx.clock.now())
    files = {label: (blob, 0) for label, (blob, _) in planned.chain.files.items()}
    texts = dict.fromkeys(change.value or "" for change in changes)
    text_rows = [_text_row(chain.id, text) for text in texts]
    rows = []
    for change, id in zip(changes, planned.ids, strict=True):
        blob, _ = files[change.label]
        row = row_of(chain, change, metadata, id=id or b"", blob=blob, now=planned.at)
        rows.append(row)
        chain = replace(chain, head=id, versions=chain.versions + 1)
    size = sum(ROW_BYTES + len(row["data"]) for row in text_rows) + _size_of(rows)
    insert_chain(tx, replace(planned.chain, files=files, history_bytes=size))
    tx.run(_INSERT_TEXT, text_rows)
    insert_rows(tx, rows)
    return planned.ids


def record(
    tx: Transaction, chain: Chain, changes: Sequence[Change], metadata: ChangeMetadata
) -> tuple[Chain, tuple[bytes | None, ...]]:
    """Plan and store the changes.

    Args:
        tx: The transaction, which holds the lock of the chain.
        chain: The chain as it was read under the lock.
        changes: The changes in order.
        metadata: The author and the reason of all versions.

    Returns:
        The chain's new state, and the id of each change's version; None for a change without
            effect.

    Raises:
        Invalid: The reason has a NUL character.
    """
    planned = plan(chain, changes, metadata, tx.clock.now())
    return store(tx, chain, changes, metadata, planned), planned.ids


def row_of(
    chain: Chain, change: Change, metadata: ChangeMetadata, id: bytes, blob: bytes | None, now: int
) -> dict[str, Any]:
    """Return the row of a version of this chain, for `insert_rows`.

    Args:
        chain: The chain right before the version.
        change: The change of one block.
        metadata: The author, the reason, the run and the step.
        id: The id of the version's git commit.
        blob: The id of the block's new text; None if the block is deleted.
        now: The time of the version in microseconds UTC.
    """
    return {
        **_METADATA.values(metadata),
        "chain_id": chain.id,
        "number": chain.versions + 1,
        "id": id,
        "made_from": chain.head,
        "versions_before": chain.versions,
        "other_parent": None,
        "label": change.label,
        "old_label": change.old_label,
        "blob": blob,
        "created_at": now,
    }


def insert_rows(tx: Transaction, rows: Sequence[Mapping[str, Any]]) -> int:
    """Store versions that `row_of` made, in order.

    Args:
        tx: The transaction.
        rows: The rows, whose numbers follow the chain's last version.

    Returns:
        The bytes that they add to the history, for `advance`.
    """
    tx.run(_INSERT_COMMIT, rows)
    return _size_of(rows)


def _size_of(rows: Iterable[Mapping[str, Any]]) -> int:
    """Return the bytes that rows of versions add to their history."""
    return sum(ROW_BYTES + size_of(row["reason"]) for row in rows)


def advance(tx: Transaction, chain: Chain, grown: int) -> None:
    """Store the head, the number of versions and the tree of a chain.

    Args:
        tx: The transaction.
        chain: The chain after the new versions.
        grown: The bytes to add to the size of its history.
    """
    row = _CHAINS.values(chain)
    values = {f"new_{name}": row[name] for name in ("head", "versions", "files")}
    tx.run(_ADVANCE, {**values, "grown": grown, "this_id": chain.id})


def put_text(tx: Transaction, chain_id: str, text: str, base: TextBase | None) -> StoredText:
    """Store a text unless the chain has it.

    Args:
        tx: The transaction.
        chain_id: The chain.
        text: The text.
        base: A stored text of the chain, from which the text may be stored as a delta; None stores
            it whole.

    Returns:
        The stored text. The caller adds its `added_bytes` to the chain's history; they are 0 if the
            chain had it.
    """
    row = _text_row(chain_id, text, base if base and base[1] + 1 < _DEEPEST else None)
    if tx.run(_INSERT_TEXT, row):
        return StoredText(row["id"], row["depth"], ROW_BYTES + len(row["data"]))
    depth = tx.first(_DEPTH, {"chain_id": chain_id, "blob": row["id"]}).depth
    return StoredText(row["id"], depth, 0)


def _text_row(chain_id: str, text: str, base: TextBase | None = None) -> dict[str, Any]:
    data = _pack(text.encode(), base[2].encode() if base else None)
    base_id = None
    depth = 0
    if base:
        base_id = base[0]
        depth = base[1] + 1
    return {
        "chain_id": chain_id,
        "id": blob_id(text),
        "base": base_id,
        "depth": depth,
        "data": data,
    }


def _blob_rows(tx: Transaction, chain_id: str, text_ids: Sequence[bytes]) -> dict[bytes, Any]:
    """Return the rows of these texts and of their bases by id."""
    rows: dict[bytes, Any] = {}
    for first in range(0, len(text_ids), _READ_AT_ONCE):
        portion = text_ids[first : first + _READ_AT_ONCE]
        if len(portion) == 1:
            new_rows = tx.all(_LINEAGE, {"chain_id": chain_id, "blob": portion[0]})
        else:
            new_rows = tx.all(_lineage(blobs.c.id.in_(portion)), {"chain_id": chain_id})
        rows |= {row.id: row for row in new_rows}
    return rows


def read_texts(
    tx: Transaction, chain_id: str, ids: Iterable[bytes], most: int | None = None
) -> dict[bytes, str]:
    """Return texts of the chain by their ids.

    One statement reads hundreds of texts.

    Args:
        tx: The transaction.
        chain_id: The chain.
        ids: The ids of the texts (git blobs).
        most: About the most bytes of the texts and their bases. Then only the first texts that fit
            are returned, at least one. None: all are returned.

    Raises:
        NotFound: The chain has no such text.
        Conflict: A stored text is damaged.
    """
    text_ids = list(dict.fromkeys(ids))
    rows = _blob_rows(tx, chain_id, text_ids)
    texts: dict[bytes, bytes] = {}
    size = 0
    for index, id in enumerate(text_ids):
        line = [id]
        while line[-1] in rows and line[-1] not in texts and rows[line[-1]].base is not None:
            line.append(rows[line[-1]].base)
        if line[-1] not in rows:
            raise NotFound(f"There is no text {id.hex()} in this memory.")
        if most is not None and size > most:
            text_ids = text_ids[:index]
            break
        for text_id in reversed(line):
            if text_id not in texts:
                row = rows[text_id]
                texts[text_id] = unpack(text_id, row.data, texts.get(row.base))
                size += len(texts[text_id])
    return {id: texts[id].decode() for id in text_ids}


def read_text(tx: Transaction, chain_id: str, id: bytes) -> str:
    """Return a text of the chain.

    Args:
        tx: The transaction.
        chain_id: The chain.
        id: The 20 bytes of the text's id (a git blob).

    Raises:
        NotFound: The chain has no such text.
        Conflict: The stored text is damaged.
    """
    return read_texts(tx, chain_id, [id])[id]


def _pack(text: bytes, base: bytes | None) -> bytes:
    """Return the stored form of a text.

    It consists of the lengths of the beginning and the end that the text shares with its base, and
    of the compressed middle. The dictionary of the compression is the base around its middle.
    """
    if base is None:
        return zlib.compress(text, 6)
    head = _alike(text, base)
    tail = _alike(text[head:][::-1], base[head:][::-1])
    middle = text[head : len(text) - tail]
    packer = zlib.compressobj(6, zlib.DEFLATED, 15, 9, zdict=_dictionary(base, head, tail))
    return (
        head.to_bytes(_LENGTH, "big")
        + tail.to_bytes(_LENGTH, "big")
        + packer.compress(middle)
        + packer.flush()
    )


def unpack(id: bytes, data: bytes, base: bytes | None) -> bytes:
    """Return the text that `_pack` packed, in UTF-8.

    Args:
        id: The id of the text.
        data: The stored form of the text.
        base: The text from which it is a delta; None: it is stored whole.

    Raises:
        Conflict: The data is damaged, or belongs to another text or base.
    """
    try:
        text = _unpack(data, base)
    except zlib.error:
        text = None
    # Only UTF-8 was stored, so data with the right id can be decoded.
    if text is None or object_id("blob", text) != id:
        raise Conflict(f"The stored text {id.hex()} is damaged. Restore a backup.")
    return text


def _unpack(data: bytes, base: bytes | None) -> bytes:
    """Return the text, which may be wrong. Raises `zlib.error`."""
    if base is None:
        return zlib.decompress(data)
    head = int.from_bytes(data[:_LENGTH], "big")
    tail = int.from_bytes(data[_LENGTH : 2 * _LENGTH], "big")
    unpacker = zlib.decompressobj(15, zdict=_dictionary(base, head, tail))
    middle = unpacker.decompress(data[2 * _LENGTH :]) + unpacker.flush()
    if not unpacker.eof:
        raise zlib.error("the data is cut off")
    return base[:head] + middle + base[len(base) - tail :]


def _dictionary(base: bytes, head: int, tail: int) -> bytes:
    end = min(len(base), max(len(base) - tail, head) + _WINDOW // 4)
    # zlib treats an empty dictionary differently in compression and in decompression.
    return base[max(0, end - _WINDOW) : end] or b"\n"


def _alike(text: bytes, other: bytes) -> int:
    """Return the number of leading bytes that both texts share.

    The function bisects, since comparing slices is a thousand times faster than comparing single
    bytes.
    """
    low = 0
    high = min(len(text), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if text[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
