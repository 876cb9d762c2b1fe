"""Stores what a step did to memory, inside the step's own transaction.

A block that someone else changed meanwhile is merged by lines; where that is impossible the tool calls that edited it fail, and
the agent reads why. Nothing is overwritten unseen. A step that makes, removes or renames blocks is for `memory.edit_plan`.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace

from ricordo.domain.agent import AgentState
from ricordo.domain.block import Block, Chain
from ricordo.domain.ids import new_id
from ricordo.domain.passage import Archive, Passage
from ricordo.domain.scope import Scope
from ricordo.errors import Forbidden, NotFound, TooLong
from ricordo.memory.edit_plan import Committed, store_plan, version_notes
from ricordo.memory.line_changes import edit_summary
from ricordo.memory.proposals import propose_edits
from ricordo.memory.rotation import may_rotate, new_passage, rotate
from ricordo.memory.user_copies import needs_copy, users_chain, with_copies
from ricordo.memory.working_memory import EditContext, MemoryEdit, WorkingMemory, by_block
from ricordo.search.index import insert_archive, insert_passages
from ricordo.storage import agents, archives, blocks, versions
from ricordo.storage.engine.store import Transaction

_BESIDE = "The rest was applied."


def commit(
    tx: Transaction, state: AgentState, memory: WorkingMemory, scope: Scope, context: EditContext
) -> Committed:
    """Store the step's edits and passages; what policies do not let an agent do becomes a proposal to the block's owner."""
    edits = memory.edits
    direct, waiting = _split_by_policy(edits, context)
    files = bool(memory.passages) or any(may_rotate(edit.base) for edit in direct)
    reshapes = _texts_by_block(direct) is None
    makes = any(edit.is_new or needs_copy(edit.base, state.conversation.user_id) for edit in edits)
    own = _lock(
        tx,
        state,
        edits,
        files=files,
        reshapes=reshapes,
        makes=makes,
        is_mixed=bool(direct and waiting),
    )
    if own and makes and state.conversation.user_id:
        state, edits = with_copies(tx, state, edits, own.id, context.author)
        direct, waiting = _split_by_policy(edits, context)
    texts = None if reshapes else _texts_by_block(direct)
    done = (
        store_plan(tx, state, direct, scope, context, own)
        if texts is None
        else _write_texts(tx, state, texts, scope, context)
    )
    dropped = _failed_with(done.failed, waiting)
    waiting = [edit for edit in waiting if edit.call_id not in dropped]
    proposed, refused = propose_edits(tx, waiting, context, own, state.blocks)
    beside = {
        call_id: f"{text} {_BESIDE}" if call_id in done.results else text
        for call_id, text in proposed.items()
    }
    filled = {edit.base.id for edit in direct if edit.call_id not in done.failed}
    kept, rotated = _rotate_filled(tx, state, done.blocks, filled, context)
    drafts = [
        new_passage(tx, state, context, draft.text, draft.tags, draft.id)
        for draft in memory.passages
    ]
    passages = [*drafts, *rotated]
    held = file_passages(tx, state, passages) if passages else state.archives
    return Committed(kept, held, {**done.results, **beside}, {**done.failed, **dropped, **refused})


def _lock(
    tx: Transaction,
    state: AgentState,
    edits: Sequence[MemoryEdit],
    *,
    files: bool,
    reshapes: bool,
    makes: bool,
    is_mixed: bool,
) -> Chain | None:
    """Lock the agent (where `files`), then chains in everyone's order; returns that for new blocks: the user's or agent's."""
    scope, user_id = Scope(state.agent.organization_id), state.conversation.user_id
    own = None
    if reshapes or (files and edits):
        agents.lock(tx, scope, state.agent.id)
    if user_id and (reshapes or makes):
        own = users_chain(tx, state.agent, user_id)
    elif reshapes:
        own = versions.of_owner(tx, scope, "agent", state.agent.id)
    if reshapes or makes or is_mixed:
        chain_ids = {edit.base.chain_id for edit in edits if edit.base.chain_id}
        versions.lock_all(tx, chain_ids | {own.id} if own else chain_ids)
    return own


def _rotate_filled(
    tx: Transaction,
    state: AgentState,
    stored: Sequence[Block],
    filled: Container[str],
    context: EditContext,
) -> tuple[tuple[Block, ...], list[Passage]]:
    """The blocks, those shortened that this step filled up, and what left them. One that its owner filled stays as it is."""
    before = {block.id: block.version for block in state.blocks}
    kept: list[Block] = []
    left: list[Passage] = []
    for block in stored:
        is_written = block.id in filled and block.version != before.get(block.id)
        done = rotate(tx, state, block, context) if is_written else None
        kept.append(done[0] if done else block)
        left += [done[1]] if done else []
    return tuple(kept), left


def _split_by_policy(
    edits: Sequence[MemoryEdit], context: EditContext
) -> tuple[list[MemoryEdit], list[MemoryEdit]]:
    """The edits that may be made at once, and those that wait: if one of a block's has to, all of that block's do."""
    proposed = {edit.base.id for edit in edits if context.policy_decision(edit) == "propose"}
    direct = [edit for edit in edits if edit.base.id not in proposed]
    return direct, [edit for edit in edits if edit.base.id in proposed]


def _failed_with(failed: Mapping[str, str], waiting: Sequence[MemoryEdit]) -> dict[str, str]:
    """Return by call id why waiting edits are not proposed: their call failed elsewhere, or another call of the same block did."""
    reasons = {edit.base.id: failed[edit.call_id] for edit in waiting if edit.call_id in failed}
    return {edit.call_id: reasons[edit.base.id] for edit in waiting if edit.base.id in reasons}


def _texts_by_block(edits: Sequence[MemoryEdit]) -> dict[str, list[MemoryEdit]] | None:
    """The edits by block, where each call gave one block another text and did nothing else: then no block depends on another."""
    blocks_by_call = {(edit.call_id, edit.base.id) for edit in edits}
    is_simple = len(blocks_by_call) == len({call_id for call_id, _ in blocks_by_call})
    return by_block(edits) if is_simple and all(edit.changes_text_alone for edit in edits) else None


def _write_texts(
    tx: Transaction,
    state: AgentState,
    texts: Mapping[str, Sequence[MemoryEdit]],
    scope: Scope,
    context: EditContext,
) -> Committed:
    """Several edits of one block in one step are one write: their last text against the text the step began with."""
    written: dict[str, Block] = {}
    overtaken: list[MemoryEdit] = []
    # In the order of their chains, as everyone locks them, so that no two wait for each other.
    for block_id, edits in sorted(texts.items(), key=lambda item: item[1][0].base.chain_id):
        base = edits[0].base
        metadata = context.metadata(
            (edit.reason for edit in edits), edit_summary(base, edits[-1].after)
        )
        try:
            block = blocks.write(tx, base, edits[-1].value, metadata)
        except (Forbidden, TooLong):
            block = None  # the plan tells why
        if block:
            written[block_id] = block
        else:
            overtaken += edits  # by someone else, and the chain is locked now
    kept = tuple(written.get(block.id, block) for block in state.blocks)
    done = (
        store_plan(tx, state, overtaken, scope, context, None)
        if overtaken
        else Committed(kept, state.archives)
    )
    notes = version_notes((edit for id in written for edit in texts[id]), done.blocks, ())
    return replace(done, results={**done.results, **notes})


def file_passages(
    tx: Transaction, state: AgentState, new: Sequence[Passage]
) -> tuple[Archive, ...]:
    """Put passages into the agent's first archive, whatever `archive_id` they bring; returns its archives, one made if missing.

    An agent that works on another's memory files them in the archive of that one.
    """
    owner, scope = state.agent, Scope(state.agent.organization_id)
    if filed := _file(tx, owner.memory_id, state.archives, new):
        return filed
    # Since `state` was loaded, another turn of this agent may have made an archive, or somebody deleted or detached the one
    # there was. One transaction at a time does that.
    agents.lock(tx, scope, owner.memory_id)
    if filed := _file(tx, owner.memory_id, archives.of_agent(tx, owner.memory_id), new):
        return filed
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
    holding = [replace(passage, archive_id=archive.id) for passage in new]
    return (insert_archive(tx, archive, owner=owner.id, new_passages=holding),)


def _file(
    tx: Transaction, agent_id: str, attached: Sequence[Archive], new: Sequence[Passage]
) -> tuple[Archive, ...] | None:
    if not attached:
        return None
    filed = [replace(passage, archive_id=attached[0].id) for passage in new]
    try:
        return (insert_passages(tx, attached[0], filed, attached_to=agent_id), *attached[1:])
    except NotFound:
        return None
