"""Save a step: one transaction with all its effects, or none.

The transaction saves the run's progress under its lease, and the edits of memory. It also saves a
changed system message, the messages with their search index, the window, and the step's record.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import TypeVar

from ricordo.agents.followers import end_turn
from ricordo.agents.message_buffer import first_kept
from ricordo.agents.note_taker import add_note_job, wants_notes
from ricordo.agents.run_end import add_callback
from ricordo.agents.step_decisions import NextAction
from ricordo.agents.tracing import trace_of
from ricordo.agents.turn_context import (
    StepDraft,
    TurnContext,
    user_texts_in,
)
from ricordo.agents.turn_start import LEASE
from ricordo.domain.agent import AgentState
from ricordo.domain.block import Block
from ricordo.domain.clock import SECOND, Backoff
from ricordo.domain.event import Compacted, StepSaved
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
from ricordo.errors import CommitUnknown, DatabaseFailed
from ricordo.memory.commit import CommitOutcome, commit
from ricordo.memory.compaction import Cut
from ricordo.memory.edits import EditContext
from ricordo.memory.egress import spans_of
from ricordo.prompt.egress import cleared_state
from ricordo.prompt.system_prompt import key_after_edits, key_without_edits, told_memory
from ricordo.prompt.transcript import heartbeat_event, local_time, truncate
from ricordo.search.index import insert_messages, rewrite_message
from ricordo.storage import conversations, jobs, messages, runs
from ricordo.storage.engine.store import Transaction
from ricordo.tools.toolbox import failed_result

T = TypeVar("T")
log = logging.getLogger(__name__)
# While the database is down, a save is tried again until this time before the lease ends.
LEASE_MARGIN = 2 * SECOND
# Failures that may pass by themselves, as after a failover, or that an operator may mend soon.
_PASSING = ("down", "read-only", "schema")
_SAVE_BACKOFF = Backoff(0.25, 2, 2)


async def save_calls(turn: TurnContext, step: StepDraft, reply: ModelReply) -> StepSaved:
    """Save the assistant's message before its calls act on the outside world.

    After a kill, the history then shows that the calls may have run.

    Args:
        turn: The turn; its run, state and window are updated after the save.
        step: The running step.
        reply: The model's reply with its parsed parts.

    Raises:
        LeaseLost: The run was ended elsewhere.
    """

    def save(tx: Transaction) -> tuple[Run, Message]:
        now = tx.clock.now()
        run = replace(turn.run, lease_expires_at=now + LEASE)
        runs.save(tx, run)
        message = _assistant_message(turn, step, reply, now, is_untrusted=turn.is_untrusted())
        _save_messages(
            tx,
            turn,
            run,
            new_messages=[message],
            window=turn.window.with_step([message]),
            added=turn.window.unsaved + 1,
            prompt_key=turn.window.prompt_key,
        )
        return run, message

    turn.run, message = await _finish(turn, save, lambda saved: saved[1].id)
    turn.window.append_saved([message])
    return StepSaved(turn.run.id, None, (message,))


@dataclass(frozen=True, slots=True)
class _SavedStep:
    """A step as its transaction stored it, with the state and the prompt's key after it."""

    run: Run
    state: AgentState
    record: Step | None
    messages: list[Message]
    prompt_key: str


async def save_step(
    turn: TurnContext,
    step: StepDraft,
    reply: ModelReply | None,
    action: NextAction,
    results: Sequence[ToolReturnPart],
) -> StepSaved:
    """Save the step, and the end of the run if no step follows.

    Args:
        turn: The turn; its run, state and window are updated after the save.
        step: The finished step, with its edits of memory and its jobs.
        reply: The model's reply with its parsed parts. None: the results belong to calls from an
            earlier turn, and no record of a step is stored.
        action: What follows the step. Its `stop` ends the run, its `heartbeat` becomes a message.
        results: The results of the calls, in their order. Memory may replace the result of an edit.

    Raises:
        LeaseLost: The run was ended elsewhere.
    """
    # From this step on, secrets that memory removed are also removed from the agent's messages.
    turn.removed |= step.memory.removed
    # A trace exists only if there was an exchange with the model.
    trace = trace_of(turn, step, reply, action.stop) if reply and step.exchange else None
    redacted_call = _redacted_call(turn, step, reply) if step.memory.removed else None
    agent = turn.state.agent
    settings = turn.runtime.settings
    edits = EditContext(
        Actor("agent", agent.id, agent.name),
        turn.run.id,
        step.id,
        is_untrusted=turn.is_untrusted(),
        egress=turn.clearance.label,
        proposal_days=settings.proposal_expiry,
        user_texts=lambda: user_texts_in(turn.window.turn_messages()),
        schemas=step.memory.schemas,
    )
    old_key = turn.window.prompt_key
    key_with_edits = old_key
    if turn.memory_in_prompt != "step" and step.memory.edits:
        key_with_edits = _key_after_edits(turn, step)

    def save(tx: Transaction) -> _SavedStep:
        now = tx.clock.now()
        first_ns = turn.run.ttft_ns or step.first_ns
        run = replace(turn.run, lease_expires_at=now + LEASE, ttft_ns=first_ns)
        if reply:
            run = run.with_step(reply.usage)
        if action.stop:
            error = {"type": "llm_empty_response", "message": action.error}
            run = run.ended(action.stop, now, error if action.error else None)
        runs.save(tx, run)
        commit_outcome = commit(tx, turn.state, step.memory, turn.request.scope, edits)
        for job in step.jobs:
            jobs.add(tx, job)
        if redacted_call:
            rewrite_message(tx, redacted_call)
        outcomes = _outcomes(turn, step, results, commit_outcome)
        new_messages = _messages_of_step(
            turn, step, reply, action, outcomes, is_untrusted=edits.is_untrusted, now=now
        )
        state = replace(turn.state, blocks=commit_outcome.blocks, archives=commit_outcome.archives)
        prompt_key = old_key
        if key_with_edits != old_key and _look_equal(state.blocks, step.memory.current()):
            prompt_key = key_with_edits
        _save_messages(
            tx,
            turn,
            run,
            new_messages=new_messages,
            window=turn.window.with_step(new_messages),
            added=turn.window.unsaved + len(new_messages),
            prompt_key=prompt_key,
        )
        record = _record(turn, step, reply, run=run, edits=edits, now=now) if reply else None
        if record:
            runs.insert_step(tx, record)
        if trace:
            runs.insert_trace(tx, trace)
        if action.stop:
            run = _end_run(tx, turn, run, new_messages)
        else:
            # Tools and other requests may have opened or closed files since.
            (state,) = turn.runtime.complete(tx, (state,))
            find_spans = partial(spans_of, settings.data_dir)
            state = cleared_state(state, turn.destination, turn.clearance, find_spans)
        return _SavedStep(run, state, record, new_messages, prompt_key)

    saved = await _finish(
        turn, save, lambda saved: saved.messages[-1].id if saved.messages else None
    )
    turn.run = saved.run
    turn.state = saved.state
    turn.window.prompt_key = saved.prompt_key
    if redacted_call:
        turn.window.update(redacted_call)
    turn.window.append_saved(saved.messages)
    return StepSaved(turn.run.id, saved.record, tuple(saved.messages))


def _redacted_call(turn: TurnContext, step: StepDraft, reply: ModelReply | None) -> Message | None:
    """Return the stored message with the step's calls, without the secrets that memory removed.

    Returns None if the message is not stored yet.
    """
    # Without a reply, the calls are from an earlier turn, and the answer to a request for approval
    # follows them.
    stored = [message for message in turn.window.messages if message.tool_calls]
    if not stored or (reply and stored[-1].id != step.message_id):
        return None
    parts = tuple(_without(part, turn.removed) for part in stored[-1].parts)
    return replace(stored[-1], parts=parts)


def _messages_of_step(
    turn: TurnContext,
    step: StepDraft,
    reply: ModelReply | None,
    action: NextAction,
    outcomes: Sequence[ToolReturnPart],
    *,
    is_untrusted: bool,
    now: int,
) -> list[Message]:
    """Return the step's messages: the reply, the results of its calls, and a heartbeat."""
    label = turn.clearance.label
    new_messages: list[Message] = []
    if reply and turn.window.messages[-1].id != step.message_id:
        new_messages.append(_assistant_message(turn, step, reply, now, is_untrusted=is_untrusted))
    if outcomes:
        message = turn.run.new_message("tool", outcomes, now, step.id, egress=label)
        untrusted = is_untrusted or any(result.is_untrusted for result in outcomes)
        new_messages.append(replace(message, is_untrusted=untrusted))
    if action.heartbeat is not None:
        event = heartbeat_event(action.heartbeat, local_time(now, turn.state.agent.timezone))
        new_messages.append(turn.run.new_message("user", (event,), now, step.id, egress=label))
    return new_messages


def _key_after_edits(turn: TurnContext, step: StepDraft) -> str:
    """Return the prompt's key after the step's edits, which the transcript already shows.

    With this key the stored prompt need not be rendered again. Others may change memory between a
    request for approval and its answer. Then the key stays the same, because the approved calls run
    before the prompt is checked.
    """
    key = turn.window.prompt_key
    now = turn.runtime.store.clock.now()
    if turn.prompt_of(turn.state, now, recall_count=0).memory != told_memory(key):
        return key
    edited = replace(turn.state, blocks=step.memory.current())
    return key_after_edits(key, turn.prompt_of(edited, now, recall_count=0).memory)


def _look_equal(blocks: Sequence[Block], others: Sequence[Block]) -> bool:
    """Return whether the prompt shows these blocks in the same way.

    They differ if others changed the memory during the step.
    """
    shown, others_shown = (
        [
            (
                block.shown_label,
                block.value,
                block.description,
                block.rule,
                block.shared,
                block.limit,
            )
            for block in shown_blocks
        ]
        for shown_blocks in (blocks, others)
    )
    return shown == others_shown


def _end_run(tx: Transaction, turn: TurnContext, run: Run, new_messages: Sequence[Message]) -> Run:
    """Do the work that follows a run's end, in the transaction that ends it."""
    if run.callback:
        add_callback(tx, run)
    if turn.profile == "notes" and wants_notes(turn):
        add_note_job(tx, run, is_local_user=turn.request.scope.is_local_user)
    if turn.state.agent.has_sleeptime:
        run = end_turn(tx, turn, run, new_messages)
    if turn.request.delivery.also_save:
        own_messages = turn.window.messages[turn.window.first :]
        turn.request.delivery.also_save(tx, run, [*own_messages, *new_messages])
    return run


async def save_compaction(
    turn: TurnContext,
    cut: Cut,
    message: Message,
    traces: Sequence[Trace] = (),
    stop: StopReason | None = None,
) -> Compacted:
    """Save a summary and the window after it; with `stop` the run's end too.

    Args:
        turn: The turn; its run and window are updated after the save. The turn's input stays out of
            the stored window if it is not in there yet, since a model may still refuse it.
        cut: The window's messages, divided into evicted and remaining ones.
        message: The unsaved message with the summary, which ends with a CompactionPart.
        traces: The traces of the calls that wrote it.
        stop: The reason that ends the run; None if the turn continues.

    Raises:
        LeaseLost: The run was ended elsewhere.
    """
    window = [cut.remaining[0], message, *cut.remaining[1:]]
    own_messages = turn.window.messages[turn.window.first :]
    unsaved_ids = {entry.id for entry in own_messages if turn.window.unsaved and not entry.step_id}
    part = message.parts[-1]
    assert isinstance(part, CompactionPart)  # noqa: S101 - a summary ends with this part

    def save(tx: Transaction) -> Run:
        now = tx.clock.now()
        run = replace(turn.run, lease_expires_at=now + LEASE, context_tokens=part.tokens_after)
        if stop:
            run = run.ended(stop, now)
        runs.save(tx, run)
        add_callback(tx, run)
        _save_messages(
            tx,
            turn,
            run,
            new_messages=[message],
            window=[entry for entry in window if entry.id not in unsaved_ids],
            added=1,
            prompt_key=turn.window.prompt_key,
        )
        for trace in traces:
            runs.insert_trace(tx, trace)
        return run

    turn.run = await _finish(turn, save, lambda _run: message.id)
    turn.window.replace(window)
    turn.reads.forget_results()
    return Compacted(turn.run.id, message, part.tokens_before, part.tokens_after)


async def _finish(
    turn: TurnContext, save: Callable[[Transaction], T], id_of: Callable[[T], str | None]
) -> T:
    """Save, and wait for the write even while being cancelled.

    Otherwise the turn's state could be older than the database. While the database is down or
    takes no writes, the write is tried again until the run's lease is about to end: the model's
    answer is paid for.

    Args:
        turn: The turn.
        save: The unit of work.
        id_of: Returns the id of a message that `save` stored, from its result; None if it stores
            none. Then it counts as saved if its commit is unknown.
    """
    give_up_at: float | None = None
    for attempt in count(1):
        task = asyncio.ensure_future(turn.runtime.store.write(save))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task])
            # asyncio complains about an exception that is never retrieved.
            if not task.cancelled() and (error := task.exception()):
                log.info("a cancelled turn could not save its step", extra={"error": error})
            raise
        except DatabaseFailed as failure:
            if give_up_at is None:
                lease_left = turn.run.lease_expires_at - turn.runtime.store.clock.now()
                give_up_at = time.monotonic() + (lease_left - LEASE_MARGIN) / SECOND
            pause = _SAVE_BACKOFF.seconds(attempt)
            if failure.kind not in _PASSING or time.monotonic() + pause > give_up_at:
                raise
            if isinstance(failure, CommitUnknown):
                save = partial(_save_once, turn.run.id, save, failure.result, id_of(failure.result))
        log.warning("a step could not be saved; it is tried again", extra={"run": turn.run.id})
        await asyncio.sleep(pause)
    raise AssertionError("the last attempt returns or raises")


def _save_once(
    run_id: str,
    save: Callable[[Transaction], T],
    unknown: T,
    message_id: str | None,
    tx: Transaction,
) -> T:
    """Save, unless an earlier attempt with an unknown commit was stored; return what is stored.

    `unknown` is the result of the earlier attempt, and `message_id` the id of its message.
    """
    # PostgreSQL may still be committing the earlier attempt, which has locked the run.
    runs.lock(tx, run_id)
    if message_id is None or messages.by_ids(tx, [message_id]):
        return unknown
    return save(tx)


def _save_messages(
    tx: Transaction,
    turn: TurnContext,
    run: Run,
    *,
    new_messages: Sequence[Message],
    window: Sequence[Message],
    added: int,
    prompt_key: str,
) -> None:
    """Save new messages with their search index, the window, and the run's end.

    `added` is the number of messages by which the conversation grows. A changed system message is
    saved too.
    """
    insert_messages(tx, new_messages)
    if turn.window.has_new_system:
        messages.rewrite(tx, turn.window.messages[0])
    ended_run = None if run.ended_at is None else run
    # An agent that clears its buffer begins every turn with the system message alone. Earlier
    # messages stay in recall.
    agent = turn.state.agent
    is_over = ended_run is not None and ended_run.stop_reason != "requires_approval"
    if is_over and agent.clears_buffer:
        window = window[:1]
        prompt_key = key_without_edits(prompt_key)
    elif is_over and agent.message_buffer and not (run.purpose and agent.has_sleeptime):
        # After turns that a person began, the sleep-time agent reads the messages that leave the
        # window.
        window = [*window[:1], *window[first_kept(window, agent) :]]
        prompt_key = key_without_edits(prompt_key)
    # Learn nothing here from a refused request, which the refusal measured, or from a borrowed
    # model, which counts in another way.
    is_learned = not turn.limit.was_refused and turn.limit.own_window is None
    conversations.save_window(
        tx,
        turn.state.conversation.id,
        [message.id for message in window],
        prompt_key,
        added=added,
        token_percent=turn.limit.token_percent if is_learned else None,
        ended=ended_run,
    )


def _assistant_message(
    turn: TurnContext, step: StepDraft, reply: ModelReply, now: int, *, is_untrusted: bool
) -> Message:
    is_gated = any(isinstance(part, ToolCallPart) and part.is_gated for part in reply.parts)
    role: Role = "approval" if is_gated else "assistant"
    if turn.removed:
        parts = tuple(_without(part, turn.removed) for part in reply.parts)
    else:
        parts = reply.parts
    message = turn.run.new_message(role, parts, now, step.id, egress=turn.clearance.label)
    model = reply.model or turn.model.info.name
    return replace(message, id=step.message_id, model=model, is_untrusted=is_untrusted)


def _without(part: Part, removed: Mapping[str, str]) -> Part:
    """Return a reply's part without these secrets.

    A thought that its provider signed stays as it is.
    """
    match part:
        case TextPart() | ReasoningPart(signature=None):
            return replace(part, text=without(part.text, removed))
        case ToolCallPart():
            return replace(part, arguments=without(part.arguments, removed))
        case _:
            return part


def _outcomes(
    turn: TurnContext,
    step: StepDraft,
    results: Sequence[ToolReturnPart],
    commit_outcome: CommitOutcome,
) -> list[ToolReturnPart]:
    """Return the results, with the outcome of their edits and with notes."""
    limits = {tool.name: tool.return_limit for tool in turn.state.tools}
    outcomes: list[ToolReturnPart] = []
    for result in results:
        call_id = result.call_id
        content = result.content
        if error := commit_outcome.failed.get(call_id):
            outcomes.append(failed_result(ToolCallPart(call_id, result.name, ""), error))
            continue
        if (edit_result := commit_outcome.results.get(call_id)) is not None:
            content = truncate(edit_result, limits.get(result.name, DEFAULT_RETURN_LIMIT))
        if (notes := step.memory.notes.get(call_id)) and result.status == "success":
            content = f"{content}\n\n[{' '.join(notes)}]"
        outcomes.append(
            result if content is result.content else replace(result, content=content, is_json=False)
        )
    return outcomes


def _record(
    turn: TurnContext, step: StepDraft, reply: ModelReply, *, run: Run, edits: EditContext, now: int
) -> Step:
    """Return the step's record, with the memory in its prompt.

    It contains the versions of blocks by id, the passages that searches found, and the sources with
    an egress policy.
    """
    versions = {
        block.id: block.head.hex()
        for block in turn.state.blocks
        if block.head and not block.is_withheld
    }
    egress = turn.clearance.record(turn.destination)
    sources = [
        source
        for message in turn.window.messages
        if message.role == "tool"
        for result in message.tool_returns
        for source in result.sources
        if source.startswith("passage-")
    ]
    passages = list(dict.fromkeys(sources))
    return step.record(
        turn,
        now,
        run.stop_reason,
        model=reply.model or turn.model.info.name,
        usage=reply.usage,
        model_ns=step.model_ns,
        tools_ns=step.tools_ns,
        memory={
            name: part
            for name, part in (("blocks", versions), ("passages", passages), ("egress", egress))
            if part
        },
        is_untrusted=edits.is_untrusted,
    )
