"""Rewriting of a chain's history: texts change in all versions, and ids follow.

A version's id is a git commit id, computed from the texts and the earlier versions. So a change of
one version changes all later ids. Each old id leaves a tombstone with the new id. Requests for the
old id get the new one, and a push based on it is refused. Everything happens in one transaction,
under the chain's lock.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from sqlalchemy import LargeBinary, bindparam, delete, select, update

from ricordo.domain.authors import plain_signature, signature
from ricordo.domain.block import Chain
from ricordo.domain.git_objects import SUFFIX, blob_id, commit_body, object_id, tree_of
from ricordo.domain.scope import Actor
from ricordo.storage import git_objects as git
from ricordo.storage import versions
from ricordo.storage.engine.repository import Missing
from ricordo.storage.engine.store import Transaction
from ricordo.storage.history_size import recount
from ricordo.storage.schema.memory_tables import (
    blobs,
    blocks,
    blocks_log,
    commits,
    git_objects,
    is_in_chain,
    number_of_chain,
    proposals,
)

TOMBSTONE = "forgotten"
_ALL = 1 << 40
_HEADER = re.compile(rb"tree ([0-9a-f]{40})\n((?:parent [0-9a-f]{40}\n)*)")
_SIGNED = re.compile(rb"gpgsig[^\n]*\n(?: [^\n]*\n)*")
_FOLDER = b"40000"
_ID_BYTES = 20
_OBJECTS = select(git_objects.c.id, git_objects.c.kind, git_objects.c.data).where(
    is_in_chain(git_objects), git_objects.c.kind != TOMBSTONE
)
_TOMBSTONES = select(git_objects.c.id, git_objects.c.data).where(
    is_in_chain(git_objects), git_objects.c.kind == TOMBSTONE
)
_THIS = bindparam("id", type_=LargeBinary)
_TOMBSTONE = _TOMBSTONES.where(git_objects.c.id == _THIS)
_DELETE_OBJECT = delete(git_objects).where(is_in_chain(git_objects), git_objects.c.id == _THIS)
_PUT_OBJECT = Missing(git_objects).values(chain=number_of_chain())
_CHANGE_COMMIT = (
    update(commits)
    .where(commits.c.seq == bindparam("this_seq"))
    .values(
        id=bindparam("new_id", type_=LargeBinary),
        parent=bindparam("new_parent", type_=LargeBinary),
        other_parent=bindparam("new_other", type_=LargeBinary),
        blob=bindparam("new_blob", type_=LargeBinary),
        reason=bindparam("new_reason"),
    )
)
_ROWS = (
    select(commits.c.seq, commits.c.number, commits.c.parent)
    .where(is_in_chain(commits))
    .order_by(commits.c.number)
)
_PROPOSALS = select(proposals).where(is_in_chain(proposals)).order_by(proposals.c.seq)
_BLOCKS = select(blocks).where(is_in_chain(blocks))
_LOG = select(blocks_log).where(is_in_chain(blocks_log))
_WAITING = ("open", "conflicted")


@dataclass(frozen=True, slots=True)
class Place:
    """The location of a text in a chain: its block, and its proposal if it is of a proposal."""

    label: str
    proposal_id: str | None = None


# A function that returns the new text for a text at a location.
ChangeText = Callable[[Place, str], str]


@dataclass(frozen=True, slots=True)
class TextChanges:
    """Functions that change the texts of a chain.

    `text` changes the texts of blocks. `words` changes texts about changes, such as reasons, and
    the titles and descriptions of blocks. `settings` changes settings, which are JSON. `proposed`
    returns the new text of a waiting proposal, for its place, the text from which it was made, and
    its own text. None: as `text`.
    """

    text: ChangeText
    words: ChangeText
    settings: Callable[[Place, Any], Any]
    proposed: Callable[[Place, str, str], str] | None = None


@dataclass(frozen=True, slots=True)
class RewrittenChain:
    """The numbers of changed commits, blocks and proposals, and the chain's new head.

    `versions` is the number of commits; versions of one commit count once. `dropped_proposals` are
    the ids of deleted proposals, which count as changed too.
    """

    versions: int = 0
    blocks: int = 0
    proposals: int = 0
    dropped_proposals: tuple[str, ...] = ()
    head: bytes | None = None


def new_id_of(tx: Transaction, chain_id: str, id: bytes) -> bytes | None:
    """Return the id that a rewritten version has now; None if it was not rewritten.

    Args:
        tx: The transaction.
        chain_id: The chain.
        id: The 20 bytes of an id that a version had.
    """
    current = id
    for _ in range(_MOST_REWRITINGS):
        row = tx.first(_TOMBSTONE, {"chain_id": chain_id, "id": current})
        if row is None:
            break
        current = bytes(row.data)
    return None if current == id else current


_MOST_REWRITINGS = 1_000


def rewritten_ids(tx: Transaction, chain_id: str) -> frozenset[bytes]:
    """Return the ids of versions before they were rewritten.

    Args:
        tx: The transaction.
        chain_id: The chain.
    """
    return frozenset(bytes(row.id) for row in tx.all(_TOMBSTONES, {"chain_id": chain_id}))


def rewrite(tx: Transaction, chain_id: str, changes: TextChanges) -> RewrittenChain | None:
    """Change the texts of a chain in all its versions; None if the chain was deleted.

    Waiting proposals that have no effect any more are deleted.

    Args:
        tx: The transaction.
        chain_id: The chain, which is locked here.
        changes: The functions that change its texts. An unchanged text keeps its id.
    """
    chain = versions.lock(tx, chain_id)
    if chain is None:
        return None
    return _Rewriting(tx, chain, changes).run()


@dataclass
class _Rewriting:
    tx: Transaction
    chain: Chain
    changes: TextChanges
    # New commit ids by old ones.
    commit_ids: dict[bytes, bytes] = field(default_factory=dict)
    tree_ids: dict[bytes, bytes] = field(default_factory=dict)
    # The texts in use by their new ids, in the order of storage, each with its block's label. A
    # text is stored as a delta from the block's previous text.
    texts: dict[bytes, tuple[str, str]] = field(default_factory=dict)
    old_texts: dict[bytes, str] = field(default_factory=dict)
    new_objects: dict[bytes, tuple[str, bytes]] = field(default_factory=dict)
    old_objects: set[bytes] = field(default_factory=set)
    objects: dict[bytes, tuple[str, bytes]] = field(default_factory=dict)

    def run(self) -> RewrittenChain:
        parameters = {"chain_id": self.chain.id}
        self.objects = {
            bytes(row.id): (row.kind, bytes(row.data)) for row in self.tx.all(_OBJECTS, parameters)
        }
        all_blobs = select(blobs.c.id).where(is_in_chain(blobs)).order_by(blobs.c.seq)
        ids = [bytes(row.id) for row in self.tx.all(all_blobs, parameters)]
        self.old_texts = versions.read_texts(self.tx, self.chain.id, ids) if ids else {}
        count = self._rewrite_versions()
        self._keep_side_objects()
        drafts, dropped = self._proposal_changes()
        blocks_changed = self._rewrite_blocks()
        self._store_objects()
        self._store_texts()
        proposals_changed = self._store_proposals(drafts, dropped)
        self._rewrite_log()
        recount(self.tx, self.chain.id)
        return RewrittenChain(
            versions=count,
            blocks=blocks_changed,
            proposals=proposals_changed,
            dropped_proposals=tuple(dropped),
            head=self.chain.head,
        )

    def _rewrite_versions(self) -> int:
        rows = git.versions_after(self.tx, self.chain.id, 0, _ALL)
        own_parents = {
            row.seq: row.parent for row in self.tx.all(_ROWS, {"chain_id": self.chain.id})
        }
        files: dict[str, bytes] = {}
        old_files: dict[str, bytes] = {}
        stored: list[dict[str, Any]] = []
        for _, group in groupby(rows, key=lambda row: row.id):
            members = list(group)
            new_blobs = [self._new_blob(row.label, row.blob) for row in members]
            for row, blob in zip(members, new_blobs, strict=True):
                _apply(files, row, blob)
                _apply(old_files, row, row.blob)
            old_tree = tree_of(old_files)
            tree = tree_of(files)
            self.tree_ids[old_tree.id] = tree.id
            reason = self.changes.words(Place(members[0].label), members[0].reason)
            new_id = self._commit(members[0], tree.id, reason)
            self.commit_ids[bytes(members[0].id)] = new_id
            for row, blob in zip(members, new_blobs, strict=True):
                parent = own_parents[row.seq]
                values = {
                    "this_seq": row.seq,
                    "new_id": new_id,
                    "new_parent": self._new_commit(parent),
                    "new_other": self._new_commit(row.other_parent),
                    "new_blob": blob,
                    "new_reason": reason,
                }
                old = (row.id, parent, row.other_parent, row.blob, row.reason)
                if tuple(values.values())[1:] != old:
                    stored.append(values)
        self.tx.run(_CHANGE_COMMIT, stored)
        self.chain = replace(
            self.chain,
            head=self._new_commit(self.chain.head),
            files={label: (blob, 0) for label, blob in files.items()},
        )
        return len({values["new_id"] for values in stored})

    def _new_blob(self, label: str, blob: bytes | None, proposal: Any = None) -> Any:
        if blob is None:
            return None
        blob = bytes(blob)
        if blob not in self.old_texts:
            return blob
        old = self.old_texts[blob]
        if proposal is None:
            text = self.changes.text(Place(label), old)
        elif self.changes.proposed and proposal.status in _WAITING:
            base = self.old_texts.get(bytes(proposal.base_blob or b""), "")
            text = self.changes.proposed(Place(label, proposal.id), base, old)
        else:
            text = self.changes.text(Place(label, proposal.id), old)
        id = blob if text == old else blob_id(text)
        self.texts.setdefault(id, (label, text))
        return id

    def _new_commit(self, id: Any) -> bytes | None:
        """Return the new id of a commit. Commits outside the main line are rewritten here."""
        if id is None:
            return None
        waiting = [bytes(id)]
        while waiting:
            old = waiting[-1]
            kind, body = self.objects.get(old, ("", b""))
            if old in self.commit_ids or kind != "commit":
                self.commit_ids.setdefault(old, old)
                waiting.pop()
                continue
            parents = _parents(body)
            if missing := [parent for parent in parents if parent not in self.commit_ids]:
                waiting += missing
                continue
            tree = self._new_tree(bytes.fromhex(body[5:45].decode()), "")
            self.commit_ids[old] = self._new_pushed(old, body, tree, "")
            waiting.pop()
        return self.commit_ids[bytes(id)]

    def _commit(self, row: Any, tree: bytes, reason: str) -> bytes:
        """Return the new id of a version's commit."""
        old = bytes(row.id)
        parents = tuple(parent for parent in (row.parent, row.other_parent) if parent is not None)
        new_parents = tuple(self._new_commit(parent) or b"" for parent in parents)
        if old in self.objects:
            for parent in _parents(self.objects[old][1]):
                self._new_commit(parent)
            return self._new_pushed(old, self.objects[old][1], tree, row.label)
        author = Actor(row.author_kind, row.author_id, row.author_name)
        bodies = [
            commit_body(tree, new_parents, signed, row.created_at, reason)
            for signed in (signature(author), plain_signature(author))
        ]
        ids = [object_id("commit", body) for body in bodies]
        return old if old in ids else ids[0]

    def _new_pushed(self, old: bytes, body: bytes, tree: bytes, label: str) -> bytes:
        """Return the new id of a commit that was pushed or pulled by git, and keep its new body."""
        parents = _parents(body)
        new_parents = [self.commit_ids.get(parent, parent) for parent in parents]
        header, _, message = body.partition(b"\n\n")
        text = message.decode(errors="replace")
        new_words = self.changes.words(Place(label), text)
        is_same = tree.hex().encode() == body[5:45] and new_parents == list(parents)
        if is_same and new_words == text:
            return old
        match = _HEADER.match(header + b"\n")
        rest = (header + b"\n")[match.end() :] if match else b""
        lines = [b"tree " + tree.hex().encode()]
        lines += [b"parent " + parent.hex().encode() for parent in new_parents]
        new_body = b"\n".join(lines) + b"\n" + _SIGNED.sub(b"", rest) + b"\n"
        new_body += message if new_words == text else new_words.encode()
        new_id = object_id("commit", new_body)
        self._replace_object(old, new_id, "commit", new_body)
        return new_id

    def _new_tree(self, id: bytes, folder: str) -> bytes:
        """Return the new id of a tree that belongs to a commit outside the main line."""
        if not folder and id in self.tree_ids:
            return self.tree_ids[id]
        kind, body = self.objects.get(id, ("", b""))
        if kind != "tree":
            return id
        parts = []
        for mode, name, entry in _entries(body):
            path = folder + name.decode(errors="replace")
            if mode == _FOLDER:
                new = self._new_tree(entry, f"{path}/")
            else:
                new = self._new_blob(path.removesuffix(SUFFIX), entry)
            parts.append(mode + b" " + name + b"\0" + new)
        new_body = b"".join(parts)
        new_id = object_id("tree", new_body)
        if new_id != id:
            self._replace_object(id, new_id, "tree", new_body)
        return new_id

    def _replace_object(self, old: bytes, new: bytes, kind: str, body: bytes) -> None:
        self.old_objects.add(old)
        self.new_objects[new] = (kind, body)

    def _keep_side_objects(self) -> None:
        """Rewrite commits that belong to no version, such as a tip without a change."""
        for id, (kind, _) in self.objects.items():
            if kind == "commit":
                self._new_commit(id)

    def _proposal_changes(self) -> tuple[list[tuple[Any, dict[str, Any]]], list[str]]:
        """Return the proposals with their new values, and the ids of those without an effect."""
        drafts: list[tuple[Any, dict[str, Any]]] = []
        dropped: list[str] = []
        for row in self.tx.all(_PROPOSALS, {"chain_id": self.chain.id}):
            text_key = Place(row.label, row.id)
            values: dict[str, Any] = {
                "base": self._new_commit(row.base),
                "result": self._new_commit(row.result),
                "base_blob": self._new_blob(row.label, row.base_blob),
                "blob": self._new_blob(row.label, row.blob, row),
            }
            values |= {
                name: self.changes.words(text_key, getattr(row, name))
                for name in ("description", "reasoning", "note")
                if getattr(row, name)
            }
            is_changed = any(values[name] != getattr(row, name) for name in ("blob", "base_blob"))
            is_empty = is_changed and values["blob"] == (values["base_blob"] or blob_id(""))
            if row.status in _WAITING and is_empty and not row.new_label:
                dropped.append(row.id)
                continue
            drafts.append((row, values))
        return drafts, dropped

    def _store_proposals(
        self, drafts: Sequence[tuple[Any, dict[str, Any]]], dropped: Sequence[str]
    ) -> int:
        count = 0
        for row, values in drafts:
            changed = {name: value for name, value in values.items() if value != getattr(row, name)}
            if changed:
                self.tx.run(update(proposals).where(proposals.c.seq == row.seq).values(changed))
            count += not changed.keys() <= {"base", "result", "base_blob"}
        if dropped:
            self.tx.run(delete(proposals).where(proposals.c.id.in_(dropped)))
        return count + len(dropped)

    def _rewrite_blocks(self) -> int:
        count = 0
        for row in self.tx.all(_BLOCKS, {"chain_id": self.chain.id}):
            text_key = Place(row.label)
            values: dict[str, Any] = {
                "value": self.changes.text(text_key, row.value),
                **self.changes.settings(text_key, {"metadata": row.metadata}),
            }
            for name in ("title", "description"):
                if old_words := getattr(row, name):
                    values[name] = self.changes.words(text_key, old_words)
            changed = {name: new for name, new in values.items() if new != getattr(row, name)}
            count += bool(changed)
            head = self._new_commit(row.head)
            if "value" in changed or head != row.head:
                # The higher version tells a writer that read the block earlier that it has changed.
                changed |= {"version": row.version + 1, "head": head}
            if changed:
                self.tx.run(update(blocks).where(blocks.c.seq == row.seq).values(changed))
        return count

    def _rewrite_log(self) -> None:
        labels = {row.id: row.label for row in self.tx.all(_BLOCKS, {"chain_id": self.chain.id})}
        for row in self.tx.all(_LOG, {"chain_id": self.chain.id}):
            label = row.deleted_label or labels.get(row.block_id, "")
            changed = self.changes.settings(Place(label), row.changed)
            if changed != row.changed:
                statement = update(blocks_log).where(blocks_log.c.seq == row.seq)
                self.tx.run(statement.values(changed=changed))

    def _store_objects(self) -> None:
        changed = {old: new for old, new in self.commit_ids.items() if old != new}
        parameters = {"chain_id": self.chain.id}
        self.tx.run(_DELETE_OBJECT, [{**parameters, "id": old} for old in sorted(self.old_objects)])
        rows = [
            {**parameters, "id": id, "kind": kind, "data": body}
            for id, (kind, body) in self.new_objects.items()
        ]
        rows += [
            {**parameters, "id": old, "kind": TOMBSTONE, "data": new}
            for old, new in changed.items()
        ]
        self.tx.run(_PUT_OBJECT, rows)

    def _store_texts(self) -> None:
        """Store the texts in use again, each as a delta from its block's previous text."""
        self._keep_texts_of_trees()
        number = {"chain_id": self.chain.id}
        self.tx.run(delete(blobs).where(blobs.c.chain == number_of_chain()), number)
        bases: dict[str, versions.TextBase] = {}
        depths: dict[bytes, int] = {}
        for id, (label, text) in self.texts.items():
            stored = versions.put_text(self.tx, self.chain.id, text, bases.get(label))
            bases[label] = (id, stored.depth, text)
            depths[id] = stored.depth
        files = {
            label: (blob, depths.get(blob, 0)) for label, (blob, _) in self.chain.files.items()
        }
        self.chain = replace(self.chain, files=files)
        versions.advance(self.tx, self.chain, 0)

    def _keep_texts_of_trees(self) -> None:
        """Keep the texts of trees that were stored with commits outside the main line."""
        for id, (kind, body) in {**self.objects, **self.new_objects}.items():
            if kind == "tree" and id not in self.old_objects:
                for _, name, entry in _entries(body):
                    if entry in self.old_texts and entry not in self.texts:
                        self.texts[entry] = (name.decode(errors="replace"), self.old_texts[entry])


def _apply(files: dict[str, bytes], row: Any, blob: bytes | None) -> None:
    files.pop(row.old_label or row.label, None)
    if blob is not None:
        files[row.label] = blob


def _parents(body: bytes) -> tuple[bytes, ...]:
    match = _HEADER.match(body)
    lines = match[2].split(b"\n")[:-1] if match else []
    return tuple(bytes.fromhex(line[7:].decode()) for line in lines)


def _entries(body: bytes) -> list[tuple[bytes, bytes, bytes]]:
    """Return a tree's entries: mode, name and id."""
    entries = []
    offset = 0
    while offset < len(body):
        space = body.index(b" ", offset)
        end = body.index(b"\0", space)
        entries.append(
            (body[offset:space], body[space + 1 : end], body[end + 1 : end + 1 + _ID_BYTES])
        )
        offset = end + 1 + _ID_BYTES
    return entries
