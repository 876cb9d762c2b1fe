"""An owner's decisions: approve, reject or edit proposals, and undo a run.

Each decision is one transaction. It locks the chain first, then the proposal, so that the second of
two concurrent decisions sees the first. If the block changes meanwhile, the changes are merged, or
the proposal becomes a conflict.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter, itemgetter
from typing import Any, Literal

from ricordo.domain.block import Block, Chain, is_skill
from ricordo.domain.hidden_text import without_hidden_text
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.redaction import redact_values
from ricordo.domain.scope import Actor, Scope
from ricordo.domain.version import BlockVersion, ChangeMetadata, Proposal
from ricordo.errors import Conflict, Forbidden, NotFound, RicordoError
from ricordo.memory.text import effort, merge_changes, merge_lines, same_text
from ricordo.memory.user_memory import make, require_free, revive
from ricordo.storage import agents, blocks, conversations, history, proposals, runs, versions
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Overtaken, Transaction

EXPIRED_EVERY = 600.0
_WITHDRAWAL_LIMIT = 1000
_VERSION_LIMIT = 100
# The limit of compared lines, and of pairs of equal lines, when a proposal is rebased onto newer
# versions. A rebase at this limit takes half a second.
_COMPARISON_LIMIT = 200_000
_CONFLICT = (
    "The block changed in the same lines since this was proposed. Approve it with a merged text, "
    "or reject it."
)
_CHANGED_BEFORE_DELETION = (
    "The block changed since its deletion was proposed. Delete it yourself, approve with the text "
    "that it shall have, or reject the proposal."
)
_OF_ANOTHER_AGENT = (
    "Since this was proposed, a block with this label was created for another agent. Approve it "
    "with a merged text, or reject it."
)
_DELETED = (
    "The block was deleted since this was proposed. Approve it with a text, which creates it "
    "again, or reject it."
)


@dataclass(frozen=True, slots=True)
class Approved:
    """An approved proposal, and the block after it; None if the block is deleted."""

    proposal: Proposal
    block: Block | None


@dataclass(frozen=True, slots=True)
class Conflicted:
    """A proposal that collides with the block; no text was written.

    `base`, `ours` and `theirs` are the base text, the block's text and the proposed text. A text is
    None if there was no block.
    """

    proposal: Proposal
    base: str | None
    ours: str | None
    theirs: str | None  # wire fact: the names of the three texts


def approve(
    tx: Transaction,
    scope: Scope,
    proposal_id: str,
    by: Actor,
    *,
    body: str | None = None,
    keeps_hidden_text: bool = False,
) -> Approved | Conflicted:
    """Make the proposed text the block's next version, merged with later changes.

    Hidden text is removed, since an owner cannot approve what the page does not show. It stays if
    the block already has it. The version's author is the proposal's author, or the owner who
    changed the text.

    Args:
        tx: The transaction.
        scope: The caller. With a subject, only proposals for that user's memory are found.
        proposal_id: The proposal.
        by: The owner of the memory, or a person with an owner's right.
        body: A text of the owner, which is written instead of the proposed one; None keeps that.
        keeps_hidden_text: Whether the owner asks to keep hidden text.

    Returns:
        The approved proposal. If it collides with the block and there is no `body`, the proposal as
        a conflict: no text is written then.

    Raises:
        NotFound: if there is no such proposal.
        Conflict: if the proposal is already decided, or a label is taken.
        Forbidden: unless an owner decides.
        TooLong: if the text is longer than the block's limit.
        Invalid: if the label of a new block is not allowed.
    """
    chain, proposal = _lock_proposal(tx, scope, proposal_id, by)
    block = blocks.labelled(tx, chain.id, proposal.label)
    new_text, conflict = _merge_proposal(tx, proposal, block)
    metadata = metadata_of(proposal, by)
    if body is not None and (conflict or new_text is None or not same_text(body, new_text)):
        new_text = body
        conflict = None
        # The owner wrote the text. Run, step and proposal stay recorded.
        metadata = replace(metadata, author=by, is_untrusted=False)
    if new_text is not None and not keeps_hidden_text:
        new_text = without_hidden_text(new_text, [block.value] if block else [])
    if conflict:
        conflicted = replace(proposal, status="conflicted", note=conflict)
        proposals.settle(tx, conflicted)
        return Conflicted(
            conflicted, proposal.base_value, block.value if block else None, proposal.value
        )
    label = proposal.new_label or proposal.label
    if block is None and new_text is not None and proposal.base is None:
        settings = _described(proposal.description, keeps_hidden_text=keeps_hidden_text)
        settings |= _new_block_settings(tx, proposal, chain)
        block_now: Block | None = make(
            tx, chain, label, text=new_text, metadata=metadata, settings=settings
        )
    else:
        block_now = _write_block(tx, chain, block, value=new_text, label=label, metadata=metadata)
    chain_now = versions.lock(tx, chain.id)
    if chain_now and chain_now.head != chain.head:
        new_head = chain_now.head
    else:
        new_head = None
    settled = _settle(tx, replace(proposal, status="approved", note=None, result=new_head), by)
    return Approved(settled, block_now)


def _described(description: str | None, *, keeps_hidden_text: bool) -> dict[str, Any]:
    """Return the settings of a new block with this description."""
    if description is None:
        return {}
    if not keeps_hidden_text:
        description = without_hidden_text(description)
    return {"description": description}


def metadata_of(proposal: Proposal, by: Actor) -> ChangeMetadata:
    """Return the metadata of the version that an approved proposal becomes.

    Args:
        proposal: The proposal, whose author becomes the version's author.
        by: The owner who approved it.
    """
    return ChangeMetadata(
        author=proposal.author,
        reason=proposal.reasoning,
        run_id=proposal.run_id,
        step_id=proposal.step_id,
        is_untrusted=proposal.is_untrusted,
        approved_by=by.id,
        proposal_id=proposal.id,
    )


def _new_block_settings(tx: Transaction, proposal: Proposal, chain: Chain) -> dict[str, str]:
    """Return settings of a proposed new block: egress policy, agent that sees it, and policy.

    A block that an agent proposed in a turn for a user is seen by this agent alone. Its policy is
    the one that the agent's settings name; a skill gets the policy of new skills.
    """
    settings = {"egress": proposal.egress} if proposal.egress else {}
    if not (proposal.run_id and proposal.author.kind == "agent" and chain.owner_kind == "user"):
        return settings
    agent = agents.find(tx, Scope(chain.organization_id), proposal.author.id)
    if agent and is_skill(proposal.label):
        return {**settings, "agent_id": agent.id}
    if agent:
        return {**settings, "agent_id": agent.id, "policy": agent.user_block_policy}
    return settings


def reject(
    tx: Transaction, scope: Scope, proposal_id: str, by: Actor, *, reason: str | None = None
) -> Proposal:
    """Leave the block as it is, and store the reason.

    An agent that proposed a change of a user's memory reads the reason in its next turn with the
    user.

    Args:
        tx: The transaction.
        scope: The caller. With a subject, only proposals for that user's memory are found.
        proposal_id: The proposal.
        by: The owner of the memory, or a person with an owner's right.
        reason: The reason; without one, the agent learns nothing of the rejection.

    Raises:
        NotFound: if there is no such proposal.
        Conflict: if the proposal is already decided.
        Forbidden: unless an owner decides.
    """
    chain, proposal = _lock_proposal(tx, scope, proposal_id, by)
    if proposal.author.kind == "agent" and chain.owner_kind == "user":
        agent_id = proposal.author.id
    else:
        agent_id = None
    is_untold = agent_id is not None and bool((reason or "").strip())
    rejected = _settle(
        tx, replace(proposal, status="rejected", note=reason, is_untold=is_untold), by
    )
    if agent_id is not None and is_untold:
        conversations.flag_untold(tx, agent_id, chain.owner_id)
    return rejected


def _merge_proposal(
    tx: Transaction, proposal: Proposal, block: Block | None
) -> tuple[str | None, str | None]:
    """Return the text after approval, and the conflict, if any.

    The text is None if the approval leaves no block, or if the changes collide.
    """
    if block is None:
        # A proposal to delete a block that is deleted already changes nothing.
        is_clean = proposal.value is None or proposal.base is None
        return proposal.value, None if is_clean else _DELETED
    if proposal.value is None:
        is_clean = same_text(block.value, proposal.base_value or "")
        return None, None if is_clean else _CHANGED_BEFORE_DELETION
    if proposal.base is None and block.agent_id not in (None, proposal.author.id):
        return proposal.value, _OF_ANOTHER_AGENT
    # If both add lines at one position, the block's later lines come before the proposed lines.
    merged_text = merge_changes(proposal.base_value or "", block.value, proposal.value)
    if merged_text is None:
        merged_text = _merge_over_versions(tx, proposal, block)
    return merged_text, None if merged_text is not None else _CONFLICT


def _merge_over_versions(tx: Transaction, proposal: Proposal, block: Block) -> str | None:
    """Return the text with the proposal carried over each later version.

    Merging each change separately succeeds more often than merging all at once. Returns None if
    they collide, or after too many versions or comparisons.
    """
    later_blobs: list[bytes] = []
    for version in history.page(tx, block.chain_id, label=block.label, limit=_VERSION_LIMIT):
        if version.id == proposal.base or version.blob is None:
            break
        later_blobs.append(version.blob)
    else:
        return None
    texts = versions.read_texts(tx, block.chain_id, later_blobs)
    before = proposal.base_value or ""
    text = proposal.value
    work_left = _COMPARISON_LIMIT
    for blob in reversed(later_blobs):
        if text is not None:
            after = texts[blob]
            work_left -= effort(before, after) + effort(before, text)
            if work_left >= 0:
                text = merge_changes(before, after, text)
            else:
                text = None
            before = after
    return text


@dataclass(frozen=True, slots=True)
class UndoneBlock:
    """The outcome of undoing a run for one block.

    `label` is its label before the undo; `note` is the reason of a conflict.
    """

    label: str
    outcome: Literal["undone", "unchanged", "conflicted"]
    block: Block | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Undone:
    """The outcome of undoing a run, by block.

    `withdrawn` are the run's waiting proposals, which are rejected now.
    """

    run_id: str
    blocks: tuple[UndoneBlock, ...]
    withdrawn: tuple[Proposal, ...]


def _versions_by_block(
    tx: Transaction, scope: Scope, run_id: str, chains: Container[str]
) -> dict[tuple[str, str], list[BlockVersion]]:
    """Return the versions that the run wrote in these chains, by chain and label."""
    by_block: dict[tuple[str, str], list[BlockVersion]] = {}
    for version in history.of_run(tx, scope, run_id):
        # If the owner approved another text than the proposed one, the run did not write it.
        if version.chain_id in chains and version.author.kind not in ("user", "administrator"):
            block = (version.chain_id, history.label_now(tx, version))
            by_block.setdefault(block, []).append(version)
    return by_block


def undo_run(tx: Transaction, scope: Scope, run_id: str, by: Actor) -> Undone:
    """Undo a run's changes with new versions; later changes by others stay.

    Approved proposals of the run are undone too. A block that cannot be undone stays as it is, and
    is reported. A second undo changes nothing.

    Args:
        tx: The transaction.
        scope: The caller. With a subject, only that user's memory is changed.
        run_id: The run, which must have ended. It may be deleted if its versions exist.
        by: The person who undoes it: an owner of each changed memory, or an administrator.

    Raises:
        NotFound: if there is no such run.
        Conflict: if the run is active.
        Forbidden: unless `by` is a person who may decide about each changed memory.
    """
    if by.kind not in ("user", "administrator"):
        raise _forbidden(by)
    changed = history.of_run(tx, scope, run_id)
    _require_ended(tx, scope, run_id, is_known=bool(changed))
    run_filter = proposals.ProposalFilter(run_id=run_id, waits=True)
    waiting = proposals.page(tx, scope, Page(limit=_WITHDRAWAL_LIMIT), run_filter)
    chain_ids = {version.chain_id for version in changed} | {
        proposal.chain_id for proposal in waiting
    }
    locked = [versions.lock(tx, chain_id) for chain_id in sorted(chain_ids)]
    chains = {chain.id: chain for chain in locked if chain and _is_callers(chain, scope)}
    for chain in chains.values():
        _require_owner(by, chain)
    by_block = _versions_by_block(tx, scope, run_id, chains)
    metadata = ChangeMetadata(by, f"Undo {run_id}")
    outcomes = [
        _undo_block(tx, chains[chain_id], label, group, metadata)
        for (chain_id, label), group in sorted(by_block.items(), key=itemgetter(0))
    ]
    withdrawn = tuple(
        _settle(tx, replace(proposal, status="rejected", note=f"{run_id} was undone"), by)
        for waiting_proposal in waiting
        if waiting_proposal.chain_id in chains
        and (proposal := proposals.lock(tx, scope, waiting_proposal.id)).waits
    )
    return Undone(run_id, tuple(outcomes), withdrawn)


async def _expire(runtime: Any, _job: Job, _report: Report) -> None:
    while await runtime.store.write(proposals.expire):
        pass


EXPIRY = JobHandler("expire_proposals", _expire, every_seconds=EXPIRED_EVERY)


def _lock_proposal(
    tx: Transaction, scope: Scope, proposal_id: str, by: Actor
) -> tuple[Chain, Proposal]:
    unlocked = proposals.get(tx, scope, proposal_id)
    chain = versions.lock(tx, unlocked.chain_id)
    if chain is None or not _is_callers(chain, scope):
        raise NotFound(f"Proposal with ID {proposal_id} not found")
    _require_owner(by, chain)
    proposal = proposals.lock(tx, scope, proposal_id)
    proposal.require_waiting()
    return chain, proposal


def _write_block(
    tx: Transaction,
    chain: Chain,
    block: Block | None,
    value: str | None,
    label: str,
    metadata: ChangeMetadata,
) -> Block | None:
    """Give the block this text and label.

    None deletes it, and a deleted block is created again.
    """
    if block is None:
        if value is None:
            return None
        return revive(tx, chain, label, value, metadata)
    if value is None:
        blocks.remove(tx, block, metadata)
        return None
    if label != block.label:
        require_free(tx, block, label)
    changed = replace(block, value=value, label=label)
    changed.require_fits(value)
    if changed == block:
        return block
    return blocks.update(tx, block, changed, metadata)


def _require_owner(by: Actor, chain: Chain) -> None:
    if not ChangeMetadata(by).is_owners_of(chain):
        raise _forbidden(by)


def _forbidden(by: Actor) -> Forbidden:
    return Forbidden(f"{by.kind} {by.id} may not decide about this memory. Ask its owner.")


def _require_ended(tx: Transaction, scope: Scope, run_id: str, *, is_known: bool) -> None:
    try:
        run = runs.get(tx, scope, run_id)
    except NotFound:
        if not is_known:
            raise
        return  # the agent was deleted with its runs; its versions still exist
    if run.ended_at is None:
        raise Conflict(f"The run {run_id} still runs. Cancel it or wait for its end, then undo it.")


def _is_callers(chain: Chain, scope: Scope) -> bool:
    return scope.subject_id is None or (chain.owner_kind, chain.owner_id) == (
        "user",
        scope.subject_id,
    )


def _undo_block(
    tx: Transaction,
    chain: Chain,
    label: str,
    run_versions: Sequence[BlockVersion],
    metadata: ChangeMetadata,
) -> UndoneBlock:
    chain = versions.lock(tx, chain.id) or chain  # with the changes of the blocks before this one
    block = blocks.labelled(tx, chain.id, label)
    text = block.value if block else None
    old_label = label
    try:
        for version in sorted(run_versions, key=attrgetter("number"), reverse=True):
            text = _without_change(tx, version, text)
            if version.old_label and old_label == version.label:
                old_label = version.old_label
        block_now = _write_block(tx, chain, block, value=text, label=old_label, metadata=metadata)
    except Overtaken:
        # Part of this block's change is already written, so the store must repeat the whole
        # transaction.
        raise
    except RicordoError as error:
        return UndoneBlock(label, "conflicted", block, str(error))
    return UndoneBlock(label, "unchanged" if block_now == block else "undone", block_now)


def _without_change(tx: Transaction, version: BlockVersion, text: str | None) -> str | None:
    """Return the text without the version's change. Raises Conflict."""
    earlier = history.before(tx, version)
    old, new = (
        versions.read_text(tx, version.chain_id, one_version.blob)
        if one_version and one_version.blob
        else None
        for one_version in (earlier, version)
    )
    if text in (old, new):
        return old
    if text is None or old is None or new is None:
        merged_text = None
    else:
        merged_text = merge_lines(new, old, text)
    if merged_text is None:
        raise Conflict(
            "The lines that the run wrote were changed or deleted later. Edit the block, or restore "
            "a version."
        )
    return merged_text


def _settle(tx: Transaction, proposal: Proposal, by: Actor) -> Proposal:
    note = redact_values(proposal.note)
    settled = replace(proposal, resolved_at=tx.clock.now(), resolved_by=by.id, note=note)
    proposals.settle(tx, settled)
    return settled
