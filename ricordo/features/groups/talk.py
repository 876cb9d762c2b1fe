"""A talk with a group: a run whose work is the turns of several agents, one after the other.

    run_talk → start_talk (lease, plan, input) → Talk (whose turn it is, what they are told) → run_turn for each speaker

Each turn is a run of its own in the speaker's conversation with the user. The otids of what a speaker is told follow from the talk,
so a talk that is begun again after a kill finds the turns that were made, and makes the rest.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ricordo.agents.repeats import was_cut_off
from ricordo.agents.request import NewMessage, TurnRequest
from ricordo.agents.run_end import add_callback, close_run
from ricordo.agents.turn import LiveRun, PartFailed, PastTurn, answer_of
from ricordo.domain.event import (
    ApprovalAsked,
    Compacted,
    Event,
    Failed,
    MessageRestarted,
    ReasoningDelta,
    RunEnded,
    RunStarted,
    StepSaved,
    TextDelta,
    ToolCallDelta,
    ToolProgress,
)
from ricordo.domain.message import EventPart, Message, TextPart
from ricordo.domain.run import Run, StopReason
from ricordo.domain.scope import Scope
from ricordo.errors import Busy, Conflict, Invalid, LeaseLost, NotFound, RicordoError, Unavailable
from ricordo.features.groups.agent_calls import begin_when_free
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
    TalkRecord,
    Told,
    Utterance,
    add_delivery,
    deliver,
    told_in,
    with_totals,
    words_of,
)
from ricordo.features.groups.talk_start import StartedTalk, start_talk
from ricordo.features.groups.talk_tool import ASK_ALL, SUPERVISED, SUPERVISOR_RULES, ask_all
from ricordo.runtime import LiveTurn, Runtime
from ricordo.storage import conversations, runs
from ricordo.storage.engine.store import Transaction

log = logging.getLogger(__name__)
# So long a talk waits for a member that answers somebody else.
_PATIENCE = 120.0
_GO_ON = "Nobody has said anything since. Go on."


async def run_talk(runtime: Runtime, group_id: str, request: TurnRequest) -> LiveTurn:
    """Begin a talk with the group and return it, as `run_turn` does a turn.

    The request names the group's leader and the conversation of talks (see `talk_conversation`). Raises NotFound, Busy,
    Conflict, Invalid.
    """
    if not (request.messages or request.approval) or not all(
        message.parts for message in request.messages
    ):
        raise Invalid("There is no message to answer. Send at least one, with some content.")
    if runtime.is_stopping:
        raise Unavailable("The server is shutting down. Send the message again in a moment.")
    # Once the run is stored it has to be driven, also when the caller leaves at this very moment.
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
    """A speaker waits for an approval, and so does the talk."""


class _OutOfTurns(Exception):
    """The talk had as many turns as one request may lead to."""


@dataclass(slots=True)
class _TurnEnd:
    """How a turn of the talk ended, and what was said in it."""

    agent_id: str
    words: Sequence[Utterance] = ()

    @property
    def text(self) -> str:
        return "\n".join(
            part.text
            for one in self.words
            for part in one.message.parts
            if isinstance(part, TextPart)
        )


class Talk(LiveRun):
    """A talk of this process."""

    def __init__(self, runtime: Runtime, started: StartedTalk) -> None:
        super().__init__(runtime, started.run, self._talk)
        self._request = started.request
        self._leftover = started.leftover
        self._record: TalkRecord = started.record
        self._plan = started.record.plan
        self._told = Told()
        self._number = 0
        self._last: _TurnEnd | None = None
        self._notes: list[str] = []
        self._most = GroupSettings.current().group_turns

    @property
    def scope(self) -> Scope:
        return self._request.scope

    async def _talk(self) -> AsyncIterator[Event]:
        if self._leftover:
            await deliver(self._runtime, self._request.scope, self._leftover)
        record = self._record
        run_id = self._run.id
        self._told = await self._runtime.store.read(
            lambda tx: told_in(tx, record, run_id, has_turns=False)
        )
        if record.before:
            last = record.before[-1]
            words = await self._runtime.store.read(lambda tx: words_of(tx, record.plan, last))
            self._last = _TurnEnd(last.agent_id, words)
        reason: StopReason = "end_turn"
        try:
            async for event in self._turns():
                yield event
        except _Paused:
            reason = "requires_approval"
        except _OutOfTurns:
            reason = "max_steps"
        busy = await self._deliver() if reason != "requires_approval" else []
        yield RunEnded(
            await self._runtime.store.write(
                lambda tx: self._finish(tx, reason, has_busy=bool(busy))
            )
        )

    async def _turns(self) -> AsyncIterator[Event]:
        """Take the turns of the talk, first the rest of one that waited."""
        if self._request.approval:
            last = self._record.before[-1]
            speaker = self._speaker(last.agent_id)
            beside = self._told.missing(speaker.id) if self._request.messages else []
            more = self._options(speaker) | {"approval": self._request.approval}
            async for event in self._turn(speaker, "resumed", beside, **more):
                yield event
        kinds = {
            "round_robin": self._round_robin,
            "dynamic": self._dynamic,
            "supervisor": self._supervisor,
        }
        async for event in kinds[self._plan.kind]():
            yield event

    async def _round_robin(self) -> AsyncIterator[Event]:
        members = self._plan.members
        for place in range(self._spoken(), self._plan.rounds):
            async for event in self._speak(members[place % len(members)]):
                yield event

    async def _dynamic(self) -> AsyncIterator[Event]:
        plan = self._plan
        for _ in range(self._spoken(), plan.rounds):
            if self._is_over():
                return
            last = self._last_speaker()
            # A manager that waited for an approval has answered already.
            if self._last is None or plan.manager is None or self._last.agent_id != plan.manager.id:
                async for event in self._ask_manager(last, is_again=False):
                    yield event
            speaker = named_member(self._last_text(), plan.members, last)
            if speaker is None and len(plan.members) > 1:
                async for event in self._ask_manager(last, is_again=True):
                    yield event
                speaker = named_member(self._last_text(), plan.members, last)
            if speaker is None:
                speaker = next_in_order(plan.members, last)
                self._notes.append(
                    f"The manager named nobody, so {speaker.name} spoke as the next in order."
                )
                log.info(
                    "the manager of a group named nobody",
                    extra={"run": self._run.id, "agent": speaker.id},
                )
            async for event in self._speak(speaker):
                yield event

    async def _supervisor(self) -> AsyncIterator[Event]:
        if self._record.before or self._plan.manager is None:
            return  # its turn went on, and is over
        if len(self._plan.members) >= self._most:
            raise Invalid(
                f"The group has {len(self._plan.members)} members, and one message may lead to {self._most} turns at most "
                "(RICORDO_GROUP_TURNS)."
            )
        said = self._told.missing(self._plan.manager.id)
        async for event in self._turn(
            self._plan.manager, "manager", said, **self._options(self._plan.manager)
        ):
            yield event

    async def _speak(self, member: Speaker) -> AsyncIterator[Event]:
        """Let a member take its turn, and tell it what was said since its last one."""
        said = self._told.missing(member.id)
        if not said:
            said = [
                NewMessage(
                    "user", (EventPart(_GO_ON),), otid=self._otid(), group_id=self._plan.group_id
                )
            ]
        async for event in self._turn(member, "speaker", said, **self._options(member)):
            yield event

    async def _ask_manager(self, last_id: str | None, *, is_again: bool) -> AsyncIterator[Event]:
        """Ask the manager of a dynamic group who speaks next."""
        manager = self._plan.manager
        if manager is None:
            return
        members = self._plan.members
        names = [one.name for one in members if one.id != last_id or len(members) == 1]
        text = question_again(names) if is_again else question_for_manager(names, self._lines())
        asked = NewMessage(
            "user",
            (TextPart(text),),
            otid=self._otid(),
            sender_id=manager.id,
            group_id=self._plan.group_id,
        )
        async for event in self._turn(manager, "manager", [asked], **self._options(manager)):
            yield event

    async def _turn(
        self, speaker: Speaker, kind: EntryKind, said: Sequence[NewMessage], **options: Any
    ) -> AsyncIterator[Event]:
        """Take one turn and yield its events as the talk's. Raises PartFailed, _Paused and _OutOfTurns."""
        number = self._number
        entry = Entry(speaker.id, kind)
        if number >= self._most:
            raise _OutOfTurns
        self._number += 1
        request = self.request_for(
            speaker, said, lambda record, run_id: record.with_run(number, entry, run_id), **options
        )
        ended: RunEnded | Failed | None = None
        turn = await self.begin(request)
        try:
            async with aclosing(turn.events()) as events:
                async for event in events:
                    if isinstance(event, RunEnded | Failed):
                        ended = event
                    elif not isinstance(event, RunStarted):
                        yield self._as_own(event, speaker)
        except asyncio.CancelledError:
            await turn.cancel()
            raise
        if ended is None:
            raise RuntimeError("A turn's events ended without RunEnded or Failed.")
        await self._note_end(number)
        if isinstance(ended, Failed) or ended.run.status == "cancelled":
            raise PartFailed(ended)
        if ended.run.stop_reason == "requires_approval":
            raise _Paused

    async def _note_end(self, number: int) -> None:
        """Read what was said in the turn of this number."""

        def read(tx: Transaction) -> tuple[TalkRecord, list[Utterance]]:
            record = TalkRecord.from_json(runs.get(tx, self._request.scope, self._run.id).metadata)
            return record, words_of(tx, record.plan, record.turns[number])

        self._record, words = await self._runtime.store.read(read)
        self._told.add_turn(self._plan, self._record.turns[number], words)
        self._last = _TurnEnd(self._record.turns[number].agent_id, words)

    def request_for(
        self,
        speaker: Speaker,
        said: Sequence[NewMessage],
        note: Callable[[TalkRecord, str], TalkRecord],
        **options: Any,
    ) -> TurnRequest:
        """Return a turn of this talk; `note` puts its run into the talk's record, in the transaction that starts it."""

        def also_save(tx: Transaction, run: Run, _messages: Sequence[Message]) -> None:
            if run.ended_at is not None:
                return
            talk = self._noting_run(tx, is_asked=options.get("callers") is not None)
            record = note(TalkRecord.from_json(talk.metadata), run.id)
            runs.save_metadata(tx, replace(talk, metadata=record.to_json()))

        asked = self._request
        return TurnRequest(
            scope=asked.scope,
            agent_id=speaker.id,
            messages=tuple(said),
            max_steps=asked.max_steps,
            streams_tokens=asked.streams_tokens,
            client_tools=asked.client_tools,
            client_skills=asked.client_skills,
            model=asked.model,
            metadata={
                "group_id": self._plan.group_id,
                "speaker": speaker.name,
                "talk_id": self._run.id,
            },
            also_save=also_save,
            **options,
        )

    def _noting_run(self, tx: Transaction, *, is_asked: bool) -> Run:
        """Return the run that a turn is noted in. Raises LeaseLost: a talk that was ended, or taken over, lets nobody speak.

        Whom a supervisor asks may answer after that all the same: its turn lives on, and the talk that goes on takes it as it
        ends. Nobody is asked twice, as the otids of what is asked follow from the talk.
        """
        talk = runs.lock(tx, self._run.id)
        if talk and is_asked and was_cut_off(talk):
            heirs = runs.open_runs(tx, conversation_id=talk.conversation_id)
            heir = next(
                (one for one in heirs if one.metadata.get("plan", {}).get("key") == self._plan.key),
                talk,
            )
            return runs.lock(tx, heir.id) or talk
        if talk is None or talk.ended_at is not None or talk.lease_token != self._run.lease_token:
            raise LeaseLost(f"{self._run.id} was ended by someone else.")
        return talk

    async def begin(self, request: TurnRequest) -> LiveTurn:
        """Begin a turn, once its agent has answered whoever it answers now."""
        until = time.monotonic() + _PATIENCE

        def wait_while_patient(busy: Busy) -> None:
            if time.monotonic() >= until:
                raise busy

        try:
            return await begin_when_free(self._runtime, request, wait_while_patient)
        except Unavailable:
            if self._runtime.is_stopping:
                raise asyncio.CancelledError from None  # it goes on when it is sent again
            raise

    def _as_own(self, event: Event, speaker: Speaker) -> Event:
        """Return the event of a turn as one of the talk, by which its stream can be found again."""
        run_id = self._run.id
        match event:
            case StepSaved():
                return replace(
                    event,
                    run_id=run_id,
                    messages=tuple(replace(one, run_id=run_id) for one in event.messages),
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

    def _options(self, speaker: Speaker) -> dict[str, Any]:
        """Return what a speaker is told of the group, and the tool of a supervisor."""
        plan = self._plan
        if plan.manager is None or speaker.id != plan.manager.id:
            return {"instructions": member_instructions(plan, speaker)}
        if plan.kind == "dynamic":
            return {"instructions": manager_instructions(plan)}
        # The turn's task is made in this context, and the tool finds in it whom it asks for.
        SUPERVISED.set(partial(ask_all, self, plan))
        return {
            "instructions": supervisor_instructions(plan),
            "added_tools": (ASK_ALL,),
            "added_rules": SUPERVISOR_RULES,
        }

    def _speaker(self, agent_id: str) -> Speaker:
        return next(one for one in self._plan.everyone if one.id == agent_id)

    def _spoken(self) -> int:
        return sum(entry.kind == "speaker" for entry in self._record.before)

    def _last_speaker(self) -> str | None:
        """Return the id of the member who spoke last in this talk."""
        manager_id = self._plan.manager and self._plan.manager.id
        done = (*self._record.before, *self._record.turns[: self._number])
        return next(
            (entry.agent_id for entry in reversed(done) if entry.agent_id != manager_id), None
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
        """Return the talk so far as lines: who said it, and what."""
        return [
            (
                (one.message.name or "user") if one.speaker_id else "user",
                "\n".join(part.text for part in one.message.parts if isinstance(part, TextPart)),
            )
            for one in self._told.said
        ]

    def _otid(self) -> str:
        """Return the otid of what the talk itself says in its next turn."""
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
        ended = self._counted(tx, talk).ended(reason, tx.clock.now())
        runs.save(tx, replace(ended, lease_token=self._run.lease_token))
        runs.save_metadata(tx, ended)
        add_callback(tx, ended)
        if has_busy:
            add_delivery(tx, ended)
        conversations.save_window(
            tx, ended.conversation_id, (), "", added=len(self._request.messages), ended=ended
        )
        return ended

    def _counted(self, tx: Transaction, talk: Run) -> Run:
        record = replace(TalkRecord.from_json(talk.metadata), notes=tuple(self._notes))
        return with_totals(tx, talk, record)

    def _is_callers_error(self, error: RicordoError) -> bool:
        return isinstance(error, Invalid | Conflict | NotFound)

    async def _after_close(self, run: Run) -> None:
        # A talk that was cut off, or taken over by another server, tells its members itself what they have not heard.
        if was_cut_off(run):
            return
        try:
            if await self._deliver():
                await self._runtime.store.write(lambda tx: add_delivery(tx, self._run))
        except RicordoError as error:
            log.warning(
                "a talk could not be told to its members",
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
