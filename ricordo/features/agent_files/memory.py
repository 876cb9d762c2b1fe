"""An agent's memory beside the text of its blocks: versions, blocks in no prompt, and proposals; into a file, and in again.

Anybody can write a file. So an author that it names is somebody at a remote here, whom the importer took over; and ids of versions
are computed: they are equal where all that they are made of is.
"""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from ricordo.agents.lifecycle import AgentSpec, BlockSpec, new_block, require_told_apart
from ricordo.api.call import RequestContext
from ricordo.api.models.base import Json, given
from ricordo.domain.authors import DOMAIN, author_of, signature
from ricordo.domain.block import Block, Chain, require_label
from ricordo.domain.ids import new_id
from ricordo.domain.redaction import redact
from ricordo.domain.scope import Actor, Scope
from ricordo.domain.text import normal_name
from ricordo.domain.version import BlockVersion, ChangeMetadata, Proposal
from ricordo.errors import Conflict, Invalid
from ricordo.features.agent_files.content import (
    MOST_PROPOSALS,
    MOST_VERSIONS,
    FileMemory,
    FileProposal,
    FileVersion,
)
from ricordo.features.agent_files.tolerance import ImportNotes
from ricordo.memory.commit_authors import shown_name
from ricordo.memory.proposals import ProposalDraft, Unchanged, expiry_of, propose
from ricordo.storage import blocks, history, proposals, runs, versions
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction
from ricordo.storage.versions import Change

_AUTHOR = re.compile(rf"([^<>\x00-\x1f\x7f]{{1,500}}) <([^<>\s\x00-\x1f\x7f]{{1,1000}}){DOMAIN}>")


def own_blocks(tx: Transaction, scope: Scope, agent_id: str) -> list[Block]:
    """Return the agent's blocks without those of users, one of which may stand in the place of the agent's own."""
    everything = Scope(scope.organization_id)
    return blocks.by_ids(tx, everything, [block.id for block in blocks.of_agent(tx, agent_id)])


def detached_blocks(
    tx: Transaction, scope: Scope, agent_id: str, attached: Sequence[Block]
) -> list[Block]:
    """Return the blocks of the agent's own memory that are in no prompt of it."""
    chain, taken = (
        versions.of_owner(tx, scope, "agent", agent_id),
        {block.label for block in attached},
    )
    which = blocks.BlockFilter(chain_id=chain.id if chain else "")
    found = blocks.page(tx, Scope(scope.organization_id), Page(limit=1_000_000, order="asc"), which)
    return [block for block in found if block.label not in taken]


def memory_json(
    tx: Transaction,
    scope: Scope,
    agent_id: str,
    attached: Sequence[Block],
    detached: Sequence[Block],
) -> Json:
    """Return versions and proposals of these blocks, and of those that the agent had before; its own chain is whole."""
    own = versions.of_owner(tx, scope, "agent", agent_id)
    most = MOST_VERSIONS + 1
    found = history.page(tx, own.id, limit=most)[::-1] if own else []
    waiting = proposals.waiting(tx, own.id) if own else []
    for block in attached:
        if own is None or block.chain_id != own.id:
            # It becomes one of the agent's own, which has the label it has now.
            older = history.page(tx, block.chain_id, label=block.label, limit=most)[::-1]
            found += [replace(version, label=block.label, old_label=None) for version in older]
            waiting += [
                one for one in proposals.waiting(tx, block.chain_id) if one.label == block.label
            ]
    made: Json = {
        "untrusted": [block.label for block in (*attached, *detached) if block.is_untrusted]
    }
    if len(found) > MOST_VERSIONS:
        return made | {"versions_left_out": len(found)}
    waiting = [one for one in waiting if not _is_users(tx, one)][:MOST_PROPOSALS]
    return made | {
        "versions": _versions(tx, found),
        "proposals": [_proposal(one) for one in waiting],
    }


def _versions(tx: Transaction, found: Sequence[BlockVersion]) -> list[Json]:
    wanted: dict[str, list[bytes]] = {}
    for version in found:
        wanted.setdefault(version.chain_id, []).extend([version.blob] if version.blob else [])
    texts = {
        chain_id: versions.read_texts(tx, chain_id, blobs) for chain_id, blobs in wanted.items()
    }
    return [
        {
            "id": one.id.hex(),
            "label": one.label,
            "value": texts[one.chain_id][one.blob] if one.blob else None,
        }
        | {"author": _author(one.author), "reason": one.reason, "created_at": one.created_at}
        | given(old_label=one.old_label, is_untrusted=one.is_untrusted or None)
        for one in found
    ]


def _proposal(one: Proposal) -> Json:
    told: Json = {
        "label": one.label,
        "base": one.base.hex() if one.base else None,
        "value": one.value,
    }
    told |= {"author": _author(one.author), "reason": one.reasoning, "created_at": one.created_at}
    more = given(new_label=one.new_label, description=one.description, confidence=one.confidence)
    return told | more | given(is_untrusted=one.is_untrusted or None)


def _is_users(tx: Transaction, proposal: Proposal) -> bool:
    """Whether it came of a turn with a user: it is erased with that user, and is in no file."""
    run = (
        runs.find(tx, Scope(proposal.organization_id), proposal.run_id) if proposal.run_id else None
    )
    return run is not None and run.user_id is not None


def _author(actor: Actor) -> str:
    """The author as in a commit; one that came by a file is written as it was there."""
    as_there = f"{actor.name} <{actor.id}{DOMAIN}>"
    return as_there if actor.kind == "remote" and _AUTHOR.fullmatch(as_there) else signature(actor)


def _read_author(text: str) -> tuple[Actor, Actor]:
    """Who the text says that the author is, and who it is here."""
    found = _AUTHOR.fullmatch(text)
    claimed = author_of(found[1], found[2] + DOMAIN) if found else None
    if found is None or claimed is None:
        raise Invalid(f'"{text[:80]}" is no author of the form "Name <id{DOMAIN}>".')
    return claimed, Actor("remote", shown_name(found[2]), shown_name(found[1]))


@dataclass
class ImportedMemory:
    """A history that was read: `chain` as it leaves that, the rows of its versions, and its texts by id, each with the one before.

    `values` and `heads` are of the blocks that are left, by label; `bases` are versions by their ids in the file, with their texts.
    """

    sent: FileMemory
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
        """Compute the versions, which stores nothing yet; those that cannot be are left out and noted."""
        for sent in self.sent.versions:
            try:
                self._replay(sent)
            except Invalid as error:
                self.notes.add(f"The history of memory: a version is left out. {error}")
        return self

    def _replay(self, sent: FileVersion) -> None:
        claimed, author = _read_author(sent.author)
        label, value = (
            require_label(sent.label),
            None if sent.value is None else redact(sent.value).text,
        )
        before = normal_name(sent.old_label or "")
        is_renamed = value is not None and before in self.chain.files and before != label
        old_label = before if is_renamed else None
        change = Change(label, value, self.values.get(old_label or label), old_label)
        reason = redact(sent.reason).text
        planned = versions.plan(
            self.chain, [change], ChangeMetadata(claimed, reason), sent.created_at
        )
        if sent.id and planned.ids[0] not in (None, bytes.fromhex(sent.id)):
            reason = f"{reason} (was {sent.id[:10]})".strip()
            planned = versions.plan(
                self.chain, [change], ChangeMetadata(claimed, reason), sent.created_at
            )
        if id := planned.ids[0]:
            metadata = ChangeMetadata(author, reason, is_untrusted=sent.is_untrusted)
            self._add(change, id, metadata, planned.chain, sent.created_at)
        if sent.id and value is not None:
            self.bases[sent.id] = self.heads[label], value

    def _add(
        self, change: Change, id: bytes, metadata: ChangeMetadata, after: Chain, at: int
    ) -> None:
        label, value = change.label, change.value
        before = self.chain.files.get(change.old_label or label)
        blob = None if value is None else after.files[label][0]
        self.rows.append(versions.row_of(self.chain, change, metadata, id, blob, at))
        for known in (self.values, self.heads):
            known.pop(change.old_label or label, None)
        if value is not None and blob is not None:
            self.texts.setdefault(
                blob, (value, before[0] if before and before[0] != blob else None)
            )
            self.values[label], self.heads[label] = value, id
        self.chain = after

    def insert(self, tx: Transaction, context: RequestContext, spec: AgentSpec) -> AgentSpec:
        """Store the history, the blocks of the spec as it leaves them, and what waits; return the spec of the agent with them.

        What the blocks say otherwise than their history is one more version, of the importer. Raises Invalid.
        """
        scope = context.scope
        self.chain = replace(self.chain, organization_id=scope.organization_id)
        versions.insert_chain(tx, replace(self.chain, head=None, versions=0, files={}))
        depths: dict[bytes, int] = {}
        grown = 0
        for blob, (text, before) in self.texts.items():
            base = None if before is None else (before, depths[before], self.texts[before][0])
            stored = versions.put_text(tx, self.chain.id, text, base)
            depths[blob] = stored.depth
            grown += stored.added_bytes
        tx.quotas.require_history(grown)
        grown += versions.insert_rows(
            tx, [{**row, "approved_by": scope.actor.id} for row in self.rows]
        )
        files = {label: (blob, depths[blob]) for label, (blob, _) in self.chain.files.items()}
        versions.advance(tx, replace(self.chain, files=files), grown)
        made = self._insert_blocks(tx, scope, (*spec.blocks, *self.detached), f"Import {spec.name}")
        self._propose(
            tx, {block.label: block for block in made}, expiry_of(context.runtime.settings)
        )
        attached = tuple(block.id for block in made[: len(spec.blocks)])
        return replace(spec, id=self.chain.owner_id, blocks=(), block_ids=attached)

    def _insert_blocks(
        self, tx: Transaction, scope: Scope, specs: Iterable[BlockSpec], reason: str
    ) -> list[Block]:
        new = [new_block(tx, scope, spec, self.chain) for spec in specs]
        require_told_apart(new)
        metadata, labels = ChangeMetadata(scope.actor, reason), {block.label for block in new}
        gone = [
            Change(label, None, text) for label, text in self.values.items() if label not in labels
        ]
        if gone and (chain := versions.lock(tx, self.chain.id)):
            versions.record(tx, chain, gone, metadata)
        heads, doubted = self.heads, self.sent.untrusted
        known = [
            replace(one, head=heads.get(one.label), is_untrusted=one.label in doubted)
            for one in new
        ]
        return blocks.insert_all(tx, known, [], metadata)

    def _propose(self, tx: Transaction, there: dict[str, Block], expires_after: int | None) -> None:
        for sent in self.sent.proposals:
            try:
                self._propose_one(tx, there, sent, expires_after)
            except (Invalid, Conflict) as error:
                self.notes.add(f"The history of memory: a proposal is left out. {error}")

    def _propose_one(
        self,
        tx: Transaction,
        there: dict[str, Block],
        sent: FileProposal,
        expires_after: int | None,
    ) -> None:
        block = there.get(require_label(sent.label))
        head, text = self.bases.get(sent.base or "", (None, ""))
        if sent.base is not None and (block is None or head is None):
            raise Invalid(
                f'A proposal for block "{sent.label}" is of a version that is not in the file.'
            )
        base = replace(block, value=text, head=head) if block and head else None
        draft = ProposalDraft(
            self.chain.id, sent.label, sent.value, base, description=sent.description
        )
        new_label = sent.new_label and require_label(sent.new_label)
        draft = replace(draft, new_label=new_label, confidence=sent.confidence)
        _, author = _read_author(sent.author)
        metadata = ChangeMetadata(
            author, sent.reason, is_untrusted=sent.is_untrusted, made_at=sent.created_at
        )
        with suppress(Unchanged):
            propose(tx, draft, metadata, expires_after)
