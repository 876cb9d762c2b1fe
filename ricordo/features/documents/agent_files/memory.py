"""Export and import an agent's memory: versions, detached blocks and proposals.

A file may name any authors. So they are stored as remote authors, and the importing user is stored
as the approver. Ids of versions are computed from their content, so equal histories get equal ids.
"""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from ricordo.agents.call_context import CallContext
from ricordo.agents.lifecycle import AgentSpec, BlockSpec, new_block, require_distinct_labels
from ricordo.api.models.base import without_none
from ricordo.domain.authors import DOMAIN, author_of, signature
from ricordo.domain.block import Block, Chain, require_label
from ricordo.domain.ids import new_id
from ricordo.domain.redaction import redact
from ricordo.domain.scope import Actor, Scope
from ricordo.domain.text import Json, normal_name
from ricordo.domain.version import BlockVersion, ChangeMetadata, Proposal
from ricordo.errors import Conflict, Invalid
from ricordo.features.documents.agent_files.content import (
    MOST_PROPOSALS,
    MOST_VERSIONS,
    FileMemory,
    FileProposal,
    FileVersion,
)
from ricordo.features.documents.agent_files.tolerance import ImportNotes
from ricordo.memory.commit_authors import shown_name
from ricordo.memory.proposals import ProposalDraft, Unchanged, expiry_of, propose
from ricordo.storage import blocks, history, proposals, runs, versions
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction
from ricordo.storage.versions import Change

_AUTHOR = re.compile(rf"([^<>\x00-\x1f\x7f]{{1,500}}) <([^<>\s\x00-\x1f\x7f]{{1,1000}}){DOMAIN}>")


def own_blocks(tx: Transaction, scope: Scope, agent_id: str) -> list[Block]:
    """Return the agent's blocks without those of users.

    A user's block may have the same label as one of the agent's blocks. In the prompt it then
    replaces the agent's block.

    Args:
        tx: The transaction, or a read.
        scope: The caller, whose organization is searched. Further rights are not checked.
        agent_id: The agent.
    """
    block_ids = [block.id for block in blocks.of_agent(tx, agent_id)]
    return blocks.by_ids(tx, Scope(scope.organization_id), block_ids)


def detached_blocks(
    tx: Transaction, scope: Scope, agent_id: str, attached: Sequence[Block]
) -> list[Block]:
    """Return the blocks on the agent's chain that are not in its prompt.

    Args:
        tx: The transaction, or a read.
        scope: The caller.
        agent_id: The agent.
        attached: The blocks in its prompt. A block with the label of one of them is left out, since
            labels are unique in a file.
    """
    chain = versions.of_owner(tx, scope, "agent", agent_id)
    attached_labels = {block.label for block in attached}
    of_chain = blocks.BlockFilter(chain_id=chain.id if chain else "")
    whole_page = Page(limit=1_000_000, order="asc")
    chain_blocks = blocks.page(tx, Scope(scope.organization_id), whole_page, of_chain)
    return [block for block in chain_blocks if block.label not in attached_labels]


def memory_json(
    tx: Transaction,
    scope: Scope,
    agent_id: str,
    attached: Sequence[Block],
    detached: Sequence[Block],
) -> Json:
    """Return the versions and proposals of these blocks and of the agent's chain.

    If there are too many versions, they and the proposals are left out, and `versions_left_out` has
    the number of the versions.

    Args:
        tx: The transaction, or a read.
        scope: The caller.
        agent_id: The agent.
        attached: Blocks in the prompt. The versions of a shared one get its present label.
        detached: Blocks as `detached_blocks` returns them.
    """
    chain = versions.of_owner(tx, scope, "agent", agent_id)
    limit = MOST_VERSIONS + 1
    if chain:
        exported = history.page(tx, chain.id, limit=limit)[::-1]
    else:
        exported = []
    if chain:
        waiting = proposals.waiting(tx, chain.id)
    else:
        waiting = []
    for block in attached:
        if chain is None or block.chain_id != chain.id:
            # In the file, this shared block becomes a block of the agent with its present label.
            block_versions = history.page(tx, block.chain_id, label=block.label, limit=limit)[::-1]
            exported += [
                replace(version, label=block.label, old_label=None) for version in block_versions
            ]
            waiting += [
                proposal
                for proposal in proposals.waiting(tx, block.chain_id)
                if proposal.label == block.label
            ]
    memory: Json = {
        "untrusted": [block.label for block in (*attached, *detached) if block.is_untrusted]
    }
    if len(exported) > MOST_VERSIONS:
        return memory | {"versions_left_out": _count_versions(tx, chain, attached)}
    waiting = [proposal for proposal in waiting if not _is_about_user(tx, proposal)][
        :MOST_PROPOSALS
    ]
    return memory | {
        "versions": _versions(tx, exported),
        "proposals": [_proposal(proposal) for proposal in waiting],
    }


def _count_versions(tx: Transaction, chain: Chain | None, attached: Sequence[Block]) -> int:
    """Return the number of all versions of the agent's chain and of its shared blocks."""
    own = history.count(tx, chain.id) if chain else 0
    shared = [block for block in attached if chain is None or block.chain_id != chain.id]
    return own + sum(history.count(tx, block.chain_id, block.label) for block in shared)


def _versions(tx: Transaction, exported: Sequence[BlockVersion]) -> list[Json]:
    blobs_by_chain: dict[str, list[bytes]] = {}
    for version in exported:
        blobs_by_chain.setdefault(version.chain_id, []).extend(
            [version.blob] if version.blob else []
        )
    texts = {
        chain_id: versions.read_texts(tx, chain_id, blobs)
        for chain_id, blobs in blobs_by_chain.items()
    }
    return [
        {
            "id": version.id.hex(),
            "label": version.label,
            "value": texts[version.chain_id][version.blob] if version.blob else None,
        }
        | {
            "author": _author(version.author),
            "reason": version.reason,
            "created_at": version.created_at,
        }
        | without_none(old_label=version.old_label, is_untrusted=version.is_untrusted or None)
        for version in exported
    ]


def _proposal(proposal: Proposal) -> Json:
    optional = without_none(
        new_label=proposal.new_label,
        description=proposal.description,
        confidence=proposal.confidence,
        egress=proposal.egress,
        is_untrusted=proposal.is_untrusted or None,
    )
    return {
        "label": proposal.label,
        "base": proposal.base.hex() if proposal.base else None,
        "value": proposal.value,
        "author": _author(proposal.author),
        "reason": proposal.reasoning,
        "created_at": proposal.created_at,
        **optional,
    }


def _is_about_user(tx: Transaction, proposal: Proposal) -> bool:
    """Return True if the proposal came from a user's turn.

    Such a proposal is left out of the file, since it would be erased with the user.
    """
    if not proposal.run_id:
        return False
    run = runs.find(tx, Scope(proposal.organization_id), proposal.run_id)
    return run is not None and run.user_id is not None


def _author(actor: Actor) -> str:
    """Return the author in the form of a commit's author.

    An author from an imported file is written as that file wrote it.
    """
    imported_form = f"{actor.name} <{actor.id}{DOMAIN}>"
    if actor.kind == "remote" and _AUTHOR.fullmatch(imported_form):
        return imported_form
    return signature(actor)


def _read_author(text: str) -> tuple[Actor, Actor]:
    """Return the claimed author, and the remote author to store."""
    match = _AUTHOR.fullmatch(text)
    if match:
        claimed = author_of(match[1], match[2] + DOMAIN)
    else:
        claimed = None
    if match is None or claimed is None:
        raise Invalid(f'"{text[:80]}" is not an author of the form "Name <id{DOMAIN}>".')
    return claimed, Actor("remote", shown_name(match[2]), shown_name(match[1]))


@dataclass
class ImportedMemory:
    """An agent's history from a file; it was replayed but is not stored yet.

    `chain` is its state after the replay. `rows` are its versions. `texts` are its texts by blob
    id, each with the id of the previous text. `values` and `heads` have the text and the newest
    version's id of each remaining block, by label. `bases` maps ids of versions in the file to ids
    of stored versions, each with the text.
    """

    memory: FileMemory
    detached: tuple[BlockSpec, ...]
    notes: ImportNotes = field(default_factory=ImportNotes)
    chain: Chain = field(
        default_factory=lambda: Chain(new_id("chain"), "", "agent", new_id("agent"))
    )
    rows: list[Json] = field(default_factory=list)
    texts: dict[bytes, tuple[str, bytes | None]] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    heads: dict[str, bytes] = field(default_factory=dict)
    bases: dict[str, tuple[bytes, str]] = field(default_factory=dict)

    def replay(self) -> "ImportedMemory":
        """Compute the versions without storing them; broken ones are left out and noted."""
        for version in self.memory.versions:
            try:
                self._replay_version(version)
            except Invalid as error:
                self.notes.add(f"The history of memory: a version is left out. {error}")
        return self

    def _replay_version(self, version: FileVersion) -> None:
        claimed, author = _read_author(version.author)
        label = require_label(version.label)
        if version.value is None:
            value = None
        else:
            value = redact(version.value).text
        earlier_label = normal_name(version.old_label or "")
        is_renamed = (
            value is not None and earlier_label in self.chain.files and earlier_label != label
        )
        old_label = earlier_label if is_renamed else None
        change = Change(label, value, self.values.get(old_label or label), old_label)
        reason = redact(version.reason).text
        planned = versions.plan(
            self.chain, [change], ChangeMetadata(claimed, reason), version.created_at
        )
        if version.id and planned.ids[0] not in (None, bytes.fromhex(version.id)):
            reason = f"{reason} (was {version.id[:10]})".strip()
            planned = versions.plan(
                self.chain, [change], ChangeMetadata(claimed, reason), version.created_at
            )
        if id := planned.ids[0]:
            metadata = ChangeMetadata(author, reason, is_untrusted=version.is_untrusted)
            self._add_version(
                change, id, metadata, new_chain=planned.chain, created_at=version.created_at
            )
        if version.id and value is not None:
            self.bases[version.id] = self.heads[label], value

    def _add_version(
        self,
        change: Change,
        id: bytes,
        metadata: ChangeMetadata,
        *,
        new_chain: Chain,
        created_at: int,
    ) -> None:
        label = change.label
        value = change.value
        old_file = self.chain.files.get(change.old_label or label)
        if value is None:
            blob = None
        else:
            blob = new_chain.files[label][0]
        self.rows.append(
            versions.row_of(self.chain, change, metadata=metadata, id=id, blob=blob, now=created_at)
        )
        for by_label in (self.values, self.heads):
            by_label.pop(change.old_label or label, None)
        if value is not None and blob is not None:
            if old_file and old_file[0] != blob:
                old_blob = old_file[0]
            else:
                old_blob = None
            self.texts.setdefault(blob, (value, old_blob))
            self.values[label] = value
            self.heads[label] = id
        self.chain = new_chain

    def insert(
        self, tx: Transaction, context: CallContext, spec: AgentSpec, notes: ImportNotes
    ) -> AgentSpec:
        """Store the history, its blocks and its proposals; return the agent's spec with them.

        If a block of the spec differs from its history, the difference becomes one more version, by
        the importing user.

        Args:
            tx: The transaction.
            context: The caller's context.
            spec: The spec with the blocks of the file. The returned spec names the stored blocks
                instead, and the agent's id.
            notes: Gets notes on proposals that are left out.

        Raises:
            Invalid: A block cannot be stored, or the history is too large.
        """
        scope = context.scope
        self.chain = replace(self.chain, organization_id=scope.organization_id)
        versions.insert_chain(tx, replace(self.chain, head=None, versions=0, files={}))
        depths: dict[bytes, int] = {}
        added_bytes = 0
        for blob, (text, old_blob) in self.texts.items():
            if old_blob is None:
                base = None
            else:
                base = (old_blob, depths[old_blob], self.texts[old_blob][0])
            stored = versions.put_text(tx, self.chain.id, text, base)
            depths[blob] = stored.depth
            added_bytes += stored.added_bytes
        tx.quotas.require_history(added_bytes)
        added_bytes += versions.insert_rows(
            tx, [{**row, "approved_by": scope.actor.id} for row in self.rows]
        )
        files = {label: (blob, depths[blob]) for label, (blob, _) in self.chain.files.items()}
        versions.advance(tx, replace(self.chain, files=files), added_bytes)
        stored_blocks = self._insert_blocks(
            tx, scope, (*spec.blocks, *self.detached), f"Import {spec.name}"
        )
        by_label = {block.label: block for block in stored_blocks}
        self._propose_all(tx, by_label, expiry_of(context.runtime.settings), notes)
        attached_ids = tuple(block.id for block in stored_blocks[: len(spec.blocks)])
        return replace(spec, id=self.chain.owner_id, blocks=(), block_ids=attached_ids)

    def _insert_blocks(
        self, tx: Transaction, scope: Scope, specs: Iterable[BlockSpec], reason: str
    ) -> list[Block]:
        new = [new_block(tx, scope, spec, self.chain) for spec in specs]
        require_distinct_labels(new)
        metadata = ChangeMetadata(scope.actor, reason)
        labels = {block.label for block in new}
        deletions = [
            Change(label, None, text) for label, text in self.values.items() if label not in labels
        ]
        if deletions and (chain := versions.lock(tx, self.chain.id)):
            versions.record(tx, chain, deletions, metadata)
        untrusted = self.memory.untrusted
        with_history = [
            replace(block, head=self.heads.get(block.label), is_untrusted=block.label in untrusted)
            for block in new
        ]
        return blocks.insert_all(tx, with_history, [], metadata)

    def _propose_all(
        self,
        tx: Transaction,
        by_label: dict[str, Block],
        expires_after: int | None,
        notes: ImportNotes,
    ) -> None:
        for proposal in self.memory.proposals:
            try:
                self._propose(tx, by_label, proposal, expires_after)
            except (Invalid, Conflict) as error:
                notes.add(f"The history of memory: a proposal is left out. {error}")

    def _propose(
        self,
        tx: Transaction,
        by_label: dict[str, Block],
        proposal: FileProposal,
        expires_after: int | None,
    ) -> None:
        block = by_label.get(require_label(proposal.label))
        head, text = self.bases.get(proposal.base or "", (None, ""))
        if proposal.base is not None and (block is None or head is None):
            raise Invalid(
                f'A proposal for block "{proposal.label}" names a version that is not in the file.'
            )
        if block and head:
            base = replace(block, value=text, head=head)
        else:
            base = None
        draft = ProposalDraft(
            self.chain.id, proposal.label, proposal.value, base, description=proposal.description
        )
        new_label = proposal.new_label and require_label(proposal.new_label)
        draft = replace(
            draft, new_label=new_label, confidence=proposal.confidence, egress=proposal.egress
        )
        _, author = _read_author(proposal.author)
        metadata = ChangeMetadata(
            author, proposal.reason, is_untrusted=proposal.is_untrusted, made_at=proposal.created_at
        )
        with suppress(Unchanged):
            propose(tx, draft, metadata, expires_after)
