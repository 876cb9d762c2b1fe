"""Runs of sleeptime agents, as jobs after turns of their managers.

The agents read transcripts, each with messages of one user. When a turn ends, its transaction notes
the last message to read, and plans a run. A job carries out the plan. The transaction that starts
the run stores the transcript and moves the mark. So each message that is read is in exactly one
transcript, even after a kill. Failed work is finished before more of the same user is read, and no
error here makes a turn of the manager fail.
"""

import logging
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ricordo.agents.budgets import put_off
from ricordo.agents.conversations import begin_default
from ricordo.agents.message_buffer import evicted
from ricordo.agents.repeats import was_cut_off
from ricordo.agents.request import (
    NewMessage,
    TurnDelivery,
    TurnRequest,
)
from ricordo.agents.turn import Answer, collect_for_job, run_turn
from ricordo.agents.turn_context import (
    TurnContext,
)
from ricordo.domain.agent import AgentState
from ricordo.domain.clock import SECOND
from ricordo.domain.egress import join
from ricordo.domain.ids import new_id
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.message import EventPart, Message
from ricordo.domain.run import Run, StopReason
from ricordo.domain.scope import Scope, background_scope
from ricordo.errors import (
    Busy,
    LeaseLost,
    ModelError,
    NotFound,
    RicordoError,
    Unavailable,
    require_others_failure,
)
from ricordo.features.groups import queries, sleep_queries
from ricordo.features.groups.queries import NO_USER
from ricordo.features.groups.records import ASLEEP, Group
from ricordo.features.groups.service import buffer_of
from ricordo.features.groups.sleep_queries import Mark, Transcript
from ricordo.features.groups.transcript import go_on_event, lines_of, shortened, transcript_event
from ricordo.features.groups.voice_transcript import numbered_event, numbered_lines_of
from ricordo.llm.tokens import text_tokens
from ricordo.runtime import Runtime
from ricordo.storage import agents, conversations, jobs, messages, runs, users
from ricordo.storage.engine.store import Transaction

log = logging.getLogger(__name__)
KIND = "sleeptime"
SWEEP = "sleeptime.sweep"
PURPOSE = "sleeptime"
MOST_MESSAGES = 50  # messages in one transcript, as in the retired Letta V1 server
_LEAST_TOKENS = 500
_WINDOW_SHARE = 3  # a transcript may take one third of the sleeptime agent's window
_ATTEMPTS = 3  # of one transcript
_JOB_ATTEMPTS = 5
_SWEEP_SECONDS = 300.0
_FORGOTTEN = 120 * SECOND
# Errors of requests that the model would refuse again when repeated.
_REFUSED = ("llm_bad_request", "context_window_exceeded")


def _seq_before_view(turn: TurnContext, first_seq: int) -> int:
    """Return the seq after which a new conversation is read.

    Reading starts with the messages in view.
    """
    in_view = [message.seq for message in turn.window.messages[1:] if message.seq]
    return min([*in_view, first_seq]) - 1


def end_turn(tx: Transaction, turn: TurnContext, run: Run, new: Sequence[Message]) -> list[str]:
    """Note the last message that sleeptime agents have to read, and plan the runs that are due.

    Args:
        tx: The transaction that ends the turn.
        turn: The turn of the manager.
        run: Its run in its last state.
        new: The messages of its last step, which are not yet in the turn's window.

    Returns:
        The ids of the planned runs.
    """
    if run.stop_reason == "requires_approval" or not turn.state.agent.has_sleeptime:
        return []
    turn_end = queries.at_turn_end(tx, run)
    if turn_end is None:
        return []
    before = _seq_before_view(turn, turn_end.first_seq)
    marks = [
        Mark(
            group_id=turn_end.group_id,
            agent_id=id,
            conversation_id=run.conversation_id,
            user_id=run.user_id or NO_USER,
            read_to=before,
            said_to=turn_end.last_seq,
        )
        for id in turn_end.member_ids
    ]
    # Messages of a voice agent are read only after they have left its view.
    is_voice = turn_end.manager_type == "voice_sleeptime"
    if is_voice:
        readable_to = _last_evicted(tx, turn, new)
    else:
        readable_to = turn_end.last_seq
    for mark in marks:
        if readable_to:
            sleep_queries.say(tx, replace(mark, said_to=readable_to))
        else:
            sleep_queries.begin(tx, replace(mark, said_to=before))
    # A run is due after the first turn, and then after every `frequency` turns. Null means after
    # each turn, and 0 means never.
    frequency = turn_end.frequency or 1
    count = sleep_queries.count_turn(
        tx, turn_end.group_id, run.user_id, frequency, turn_end.counted
    )
    if turn_end.is_paused:
        for mark in marks:
            sleep_queries.say(tx, mark)  # so messages that are in view now are not read later
        sleep_queries.skip(tx, turn_end.group_id, run.user_id)
    is_due = not (turn_end.is_paused or turn_end.frequency == 0 or count)
    if not is_due:
        return []
    planned: list[str | None] = []
    if readable_to and any(message.role != "user" for message in new):
        planned = [
            _plan(tx, turn.runtime, turn_end.organization_id, id, run) for id in turn_end.member_ids
        ]
    run_ids = [run_id for run_id in planned if run_id]
    if not run_ids:
        sleep_queries.keep_due(tx, turn_end.group_id, run.user_id, frequency)
    return run_ids


def _last_evicted(tx: Transaction, turn: TurnContext, new: Sequence[Message]) -> int:
    """Return the seq of the last message that left the window, or 0."""
    evicted_messages = evicted([*turn.window.messages, *new], turn.state.agent)
    if not evicted_messages:
        return 0
    stored = messages.by_ids(tx, [message.id for message in evicted_messages])
    numbers = [
        message.seq for message in stored if message.conversation_id == turn.state.conversation.id
    ]
    return max(numbers, default=0)


def _plan(
    tx: Transaction, runtime: Runtime, organization_id: str, member_id: str, run: Run
) -> str | None:
    """Plan a run of a sleeptime agent for this run's user, and add its job.

    Returns the planned run's id. Returns None if the sleeptime agent has no conversation and cannot
    get one, since that must not fail the other agent's turn.
    """
    conversation_id = conversations.default_id(member_id)
    if run.user_id:
        conversation_id = conversations.users_default_id(member_id, run.user_id)
    if conversations.get(tx, conversation_id) is None:
        scope = Scope(organization_id, subject_id=run.user_id)
        try:
            begin_default(tx, runtime, scope, member_id)
        except RicordoError as error:
            log.warning(
                "a sleeptime agent cannot start",
                extra={"agent": member_id, "kind": type(error).__name__},
            )
            return None
    planned = Run(
        id=new_id("run"),
        organization_id=organization_id,
        agent_id=member_id,
        conversation_id=conversation_id,
        user_id=run.user_id,
        background=True,
        purpose=PURPOSE,
        # Wire facts.
        metadata={"run_type": "sleeptime_agent_send_message_async", "agent_id": member_id},
        created_at=tx.clock.now(),
    )
    runs.open_run(tx, planned)
    add_job(tx, organization_id, member_id)
    return planned.id


def add_job(tx: Transaction, organization_id: str, member_id: str) -> None:
    """Add the job that carries out a sleeptime agent's plans, if none waits.

    Args:
        tx: The transaction.
        organization_id: The agent's organization.
        member_id: The sleeptime agent.
    """
    key = f"{KIND}:{member_id}"
    payload = {"agent_id": member_id}
    jobs.add(
        tx,
        Job(KIND, organization_id, payload, key=key, is_single=True, most_attempts=_JOB_ATTEMPTS),
    )


async def carry_out(runtime: Runtime, job: Job, report: Report) -> None:
    """Finish the open transcripts, then make new ones for the planned runs.

    If the run for one user fails, other users' runs still take place, and the job is repeated
    later.

    Args:
        runtime: The running server.
        job: A job of `add_job`.
        report: Counts the planned runs that were carried out.

    Raises:
        RicordoError: one of the errors of the failed runs; Busy only if no other error occurred.
    """
    agent_id = job.payload["agent_id"]
    finished = 0
    if (
        await runtime.store.read(lambda tx: agents.find(tx, Scope(job.organization_id), agent_id))
        is None
    ):
        return
    if await put_off(runtime, job, agent_id):
        return
    failed: dict[str | None, RicordoError] = {}
    for transcript in await runtime.store.read(lambda tx: sleep_queries.begun(tx, agent_id)):
        if transcript.user_id not in failed:
            await _attempt(runtime, transcript.user_id, failed, _finish(runtime, transcript))
    for run in await runtime.store.read(lambda tx: runs.planned(tx, agent_id)):
        if run.user_id not in failed and run.purpose == PURPOSE:
            await _attempt(runtime, run.user_id, failed, _carry_out_run(runtime, run))
            finished += 1
            report(finished, finished)
    if failed:
        # Busy is retried soon, so other errors take precedence.
        raise min(failed.values(), key=lambda error: isinstance(error, Busy))


async def _attempt(
    runtime: Runtime,
    user_id: str | None,
    failed: dict[str | None, RicordoError],
    work: Coroutine[Any, Any, None],
) -> None:
    try:
        await work
    except Unavailable as error:
        require_others_failure(error)
        if runtime.is_stopping:
            raise
        failed[user_id] = Unavailable(
            "A sleeptime agent could not be run. Its run is tried again later."
        )
    except RicordoError as error:
        log.warning("a sleeptime agent failed", extra={"kind": type(error).__name__})
        failed[user_id] = error


async def _carry_out_run(runtime: Runtime, run: Run) -> None:
    """Carry out a planned run on its user's new messages.

    If the messages need several transcripts, the planned run reads the last one.
    """
    while True:
        batch = await runtime.store.write(lambda tx: _next_batch(tx, run))
        if batch is None:
            return
        transcript = Transcript(
            id=new_id("transcript"),
            organization_id=run.organization_id,
            group_id=batch.group.id,
            agent_id=run.agent_id,
            user_id=run.user_id,
            conversation_ids=" ".join(batch.read_to),
            first_seq=batch.first_seq,
            last_seq=max(batch.read_to.values()),
            message_count=batch.count,
        )
        message = NewMessage(
            "user",
            (batch.event(),),
            otid=transcript.id,
            group_id=batch.group.id,
            is_untrusted=batch.is_untrusted,
            egress=batch.egress,
        )
        planned = run.id if batch.is_last else None
        await _work(runtime, batch.scope, transcript, message, planned_run=planned, batch=batch)
        if batch.is_last:
            return


@dataclass(slots=True)
class Batch:
    """The content of one transcript, with the last seq from each conversation.

    `is_numbered` is set for the agent that edits a voice agent's memory; `newer` contains the lines
    that the voice agent still has in view.
    """

    group: Group
    scope: Scope
    marks: list[Mark]
    lines: list[str] = field(default_factory=list)
    read_to: dict[str, int] = field(default_factory=dict)
    first_seq: int = 0
    count: int = 0
    is_untrusted: bool = False
    egress: str | None = None
    is_last: bool = True
    newer: list[str] = field(default_factory=list)

    @property
    def is_numbered(self) -> bool:
        return self.group.manager_type == "voice_sleeptime"

    def lines_of(self, message: Message) -> list[str]:
        """Return the lines of one message in the form that this batch's agent reads.

        Args:
            message: A message of the manager's conversation; messages by the server give no lines.
        """
        if self.is_numbered:
            return numbered_lines_of(message)
        return lines_of(message)

    def event(self) -> EventPart:
        """Return the event that the sleeptime agent reads."""
        if not self.is_numbered:
            return transcript_event(self.lines)
        return numbered_event(self.lines, self.newer, buffer_of(self.group)[1])


def _next_batch(tx: Transaction, run: Run) -> Batch | None:
    """Return the next batch of a planned run.

    If there is none, the run is ended and None is returned.
    """
    locked_run = runs.lock(tx, run.id)
    if locked_run is None or locked_run.ended_at is not None:
        return None
    groups = queries.of_member(tx, run.agent_id)
    group = next((group for group in groups if group.manager_type in ASLEEP), None)
    scope = _scope(tx, run.organization_id, run.user_id)
    manager = agents.find(tx, Scope(run.organization_id), (group and group.manager_agent_id) or "")
    if group is None or scope is None or manager is None or not manager.has_sleeptime:
        _end(tx, locked_run, "cancelled")
        return None
    try:
        state = agents.load(tx, scope, run.agent_id)
    except NotFound:  # the user may no longer use the agent
        _end(tx, locked_run, "cancelled")
        return None
    while True:
        marks = sleep_queries.unread(tx, group.id, run.agent_id, run.user_id)
        # Each conversation of a user has separate transcripts; conversations without a user share
        # one.
        batch = Batch(group, scope, marks)
        if run.user_id or batch.is_numbered:
            batch.marks = marks[:1]
        _fill(tx, state, batch)
        if not batch.read_to:
            _end(tx, locked_run, "end_turn")
            return None
        batch.is_last = batch.is_last and len(marks) == len(batch.marks)
        if batch.lines:
            if batch.is_numbered:
                _add_newer(tx, state, batch)
            return batch
        for mark in batch.marks:  # all texts were written by the server
            if mark.conversation_id in batch.read_to:
                sleep_queries.read(tx, mark, batch.read_to[mark.conversation_id])


def _fill(tx: Transaction, state: AgentState, batch: Batch) -> None:
    """Fill the batch as far as the transcript and the agent's window have room."""
    room = _room(state)
    remaining = room
    number = 0
    for mark in batch.marks:
        for message in messages.between(
            tx, mark.conversation_id, mark.read_to, mark.said_to, MOST_MESSAGES + 1
        ):
            lines = [shortened(line, room) for line in batch.lines_of(message)]
            tokens = sum(map(text_tokens, lines))
            if number == MOST_MESSAGES or (tokens > remaining and batch.lines):
                batch.is_last = False
                return
            remaining -= tokens
            number += 1
            batch.lines += lines
            batch.count += bool(lines)
            batch.first_seq = batch.first_seq or message.seq
            batch.is_untrusted |= message.is_untrusted
            batch.egress = join(batch.egress, message.egress)
            batch.read_to[mark.conversation_id] = message.seq
        # The last messages up to `said_to` may have been deleted, so nothing more is left to read.
        batch.read_to[mark.conversation_id] = mark.said_to


def _add_newer(tx: Transaction, state: AgentState, batch: Batch) -> None:
    """Add the messages that the manager has in view.

    If there is little room, the newest are preferred.
    """
    (mark,) = batch.marks
    conversation = conversations.get(tx, mark.conversation_id)
    remaining = _room(state)
    for message in reversed(messages.by_ids(tx, conversation.window[1:]) if conversation else []):
        if message.seq > mark.said_to:
            lines = batch.lines_of(message)
        else:
            lines = []
        remaining -= sum(map(text_tokens, lines))
        if remaining < 0:
            return
        batch.newer = [*lines, *batch.newer]
        batch.is_untrusted |= bool(lines) and message.is_untrusted
        if lines:
            batch.egress = join(batch.egress, message.egress)


def _room(state: AgentState) -> int:
    """Return how many tokens a transcript may take in the agent's window."""
    return max(_LEAST_TOKENS, state.agent.context_window // _WINDOW_SHARE)


async def _finish(runtime: Runtime, transcript: Transcript) -> None:
    """Finish the work on an open transcript.

    Its run was interrupted or failed, or its outcome was not stored.
    """

    def look(tx: Transaction) -> tuple[Scope | None, Run | None, Message | None]:
        scope = _scope(tx, transcript.organization_id, transcript.user_id)
        run = runs.find(tx, Scope(transcript.organization_id), transcript.run_id or "")
        if run:
            stored_messages = messages.by_otids(tx, run.conversation_id, [transcript.id])
        else:
            stored_messages = []
        return scope, run, next(iter(stored_messages), None)

    scope, run, sent_message = await runtime.store.read(look)
    if scope is None or run is None or sent_message is None:
        await runtime.store.write(lambda tx: _close(tx, transcript, "failed"))
    elif run.status in ("completed", "cancelled"):
        await runtime.store.write(lambda tx: _close(tx, transcript, "done"))
    elif (is_open := run.ended_at is None or was_cut_off(run)) or not _is_hopeless(run, transcript):
        # The message of an interrupted run is sent again unchanged. After a failure the agent
        # already has it in view, so the work only has to be finished.
        parts = sent_message.parts
        otid = sent_message.otid
        if transcript.attempts or not is_open:
            parts = (go_on_event(),)
            otid = f"{transcript.id}:{transcript.attempts}"
        message = NewMessage(
            "user",
            parts,
            otid,
            group_id=transcript.group_id,
            is_untrusted=sent_message.is_untrusted,
            egress=sent_message.egress,
        )
        await _work(runtime, scope, transcript, message)
    else:
        await runtime.store.write(lambda tx: _close(tx, transcript, "failed"))


def _is_hopeless(run: Run, transcript: Transcript) -> bool:
    return transcript.attempts >= _ATTEMPTS or (run.error or {}).get("type") in _REFUSED


async def _work(
    runtime: Runtime,
    scope: Scope,
    transcript: Transcript,
    message: NewMessage,
    *,
    planned_run: str | None = None,
    batch: Batch | None = None,
) -> None:
    """Run the sleeptime agent on a transcript.

    Raises Busy, Unavailable, and ModelError if the model failed.
    """

    def also_save(tx: Transaction, run: Run, _messages: Sequence[Message]) -> None:
        if run.ended_at is None:
            _begin(tx, replace(transcript, run_id=run.id, created_at=tx.clock.now()), batch)
        elif run.status != "failed":
            _close(tx, replace(transcript, run_id=run.id), "done")

    request = TurnRequest(
        scope=scope,
        agent_id=transcript.agent_id,
        messages=(message,),
        delivery=TurnDelivery(
            is_background=True, purpose=PURPOSE, also_save=also_save, planned_run=planned_run
        ),
    )
    answer = await collect_for_job(await run_turn(runtime, request), "the work on this transcript")
    await _note_outcome(runtime, replace(transcript, run_id=answer.run.id), answer)


async def _note_outcome(runtime: Runtime, transcript: Transcript, answer: Answer) -> None:
    """Store the outcome of the work on a transcript.

    Raises ModelError if the work has to be repeated.
    """
    if answer.run.status != "failed":
        await runtime.store.write(lambda tx: _close(tx, transcript, "done"))
        return
    failed = replace(transcript, attempts=transcript.attempts + 1)
    if _is_hopeless(answer.run, failed):
        await runtime.store.write(lambda tx: _close(tx, failed, "failed"))
        return
    await runtime.store.write(lambda tx: sleep_queries.save_transcript(tx, failed))
    raise ModelError(
        "llm_error",
        answer.failure.message[:500]
        if answer.failure
        else "The turn of the sleeptime agent failed.",
    )


def _begin(tx: Transaction, transcript: Transcript, batch: Batch | None) -> None:
    """Store a transcript with its run, and move the marks.

    Raises LeaseLost if another server has moved them.
    """
    if batch is None:
        sleep_queries.save_transcript(tx, transcript)
        return
    marks = {
        mark.conversation_id: mark
        for mark in sleep_queries.unread(
            tx, transcript.group_id, transcript.agent_id, transcript.user_id
        )
    }
    for mark in batch.marks:
        if mark.conversation_id in batch.read_to:
            current = marks.get(mark.conversation_id)
            if current is None or current.read_to != mark.read_to:
                raise LeaseLost("Another server has made a transcript of these messages.")
            sleep_queries.read(tx, mark, batch.read_to[mark.conversation_id])
    sleep_queries.insert_transcript(tx, transcript)


def _close(tx: Transaction, transcript: Transcript, status: sleep_queries.TranscriptStatus) -> None:
    sleep_queries.save_transcript(tx, replace(transcript, status=status, ended_at=tx.clock.now()))


def _end(tx: Transaction, planned: Run, reason: StopReason) -> None:
    """End a planned run that has nothing to do."""
    if planned.lease_token is None:
        runs.end(tx, planned.ended(reason, tx.clock.now()))


def _scope(tx: Transaction, organization_id: str, user_id: str | None) -> Scope | None:
    """Return the scope for work on this user's messages.

    None means that this work is no longer allowed.
    """
    if user_id is None:
        return Scope(organization_id)
    user = users.find(tx, Scope(organization_id), user_id)
    if user is None or user.disabled_at is not None:
        return None
    return background_scope(user, "sleeptime")


async def sweep(runtime: Runtime, _job: Job, _report: Report) -> None:
    """Add jobs again for sleeptime agents whose planned runs wait.

    Their earlier jobs may have used up all attempts.

    Args:
        runtime: The running server.
        _job: The periodic job; it is not used.
        _report: Not used.
    """

    def look(tx: Transaction) -> None:
        for organization_id, agent_id in runs.agents_with_planned(
            tx, PURPOSE, tx.clock.now() - _FORGOTTEN
        ):
            add_job(tx, organization_id, agent_id)

    await runtime.store.write(look)


HANDLERS = (JobHandler(KIND, carry_out), JobHandler(SWEEP, sweep, every_seconds=_SWEEP_SECONDS))
