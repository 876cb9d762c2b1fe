"""A chain's history as git objects, in order and in portions, with the very ids that its versions have.

Commits, trees and texts are made from the rows of versions; what was pushed and cannot be made from them is stored as it came.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from ricordo.domain.authors import plain_signature, signature
from ricordo.domain.git_objects import commit_body, tree_of
from ricordo.domain.scope import Actor
from ricordo.errors import Conflict, NotFound
from ricordo.features.git import queries
from ricordo.features.git.objects import FOLDER, GitObject, git_object, read_commit, read_tree
from ricordo.storage import versions
from ricordo.storage.engine.store import Store, Transaction

MOST_ROWS = 500
MOST_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class HistoryPortion:
    """A part of a history: objects, the last version's `number` and `files`, and the `head` for a branch once all is there."""

    objects: tuple[GitObject, ...] = ()
    number: int = 0
    head: bytes | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    is_last: bool = False


async def portions(store: Store, chain_id: str, after: int = 0) -> AsyncGenerator[HistoryPortion]:
    """The history of a chain behind the version with this number, in portions. Raises NotFound where it was erased."""
    known: set[bytes] = set()
    portion = await store.read(lambda tx: begin(tx, chain_id, after))
    while not portion.is_last:
        before = portion
        portion = await store.read(lambda tx: following(tx, chain_id, before, known))  # noqa: B023 - awaited here
        known.update(made.id for made in portion.objects)
        yield portion


def begin(tx: Transaction, chain_id: str, after: int) -> HistoryPortion:
    """An empty portion that ends with the version of this number. Raises NotFound."""
    chain = queries.chain_of(tx, chain_id)
    if after > chain.versions:
        raise NotFound(
            f"This memory has {chain.versions} versions, and none with the number {after}."
        )
    files: dict[str, bytes] = {}
    head: bytes | None = None
    for row in tx.all(queries.CHANGES, {"chain_id": chain_id, "until": after}) if after else ():
        _apply(files, row)
        head = row.id
    return HistoryPortion(number=after, head=head, files=files)


def following(
    tx: Transaction, chain_id: str, before: HistoryPortion, known: AbstractSet[bytes] = frozenset()
) -> HistoryPortion:
    """The portion after this one, without objects that are `known`. Raises NotFound where the memory was erased meanwhile."""
    chain = queries.chain_of(tx, chain_id)
    rows = queries.versions_after(tx, chain_id, before.number, MOST_ROWS)
    maker = _ObjectMaker(tx, chain_id, before, known, rows)
    number = before.number
    head = before.head
    # One commit may have changed many blocks, and is never divided.
    for _, group in groupby(rows, key=lambda row: row.id):
        if maker.size > MOST_BYTES:
            break
        versions = list(group)
        maker.add_commit(versions)
        number = versions[-1].number
        head = versions[-1].id
    is_last = number == chain.versions
    if is_last and chain.head not in (None, head):
        # A commit that changed nothing has no version of its own.
        maker.add_pushed(chain.head)
        head = chain.head
    return HistoryPortion(tuple(maker.objects.values()), number, head, maker.files, is_last)


def tip(tx: Transaction, chain_id: str) -> bytes | None:
    """The id of the chain's last commit, None where there is none yet. Raises NotFound."""
    head: bytes | None = queries.chain_of(tx, chain_id).head
    return head


def number_of(tx: Transaction, chain_id: str, id: bytes) -> int | None:
    """How many versions the history has up to this commit of its main line, or the nearest before it; None where it has none."""
    waiting = [id]
    seen = {id}
    while waiting:
        one = waiting.pop(0)
        if (number := queries.number_of(tx, chain_id, one)) is not None:
            return number
        found = queries.pushed(tx, chain_id, one)
        if found is not None and found.kind == "commit":
            parents = [parent for parent in read_commit(found.body).parents if parent not in seen]
            seen.update(parents)
            waiting += parents
    return None


class _ObjectMaker:
    """Makes the objects of one portion. `size` is that of their bodies together, in bytes."""

    def __init__(
        self,
        tx: Transaction,
        chain_id: str,
        before: HistoryPortion,
        known: AbstractSet[bytes],
        rows: Sequence[Any],
    ) -> None:
        self.objects: dict[bytes, GitObject] = {}
        self.files = dict(before.files)
        self.size = 0
        self._tx = tx
        self._chain_id = chain_id
        self._known = known
        self._main = {before.head}
        numbers = (rows[0].number, rows[-1].number) if rows else (0, 0)
        self._stored, self._pushed_ids = queries.stored_between(tx, chain_id, *numbers)

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
            made = git_object("commit", _body(first, tree.id, parents, signature(author)))
            if made.id != first.id:
                made = git_object("commit", _body(first, tree.id, parents, plain_signature(author)))
            if made.id != first.id:
                raise Conflict(
                    f"Version {first.id.hex()} is stored with other values than its id was computed from. Restore a backup."
                )
            self._add(made)
        self._main.add(first.id)

    def add_pushed(self, id: bytes) -> None:
        """Add a commit that was pushed and is on no main line, with all such before it."""
        waiting = [id]
        while waiting:
            id = waiting.pop()
            if (
                self._has(id)
                or id in self._main
                or queries.number_of(self._tx, self._chain_id, id) is not None
            ):
                continue  # versions come in their own place
            found = queries.pushed(self._tx, self._chain_id, id)
            if found is None:
                continue
            self._add(found)
            if found.kind == "commit":
                commit = read_commit(found.body)
                waiting += (commit.tree, *commit.parents)
                continue
            for entry in read_tree(found.body):
                if entry.mode == FOLDER:
                    waiting.append(entry.id)
                else:
                    self._add_text(entry.id)

    def _add_pushed_version(self, id: bytes, tree: bytes) -> None:
        found = queries.pushed(self._tx, self._chain_id, id)
        commit = read_commit(found.body) if found else None
        if commit is None or commit.tree != tree:
            raise Conflict(
                f"Version {id.hex()} came with another tree than its texts make. Restore a backup."
            )
        self._add(GitObject("commit", id, commit.body))
        for parent in commit.parents:
            self.add_pushed(parent)

    def _has(self, id: bytes) -> bool:
        return id in self.objects or id in self._known

    def _add(self, made: GitObject) -> None:
        if not self._has(made.id):
            self.objects[made.id] = made
            self.size += len(made.body)

    def _add_text(self, blob: bytes) -> None:
        """Add a text; most are stored as a delta of one that was added a moment ago."""
        if self._has(blob):
            return
        row = self._stored.get(blob)
        if row is None or (row.base is not None and row.base not in self.objects):
            text = versions.read_text(self._tx, self._chain_id, blob).encode()
        else:
            text = versions.unpack(
                row.data, self.objects[row.base].body if row.base is not None else None
            )
        made = git_object("blob", text)
        if made.id != blob:
            raise Conflict(f"The stored text {blob.hex()} is damaged. Restore a backup.")
        self._add(made)


def _body(row: Any, tree: bytes, parents: tuple[bytes, ...], who: str) -> bytes:
    return commit_body(tree, parents, who, row.created_at, row.reason)


def _apply(files: dict[str, bytes], row: Any) -> None:
    files.pop(row.old_label or row.label, None)
    if row.blob is not None:
        files[row.label] = row.blob
