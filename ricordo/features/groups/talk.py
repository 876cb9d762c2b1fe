"""A talk with a group: a run that consists of turns of several agents.

    run_talk → start_talk (lease, plan, input) → Talk (order of speakers) → run_turn for each

Each turn is a separate run in the speaker's conversation with the user. The otids of its messages
are derived from the talk. So a talk that starts again after a kill finds the finished turns, and
runs the others.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ricordo.agents.deferred import begin_when_free
from ricordo.agents.repeats import was_cut_off
from ricordo.agents.request import (
    Approval,
    NewMessage,
    TurnDelivery,
    TurnOverrides,
    TurnRequest,
)
from ricordo.agents.run_end import add_callback, close_run
from ricordo.agents.turn import LiveRun, PartFailed, PastTurn, answer_of
from ricordo.domain.egress import join
from ricordo.domain.event import (
    ApprovalAsked,
    Compacted,
    Event,
    Failed,
    MessageRestarted,
    ReasoningDelta,
    RunEnded,
    RunStarted,
    SpeakerFailed,
    StepSaved,
    TextDelta,
    ToolCallDelta,
    ToolProgress,
)
from ricordo.domain.message import EventPart, Message, TextPart
from ricordo.domain.run import INTERRUPTED, Run, StopReason
from ricordo.domain.scope import Scope
from ricordo.errors import (
    Busy,
    Conflict,
    DatabaseFailed,
    Invalid,
    LeaseLost,
    ModelError,
    NotFound,
    RicordoError,
    Unavailable,
)
from ricordo.features.groups.options import GroupSettings
from ricordo.features.groups.talk_plan import Entry, EntryKind, Speaker, named_member, next_in_order
from ricordo.features.groups.talk_prompts import (
    manager_instructions,
    member_instructions,
    question_again,
    question_for_manager,
    supervisor_instructions,
)
from ricordo.features.groups.talk_record import (
    TalkHistory,
    TalkRecord,
    Utterance,
    add_delivery,
    deliver,
    history_of_talk,
    utterances_of,
    with_totals,
)
from ricordo.features.groups.talk_start import StartedTalk, start_talk
from ricordo.features.groups.talk_tool import ASK_ALL, SUPERVISED, SUPERVISOR_RULES, ask_all
from ricordo.runtime import LiveTurn, Runtime
from ricordo.storage import conversations, runs
from ricordo.storage.engine.store import Transaction

log = logging.getLogger(__name__)
# Seconds that a talk waits for a member that is busy elsewhere.
_PATIENCE = 120.0
_GO_ON = "Nobody has said anything since. Continue."


async def run_talk(runtime: Runtime, group_id: str, request: TurnRequest) -> LiveTurn:
    """Start a talk with the group and return it.

    Args:
        runtime: The running server.
        group_id: The group.
        request: The messages or the approval. It names the group's leader and the conversation of
            talks (see `talk_conversation`).

    Raises:
        NotFound: if the caller may not use all agents of the group.
        Invalid: without a message, or if the group cannot talk.
        Conflict: while a member waits for an approval.
        Busy: while another talk of this user with the group runs.
        Unavailable: while the server shuts down.
    """
    if not (request.messages or request.approval) or not all(
        message.parts for message in request.messages
    ):
        raise Invalid("There is no message to answer. Send at least one that has content.")
    if runtime.is_stopping:
        raise Unavailable("The server is shutting down. Send the message again in a moment.")
    # Once the run is stored it must be carried out, even if the caller is cancelled now.
    return await asyncio.shield(asyncio.ensure_future(_begin_talk(runtime, group_id, request)))


async def _begin_talk(runtime: Runtime, group_id: str, request: TurnRequest) -> LiveTurn:
    started = await start_talk(runtime, group_id, request)
    if isinstance(started, str):
        again = partial(run_talk, runtime, group_id, request)
        return runtime.live.get(started) or PastTurn(runtime, request.scope, started, again)
    talk = Talk(runtime, started)
    talk.start()
    return talk


class _Paused(Exception):
    """The talk waits for an approval in the turn of a speaker."""


class _OutOfTurns(Exception):
    """The talk reached the limit of turns of one request."""


def _ends_talk(error: PartFailed | RicordoError) -> bool:
    """Return whether the talk ends with this failure of a member, and not only the member's turn.

    A cancelled turn, a stopped server and a failed database end the talk.
    """
    if isinstance(error, PartFailed):
        event = error.end_event
        return not isinstance(event, Failed) or event.kind == INTERRUPTED
    return isinstance(error, LeaseLost | DatabaseFailed)


def _reason_of(error: PartFailed | RicordoError) -> tuple[str, str]:
    """Return the error's type on the wire, and its sentence."""
    if isinstance(error, PartFailed) and isinstance(error.end_event, Failed):
        return error.end_event.kind, error.end_event.message
    if isinstance(error, ModelError):
        return error.kind, str(error)
    return "internal_error", str(error)


@dataclass(slots=True)
class _TurnEnd:
    """The end of a turn in the talk, with the texts of the turn."""

    agent_id: str
    utterances: Sequence[Utterance] = ()

    @property
    def text(self) -> str:
        return "\n".join(
            part.text
            for utterance in self.utterances
            for part in utterance.message.parts
            if isinstance(part, TextPart)
        )


class Talk(LiveRun):
    """A talk that runs in this process."""

    def __init__(self, runtime: Runtime, started: StartedTalk) -> None:
        super().__init__(runtime, started.run, self._talk)
        self._request = started.request
        self._leftover = started.leftover
        self._record: TalkRecord = started.record
        self._plan = started.record.plan
        self._history = TalkHistory()
        self._number = 0
        self._last: _TurnEnd | None = None
        self._notes: list[str] = []
        # The first failure of a member, until one of them answers.
        self._failure: PartFailed | RicordoError | None = None
        self._has_answer = False
        self._is_manager_silent = False
        self._most_turns = GroupSettings.current().group_turns

    @property
    def scope(self) -> Scope:
        return self._request.scope

    async def _talk(self) -> AsyncIterator[Event]:
        if self._leftover:
            await deliver(self._runtime, self._request.scope, self._leftover)
        record = self._record
        run_id = self._run.id
        self._history = await self._runtime.store.read(
            lambda tx: history_of_talk(tx, record, run_id, has_turns=False)
        )
        if record.before:
            last = record.before[-1]
            utterances = await self._runtime.store.read(
                lambda tx: utterances_of(tx, record.plan, last)
            )
            self._last = _TurnEnd(last.agent_id, utterances)
        reason: StopReason = "end_turn"
        try:
            async for event in self._turns():
                yield event
        except _Paused:
            reason = "requires_approval"
        except _OutOfTurns:
            reason = "max_steps"
        if reason != "requires_approval":
            busy = await self._deliver()
        else:
            busy = []
        yield RunEnded(
            await self._runtime.store.write(
                lambda tx: self._finish(tx, reason, has_busy=bool(busy))
            )
        )

    async def _turns(self) -> AsyncIterator[Event]:
        """Run the turns of the talk; a turn that waited for an approval is finished first."""
        if self._request.approval:
            last = self._record.before[-1]
            speaker = self._speaker(last.agent_id)
            if self._request.messages:
                new_messages = self._history.missing(speaker.id)
            else:
                new_messages = []
            async for event in self._turn_or_failure(
                speaker, "resumed", new_messages, approval=self._request.approval
            ):
                yield event
        kinds = {
            "round_robin": self._round_robin,
            "dynamic": self._dynamic,
            "supervisor": self._supervisor,
        }
        async for event in kinds[self._plan.kind]():
            yield event
        if self._failure and not self._has_answer:
            raise self._failure

    async def _round_robin(self) -> AsyncIterator[Event]:
        members = self._plan.members
        for number in range(self._count_spoken(), self._plan.rounds):
            async for event in self._speak(members[number % len(members)]):
                yield event

    async def _dynamic(self) -> AsyncIterator[Event]:
        plan = self._plan
        for _ in range(self._count_spoken(), plan.rounds):
            if self._is_over():
                return
            last = self._last_speaker()
            # A member does not speak twice in a row, unless it is the only one.
            excluded = last if len(plan.members) > 1 else None
            # A manager that waited for an approval has already answered.
            if self._last is None or plan.manager is None or self._last.agent_id != plan.manager.id:
                async for event in self._ask_manager(last, is_again=False):
                    yield event
            speaker = self._named_speaker(excluded)
            if speaker is None and len(plan.members) > 1:
                async for event in self._ask_manager(last, is_again=True):
                    yield event
                speaker = self._named_speaker(excluded)
            if speaker is None:
                speaker = next_in_order(plan.members, last)
                self._notes.append(
                    f"The manager named no member who may speak next, so {speaker.name} spoke by the "
                    "order of members."
                )
                log.info(
                    "the manager of a group named no member",
                    extra={"run": self._run.id, "agent": speaker.id},
                )
            async for event in self._speak(speaker):
                yield event

    def _named_speaker(self, excluded: str | None) -> Speaker | None:
        if self._is_manager_silent:
            return None  # the last text is a member's
        return named_member(self._last_text(), self._plan.members, excluded)

    async def _supervisor(self) -> AsyncIterator[Event]:
        if self._record.before or self._plan.manager is None:
            return  # the supervisor's turn was resumed and has ended
        if len(self._plan.members) >= self._most_turns:
            raise Invalid(
                f"The group has {len(self._plan.members)} members and a supervisor, but one message "
                f"may start at most {self._most_turns} turns (RICORDO_GROUP_TURNS)."
            )
        new_messages = self._history.missing(self._plan.manager.id)
        async for event in self._turn(self._plan.manager, "manager", new_messages):
            yield event

    async def _speak(self, member: Speaker) -> AsyncIterator[Event]:
        """Let a member take its turn; it gets the messages since its previous turn."""
        new_messages = self._history.missing(member.id)
        if not new_messages:
            new_messages = [
                NewMessage(
                    "user", (EventPart(_GO_ON),), otid=self._otid(), group_id=self._plan.group_id
                )
            ]
        async for event in self._turn_or_failure(member, "speaker", new_messages):
            yield event

    async def _ask_manager(self, last_id: str | None, *, is_again: bool) -> AsyncIterator[Event]:
        """Ask the manager of a dynamic group for the next speaker.

        A manager that has failed in this talk is not asked again.
        """
        manager = self._plan.manager
        if manager is None or self._is_manager_silent:
            return
        members = self._plan.members
        names = [member.name for member in members if member.id != last_id or len(members) == 1]
        if is_again:
            text = question_again(names)
        else:
            text = question_for_manager(names, self._lines())
        question = NewMessage(
            "user",
            (TextPart(text),),
            otid=self._otid(),
            sender_id=manager.id,
            group_id=self._plan.group_id,
            egress=join(*(entry.message.egress for entry in self._history.utterances)),
        )
        async for event in self._turn_or_failure(manager, "manager", [question]):
            yield event

    async def _turn_or_failure(
        self,
        speaker: Speaker,
        kind: EntryKind,
        new_messages: Sequence[NewMessage],
        *,
        approval: Approval | None = None,
    ) -> AsyncIterator[Event]:
        """Take one turn; if only its speaker fails, report that, so that the others go on.

        Raises what `_turn` raises, and failures that end the talk.
        """
        number = self._number
        try:
            async for event in self._turn(speaker, kind, new_messages, approval=approval):
                yield event
            self._has_answer |= kind != "manager"
        except (PartFailed, RicordoError) as error:
            has_run = len(self._record.turns) > number
            if _ends_talk(error) or (kind == "resumed" and not has_run):
                raise
            if not has_run:
                await self._note_missing_run(number, Entry(speaker.id, kind))
            if kind == "manager":
                self._is_manager_silent = True
            else:
                self._failure = self._failure or error
            error_type, reason = _reason_of(error)
            self._notes.append(f"{speaker.name} did not answer: {reason}")
            yield SpeakerFailed(self._run.id, speaker.name, error_type, reason)

    async def _note_missing_run(self, number: int, entry: Entry) -> None:
        """Record a turn that could not begin, so that later turns keep their numbers."""

        def save(tx: Transaction) -> TalkRecord:
            talk = self._noting_run(tx, is_asked=False)
            record = TalkRecord.from_json(talk.metadata)
            if number == len(record.turns):
                record = replace(record, turns=(*record.turns, entry))
                runs.save_metadata(tx, replace(talk, metadata=record.to_json()))
            return record

        self._record = await self._runtime.store.write(save)
        self._last = _TurnEnd(entry.agent_id)

    async def _turn(
        self,
        speaker: Speaker,
        kind: EntryKind,
        new_messages: Sequence[NewMessage],
        *,
        approval: Approval | None = None,
    ) -> AsyncIterator[Event]:
        """Take one turn, and yield its events as events of the talk.

        Raises PartFailed, _Paused and _OutOfTurns.
        """
        number = self._number
        entry = Entry(speaker.id, kind)
        if number >= self._most_turns:
            raise _OutOfTurns
        self._number += 1
        request = self.request_for(
            speaker,
            new_messages,
            lambda record, run_id: record.with_run(number, entry, run_id),
            overrides=self._overrides(speaker),
            approval=approval,
        )
        last_event: RunEnded | Failed | None = None
        turn = await self.begin(request)
        try:
            async with aclosing(turn.events()) as events:
                async for event in events:
                    if isinstance(event, RunEnded | Failed):
                        last_event = event
                    elif not isinstance(event, RunStarted):
                        yield self._as_own(event, speaker)
        except asyncio.CancelledError:
            await turn.cancel()
            raise
        if last_event is None:
            raise RuntimeError("A turn's events ended without RunEnded or Failed.")
        await self._note_end(number)
        if isinstance(last_event, Failed) or last_event.run.status == "cancelled":
            raise PartFailed(last_event)
        if last_event.run.stop_reason == "requires_approval":
            raise _Paused

    async def _note_end(self, number: int) -> None:
        """Add the texts of the turn with this number to the history."""

        def read(tx: Transaction) -> tuple[TalkRecord, list[Utterance]]:
            record = TalkRecord.from_json(runs.get(tx, self._request.scope, self._run.id).metadata)
            return record, utterances_of(tx, record.plan, record.turns[number])

        self._record, utterances = await self._runtime.store.read(read)
        entry = self._record.turns[number]
        self._history.add_turn(self._plan, entry, utterances)
        self._last = _TurnEnd(entry.agent_id, utterances)

    def request_for(
        self,
        speaker: Speaker,
        new_messages: Sequence[NewMessage],
        note: Callable[[TalkRecord, str], TalkRecord],
        *,
        overrides: TurnOverrides,
        approval: Approval | None = None,
        callers: tuple[str, ...] = (),
    ) -> TurnRequest:
        """Return the request for a turn of this talk.

        Args:
            speaker: The agent that takes the turn.
            new_messages: The messages that it reads.
            note: A function of the talk's record and the id of the turn's run. It returns the
                record with this run, and is called in the transaction that starts the run.
            overrides: The settings of the turn.
            approval: The answer to waiting calls of the speaker, or None.
            callers: The agents that ask the speaker; there are none for a user's message.
        """

        def also_save(tx: Transaction, run: Run, _messages: Sequence[Message]) -> None:
            if run.ended_at is not None:
                return
            talk = self._noting_run(tx, is_asked=bool(callers))
            record = note(TalkRecord.from_json(talk.metadata), run.id)
            runs.save_metadata(tx, replace(talk, metadata=record.to_json()))

        return TurnRequest(
            scope=self._request.scope,
            agent_id=speaker.id,
            messages=tuple(new_messages),
            approval=approval,
            overrides=overrides,
            delivery=TurnDelivery(
                metadata={
                    "group_id": self._plan.group_id,
                    "speaker": speaker.name,
                    "talk_id": self._run.id,
                },
                also_save=also_save,
                callers=callers,
            ),
        )

    def _noting_run(self, tx: Transaction, *, is_asked: bool) -> Run:
        """Lock and return the run of the talk, which is to record this turn.

        A member that a supervisor asks may answer even if the talk is interrupted. The resumed talk
        then adopts that turn. No member is asked twice, because the otids of the questions are
        derived from the talk.

        Raises:
            LeaseLost: if the talk has ended or another server has resumed it.
        """
        talk = runs.lock(tx, self._run.id)
        if talk and is_asked and was_cut_off(talk):
            heirs = runs.open_runs(tx, conversation_id=talk.conversation_id)
            for heir in heirs:
                if heir.metadata.get("plan", {}).get("key") == self._plan.key:
                    return runs.lock(tx, heir.id) or talk
            return runs.lock(tx, talk.id) or talk
        if talk is None or talk.ended_at is not None or talk.lease_token != self._run.lease_token:
            raise LeaseLost(f"{self._run.id} was ended by someone else.")
        return talk

    async def begin(self, request: TurnRequest) -> LiveTurn:
        """Start a turn once its agent's present turn has ended.

        Args:
            request: The turn, from `request_for`.

        Raises:
            Busy: if the agent's conversation is still busy after `_PATIENCE`.
            LeaseLost: if the talk has ended meanwhile.
            RicordoError: if the turn cannot be started for another reason.
        """
        until = time.monotonic() + _PATIENCE

        def wait_while_patient(busy: Busy) -> None:
            if time.monotonic() >= until:
                raise busy

        try:
            return await begin_when_free(self._runtime, request, wait_while_patient)
        except Unavailable:
            if self._runtime.is_stopping:
                raise asyncio.CancelledError from None  # the client can send it again
            raise

    def _as_own(self, event: Event, speaker: Speaker) -> Event:
        """Return an event of a turn as an event of the talk.

        It gets the talk's run id, by which readers find its stream again.
        """
        run_id = self._run.id
        match event:
            case StepSaved():
                return replace(
                    event,
                    run_id=run_id,
                    messages=tuple(replace(message, run_id=run_id) for message in event.messages),
                )
            case ApprovalAsked():
                return replace(event, run_id=run_id, message=replace(event.message, run_id=run_id))
            case Compacted():
                return replace(event, run_id=run_id, summary=replace(event.summary, run_id=run_id))
            case TextDelta() | ReasoningDelta() | ToolCallDelta():
                return replace(event, run_id=run_id, speaker=speaker.name)
            case MessageRestarted() | ToolProgress():
                return replace(event, run_id=run_id)
        return event

    @property
    def members_overrides(self) -> TurnOverrides:
        """The settings of the request that apply to every turn of the talk."""
        overrides = self._request.overrides
        return TurnOverrides(
            model=overrides.model,
            max_steps=overrides.max_steps,
            client_tools=overrides.client_tools,
            client_skills=overrides.client_skills,
            streams_tokens=overrides.streams_tokens,
        )

    def _overrides(self, speaker: Speaker) -> TurnOverrides:
        """Return the talk's settings with a speaker's instructions and a supervisor's tool."""
        plan = self._plan
        if plan.manager is None or speaker.id != plan.manager.id:
            instructions = member_instructions(plan, speaker)
        elif plan.kind == "dynamic":
            instructions = manager_instructions(plan)
        else:
            # The turn's asyncio task inherits this variable, in which the tool finds the group.
            SUPERVISED.set(partial(ask_all, self, plan))
            return replace(
                self.members_overrides,
                instructions=supervisor_instructions(plan),
                added_tools=(ASK_ALL,),
                added_rules=SUPERVISOR_RULES,
            )
        return replace(self.members_overrides, instructions=instructions)

    def _speaker(self, agent_id: str) -> Speaker:
        return next(speaker for speaker in self._plan.everyone if speaker.id == agent_id)

    def _count_spoken(self) -> int:
        return sum(entry.kind == "speaker" for entry in self._record.before)

    def _last_speaker(self) -> str | None:
        """Return the id of the member that spoke last in this talk."""
        manager_id = self._plan.manager and self._plan.manager.id
        entries = (*self._record.before, *self._record.turns[: self._number])
        return next(
            (entry.agent_id for entry in reversed(entries) if entry.agent_id != manager_id), None
        )

    def _last_text(self) -> str:
        return self._last.text if self._last else ""

    def _is_over(self) -> bool:
        """Return whether the last speaker said the token that ends the talk."""
        token = self._plan.termination_token
        manager_id = self._plan.manager and self._plan.manager.id
        is_speaker = self._last is not None and self._last.agent_id != manager_id
        return bool(token) and is_speaker and str(token) in self._last_text()

    def _lines(self) -> list[tuple[str, str]]:
        """Return the texts of the talk so far, each with its speaker's name."""
        return [
            (
                (utterance.message.name or "user") if utterance.speaker_id else "user",
                "\n".join(
                    part.text for part in utterance.message.parts if isinstance(part, TextPart)
                ),
            )
            for utterance in self._history.utterances
        ]

    def _otid(self) -> str:
        """Return the otid of the message that the talk itself sends in its next turn."""
        return f"{self._plan.key}-{len(self._record.before) + self._number}"

    async def _deliver(self) -> list[str]:
        run = await self._runtime.store.read(
            lambda tx: runs.get(tx, self._request.scope, self._run.id)
        )
        return await deliver(self._runtime, self._request.scope, run)

    def _finish(self, tx: Transaction, reason: StopReason, *, has_busy: bool) -> Run:
        """End the run in this transaction. Raises LeaseLost."""
        talk = runs.lock(tx, self._run.id)
        if talk is None or talk.ended_at is not None:
            raise LeaseLost(f"{self._run.id} was ended by someone else.")
        ended_run = self._counted(tx, talk).ended(reason, tx.clock.now())
        runs.save(tx, replace(ended_run, lease_token=self._run.lease_token))
        runs.save_metadata(tx, ended_run)
        add_callback(tx, ended_run)
        if has_busy:
            add_delivery(tx, ended_run)
        conversations.save_window(
            tx,
            ended_run.conversation_id,
            (),
            "",
            added=len(self._request.messages),
            ended=ended_run,
        )
        return ended_run

    def _counted(self, tx: Transaction, talk: Run) -> Run:
        record = replace(TalkRecord.from_json(talk.metadata), notes=tuple(self._notes))
        return with_totals(tx, talk, record)

    def _is_callers_error(self, error: RicordoError) -> bool:
        return isinstance(error, Invalid | Conflict | NotFound)

    async def _after_close(self, run: Run) -> None:
        # A talk that was interrupted, or taken over by another server, delivers its messages after
        # it is resumed.
        if was_cut_off(run):
            return
        try:
            if await self._deliver():
                await self._runtime.store.write(lambda tx: add_delivery(tx, self._run))
        except RicordoError as error:
            log.warning(
                "a talk could not be sent to its members",
                extra={"run": self._run.id, "reason": error},
            )

    def _close_in(
        self, tx: Transaction, reason: StopReason, error: dict[str, Any] | None
    ) -> Run | None:
        talk = runs.lock(tx, self._run.id)
        if talk is not None and talk.ended_at is None:
            runs.save_metadata(tx, self._counted(tx, talk))
        return close_run(tx, self._run, reason, error)

    async def _read_saved(self) -> list[Message]:
        talk = await self._runtime.store.read(
            lambda tx: runs.get(tx, self._request.scope, self._run.id)
        )
        return await answer_of(self._runtime, talk)
