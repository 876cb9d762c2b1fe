"""An owner's decisions: to approve or reject proposals, to edit one before, and to undo what a run did.

Each decision is one transaction. It holds the chain first, then the proposal, so that of two decisions at once the second sees
the first, and a block that changes meanwhile is merged or is a conflict.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Literal

from ricordo.domain.block import Block, Chain
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.redaction import redact_values
from ricordo.domain.scope import Actor, Scope
from ricordo.domain.version import BlockVersion, ChangeMetadata, Proposal
from ricordo.errors import Conflict, Forbidden, NotFound, RicordoError
from ricordo.memory.line_changes import effort, merge_changes, same_text
from ricordo.memory.merge import merge_lines
from ricordo.memory.user_memory import make, require_free, revive
from ricordo.storage import agents, blocks, conversations, history, proposals, runs, versions
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Overtaken, Transaction

EXPIRED_EVERY = 600.0
_MOST_WITHDRAWN = 1000
_MOST_VERSIONS = 100
# Lines, and pairs of equal lines, that are compared to take a proposal through versions: all takes half a second.
_MOST_COMPARED = 200_000
_CONFLICT = "The block changed in the same lines since this was proposed. Settle it with a text of your own, or reject it."
_ANOTHERS = (
    "A block with this label was made for another agent since this was proposed. "
    "Settle it with a text of your own, or reject it."
)
_GONE = "The block was deleted since this was proposed. Approve it with a text, which creates it again, or reject it."


@dataclass(frozen=True, slots=True)
class Approved:
    """A proposal that was taken over, and the block as it is then; None where the block is gone."""

    proposal: Proposal
    block: Block | None


@dataclass(frozen=True, slots=True)
class Conflicted:
    """A proposal that collides with the block: its base, the block's and the proposed text (None: no block). Nothing is written."""

    proposal: Proposal
    base: str | None
    ours: str | None
    theirs: str | None


def approve(
    tx: Transaction, scope: Scope, proposal_id: str, by: Actor, *, body: str | None = None
) -> Approved | Conflicted:
    """Make what is proposed the block's next version, merged with what was written since; with `body`, that text instead.

    The version's author is the agent that proposed it, or the owner who changed the text. Raises NotFound, Conflict where
    it is decided already or a label is taken, TooLong, Invalid, Forbidden for all but people.
    """
    chain, proposal = _held(tx, scope, proposal_id, by)
    block = blocks.labelled(tx, chain.id, proposal.label)
    value, conflict = _merged(tx, proposal, block)
    metadata = metadata_of(proposal, by)
    if body is not None and (conflict or value is None or not same_text(body, value)):
        value, conflict = body, None
        # The owner's words, but what led to them stays known.
        metadata = replace(metadata, author=by, is_untrusted=False)
    if conflict:
        stuck = replace(proposal, status="conflicted", note=conflict)
        proposals.settle(tx, stuck)
        return Conflicted(
            stuck, proposal.base_value, block.value if block else None, proposal.value
        )
    label = proposal.new_label or proposal.label
    if block is None and value is not None and proposal.base is None:
        settings = {} if proposal.description is None else {"description": proposal.description}
        settings |= _settings_of(tx, proposal, chain)
        written: Block | None = make(tx, chain, label, value, metadata, settings)
    else:
        written = _give(tx, chain, block, value, label, metadata)
    head = versions.lock(tx, chain.id)
    result = head.head if head and head.head != chain.head else None
    settled = _settled(tx, replace(proposal, status="approved", note=None, result=result), by)
    return Approved(settled, written)


def metadata_of(proposal: Proposal, by: Actor) -> ChangeMetadata:
    """Return the metadata of the version that a proposal becomes when an owner approves it as it is."""
    return ChangeMetadata(
        author=proposal.author,
        reason=proposal.reasoning,
        run_id=proposal.run_id,
        step_id=proposal.step_id,
        is_untrusted=proposal.is_untrusted,
        approved_by=by.id,
        proposal_id=proposal.id,
    )


def _settings_of(tx: Transaction, proposal: Proposal, chain: Chain) -> dict[str, str]:
    """The settings of a user's new block that an agent proposed in a turn: it is for this agent, under the policy it names."""
    if not (proposal.run_id and proposal.author.kind == "agent" and chain.owner_kind == "user"):
        return {}
    agent = agents.find(tx, Scope(chain.organization_id), proposal.author.id)
    return {"agent_id": agent.id, "policy": agent.user_block_policy} if agent else {}


def reject(
    tx: Transaction, scope: Scope, proposal_id: str, by: Actor, *, reason: str | None = None
) -> Proposal:
    """Leave the block as it is, and tell the agent why in its next turn. Raises NotFound, Conflict (decided), Forbidden."""
    chain, proposal = _held(tx, scope, proposal_id, by)
    agent_id = (
        proposal.author.id
        if proposal.author.kind == "agent" and chain.owner_kind == "user"
        else None
    )
    is_untold = agent_id is not None and bool((reason or "").strip())
    rejected = _settled(
        tx, replace(proposal, status="rejected", note=reason, is_untold=is_untold), by
    )
    if agent_id is not None and is_untold:
        run_id, user_id = proposal.run_id, chain.owner_id
        if not (run_id and conversations.flag_untold(tx, agent_id, user_id, run_id)):
            conversations.flag_untold(tx, agent_id, user_id)
    return rejected


def _merged(
    tx: Transaction, proposal: Proposal, block: Block | None
) -> tuple[str | None, str | None]:
    """The text that approving makes of the block, None where it goes; and why it cannot be approved as it is."""
    if block is None:
        # What shall be deleted and is gone is as it should be.
        is_clean = proposal.value is None or proposal.base is None
        return proposal.value, None if is_clean else _GONE
    if proposal.value is None:
        return None, None if same_text(block.value, proposal.base_value or "") else _CONFLICT
    if proposal.base is None and block.agent_id not in (None, proposal.author.id):
        return proposal.value, _ANOTHERS
    # What the block holds by now stands above what is added to it at the same place.
    merged = merge_changes(proposal.base_value or "", block.value, proposal.value)
    if merged is None:
        merged = _merged_by_versions(tx, proposal, block)
    return merged, None if merged is not None else _CONFLICT


def _merged_by_versions(tx: Transaction, proposal: Proposal, block: Block) -> str | None:
    """The text with the proposal taken through each version since, as each change tells more; None where they collide."""
    since: list[bytes] = []
    for version in history.page(tx, block.chain_id, label=block.label, limit=_MOST_VERSIONS):
        if version.id == proposal.base or version.blob is None:
            break
        since.append(version.blob)
    else:
        return None
    texts = versions.read_texts(tx, block.chain_id, since)
    before, text = proposal.base_value or "", proposal.value
    room = _MOST_COMPARED
    for blob in reversed(since):
        if text is not None:
            room -= effort(before, texts[blob]) + effort(before, text)
            before, text = (
                texts[blob],
                merge_changes(before, texts[blob], text) if room >= 0 else None,
            )
    return text


@dataclass(frozen=True, slots=True)
class UndoneBlock:
    """What undoing a run came to for one block: `label` is its label now, `note` tells why nothing was done."""

    label: str
    outcome: Literal["undone", "unchanged", "conflicted"]
    block: Block | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Undone:
    """What undoing a run came to: block by block, and the proposals of the run that waited and are rejected now."""

    run_id: str
    blocks: tuple[UndoneBlock, ...]
    withdrawn: tuple[Proposal, ...]


def undo_run(tx: Transaction, scope: Scope, run_id: str, by: Actor) -> Undone:
    """Take back what a run changed, also by proposals that were approved, as new versions; what others wrote since stays.

    A block where that is impossible is left as it is and told of. To undo twice is the same as once. Raises NotFound, Conflict
    while the run goes on, Forbidden for all but people.
    """
    if by.kind not in ("user", "administrator"):
        raise _forbidden(by)
    changed = history.of_run(tx, scope, run_id)
    _require_ended(tx, scope, run_id, is_known=bool(changed))
    which = proposals.ProposalFilter(run_id=run_id, waits=True)
    waiting = proposals.page(tx, scope, Page(limit=_MOST_WITHDRAWN), which)
    chain_ids = {version.chain_id for version in changed} | {
        proposal.chain_id for proposal in waiting
    }
    locked = [versions.lock(tx, chain_id) for chain_id in sorted(chain_ids)]
    chains = {chain.id: chain for chain in locked if chain and _is_callers(chain, scope)}
    for chain in chains.values():
        _require_owner(by, chain)
    by_block: dict[tuple[str, str], list[BlockVersion]] = {}
    for version in history.of_run(tx, scope, run_id):
        # What the owner wrote in place of a proposal is not the run's to take back.
        if version.chain_id in chains and version.author.kind not in ("user", "administrator"):
            by_block.setdefault((version.chain_id, history.label_now(tx, version)), []).append(
                version
            )
    metadata = ChangeMetadata(by, f"Undo {run_id}")
    done = [
        _undo_block(tx, chains[chain_id], label, group, metadata)
        for (chain_id, label), group in sorted(by_block.items(), key=itemgetter(0))
    ]
    withdrawn = tuple(
        _settled(tx, replace(proposal, status="rejected", note=f"{run_id} was undone"), by)
        for one in waiting
        if one.chain_id in chains and (proposal := proposals.lock(tx, scope, one.id)).waits
    )
    return Undone(run_id, tuple(done), withdrawn)


async def _expire(runtime: Any, _job: Job, _report: Report) -> None:
    while await runtime.store.write(proposals.expire):
        pass


EXPIRY = JobHandler("expire_proposals", _expire, every_seconds=EXPIRED_EVERY)


def _held(tx: Transaction, scope: Scope, proposal_id: str, by: Actor) -> tuple[Chain, Proposal]:
    seen = proposals.get(tx, scope, proposal_id)
    chain = versions.lock(tx, seen.chain_id)
    if chain is None or not _is_callers(chain, scope):
        raise NotFound(f"Proposal with ID {proposal_id} not found")
    _require_owner(by, chain)
    proposal = proposals.lock(tx, scope, proposal_id)
    proposal.require_waiting()
    return chain, proposal


def _give(
    tx: Transaction,
    chain: Chain,
    block: Block | None,
    value: str | None,
    label: str,
    metadata: ChangeMetadata,
) -> Block | None:
    """Give the block this text and label: None deletes it, and one that is gone comes back."""
    if block is None:
        return None if value is None else revive(tx, chain, label, value, metadata)
    if value is None:
        blocks.remove(tx, block, metadata)
        return None
    if label != block.label:
        require_free(tx, block, label)
    changed = replace(block, value=value, label=label)
    changed.require_fits(value)
    return block if changed == block else blocks.update(tx, block, changed, metadata)


def _require_owner(by: Actor, chain: Chain) -> None:
    if not ChangeMetadata(by).is_owners_of(chain):
        raise _forbidden(by)


def _forbidden(by: Actor) -> Forbidden:
    return Forbidden(f"{by.kind} {by.id} may not decide about this memory. Its owner does.")


def _require_ended(tx: Transaction, scope: Scope, run_id: str, *, is_known: bool) -> None:
    try:
        run = runs.get(tx, scope, run_id)
    except NotFound:
        if not is_known:
            raise
        return  # the agent was deleted with its runs, and what it wrote is still there
    if run.ended_at is None:
        raise Conflict(f"The run {run_id} goes on. Cancel it or wait for its end, then undo it.")


def _is_callers(chain: Chain, scope: Scope) -> bool:
    return scope.subject_id is None or (chain.owner_kind, chain.owner_id) == (
        "user",
        scope.subject_id,
    )


def _undo_block(
    tx: Transaction,
    chain: Chain,
    label: str,
    changed: Sequence[BlockVersion],
    metadata: ChangeMetadata,
) -> UndoneBlock:
    chain = versions.lock(tx, chain.id) or chain  # as the blocks before left it
    block = blocks.labelled(tx, chain.id, label)
    text, old_label = block.value if block else None, label
    try:
        for version in sorted(changed, key=lambda one: -one.number):
            text = _without(tx, version, text)
            old_label = (
                version.old_label if version.old_label and old_label == version.label else old_label
            )
        written = _give(tx, chain, block, text, old_label, metadata)
    except Overtaken:
        raise  # half of this block's change is written, so all of it has to be undone and done again
    except RicordoError as error:
        return UndoneBlock(label, "conflicted", block, str(error))
    return UndoneBlock(label, "unchanged" if written == block else "undone", written)


def _without(tx: Transaction, version: BlockVersion, text: str | None) -> str | None:
    """The text without what the version changed. Raises Conflict."""
    earlier = history.before(tx, version)
    old, new = (
        versions.read_text(tx, version.chain_id, one.blob) if one and one.blob else None
        for one in (earlier, version)
    )
    if text in (old, new):
        return old
    merged = None if text is None or old is None or new is None else merge_lines(new, old, text)
    if merged is None:
        raise Conflict(
            "What the run wrote was changed since, in the same lines. Edit the block, or restore a version."
        )
    return merged


def _settled(tx: Transaction, proposal: Proposal, by: Actor) -> Proposal:
    note = redact_values(proposal.note)
    settled = replace(proposal, resolved_at=tx.clock.now(), resolved_by=by.id, note=note)
    proposals.settle(tx, settled)
    return settled
