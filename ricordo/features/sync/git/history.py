"""A chain's history as git objects, in order and in portions.

The objects have the ids of the versions. Commits, trees and texts are built from the rows of
versions. Pushed objects that cannot be built from versions are stored unchanged.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from ricordo.domain.authors import plain_signature, signature
from ricordo.domain.git_objects import GitObject, commit_body, tree_of
from ricordo.domain.scope import Actor
from ricordo.errors import Conflict, NotFound
from ricordo.features.sync.git.objects import FOLDER, git_object, read_commit, read_tree
from ricordo.storage import git_objects, versions
from ricordo.storage.engine.store import Store, Transaction

MOST_ROWS = 500
MOST_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class HistoryPortion:
    """A part of a history: objects, and the state after its last version.

    `number` and `files` belong to the last version. `head` is the commit that the branch gets once
    all objects are stored.
    """

    objects: tuple[GitObject, ...] = ()
    number: int = 0
    head: bytes | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    is_last: bool = False


async def portions(store: Store, chain_id: str, after: int = 0) -> AsyncGenerator[HistoryPortion]:
    """Yield the history of a chain after the version with this number.

    Args:
        store: The store.
        chain_id: The chain.
        after: The number of a version; 0 for the whole history.

    Raises:
        NotFound: if the chain was erased, or has fewer versions.
        Conflict: if stored versions are damaged.
    """
    known_ids: set[bytes] = set()
    portion = await store.read(lambda tx: begin(tx, chain_id, after))
    while not portion.is_last:
        before = portion
        portion = await store.read(
            lambda tx: following(tx, chain_id, before, known_ids)  # noqa: B023 - awaited here
        )
        known_ids.update(git_object.id for git_object in portion.objects)
        yield portion


def begin(tx: Transaction, chain_id: str, after: int) -> HistoryPortion:
    """Return an empty portion that ends at the version with this number.

    Args:
        tx: The transaction.
        chain_id: The chain.
        after: The number of a version; 0 for the state before the first one.

    Raises:
        NotFound: if the chain was erased, or has fewer versions.
    """
    chain = git_objects.chain_of(tx, chain_id)
    if after > chain.versions:
        raise NotFound(
            f"This memory has {chain.versions} versions, so there is none after number {after}."
        )
    files: dict[str, bytes] = {}
    head: bytes | None = None
    for row in tx.all(git_objects.CHANGES, {"chain_id": chain_id, "until": after}) if after else ():
        _apply(files, row)
        head = row.id
    return HistoryPortion(number=after, head=head, files=files)


def following(
    tx: Transaction,
    chain_id: str,
    before: HistoryPortion,
    known_ids: AbstractSet[bytes] = frozenset(),
) -> HistoryPortion:
    """Return the next portion.

    Args:
        tx: The transaction.
        chain_id: The chain.
        before: The portion before it.
        known_ids: The ids of objects that are left out, since the receiver has them.

    Raises:
        NotFound: if the memory was erased meanwhile.
        Conflict: if stored versions are damaged.
    """
    chain = git_objects.chain_of(tx, chain_id)
    rows = git_objects.versions_after(tx, chain_id, before.number, MOST_ROWS)
    maker = _ObjectMaker(tx, chain_id, before, known_ids, rows)
    number = before.number
    head = before.head
    # One commit may have changed many blocks, and is never split.
    for _, group in groupby(rows, key=lambda row: row.id):
        if maker.size > MOST_BYTES:
            break
        version_rows = list(group)
        maker.add_commit(version_rows)
        number = version_rows[-1].number
        head = version_rows[-1].id
    is_last = number == chain.versions
    if is_last and chain.head not in (None, head):
        # The last commit may change nothing. Then it has no version.
        maker.add_pushed(chain.head)
        head = chain.head
    return HistoryPortion(tuple(maker.objects.values()), number, head, maker.files, is_last)


def tip(tx: Transaction, chain_id: str) -> bytes | None:
    """Return the id of the chain's last commit (20 bytes), or None if it has no versions.

    Args:
        tx: The transaction.
        chain_id: The chain.

    Raises:
        NotFound: if the chain was erased.
    """
    head: bytes | None = git_objects.chain_of(tx, chain_id).head
    return head


def number_of(tx: Transaction, chain_id: str, id: bytes) -> int | None:
    """Return the number of versions up to this commit.

    If the commit is not on the main line, its nearest ancestor there counts. Returns None if there
    is no such ancestor.

    Args:
        tx: The transaction.
        chain_id: The chain.
        id: The commit's id (20 bytes), which may be unknown here.
    """
    waiting = [id]
    visited = {id}
    while waiting:
        commit_id = waiting.pop(0)
        if (number := git_objects.number_of(tx, chain_id, commit_id)) is not None:
            return number
        pushed_object = git_objects.pushed(tx, chain_id, commit_id)
        if pushed_object is not None and pushed_object.kind == "commit":
            parents = [
                parent
                for parent in read_commit(pushed_object.body).parents
                if parent not in visited
            ]
            visited.update(parents)
            waiting += parents
    return None


class _ObjectMaker:
    """Builds the objects of one portion.

    `size` is the number of bytes in their bodies.
    """

    def __init__(
        self,
        tx: Transaction,
        chain_id: str,
        before: HistoryPortion,
        known_ids: AbstractSet[bytes],
        rows: Sequence[Any],
    ) -> None:
        self.objects: dict[bytes, GitObject] = {}
        self.files = dict(before.files)
        self.size = 0
        self._tx = tx
        self._chain_id = chain_id
        self._known_ids = known_ids
        self._main = {before.head}
        if rows:
            numbers = (rows[0].number, rows[-1].number)
        else:
            numbers = (0, 0)
        self._stored, self._pushed_ids = git_objects.stored_between(tx, chain_id, *numbers)

    def add_commit(self, rows: Sequence[Any]) -> None:
        first = rows[0]
        for row in rows:
            _apply(self.files, row)
            if row.blob is not None:
                self._add_text(row.blob)
        tree = tree_of(self.files)
        for id, body in tree.bodies.items():
            self._add(GitObject("tree", id, body))
        parents = tuple(
            parent for parent in (first.parent, first.other_parent) if parent is not None
        )
        for parent in parents:
            self.add_pushed(parent)
        if first.id in self._pushed_ids:
            self._add_pushed_version(first.id, tree.id)
        else:
            author = Actor(first.author_kind, first.author_id, first.author_name)
            commit = git_object("commit", _body(first, tree.id, parents, signature(author)))
            if commit.id != first.id:
                commit = git_object(
                    "commit", _body(first, tree.id, parents, plain_signature(author))
                )
            if commit.id != first.id:
                raise Conflict(f"Version {first.id.hex()} does not match its id. Restore a backup.")
            self._add(commit)
        self._main.add(first.id)

    def add_pushed(self, id: bytes) -> None:
        """Add a pushed commit that is not on the main line, with its ancestors."""
        waiting = [id]
        while waiting:
            id = waiting.pop()
            if (
                self._has(id)
                or id in self._main
                or git_objects.number_of(self._tx, self._chain_id, id) is not None
            ):
                continue  # commits with versions are added in the order of versions
            pushed_object = git_objects.pushed(self._tx, self._chain_id, id)
            if pushed_object is None:
                continue
            self._add(pushed_object)
            if pushed_object.kind == "commit":
                commit = read_commit(pushed_object.body)
                waiting += (commit.tree, *commit.parents)
                continue
            for entry in read_tree(pushed_object.body):
                if entry.mode == FOLDER:
                    waiting.append(entry.id)
                else:
                    self._add_text(entry.id)

    def _add_pushed_version(self, id: bytes, tree: bytes) -> None:
        pushed_object = git_objects.pushed(self._tx, self._chain_id, id)
        if pushed_object:
            commit = read_commit(pushed_object.body)
        else:
            commit = None
        if commit is None or commit.tree != tree:
            raise Conflict(
                f"Version {id.hex()} does not match the tree of its texts. Restore a backup."
            )
        self._add(GitObject("commit", id, commit.body))
        for parent in commit.parents:
            self.add_pushed(parent)

    def _has(self, id: bytes) -> bool:
        return id in self.objects or id in self._known_ids

    def _add(self, new_object: GitObject) -> None:
        if not self._has(new_object.id):
            self.objects[new_object.id] = new_object
            self.size += len(new_object.body)

    def _add_text(self, blob: bytes) -> None:
        """Add a text. Most texts are stored as a delta of one that was just added."""
        if self._has(blob):
            return
        row = self._stored.get(blob)
        if row is None or (row.base is not None and row.base not in self.objects):
            text = versions.read_text(self._tx, self._chain_id, blob).encode()
        else:
            if row.base is None:
                base = None
            else:
                base = self.objects[row.base].body
            text = versions.unpack(blob, row.data, base)
        self._add(GitObject("blob", blob, text))


def _body(row: Any, tree: bytes, parents: tuple[bytes, ...], signed_by: str) -> bytes:
    return commit_body(tree, parents, signed_by, row.created_at, row.reason)


def _apply(files: dict[str, bytes], row: Any) -> None:
    files.pop(row.old_label or row.label, None)
    if row.blob is not None:
        files[row.label] = row.blob
