"""Saving a step: one transaction with everything it causes, or nothing of it.

In it: the run's progress under its lease, edits of memory, the changed system message, messages with their search index, the
window, and the step's record.
"""

import asyncio
import time
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import TypeVar

from ricordo.agents.context import renewed
from ricordo.agents.request import StepDraft, TurnContext
from ricordo.domain.event import StepSaved
from ricordo.domain.ids import new_id
from ricordo.domain.message import Message, ToolCallPart, ToolReturnPart
from ricordo.domain.model import ModelReply
from ricordo.domain.run import Run, Step, StopReason, status_after
from ricordo.domain.tool import DEFAULT_RETURN_LIMIT
from ricordo.memory.commit import Committed, commit
from ricordo.prompt.packaging import truncate
from ricordo.runtime import Runtime
from ricordo.storage import conversations, messages, runs
from ricordo.storage.store import Transaction
from ricordo.tools.toolbox import failed_result

T = TypeVar("T")


async def save_calls(runtime: Runtime, turn: TurnContext, step: StepDraft, reply: ModelReply) -> StepSaved:
    """Save the assistant's message before its calls act on the outside world, so that a kill cannot hide that they may have."""

    def save(tx: Transaction) -> tuple[Run, Message]:
        run = renewed(turn.run, tx.clock.now())
        runs.save(tx, run)
        message = _assistant_message(tx, turn, step, reply)
        _save_messages(tx, turn, [message], None)
        return run, message

    turn.run, message = await _to_the_end(runtime.store.write(save))
    _move_on(turn, [message])
    return StepSaved(turn.run.id, None, (message,))


async def save_step(
    runtime: Runtime,
    turn: TurnContext,
    step: StepDraft,
    reply: ModelReply,
    stop: StopReason | None,
    results: Sequence[ToolReturnPart],
) -> StepSaved:
    """Save the step, and the end of the run with it where `stop` gives the reason. Raises LeaseLost."""

    def save(tx: Transaction) -> tuple[Run, Committed, Step, list[Message]]:
        run = _progress(tx, turn, step, reply, stop)
        runs.save(tx, run)
        committed = commit(tx, turn.state, step.memory, turn.request.scope, step.id)
        new = [] if turn.window[-1].id == step.message_id else [_assistant_message(tx, turn, step, reply)]
        if results:
            new.append(_tool_message(tx, turn, step, _corrected(results, committed, turn)))
        _save_messages(tx, turn, new, run)
        record = _record(tx, turn, step, reply, stop)
        runs.insert_step(tx, record)
        return run, committed, record, new

    turn.run, committed, record, new = await _to_the_end(runtime.store.write(save))
    turn.state = replace(turn.state, blocks=committed.blocks, archives=committed.archives)
    _move_on(turn, new)
    return StepSaved(turn.run.id, record, tuple(new))


async def _to_the_end(write: Awaitable[T]) -> T:
    """Wait for a write even while being cancelled: half a wait would leave the turn's state behind the database's."""
    task = asyncio.ensure_future(write)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _move_on(turn: TurnContext, new: Sequence[Message]) -> None:
    turn.window += new
    added = turn.unsaved + len(new)
    counted = replace(turn.state.conversation, message_count=turn.state.conversation.message_count + added)
    turn.state = replace(turn.state, conversation=counted)
    turn.unsaved = 0
    turn.prompt_changed = False


def _save_messages(tx: Transaction, turn: TurnContext, new: Sequence[Message], run: Run | None) -> None:
    if turn.prompt_changed:
        messages.rewrite(tx, turn.window[0])
    messages.insert_all(tx, new)
    has_ended = run is not None and run.ended_at is not None
    conversations.save_window(
        tx,
        turn.state.conversation.id,
        [message.id for message in (*turn.window, *new)],
        turn.prompt_key,
        added=turn.unsaved + len(new),
        ended_at=run.ended_at if run else None,
        run_ms=(run.duration_ns or 0) // 1_000_000 if run and has_ended else None,
        stop_reason=run.stop_reason if run else None,
    )


def _progress(tx: Transaction, turn: TurnContext, step: StepDraft, reply: ModelReply, stop: StopReason | None) -> Run:
    now = tx.clock.now()
    run = replace(
        renewed(turn.run, now),
        usage=turn.run.usage + reply.usage,
        step_count=turn.run.step_count + 1,
        ttft_ns=turn.run.ttft_ns or step.first_ns,
    )
    if stop is None:
        return run
    duration = (now - run.created_at) * 1000
    return replace(run, status=status_after(stop), stop_reason=stop, ended_at=now, duration_ns=duration)


def _corrected(results: Sequence[ToolReturnPart], committed: Committed, turn: TurnContext) -> list[ToolReturnPart]:
    limits = {tool.name: tool.return_limit for tool in turn.state.tools}
    return [_correct(result, committed, limits.get(result.name, DEFAULT_RETURN_LIMIT)) for result in results]


def _correct(result: ToolReturnPart, committed: Committed, limit: int) -> ToolReturnPart:
    if error := committed.failed.get(result.call_id):
        return failed_result(ToolCallPart(result.call_id, result.name, ""), error)
    value = committed.merged.get(result.call_id)
    return result if value is None else replace(result, content=truncate(value, limit))


def _assistant_message(tx: Transaction, turn: TurnContext, step: StepDraft, reply: ModelReply) -> Message:
    model = reply.model or turn.model.info.name
    return replace(_message(tx, turn, step, step.message_id), role="assistant", parts=reply.parts, model=model)


def _tool_message(tx: Transaction, turn: TurnContext, step: StepDraft, results: list[ToolReturnPart]) -> Message:
    return replace(_message(tx, turn, step, new_id("message")), role="tool", parts=tuple(results))


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


def _record(tx: Transaction, turn: TurnContext, step: StepDraft, reply: ModelReply, stop: StopReason | None) -> Step:
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
    )
