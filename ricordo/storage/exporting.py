"""A chain's history as git objects, in order and in portions, with the very ids that its versions have.

Commits, trees and texts are made from the rows of versions; what came by a push and cannot be made from them is stored as it came.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import LargeBinary, bindparam, func, select

from ricordo.domain import deltas
from ricordo.domain.git_objects import commit_body, object_id, signature, tree_of
from ricordo.domain.git_reading import FOLDER, GitObject, git_object, read_commit, read_tree
from ricordo.domain.scope import Actor
from ricordo.errors import Conflict, NotFound
from ricordo.storage import blobs
from ricordo.storage.memory_tables import is_in_chain
from ricordo.storage.store import Transaction
from ricordo.storage.tables import blobs as blobs_table
from ricordo.storage.tables import chains, commits, git_objects
from ricordo.storage.versions import PARENT

MOST_ROWS = 500
MOST_BYTES = 8 * 1024 * 1024
_MOST_TEXTS = 256  # texts that are kept at hand, since the next is stored as what differs from one of them

_OF_CHAIN = is_in_chain(commits)
_VERSIONS = select(*(column for column in commits.c if column.name != "parent"), PARENT)
_CHAIN = select(chains.c.head, chains.c.versions, chains.c.owner_kind, chains.c.owner_id).where(
    chains.c.id == bindparam("chain_id")
)
_FOLLOWING = (
    _VERSIONS.where(_OF_CHAIN, commits.c.number > bindparam("after"))
    .order_by(commits.c.number)
    .limit(bindparam("most"))
)
_REST = _VERSIONS.where(
    _OF_CHAIN, commits.c.id == bindparam("id", type_=LargeBinary), commits.c.number > bindparam("after")
).order_by(commits.c.number)
_CHANGES = (
    select(commits.c.id, commits.c.label, commits.c.old_label, commits.c.blob)
    .where(_OF_CHAIN, commits.c.number <= bindparam("until"))
    .order_by(commits.c.number)
)
_NUMBER = select(func.max(commits.c.number).label("number")).where(
    _OF_CHAIN, commits.c.id == bindparam("id", type_=LargeBinary)
)
_UP_TO = (
    select(commits.c.id)
    .where(_OF_CHAIN, commits.c.created_at <= bindparam("moment"))
    .order_by(commits.c.number.desc())
    .limit(1)
)
_RAW = select(git_objects.c.kind, git_objects.c.data).where(
    is_in_chain(git_objects), git_objects.c.id == bindparam("id", type_=LargeBinary)
)
_BETWEEN = (_OF_CHAIN, commits.c.number >= bindparam("first"), commits.c.number <= bindparam("last"))
_RAW_IDS = select(git_objects.c.id).where(
    is_in_chain(git_objects), git_objects.c.id.in_(select(commits.c.id).where(*_BETWEEN))
)
_PACKED = select(blobs_table.c.id, blobs_table.c.base, blobs_table.c.data).where(
    is_in_chain(blobs_table),
    blobs_table.c.id.in_(select(commits.c.blob).where(*_BETWEEN)),
)


@dataclass(frozen=True, slots=True)
class Portion:
    """A part of a history: its objects, those that others need before them or among them.

    `number` is that of the last version in it, `files` the tree as it is then, by label; `head` the commit that a branch can name
    once all this is there.
    """

    objects: tuple[GitObject, ...] = ()
    number: int = 0
    head: bytes | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    is_last: bool = False


def begin(tx: Transaction, chain_id: str, after: int) -> Portion:
    """Where a history goes on that is known up to the version with this number: an empty portion. Raises NotFound."""
    chain = _chain(tx, chain_id)
    if after > chain.versions:
        raise NotFound(f"This memory has {chain.versions} versions, and none with the number {after}.")
    files: dict[str, bytes] = {}
    head: bytes | None = None
    for row in tx.all(_CHANGES, {"chain_id": chain_id, "until": after}) if after else ():
        _apply(files, row)
        head = row.id
    return Portion(number=after, head=head, files=files)


def following(
    tx: Transaction,
    chain_id: str,
    before: Portion,
    known: AbstractSet[bytes] = frozenset(),
    *,
    most_rows: int = MOST_ROWS,
    most_bytes: int = MOST_BYTES,
) -> Portion:
    """The portion after this one, without objects that are `known`. Raises NotFound where the memory was erased meanwhile."""
    chain = _chain(tx, chain_id)
    rows = list(tx.all(_FOLLOWING, {"chain_id": chain_id, "after": before.number, "most": most_rows}))
    if len(rows) == most_rows:
        # One commit may have changed many blocks, and is never divided.
        last = rows[-1]
        rows += tx.all(_REST, {"chain_id": chain_id, "id": last.id, "after": last.number})
    making = _Making(tx, chain_id, before, known)
    making.prefetch(rows)
    number, head = before.number, before.head
    for group in _by_commit(rows):
        if making.size > most_bytes:
            break
        making.commit(group)
        number, head = group[-1].number, group[-1].id
    is_last = number == chain.versions
    if is_last and chain.head not in (None, head):
        # A commit that changed nothing has no version of its own.
        making.raw(chain.head)
        head = chain.head
    return Portion(tuple(making.objects), number, head, making.files, is_last)


def tip(tx: Transaction, chain_id: str) -> bytes | None:
    """The id of the chain's last commit, None where there is none yet. Raises NotFound."""
    head: bytes | None = _chain(tx, chain_id).head
    return head


def owner_of(tx: Transaction, chain_id: str) -> tuple[str, str]:
    """The kind and the id of a chain's owner. Raises NotFound."""
    row = _chain(tx, chain_id)
    return row.owner_kind, row.owner_id


def number_of(tx: Transaction, chain_id: str, id: bytes) -> int | None:
    """How many versions the history has up to this commit of its main line, or the nearest before it; None where it has none."""
    waiting, seen = [id], {id}
    while waiting:
        one = waiting.pop(0)
        if (number := _number(tx, chain_id, one)) is not None:
            return number
        row = tx.first(_RAW, {"chain_id": chain_id, "id": one})
        if row is not None and row.kind == "commit":
            parents = [parent for parent in read_commit(row.data).parents if parent not in seen]
            seen.update(parents)
            waiting += parents
    return None


def head_at(tx: Transaction, chain_id: str, moment: int) -> bytes | None:
    """The id of the last version that was made up to a moment (microseconds), None where there was none."""
    row = tx.first(_UP_TO, {"chain_id": chain_id, "moment": moment})
    return row.id if row else None


def has_commit(tx: Transaction, chain_id: str, id: bytes) -> bool:
    """Whether this commit came by git and is a part of the history."""
    return tx.first(_RAW, {"chain_id": chain_id, "id": id}) is not None


class _Making:
    """Makes the objects of one portion. `size` is that of their bodies together, in bytes."""

    def __init__(self, tx: Transaction, chain_id: str, before: Portion, known: AbstractSet[bytes]) -> None:
        self.objects: list[GitObject] = []
        self.files = dict(before.files)
        self.size = 0
        self._tx = tx
        self._chain_id = chain_id
        self._known = known
        self._made: set[bytes] = set()
        self._main = {before.head}
        self._raw_ids: set[bytes] = set()
        self._packed: dict[bytes, Any] = {}
        self._texts: OrderedDict[bytes, bytes] = OrderedDict()

    def prefetch(self, rows: Sequence[Any]) -> None:
        """Read at once what these versions' texts are stored as, and which of them came by git."""
        if rows:
            values = {"chain_id": self._chain_id, "first": rows[0].number, "last": rows[-1].number}
            self._packed = {row.id: row for row in self._tx.all(_PACKED, values)}
            self._raw_ids = {row.id for row in self._tx.all(_RAW_IDS, values)}

    def commit(self, rows: Sequence[Any]) -> None:
        """A commit, with its tree and the texts that it brought."""
        first = rows[0]
        for row in rows:
            _apply(self.files, row)
            if row.blob is not None and not self._has(row.blob):
                self._add(GitObject("blob", row.blob, self._text(row.blob)))
        tree = tree_of(self.files)
        for id, body in tree.bodies.items():
            if not self._has(id):
                self._add(GitObject("tree", id, body))
        for parent in (first.parent, first.other_parent):
            if parent is not None and parent not in self._main:
                self.raw(parent)
        if first.id in self._raw_ids:
            self._came(first.id, tree.id)
        else:
            self._rebuilt(first, tree.id)
        self._main.add(first.id)

    def raw(self, id: bytes) -> None:
        """A commit that came by git and stands on no main line, with all such before it."""
        waiting = [id]
        while waiting:
            id = waiting.pop()
            if self._has(id) or id in self._main or _number(self._tx, self._chain_id, id) is not None:
                continue  # versions come in their own place
            row = self._row(id)
            if row is None:
                continue
            self._add(GitObject(row.kind, id, row.data))
            if row.kind == "commit":
                commit = read_commit(row.data)
                waiting += (commit.tree, *commit.parents)
                continue
            for entry in read_tree(row.data):
                if entry.mode == FOLDER:
                    waiting.append(entry.id)
                elif not self._has(entry.id):
                    self._add(GitObject("blob", entry.id, self._text(entry.id)))

    def _came(self, id: bytes, tree: bytes) -> None:
        commit = read_commit(self._row(id).data)
        if commit.tree != tree:
            raise Conflict(f"Version {id.hex()} came with another tree than its texts make. Restore a backup.")
        self._add(GitObject("commit", id, commit.body))
        for parent in commit.parents:
            self.raw(parent)

    def _rebuilt(self, row: Any, tree: bytes) -> None:
        parents = tuple(parent for parent in (row.parent, row.other_parent) if parent is not None)
        who = signature(Actor(row.author_kind, row.author_id, row.author_name))
        made = git_object("commit", commit_body(tree, parents, who, row.created_at, row.reason))
        if made.id != row.id:
            raise Conflict(f"Version {row.id.hex()} is stored with other values than it was made of. Restore a backup.")
        self._add(made)

    def _row(self, id: bytes) -> Any:
        return self._tx.first(_RAW, {"chain_id": self._chain_id, "id": id})

    def _has(self, id: bytes) -> bool:
        return id in self._made or id in self._known

    def _add(self, made: GitObject) -> None:
        self._made.add(made.id)
        self.objects.append(made)
        self.size += len(made.body)

    def _text(self, blob: bytes) -> bytes:
        """A text; most are stored as what differs from one that was made a moment ago."""
        if blob not in self._texts:
            row = self._packed.get(blob)
            if row is None or (row.base is not None and row.base not in self._texts):
                text = blobs.read(self._tx, self._chain_id, blob).encode()
            else:
                text = deltas.unpack(row.data, self._texts[row.base] if row.base is not None else None)
            if object_id("blob", text) != blob:
                raise Conflict(f"The stored text {blob.hex()} is damaged. Restore a backup.")
            self._texts[blob] = text
            if len(self._texts) > _MOST_TEXTS:
                self._texts.popitem(last=False)
        self._texts.move_to_end(blob)
        return self._texts[blob]


def _chain(tx: Transaction, chain_id: str) -> Any:
    row = tx.first(_CHAIN, {"chain_id": chain_id})
    if row is None:
        raise NotFound("This memory was erased.")
    return row


def _number(tx: Transaction, chain_id: str, id: bytes) -> int | None:
    number: int | None = tx.first(_NUMBER, {"chain_id": chain_id, "id": id}).number
    return number


def _apply(files: dict[str, bytes], row: Any) -> None:
    files.pop(row.old_label or row.label, None)
    if row.blob is not None:
        files[row.label] = row.blob


def _by_commit(rows: Sequence[Any]) -> list[list[Any]]:
    groups: list[list[Any]] = []
    for row in rows:
        if groups and groups[-1][0].id == row.id:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups
