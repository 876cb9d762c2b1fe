"""Restore a person's memory from an archive in one transaction: all of it or nothing.

Each version keeps its id. The id is computed from texts, author, time and earlier versions. If one
word of a text of the history was changed, the computed id differs from the stored id. The archive
is then refused. Rows keep their ids too. So if nothing was left out, the next export of the memory
has the same content hash.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from ricordo.domain.authors import plain_signature, signature
from ricordo.domain.block import Block, Chain
from ricordo.domain.git_objects import blob_id, commit_body, object_id, tree_of
from ricordo.domain.ids import is_id, new_id
from ricordo.domain.scope import Scope, User
from ricordo.domain.version import Proposal
from ricordo.errors import Conflict, Invalid
from ricordo.features.documents.memory_archives.models import (
    BLOCKS,
    GIT_OBJECTS,
    HISTORY,
    PROPOSALS,
    SETTINGS_LOG,
    TEXTS,
    BlockRecord,
    GitObjectRecord,
    ProposalRecord,
    SettingsRecord,
    VersionRecord,
)
from ricordo.features.documents.memory_archives.reading import MemoryArchive
from ricordo.plugins import UserFile
from ricordo.storage import agents, blocks, memory_archives, proposals, users, versions
from ricordo.storage.engine.store import Transaction
from ricordo.storage.history_size import recount
from ricordo.storage.memory_archives import ChainObject
from ricordo.storage.versions import Change, TextBase

_PORTION = 200  # rows that are inserted at once
_KNOWN = {BLOCKS, HISTORY, PROPOSALS, SETTINGS_LOG, GIT_OBJECTS}


@dataclass(frozen=True, slots=True)
class RestoredMemory:
    """The outcome: the user, the numbers of restored items, and the parts left out.

    `records` counts the records of features by file. `left_out` has a sentence for each part that
    this server cannot store or use.
    """

    user: User
    content: str
    head: bytes | None
    versions: int
    blocks: int
    proposals: int
    records: Mapping[str, int]
    left_out: tuple[str, ...] = ()


def restore(
    tx: Transaction,
    scope: Scope,
    archive: MemoryArchive,
    user_files: Mapping[str, UserFile],
    user_name: str | None = None,
) -> RestoredMemory:
    """Restore the archive as the memory of this user, who must not have memory yet.

    Args:
        tx: The transaction; after an error it has to be rolled back.
        scope: The caller, who may create users and write the memory of each.
        archive: The archive.
        user_files: The files that features restore, by name.
        user_name: The id or identifier of the user; by default the archive's own user. If this
            server does not know that user, the user is created with the same id.

    Raises:
        Conflict: if the user has memory here, or this server has a part of the archive already.
        Invalid: if computed ids differ from those in the history, or a part cannot be read.
    """
    user = _user(tx, scope, archive, user_name)
    users.lock(tx, user.id)
    chain = _empty_chain(tx, scope, user)
    objects = _restore_objects(tx, chain, archive)
    restored = _HistoryRestore(tx, chain, objects)
    restored.store(archive)
    chain = restored.chain
    stored_blocks = _restore_blocks(tx, chain, archive, restored.texts)
    count = _restore_proposals(tx, chain, archive)
    _restore_log(tx, chain, archive)
    _require_texts(archive, stored_blocks)
    recount(tx, chain.id)
    counts: dict[str, int] = {}
    left_out = _unseen_blocks(tx, scope, stored_blocks)
    for name in archive.names:
        if file := user_files.get(name):
            counts[name] = file.store(tx, user, archive.records(name, file.record))
        elif name not in _KNOWN and not name.startswith(TEXTS):
            left_out.append(f"{name}: no feature of this server reads this file.")
    return RestoredMemory(
        user=user,
        content=archive.manifest.content,
        head=chain.head,
        versions=chain.versions,
        blocks=len(stored_blocks),
        proposals=count,
        records=counts,
        left_out=(*left_out, *archive.notes),
    )


def _user(tx: Transaction, scope: Scope, archive: MemoryArchive, name: str | None) -> User:
    if name is not None:
        return users.find_or_make(tx, scope, name)
    archived = archive.manifest.user
    for known_as in (archived.identifier, archived.id):
        if known_as and (known := users.find(tx, scope, known_as)):
            return known
    if not is_id(archived.id, "user"):
        return users.find_or_make(tx, scope, archived.identifier or archived.name)
    draft = users.UserDraft(archived.name, archived.identifier, id=archived.id)
    return users.create(tx, scope, draft)


def _empty_chain(tx: Transaction, scope: Scope, user: User) -> Chain:
    """Return the empty chain of the user, stored if it is new. Raises Conflict if it has memory."""
    chain = versions.of_owner(tx, scope, "user", user.id)
    if chain is None:
        chain = Chain(new_id("chain"), user.organization_id, "user", user.id)
        versions.insert_chain(tx, chain)
        return chain
    if chain.versions or chain.head or proposals.waiting_ids(tx, chain.id, 1):
        raise Conflict(
            f"{user.name} already has memory on this server, and a restore replaces nothing. "
            "Choose another user, or forget this one first."
        )
    return chain


def _restore_objects(
    tx: Transaction, chain: Chain, archive: MemoryArchive
) -> dict[bytes, ChainObject]:
    """Store the pushed git objects, and return those that are commits."""
    commits: dict[bytes, ChainObject] = {}
    portion: list[ChainObject] = []
    for record in archive.records(GIT_OBJECTS, GitObjectRecord):
        stored = record.stored()
        if stored.kind != "forgotten" and object_id(stored.kind, stored.body) != stored.id:
            raise Invalid(
                f"The git object {record.id} does not have the content that its id was computed "
                "from."
            )
        if stored.kind == "commit":
            commits[stored.id] = stored
        portion.append(stored)
        if len(portion) == _PORTION:
            memory_archives.insert_objects(tx, chain.id, portion)
            portion.clear()
    memory_archives.insert_objects(tx, chain.id, portion)
    return commits


@dataclass
class _HistoryRestore:
    """Stores the versions of an archive, oldest first, and checks their ids.

    `texts` are the current texts by label. A new text may be stored as a delta from the old one.
    `commits` are the ids of the versions so far.
    """

    tx: Transaction
    chain: Chain
    pushed: Mapping[bytes, ChainObject]
    texts: dict[str, TextBase] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    commits: set[bytes] = field(default_factory=set)

    def store(self, archive: MemoryArchive) -> None:
        """Store the history. Raises Invalid."""
        records = archive.records(HISTORY, VersionRecord)
        for _, group in groupby(records, key=lambda record: record.sha):
            self._add_commit(list(group))
        versions.insert_rows(self.tx, self.rows)
        head = archive.manifest.head
        if head is not None and head != (self.chain.head or b"").hex():
            # If the last commit changed nothing, no version has its id.
            self._require_tree(bytes.fromhex(head), self.chain.versions)
            self.chain = replace(self.chain, head=bytes.fromhex(head))
        elif head is None and self.chain.head is not None:
            raise Invalid(
                "The manifest names no newest version, but the history has versions. Export the "
                "memory again."
            )
        files = {label: (blob, depth) for label, (blob, depth, _) in self.texts.items()}
        self.chain = replace(self.chain, files=files)
        versions.advance(self.tx, self.chain, 0)

    def _add_commit(self, records: list[VersionRecord]) -> None:
        first = records[0]
        self._require_parents(first)
        for record in records:
            self._add_version(record)
        self.commits.add(first.id)
        if first.id in self.pushed:
            self._require_tree(first.id, first.number)
            return
        tree = self._tree()
        for author in (signature(first.author), plain_signature(first.author)):
            body = commit_body(tree, first.parent_ids, author, first.created_at, first.message)
            if object_id("commit", body) == first.id:
                return
        raise _changed(first.number)

    def _add_version(self, record: VersionRecord) -> None:
        chain = self.chain
        if record.number != chain.versions + 1:
            raise Invalid(
                f"{HISTORY}: version {chain.versions + 1} is missing. Export the memory again."
            )
        before = self.texts.pop(record.old_label or record.label, None)
        blob = None
        if record.body is not None:
            text = versions.put_text(self.tx, chain.id, record.body, before)
            blob = text.id
            self.texts[record.label] = (text.id, text.depth, record.body)
        change = Change(record.label, record.body, None, record.old_label)
        # The archive names the parents. A merge has two, and the first version has none.
        made_from, other_parent = (*record.parent_ids, None, None)[:2]
        row = versions.row_of(
            chain, change, record.metadata(), id=record.id, blob=blob, now=record.created_at
        )
        self.rows.append({**row, "made_from": made_from, "other_parent": other_parent})
        if len(self.rows) == _PORTION:
            versions.insert_rows(self.tx, self.rows)
            self.rows.clear()
        self.chain = replace(chain, head=record.id, versions=record.number)

    def _require_parents(self, record: VersionRecord) -> None:
        """Raise Invalid if the archive lacks a commit before this one.

        A version's id depends on earlier versions, but it does not show that the archive contains
        them.
        """
        for parent in record.parent_ids:
            if parent not in self.commits and parent not in self.pushed:
                raise Invalid(
                    f"{HISTORY}: a version before version {record.number} is missing. Export the "
                    "memory again."
                )

    def _require_tree(self, id: bytes, number: int) -> None:
        """Raise Invalid unless the commit was pushed and has the tree of the current texts."""
        pushed = self.pushed.get(id)
        if pushed is None or not pushed.body.startswith(b"tree %s\n" % self._tree().hex().encode()):
            raise _changed(number)

    def _tree(self) -> bytes:
        return tree_of({label: text[0] for label, text in self.texts.items()}).id


def _changed(number: int) -> Invalid:
    return Invalid(
        f"Version {number} does not match its id, so the history was changed. Export the memory "
        "again."
    )


def _restore_blocks(
    tx: Transaction, chain: Chain, archive: MemoryArchive, texts: Mapping[str, TextBase]
) -> list[Block]:
    records = list(archive.records(BLOCKS, BlockRecord))
    if sorted(record.label for record in records) != sorted(texts):
        raise Invalid(f"{BLOCKS} and {HISTORY} name different blocks. Export the memory again.")
    restored = [
        record.block(chain.organization_id, chain.id, texts[record.label][2]) for record in records
    ]
    for block in restored:
        if blocks.lock_if_exists(tx, block.id):
            raise _known_here(f'the block "{block.label}"')
    blocks.ROWS.insert(tx, *restored)
    for block in restored:
        memory_archives.insert_tags(tx, block)
    return restored


def _restore_proposals(tx: Transaction, chain: Chain, archive: MemoryArchive) -> int:
    count = 0
    for record in archive.records(PROPOSALS, ProposalRecord):
        proposal = record.proposal(chain.organization_id, chain.id)
        if proposals.existing_ids(tx, [proposal.id]):
            raise _known_here(f"the proposal {proposal.id}")
        _store_proposal(tx, proposal)
        count += 1
    return count


def _store_proposal(tx: Transaction, proposal: Proposal) -> None:
    base: TextBase | None = None
    if proposal.base_value is not None:
        text = versions.put_text(tx, proposal.chain_id, proposal.base_value, None)
        base = (text.id, text.depth, proposal.base_value)
    proposals.store(tx, proposal, base)


def _known_here(what: str) -> Conflict:
    return Conflict(
        f"This server has {what} of this archive already, so another user here has this memory. "
        "Forget that user first, or restore on another server."
    )


def _restore_log(tx: Transaction, chain: Chain, archive: MemoryArchive) -> None:
    logged = [record.logged() for record in archive.records(SETTINGS_LOG, SettingsRecord)]
    memory_archives.insert_log(tx, chain.id, logged)


def _require_texts(archive: MemoryArchive, stored: Iterable[Block]) -> None:
    """Raise Invalid if the files of texts differ from the newest texts of the history."""
    readable = sorted(
        blob_id(archive.text(name)) for name in archive.names if name.startswith(TEXTS)
    )
    if readable != sorted(blob_id(block.value) for block in stored):
        raise Invalid(f"The files in {TEXTS} differ from the newest texts of {HISTORY}.")


def _unseen_blocks(tx: Transaction, scope: Scope, stored: Iterable[Block]) -> list[str]:
    """Return a sentence for each block that is limited to an agent unknown to this server."""
    limited = {block.label: block.agent_id for block in stored if block.agent_id}
    return [
        f'The block "{label}" is visible to the agent {agent_id} only, which is not on this '
        "server. It was restored, but no agent sees it until you change its agent_id."
        for label, agent_id in limited.items()
        if agent_id and agents.find(tx, scope, agent_id) is None
    ]
