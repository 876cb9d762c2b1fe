"""Proposals: what a policy does not let an agent do at once waits for the block's owner, and only the owner sees it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ricordo.domain.block import Block
from ricordo.domain.clock import DAY
from ricordo.domain.git_objects import blob_id
from ricordo.domain.ids import new_id
from ricordo.domain.version import ChangeMetadata, Proposal
from ricordo.errors import Conflict, NotFound
from ricordo.memory.merge import merge_lines
from ricordo.memory.working_memory import EditContext, MemoryEdit, by_block
from ricordo.settings import Settings
from ricordo.storage import proposals, versions
from ricordo.storage.engine.store import Transaction

WAITS = (
    'Your change of memory block "{}" was proposed as {}. It waits for the owner, and the block stays as it is until then. '
    "You will not be told what becomes of it."
)
NOT_A_TEXT = (
    'Memory block "{}" belongs to an owner who decides about changes, and only the owner can change its description. '
    "Propose changes of its text instead."
)


@dataclass(frozen=True, slots=True)
class ProposalDraft:
    """A change to be proposed: of `block`, or a new one where that is None; `value` is None for one that shall go."""

    chain_id: str
    label: str
    value: str | None
    block: Block | None = None
    new_label: str | None = None
    description: str | None = None
    confidence: float | None = None


def propose_edits(
    tx: Transaction, edits: Sequence[MemoryEdit], context: EditContext
) -> tuple[dict[str, str], dict[str, str]]:
    """Make a proposal of each block's edits in one step; returns the results of their calls, and of those that failed, by id."""
    results: dict[str, str] = {}
    failed: dict[str, str] = {}
    # In the order of their chains, as everyone locks them, so that no two wait for each other.
    for group in sorted(by_block(edits).values(), key=lambda group: group[0].base.chain_id):
        block, after = group[0].base, group[-1].after
        if after and after.description != block.description:
            failed |= {edit.call_id: NOT_A_TEXT.format(block.label) for edit in group}
            continue
        metadata = context.metadata((edit.reason for edit in group), f"Edit {block.label}")
        draft = ProposalDraft(
            block.chain_id,
            block.label,
            after.value if after else None,
            block,
            after.label if after and after.label != block.label else None,
            confidence=min((sure for edit in group if (sure := edit.reason.confidence) is not None), default=None),
        )
        try:
            proposal = propose(tx, draft, metadata, context.expires_after)
        except (NotFound, Conflict) as error:
            failed |= {edit.call_id: str(error) for edit in group}
            continue
        for edit in group:
            sentence = WAITS.format(block.label, proposal.id)
            results[edit.call_id] = f"{results[edit.call_id]} {sentence}" if edit.call_id in results else sentence
    return results, failed


def propose(
    tx: Transaction, draft: ProposalDraft, metadata: ChangeMetadata, expires_after: int | None = None
) -> Proposal:
    """Store a proposal; an older one of the same author for the same block is superseded. Raises NotFound where all is erased.

    What the older proposed in the same run and in other lines goes into the newer, since its author did not see it in the block.
    `expires_after` is in microseconds; None: it waits for ever.
    """
    chain = versions.lock(tx, draft.chain_id)
    if chain is None:
        raise NotFound(f'Memory block "{draft.label}" was erased in the meantime.')
    now = tx.clock.now()
    block = draft.block
    older = proposals.waiting_by(tx, chain.id, draft.label, metadata.author)
    value = draft.value
    for one in older:
        value = _with_older(value, one, metadata)
    proposal = Proposal(
        id=new_id("proposal"),
        organization_id=chain.organization_id,
        chain_id=chain.id,
        label=draft.label,
        base=block.head if block else None,
        base_value=block.value if block else None,
        value=value,
        author=metadata.author,
        reasoning=metadata.reason,
        created_at=now,
        confidence=draft.confidence,
        new_label=draft.new_label,
        description=draft.description,
        run_id=metadata.run_id,
        step_id=metadata.step_id,
        is_untrusted=metadata.is_untrusted,
        expires_at=None if expires_after is None else now + expires_after,
    )
    file = chain.files.get(draft.label)
    # Only a text that the chain holds can be what the new one is a difference from, and the block may have moved on.
    is_current = file is not None and block is not None and blob_id(block.value) == file[0]
    proposals.insert_one(tx, proposal, (*file, block.value) if file and block and is_current else None)
    for one in older:
        proposals.settle(tx, replace(one, status="superseded", resolved_at=now, superseded_by=proposal.id))
    return proposal


def _with_older(value: str | None, older: Proposal, metadata: ChangeMetadata) -> str | None:
    is_same_run = metadata.run_id is not None and older.run_id == metadata.run_id
    if value is None or older.value is None or older.base_value is None or not is_same_run:
        return value
    merged = merge_lines(older.base_value, value, older.value)
    return value if merged is None else merged


def expiry_of(settings: Settings) -> int | None:
    """How long proposals wait, in microseconds; None: for ever."""
    return int(settings.proposal_expiry * DAY) or None
