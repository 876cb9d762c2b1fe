"""Store a step's memory edits in the transaction that saves the step.

If someone else changed a block meanwhile, both changes are merged by lines. Where that is
impossible, the tool calls that edited the block fail, and the agent reads why. Nothing is
overwritten unseen. A step that creates, removes or renames blocks goes through `memory.edit_plan`.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace

from ricordo.domain.agent import AgentState
from ricordo.domain.block import Block, Chain
from ricordo.domain.ids import new_id
from ricordo.domain.passage import Archive, Passage
from ricordo.domain.scope import Scope
from ricordo.errors import Forbidden, NotFound, TooLong
from ricordo.memory.edit_plan import CommitOutcome, store_plan, version_notes
from ricordo.memory.line_changes import edit_summary
from ricordo.memory.proposals import propose_edits
from ricordo.memory.rotation import may_rotate, new_passage, rotate
from ricordo.memory.unwanted import unwanted_calls
from ricordo.memory.user_copies import needs_copy, users_chain, with_copies
from ricordo.memory.working_memory import EditContext, MemoryEdit, WorkingMemory, by_block
from ricordo.search.index import insert_archive, insert_passages
from ricordo.storage import agents, archives, blocks, versions
from ricordo.storage.engine.store import Transaction

_PARTLY_APPLIED = "The rest was applied."


def commit(
    tx: Transaction, state: AgentState, memory: WorkingMemory, scope: Scope, context: EditContext
) -> CommitOutcome:
    """Store the step's edits and passages.

    Edits that a policy does not let the agent make become proposals to the block's owner.
    """
    unwanted = unwanted_calls(tx, state, memory.edits, memory.passages)
    edits = [edit for edit in memory.edits if edit.call_id not in unwanted]
    passage_drafts = [draft for draft in memory.passages if draft.call_id not in unwanted]
    direct, waiting = _split_by_policy(edits, context)
    files_passages = bool(passage_drafts) or any(may_rotate(edit.base) for edit in direct)
    reshapes = _texts_by_block(direct) is None
    makes_blocks = any(
        edit.is_new or needs_copy(edit.base, state.conversation.user_id) for edit in edits
    )
    home_chain = _lock(
        tx,
        state,
        edits,
        files_passages=files_passages,
        reshapes=reshapes,
        makes_blocks=makes_blocks,
        is_mixed=bool(direct and waiting),
    )
    if home_chain and makes_blocks and state.conversation.user_id:
        state, edits = with_copies(tx, state, edits, home_chain.id, context.author)
        direct, waiting = _split_by_policy(edits, context)
    texts = None if reshapes else _texts_by_block(direct)
    if texts is None:
        outcome = store_plan(tx, state, direct, scope, context, home_chain)
    else:
        outcome = _write_texts(tx, state, texts, scope, context)
    dropped_failures = _failed_with(outcome.failed, waiting)
    waiting = [edit for edit in waiting if edit.call_id not in dropped_failures]
    proposal_texts, refusals = propose_edits(tx, waiting, context, home_chain, state.blocks)
    proposal_results = {
        call_id: f"{text} {_PARTLY_APPLIED}" if call_id in outcome.results else text
        for call_id, text in proposal_texts.items()
    }
    edited_ids = {edit.base.id for edit in direct if edit.call_id not in outcome.failed}
    step_blocks, rotated = _rotate_filled(tx, state, outcome.blocks, edited_ids, context)
    drafts = [
        new_passage(tx, state, context, draft.text, draft.tags, draft.id)
        for draft in passage_drafts
    ]
    passages = [*drafts, *rotated]
    if passages:
        archives_now = file_passages(tx, state, passages)
    else:
        archives_now = state.archives
    return CommitOutcome(
        step_blocks,
        archives_now,
        {**outcome.results, **proposal_results},
        {**outcome.failed, **dropped_failures, **refusals, **unwanted},
    )


def _lock(
    tx: Transaction,
    state: AgentState,
    edits: Sequence[MemoryEdit],
    *,
    files_passages: bool,
    reshapes: bool,
    makes_blocks: bool,
    is_mixed: bool,
) -> Chain | None:
    """Lock the agent if needed, then the chains in the order that everyone uses.

    Returns the chain for new blocks, the user's or the agent's, if the step needs one.
    """
    scope = Scope(state.agent.organization_id)
    user_id = state.conversation.user_id
    home_chain = None
    if reshapes or (files_passages and edits):
        agents.lock(tx, scope, state.agent.id)
    if user_id and (reshapes or makes_blocks):
        home_chain = users_chain(tx, state.agent, user_id)
    elif reshapes:
        home_chain = versions.of_owner(tx, scope, "agent", state.agent.id)
    if reshapes or makes_blocks or is_mixed:
        chain_ids = {edit.base.chain_id for edit in edits if edit.base.chain_id}
        versions.lock_all(tx, chain_ids | {home_chain.id} if home_chain else chain_ids)
    return home_chain


def _rotate_filled(
    tx: Transaction,
    state: AgentState,
    stored: Sequence[Block],
    edited_ids: Container[str],
    context: EditContext,
) -> tuple[tuple[Block, ...], list[Passage]]:
    """Rotate blocks that this step filled up; return all blocks and the removed passages.

    A block that its owner filled stays as it is.
    """
    before = {block.id: block.version for block in state.blocks}
    blocks_now: list[Block] = []
    removed_passages: list[Passage] = []
    for block in stored:
        is_written = block.id in edited_ids and block.version != before.get(block.id)
        if is_written:
            rotated = rotate(tx, state, block, context)
        else:
            rotated = None
        blocks_now.append(rotated[0] if rotated else block)
        removed_passages += [rotated[1]] if rotated else []
    return tuple(blocks_now), removed_passages


def _split_by_policy(
    edits: Sequence[MemoryEdit], context: EditContext
) -> tuple[list[MemoryEdit], list[MemoryEdit]]:
    """Split the edits into direct ones and ones that need approval.

    If one edit of a block needs approval, all edits of that block do.
    """
    waiting_ids = {edit.base.id for edit in edits if context.policy_decision(edit) == "propose"}
    direct = [edit for edit in edits if edit.base.id not in waiting_ids]
    return direct, [edit for edit in edits if edit.base.id in waiting_ids]


def _failed_with(failed: Mapping[str, str], waiting: Sequence[MemoryEdit]) -> dict[str, str]:
    """Return failure texts, by call id, for waiting edits that cannot be proposed.

    Their call failed elsewhere, or another call of the same block did.
    """
    reasons = {edit.base.id: failed[edit.call_id] for edit in waiting if edit.call_id in failed}
    return {edit.call_id: reasons[edit.base.id] for edit in waiting if edit.base.id in reasons}


def _texts_by_block(edits: Sequence[MemoryEdit]) -> dict[str, list[MemoryEdit]] | None:
    """Group the edits by block if no block depends on another.

    That holds where each call gave one block another text and did nothing else. None otherwise.
    """
    blocks_by_call = {(edit.call_id, edit.base.id) for edit in edits}
    is_simple = len(blocks_by_call) == len({call_id for call_id, _ in blocks_by_call})
    if is_simple and all(edit.changes_text_alone for edit in edits):
        return by_block(edits)
    return None


def _write_texts(
    tx: Transaction,
    state: AgentState,
    texts: Mapping[str, Sequence[MemoryEdit]],
    scope: Scope,
    context: EditContext,
) -> CommitOutcome:
    """Write each block's edits of one step as one version.

    The last text is compared with the text that the step began with.
    """
    written: dict[str, Block] = {}
    overtaken_edits: list[MemoryEdit] = []
    # In the order of their chains, as everyone locks them, so that no two wait for each other.
    for block_id, edits in sorted(texts.items(), key=lambda item: item[1][0].base.chain_id):
        base = edits[0].base
        metadata = context.metadata(
            (edit.reason for edit in edits), edit_summary(base, edits[-1].after)
        )
        try:
            block = blocks.write(tx, base, edits[-1].value, metadata)
        except (Forbidden, TooLong):
            block = None  # `store_plan` reports the reason
        if block:
            written[block_id] = block
        else:
            # Someone else changed the block first; its chain is locked now.
            overtaken_edits += edits
    blocks_now = tuple(written.get(block.id, block) for block in state.blocks)
    if overtaken_edits:
        outcome = store_plan(tx, state, overtaken_edits, scope, context, None)
    else:
        outcome = CommitOutcome(blocks_now, state.archives)
    notes = version_notes((edit for id in written for edit in texts[id]), outcome.blocks, ())
    return replace(outcome, results={**outcome.results, **notes})


def file_passages(
    tx: Transaction, state: AgentState, new_passages: Sequence[Passage]
) -> tuple[Archive, ...]:
    """Put passages into the agent's first archive, whatever `archive_id` they bring.

    Returns the agent's archives; one is created if it has none. An agent that works on another
    agent's memory files them in that one's archive.
    """
    owner = state.agent
    scope = Scope(state.agent.organization_id)
    if archives_now := _file(tx, owner.memory_id, state.archives, new_passages):
        return archives_now
    # Since `state` was loaded, another turn of this agent may have created an archive, or
    # somebody deleted or detached the first one. The lock lets one transaction at a time do so.
    agents.lock(tx, scope, owner.memory_id)
    if archives_now := _file(
        tx, owner.memory_id, archives.of_agent(tx, owner.memory_id), new_passages
    ):
        return archives_now
    if owner.is_asleep_for:
        owner = agents.find(tx, scope, owner.is_asleep_for) or owner
    now = tx.clock.now()
    archive = Archive(
        id=new_id("archive"),
        organization_id=owner.organization_id,
        name=f"{owner.name}'s archive",
        embedding=owner.embedding,
        created_by=owner.id,
        created_at=now,
        updated_at=now,
    )
    filed_passages = [replace(passage, archive_id=archive.id) for passage in new_passages]
    return (insert_archive(tx, archive, owner=owner.id, new_passages=filed_passages),)


def _file(
    tx: Transaction, agent_id: str, attached: Sequence[Archive], new_passages: Sequence[Passage]
) -> tuple[Archive, ...] | None:
    if not attached:
        return None
    filed_passages = [replace(passage, archive_id=attached[0].id) for passage in new_passages]
    try:
        return (
            insert_passages(tx, attached[0], filed_passages, attached_to=agent_id),
            *attached[1:],
        )
    except NotFound:
        return None
