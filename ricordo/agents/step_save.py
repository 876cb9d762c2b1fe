"""Saving a step: one transaction with everything it causes, or nothing of it.

In it: the run's progress under its lease, edits of memory, the changed system message, messages with their search index, the
window, and the step's record.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import TypeVar

from ricordo.agents.edit_context import edit_context_of, is_untrusted, lineage_of
from ricordo.agents.request import StepDraft, TurnContext
from ricordo.agents.run_end import add_callback
from ricordo.agents.styles import NextAction
from ricordo.agents.tracing import trace_of
from ricordo.agents.turn_start import renewed
from ricordo.domain.event import Compacted, StepSaved
from ricordo.domain.ids import new_id
from ricordo.domain.message import CompactionPart, Message, Role, ToolCallPart, ToolReturnPart
from ricordo.domain.model import ModelReply
from ricordo.domain.run import Run, Step, StopReason, status_after
from ricordo.domain.tool import DEFAULT_RETURN_LIMIT
from ricordo.domain.trace import Trace
from ricordo.domain.usage import Expense
from ricordo.memory.commit import Committed, commit
from ricordo.memory.compaction import Cut
from ricordo.memory.edit_context import EditContext
from ricordo.memory.summary import Summary
from ricordo.prompt.packaging import heartbeat_event, local_time, truncate
from ricordo.runtime import Runtime
from ricordo.search.index import insert_messages
from ricordo.storage import conversations, messages, runs, traces, usage
from ricordo.storage.store import Transaction
from ricordo.tools.toolbox import failed_result

T = TypeVar("T")
log = logging.getLogger(__name__)


async def save_calls(runtime: Runtime, turn: TurnContext, step: StepDraft, reply: ModelReply) -> StepSaved:
    """Save the assistant's message before its calls act on the outside world, so that a kill cannot hide that they may have."""

    def save(tx: Transaction) -> tuple[Run, Message]:
        run = renewed(turn.run, tx.clock.now())
        runs.save(tx, run)
        message = _assistant_message(tx, turn, step, reply, is_untrusted=is_untrusted(turn))
        _save_messages(tx, turn, [message], None)
        return run, message

    turn.run, message = await _to_the_end(runtime.store.write(save))
    _move_on(turn, [message])
    return StepSaved(turn.run.id, None, (message,))


async def save_step(
    runtime: Runtime,
    turn: TurnContext,
    step: StepDraft,
    reply: ModelReply | None,
    coming: NextAction,
    results: Sequence[ToolReturnPart],
) -> StepSaved:
    """Save the step, and the end of the run with it where there is none to come. Raises LeaseLost.

    Without a reply these are the results of calls that an earlier turn asked for.
    """
    trace = trace_of(runtime, turn, step, reply, coming.stop) if reply else None
    edit_context = edit_context_of(runtime, turn, step)

    def save(tx: Transaction) -> tuple[Run, Committed, Step | None, list[Message]]:
        run = _progress(tx, turn, step, reply, coming.stop)
        runs.save(tx, run)
        add_callback(tx, run)
        committed = commit(tx, turn.state, step.memory, turn.request.scope, edit_context)
        new: list[Message] = []
        if reply and turn.window[-1].id != step.message_id:
            new.append(_assistant_message(tx, turn, step, reply, is_untrusted=edit_context.is_untrusted))
        if results:
            corrected = _corrected(results, committed, step, turn)
            new.append(_tool_message(tx, turn, step, corrected, is_untrusted=edit_context.is_untrusted))
        if coming.heartbeat is not None:
            new.append(_heartbeat(tx, turn, step, coming.heartbeat))
        _save_messages(tx, turn, new, run)
        record = _record(tx, turn, step, reply, coming.stop, edit_context) if reply else None
        if record:
            runs.insert_step(tx, record)
        if trace:
            traces.insert_one(tx, trace)
        return run, committed, record, new

    turn.run, committed, record, new = await _to_the_end(runtime.store.write(save))
    turn.state = replace(turn.state, blocks=committed.blocks, archives=committed.archives)
    _move_on(turn, new)
    return StepSaved(turn.run.id, record, tuple(new))


async def save_compaction(
    runtime: Runtime,
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
    window = [found.kept[0], message, *found.kept[1:]]
    untold = {one.id for one in turn.window[turn.first :] if turn.unsaved and not one.step_id}
    part = message.parts[-1]
    assert isinstance(part, CompactionPart)  # noqa: S101 - tells the type checker what a summary ends with

    def save(tx: Transaction) -> Run:
        run = replace(_ended(tx, turn.run, stop), context_tokens=part.tokens_after)
        runs.save(tx, run)
        add_callback(tx, run)
        insert_messages(tx, [message])
        _save_window(tx, turn, [one for one in window if one.id not in untold], run, added=1)
        if summary.usage.total_tokens:
            usage.add_expense(
                tx,
                Expense(run.organization_id, "compaction", summary.model, summary.usage, run.agent_id, run.user_id),
            )
        for trace in kept:
            traces.insert_one(tx, trace)
        return run

    turn.run = await _to_the_end(runtime.store.write(save))
    first = turn.window[turn.first : turn.first + 1]
    turn.window = window
    turn.first = window.index(first[0]) if first and first[0] in window else min(2, len(window))
    unsaved, turn.unsaved = turn.unsaved, 0
    _count(turn, 1)
    turn.unsaved = unsaved
    return Compacted(turn.run.id, message, part.evicted, part.tokens_before, part.tokens_after)


async def _to_the_end(write: Awaitable[T]) -> T:
    """Wait for a write even while being cancelled: half a wait would leave the turn's state behind the database's."""
    task = asyncio.ensure_future(write)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()):  # somebody has to hear of it, or it counts as lost
            log.info("what a cancelled turn was saving failed", extra={"error": str(error)})
        raise


def _move_on(turn: TurnContext, new: Sequence[Message]) -> None:
    turn.window += new
    if turn.waiting and any(message.role == "tool" for message in new):
        turn.window += turn.waiting
        turn.waiting = []
    _count(turn, len(new))


def _count(turn: TurnContext, new: int) -> None:
    counted = turn.state.conversation.message_count + turn.unsaved + new
    turn.state = replace(turn.state, conversation=replace(turn.state.conversation, message_count=counted))
    turn.unsaved = 0
    turn.prompt_changed = False


def _save_messages(tx: Transaction, turn: TurnContext, new: Sequence[Message], run: Run | None) -> None:
    insert_messages(tx, new)
    # What was said beside an answer to waiting calls comes after their results.
    waited = turn.waiting if any(message.role == "tool" for message in new) else []
    _save_window(tx, turn, [*turn.window, *new, *waited], run, added=turn.unsaved + len(new))


def _save_window(tx: Transaction, turn: TurnContext, window: Sequence[Message], run: Run | None, *, added: int) -> None:
    if turn.prompt_changed:
        messages.rewrite(tx, turn.window[0])
    ended = run if run is not None and run.ended_at is not None else None
    # An agent that clears its buffer begins every turn anew; what it was told stays in recall.
    is_cleared = ended is not None and turn.state.agent.clears_buffer and ended.stop_reason != "requires_approval"
    # A refusal may have had another reason until an answer came, and the next turn is another model's where this one borrowed one.
    is_known = not turn.was_refused and turn.own_window is None
    conversations.save_window(
        tx,
        turn.state.conversation.id,
        [message.id for message in (window[:1] if is_cleared else window)],
        turn.prompt_key,
        added=added,
        token_percent=turn.token_percent if is_known else None,
        ended=ended,
    )


def _progress(
    tx: Transaction, turn: TurnContext, step: StepDraft, reply: ModelReply | None, stop: StopReason | None
) -> Run:
    run = turn.run
    if reply:
        run = replace(
            run,
            usage=run.usage + reply.usage,
            step_count=run.step_count + 1,
            context_tokens=reply.usage.total_tokens or None,
        )
    return _ended(tx, replace(run, ttft_ns=run.ttft_ns or step.first_ns), stop)


def _ended(tx: Transaction, run: Run, stop: StopReason | None) -> Run:
    """The run with its lease held for longer, or ended where there is a reason."""
    now = tx.clock.now()
    if stop is None:
        return renewed(run, now)
    duration = (now - run.created_at) * 1000
    return replace(renewed(run, now), status=status_after(stop), stop_reason=stop, ended_at=now, duration_ns=duration)


def _corrected(
    results: Sequence[ToolReturnPart], committed: Committed, step: StepDraft, turn: TurnContext
) -> list[ToolReturnPart]:
    limits = {tool.name: tool.return_limit for tool in turn.state.tools}
    notes = step.memory.notes
    return [
        _correct(result, committed, notes.get(result.call_id), limits.get(result.name, DEFAULT_RETURN_LIMIT))
        for result in results
    ]


def _correct(result: ToolReturnPart, committed: Committed, notes: Sequence[str] | None, limit: int) -> ToolReturnPart:
    """The result with what became of the call when it was saved, and with what the agent is to know beside it."""
    if error := committed.failed.get(result.call_id):
        return failed_result(ToolCallPart(result.call_id, result.name, ""), error)
    if (told := committed.told.get(result.call_id)) is not None:
        result = replace(result, content=truncate(told, limit), is_json=False)
    if notes and result.status == "success":
        result = replace(result, content=f"{result.content}\n\n[{' '.join(notes)}]", is_json=False)
    return result


def _assistant_message(
    tx: Transaction, turn: TurnContext, step: StepDraft, reply: ModelReply, *, is_untrusted: bool
) -> Message:
    model = reply.model or turn.model.info.name
    role: Role = (
        "approval" if any(isinstance(part, ToolCallPart) and part.is_gated for part in reply.parts) else "assistant"
    )
    message = _message(tx, turn, step, step.message_id)
    return replace(message, role=role, parts=reply.parts, model=model, is_untrusted=is_untrusted)


def _tool_message(
    tx: Transaction, turn: TurnContext, step: StepDraft, results: list[ToolReturnPart], *, is_untrusted: bool
) -> Message:
    message = _message(tx, turn, step, new_id("message"))
    is_untrusted = is_untrusted or any(result.is_untrusted for result in results)
    return replace(message, role="tool", parts=tuple(results), is_untrusted=is_untrusted)


def _heartbeat(tx: Transaction, turn: TurnContext, step: StepDraft, reason: str) -> Message:
    event = heartbeat_event(reason, local_time(tx.clock.now(), turn.state.agent.timezone))
    return replace(_message(tx, turn, step, new_id("message")), role="user", parts=(event,))


def _message(tx: Transaction, turn: TurnContext, step: StepDraft, id: str) -> Message:
    run = turn.run
    return Message(
        id=id,
        agent_id=run.agent_id,
        conversation_id=run.conversation_id,
        role="assistant",
        parts=(),
        created_at=tx.clock.now(),
        organization_id=run.organization_id,
        user_id=run.user_id,
        run_id=run.id,
        step_id=step.id,
    )


def _record(
    tx: Transaction,
    turn: TurnContext,
    step: StepDraft,
    reply: ModelReply,
    stop: StopReason | None,
    edit_context: EditContext,
) -> Step:
    run, info = turn.run, turn.model.info
    return Step(
        id=step.id,
        organization_id=run.organization_id,
        agent_id=run.agent_id,
        run_id=run.id,
        conversation_id=run.conversation_id,
        model=reply.model or info.name,
        model_handle=info.handle,
        provider=info.provider,
        model_endpoint=info.endpoint,
        context_window=turn.state.agent.context_window,
        stop_reason=stop,
        usage=reply.usage,
        created_at=tx.clock.now(),
        started_at=step.started_at,
        model_ns=step.model_ns,
        tools_ns=step.tools_ns,
        step_ns=time.monotonic_ns() - step.began_ns,
        memory=lineage_of(turn),
        is_untrusted=edit_context.is_untrusted,
    )
