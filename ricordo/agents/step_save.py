"""Saving a step: one transaction with everything it causes, or nothing of it.

In it: the run's progress under its lease, edits of memory, the changed system message, messages with their search index, the
window, and the step's record.
"""

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from ricordo.agents.followers import end_turn
from ricordo.agents.message_buffer import first_kept
from ricordo.agents.note_taker import add_note_job, wants_notes
from ricordo.agents.request import StepDraft, TurnContext
from ricordo.agents.run_end import add_callback
from ricordo.agents.step_decisions import NextAction
from ricordo.agents.tracing import trace_of
from ricordo.agents.turn_start import LEASE
from ricordo.domain.agent import AgentState
from ricordo.domain.event import Compacted, StepSaved
from ricordo.domain.ids import unique
from ricordo.domain.message import (
    CompactionPart,
    Message,
    Part,
    ReasoningPart,
    Role,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from ricordo.domain.model import ModelReply
from ricordo.domain.redaction import without
from ricordo.domain.run import Run, Step, StopReason, Trace
from ricordo.domain.scope import Actor
from ricordo.domain.tool import DEFAULT_RETURN_LIMIT
from ricordo.domain.usage import Expense
from ricordo.memory.compaction import Cut
from ricordo.memory.edit_plan import CommitOutcome
from ricordo.memory.proposals import expiry_of
from ricordo.memory.schemas import schemas_in
from ricordo.memory.step_commit import commit
from ricordo.memory.summary import Summary
from ricordo.memory.working_memory import EditContext
from ricordo.prompt.transcript import heartbeat_event, local_time, truncate
from ricordo.search.index import insert_messages
from ricordo.storage import conversations, jobs, messages, runs
from ricordo.storage.engine.store import Transaction
from ricordo.tools.toolbox import failed_result

T = TypeVar("T")
log = logging.getLogger(__name__)


async def save_calls(turn: TurnContext, step: StepDraft, reply: ModelReply) -> StepSaved:
    """Save the assistant's message before its calls act on the outside world, so that a kill cannot hide that they may have."""

    def save(tx: Transaction) -> tuple[Run, Message]:
        now = tx.clock.now()
        run = _advanced(turn.run, now)
        runs.save(tx, run)
        message = _assistant_message(turn, step, reply, now, is_untrusted=turn.is_untrusted())
        _put(tx, turn, [message], run)
        return run, message

    turn.run, message = await _finish(turn.runtime.store.write(save))
    _advance(turn, [message])
    return StepSaved(turn.run.id, None, (message,))


async def save_step(
    turn: TurnContext,
    step: StepDraft,
    reply: ModelReply | None,
    action: NextAction,
    results: Sequence[ToolReturnPart],
) -> StepSaved:
    """Save the step, and the end of the run with it where no step follows. Raises LeaseLost.

    Without a reply these are the results of calls that an earlier turn asked for.
    """
    # What memory did not keep is not kept in what the agent says either, in this step and later ones.
    turn.removed |= step.memory.removed
    trace = trace_of(turn, step, reply, action.stop) if reply else None
    agent = turn.state.agent
    settings = turn.runtime.settings
    edits = EditContext(
        Actor("agent", agent.id, agent.name),
        turn.run.id,
        step.id,
        is_untrusted=turn.is_untrusted(),
        expires_after=expiry_of(settings),
        user_texts=turn.said(),
        schemas=schemas_in(settings.data_dir),
    )

    def save(tx: Transaction) -> tuple[Run, AgentState, Step | None, list[Message]]:
        now = tx.clock.now()
        run = _advanced(_counted(turn.run, step, reply), now, action.stop)
        runs.save(tx, run)
        add_callback(tx, run)
        committed = commit(tx, turn.state, step.memory, turn.request.scope, edits)
        for job in step.jobs:
            jobs.add(tx, job)
        new: list[Message] = []
        if reply and turn.window[-1].id != step.message_id:
            new.append(_assistant_message(turn, step, reply, now, is_untrusted=edits.is_untrusted))
        if results:
            outcomes = _outcomes(turn, step, results, committed)
            message = turn.run.new_message("tool", outcomes, now, step.id)
            untrusted = edits.is_untrusted or any(result.is_untrusted for result in outcomes)
            new.append(replace(message, is_untrusted=untrusted))
        if action.heartbeat is not None:
            event = heartbeat_event(action.heartbeat, local_time(now, turn.state.agent.timezone))
            new.append(turn.run.new_message("user", (event,), now, step.id))
        _put(tx, turn, new, run)
        record = _record(turn, step, reply, run, edits, now) if reply else None
        if record:
            runs.insert_step(tx, record)
        if trace:
            runs.insert_trace(tx, trace)
        if run.ended_at is not None and wants_notes(turn):
            add_note_job(tx, run)
        if run.ended_at is not None and turn.state.agent.has_sleeptime:
            run = end_turn(tx, turn, run, new)
        if run.ended_at is not None and turn.request.also_save:
            turn.request.also_save(tx, run, [*turn.window[turn.first :], *new])
        state = replace(turn.state, blocks=committed.blocks, archives=committed.archives)
        # A tool may have opened or closed files, as may others of whom the turn knows nothing.
        return run, turn.runtime.complete(tx, state) if action.stop is None else state, record, new

    turn.run, turn.state, record, new = await _finish(turn.runtime.store.write(save))
    _advance(turn, new)
    return StepSaved(turn.run.id, record, tuple(new))


async def save_compaction(
    turn: TurnContext,
    found: Cut,
    message: Message,
    summary: Summary,
    kept: Sequence[Trace] = (),
    stop: StopReason | None = None,
) -> Compacted:
    """Save a summary and the window it leaves, and the end of the run where `stop` says so. Raises LeaseLost.

    What this turn was told and is not in the stored window yet stays out of it: a model may still refuse to read it.
    """
    window = [found.remaining[0], message, *found.remaining[1:]]
    untold = {one.id for one in turn.window[turn.first :] if turn.unsaved and not one.step_id}
    part = message.parts[-1]
    assert isinstance(part, CompactionPart)  # noqa: S101 - tells the type checker what a summary ends with

    def save(tx: Transaction) -> Run:
        run = replace(_advanced(turn.run, tx.clock.now(), stop), context_tokens=part.tokens_after)
        runs.save(tx, run)
        add_callback(tx, run)
        insert_messages(tx, [message])
        _save_window(tx, turn, [one for one in window if one.id not in untold], run, added=1)
        if summary.usage.total_tokens:
            runs.add_expense(
                tx,
                Expense(
                    run.organization_id,
                    "compaction",
                    summary.model,
                    summary.usage,
                    run.agent_id,
                    run.user_id,
                ),
            )
        for trace in kept:
            runs.insert_trace(tx, trace)
        return run

    turn.run = await _finish(turn.runtime.store.write(save))
    first = turn.window[turn.first : turn.first + 1]
    turn.window = window
    turn.prompt_changed = False
    turn.first = window.index(first[0]) if first and first[0] in window else min(2, len(window))
    _count(turn, 1)
    return Compacted(turn.run.id, message, part.tokens_before, part.tokens_after)


async def _finish(write: Awaitable[T]) -> T:
    """Wait for a write even while being cancelled: half a wait would leave the turn's state behind the database's."""
    task = asyncio.ensure_future(write)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled() and (
            error := task.exception()
        ):  # else asyncio counts it as never retrieved
            log.info("what a cancelled turn was saving failed", extra={"error": error})
        raise


def _advance(turn: TurnContext, new: Sequence[Message]) -> None:
    """Bring the turn's state to what was saved."""
    turn.window = _with_delayed(turn, new)
    if any(message.role == "tool" for message in new):
        turn.delayed = []
    turn.prompt_changed = False
    _count(turn, turn.unsaved + len(new))
    turn.unsaved = 0


def _count(turn: TurnContext, added: int) -> None:
    counted = turn.state.conversation.message_count + added
    turn.state = replace(
        turn.state, conversation=replace(turn.state.conversation, message_count=counted)
    )


def _with_delayed(turn: TurnContext, new: Sequence[Message]) -> list[Message]:
    return [
        *turn.window,
        *new,
        *(turn.delayed if any(message.role == "tool" for message in new) else ()),
    ]


def _put(tx: Transaction, turn: TurnContext, new: Sequence[Message], run: Run) -> None:
    insert_messages(tx, new)
    _save_window(tx, turn, _with_delayed(turn, new), run, added=turn.unsaved + len(new))


def _save_window(
    tx: Transaction, turn: TurnContext, window: Sequence[Message], run: Run, *, added: int
) -> None:
    """Save the in-context ids, with the system message where it changed, and what the run's end changes of the conversation."""
    if turn.prompt_changed:
        messages.rewrite(tx, turn.window[0])
    ended = None if run.ended_at is None else run
    # An agent that clears its buffer starts every turn empty; what it was told stays in recall.
    agent = turn.state.agent
    is_over = ended is not None and ended.stop_reason != "requires_approval"
    if is_over and agent.clears_buffer:
        window = window[:1]
    elif is_over and agent.message_buffer and not (run.purpose and agent.has_sleeptime):
        # The agent that keeps this one's memory is told what leaves the view, but only after turns that somebody began.
        window = [*window[:1], *window[first_kept(window, agent) :]]
    conversations.save_window(
        tx,
        turn.state.conversation.id,
        [message.id for message in window],
        turn.prompt_key,
        added=added,
        token_percent=turn.limit.learned_percent(),
        ended=ended,
    )


def _counted(run: Run, step: StepDraft, reply: ModelReply | None) -> Run:
    """The run with what the step used."""
    run = replace(run, ttft_ns=run.ttft_ns or step.first_ns)
    if reply is None:
        return run
    usage = run.usage + reply.usage
    tokens = reply.usage.total_tokens or None
    return replace(run, usage=usage, step_count=run.step_count + 1, context_tokens=tokens)


def _advanced(run: Run, now: int, stop: StopReason | None = None) -> Run:
    """The run with its lease renewed, and ended where there is a reason."""
    run = replace(run, lease_expires_at=now + LEASE)
    if stop is None:
        return run
    return run.ended(stop, now)


def _assistant_message(
    turn: TurnContext, step: StepDraft, reply: ModelReply, now: int, *, is_untrusted: bool
) -> Message:
    is_gated = any(isinstance(part, ToolCallPart) and part.is_gated for part in reply.parts)
    role: Role = "approval" if is_gated else "assistant"
    if turn.removed:
        parts = tuple(_without(part, turn.removed) for part in reply.parts)
    else:
        parts = reply.parts
    message = turn.run.new_message(role, parts, now, step.id)
    model = reply.model or turn.model.info.name
    return replace(message, id=step.message_id, model=model, is_untrusted=is_untrusted)


def _without(part: Part, removed: Mapping[str, str]) -> Part:
    """The part of a reply without these secrets; a thought that its provider signed stays as it is."""
    match part:
        case TextPart() | ReasoningPart(signature=None):
            return replace(part, text=without(part.text, removed))
        case ToolCallPart():
            return replace(part, arguments=without(part.arguments, removed))
        case _:
            return part


def _outcomes(
    turn: TurnContext, step: StepDraft, results: Sequence[ToolReturnPart], committed: CommitOutcome
) -> list[ToolReturnPart]:
    """The results with what became of their calls when they were saved, and with notes for the agent."""
    limits = {tool.name: tool.return_limit for tool in turn.state.tools}
    outcomes: list[ToolReturnPart] = []
    for result in results:
        call_id = result.call_id
        content = result.content
        if error := committed.failed.get(call_id):
            outcomes.append(failed_result(ToolCallPart(call_id, result.name, ""), error))
            continue
        if (told := committed.results.get(call_id)) is not None:
            content = truncate(told, limits.get(result.name, DEFAULT_RETURN_LIMIT))
        if (notes := step.memory.notes.get(call_id)) and result.status == "success":
            content = f"{content}\n\n[{' '.join(notes)}]"
        outcomes.append(
            result if content is result.content else replace(result, content=content, is_json=False)
        )
    return outcomes


def _record(
    turn: TurnContext, step: StepDraft, reply: ModelReply, run: Run, edits: EditContext, now: int
) -> Step:
    """The step's record, with what of memory its prompt held: versions of blocks by id, and the passages that were found."""
    versions = {block.id: block.head.hex() for block in turn.state.blocks if block.head}
    found = [
        source
        for message in turn.window
        for result in message.tool_returns
        for source in result.sources
    ]
    passages = [source for source in unique(found) if source.startswith("passage-")]
    return step.record(
        turn,
        now,
        run.stop_reason,
        model=reply.model or turn.model.info.name,
        usage=reply.usage,
        model_ns=step.model_ns,
        tools_ns=step.tools_ns,
        memory={
            name: held for name, held in (("blocks", versions), ("passages", passages)) if held
        },
        is_untrusted=edits.is_untrusted,
    )
