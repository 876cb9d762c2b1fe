"""What is stored of a talk: its run with the list of its turns, what was said in it, and how all hear of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ricordo.agents.conversations import DEFAULT, open_conversation
from ricordo.agents.hearing import store_heard
from ricordo.agents.repeats import was_cut_off
from ricordo.agents.request import NewMessage
from ricordo.api.models.messages import MessageFormat, message_responses
from ricordo.domain.ids import unique
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.message import Message, TextPart
from ricordo.domain.run import Run
from ricordo.domain.scope import Scope
from ricordo.domain.usage import Usage
from ricordo.errors import Busy, Invalid, NotFound
from ricordo.features.groups.talk_plan import Entry, Speaker, TalkPlan
from ricordo.runtime import Runtime
from ricordo.storage import jobs, messages, runs
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction

DELIVERY = "groups.deliver"
_MOST_ANSWERS = 20
_INPUT = ("user", "system", "assistant")
_SPOKEN = MessageFormat(types=frozenset(("assistant_message",)))


@dataclass(frozen=True, slots=True)
class Utterance:
    """Something that was said in a talk, as others hear it; `speaker_id` is None for what came with the request."""

    speaker_id: str | None
    message: NewMessage


@dataclass(frozen=True, slots=True)
class TalkRecord:
    """What a talk's run holds of it: the turns of this run, those of the runs before it, and whom a supervisor asked.

    A run that goes on after an approval names in `talks` the runs before it, each with the number of turns at its start; their
    turns are in `before`.
    """

    plan: TalkPlan
    turns: tuple[Entry, ...] = ()
    before: tuple[Entry, ...] = ()
    asked: tuple[Entry, ...] = ()
    talks: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def entries(self) -> tuple[Entry, ...]:
        return (*self.before, *self.turns)

    def to_json(self) -> dict[str, Any]:
        lists = {"turns": self.turns, "before": self.before, "asked": self.asked}
        stored: dict[str, Any] = {
            name: [entry.to_json() for entry in entries] for name, entries in lists.items()
        }
        return {
            "run_type": "group",
            "group_id": self.plan.group_id,
            "plan": self.plan.to_json(),
            **{name: entries for name, entries in stored.items() if entries or name == "turns"},
            **({"talks": [list(talk) for talk in self.talks]} if self.talks else {}),
            **({"notes": list(self.notes)} if self.notes else {}),
        }

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> "TalkRecord":
        lists = {
            name: tuple(Entry.from_json(one) for one in stored.get(name, ()))
            for name in ("turns", "before", "asked")
        }
        return cls(
            TalkPlan.from_json(stored["plan"]),
            **lists,
            talks=tuple((run_id, start) for run_id, start in stored.get("talks", ())),
            notes=tuple(stored.get("notes", ())),
        )

    def with_run(self, number: int, entry: Entry, run_id: str) -> "TalkRecord":
        """Return the record with this run in the turn of that number, which is a new one or one that a kill cut off."""
        turns = list(self.turns)
        if number == len(turns):
            turns.append(entry)
        turns[number] = replace(
            turns[number], run_ids=tuple(unique([*turns[number].run_ids, run_id]))
        )
        return replace(self, turns=tuple(turns))

    def with_asked(self, agent_id: str, run_id: str) -> "TalkRecord":
        """Return the record with this run of a member that the supervisor asked."""
        asked = {entry.agent_id: entry for entry in self.asked}
        entry = asked.get(agent_id) or Entry(agent_id, "speaker")
        asked[agent_id] = replace(entry, run_ids=tuple(unique([*entry.run_ids, run_id])))
        return replace(self, asked=tuple(asked.values()))


def is_talk(run: Run) -> bool:
    return "plan" in run.metadata


def is_answer_elsewhere(run: Run) -> bool:
    """Return whether a member ended the turn here in which a talk waited for it, answered by itself.

    A turn that was cut off may still be sent again.
    """
    is_ours = "group_id" in run.metadata and "talk_id" not in run.metadata
    return is_ours and _has_ended(run) and run.stop_reason != "requires_approval"


def _has_ended(run: Run) -> bool:
    return run.ended_at is not None and not was_cut_off(run)


def is_resumed_by_itself(run: Run) -> bool:
    """Return whether this talk was resumed by the end of a member's turn, so that nobody sends it again."""
    if not is_talk(run):
        return False
    before = TalkRecord.from_json(run.metadata).before
    return bool(before) and before[-1].kind == "resumed"


def answers_elsewhere(tx: Transaction, paused: Run) -> list[Run]:
    """Return the member's runs that took the answer a talk waits for, the oldest first; a kill may leave several."""
    record = TalkRecord.from_json(paused.metadata)
    waiting = runs.find(tx, Scope(paused.organization_id), record.entries[-1].run_ids[-1])
    if waiting is None:
        return []
    later = runs.page(
        tx,
        Scope(paused.organization_id),
        Page(limit=_MOST_ANSWERS, order="asc", after=waiting.id),
        conversation_id=waiting.conversation_id,
    )
    return [
        run
        for run in later
        if run.metadata.get("group_id") == record.plan.group_id and "talk_id" not in run.metadata
    ]


def resumable_by(tx: Transaction, organization_id: str, conversation_id: str) -> Run | None:
    """Return the run whose end lets the newest talk of a conversation go on; None where it waits, or has ended."""
    scope = Scope(organization_id)
    newest = next(iter(runs.page(tx, scope, Page(limit=1), conversation_id=conversation_id)), None)
    if newest is None or not is_talk(newest):
        return None
    if newest.stop_reason == "requires_approval":
        answers = answers_elsewhere(tx, newest)
        return answers[-1] if answers and is_answer_elsewhere(answers[-1]) else None
    if was_cut_off(newest) and is_resumed_by_itself(newest):
        return runs.find(tx, scope, TalkRecord.from_json(newest.metadata).before[-1].run_ids[-1])
    return None


def with_totals(tx: Transaction, run: Run, record: TalkRecord) -> Run:
    """Return the talk's run with the sum of what its turns used."""
    parts = runs.by_ids(tx, run.part_ids)
    usage = sum((part.usage for part in parts), Usage())
    values = {name: getattr(usage, name) for name in runs.TOKENS}
    steps = len(record.turns)
    if record.plan.kind == "supervisor":
        own = {run_id for entry in record.turns for run_id in entry.run_ids}
        steps = sum(part.step_count for part in parts if part.id in own)
    metadata = {
        **record.to_json(),
        "usage": {name: value for name, value in values.items() if value is not None},
    }
    return replace(run, metadata=metadata, step_count=steps)


def heard_from(message: Message, speaker: Speaker, group_id: str) -> list[Utterance]:
    """Return what others hear of a message of an agent: each text of it, without thoughts and tools."""
    return [
        Utterance(
            speaker.id,
            NewMessage(
                "system",
                (TextPart(str(piece["content"])),),
                otid=piece["otid"],
                name=speaker.name,
                sender_id=speaker.id,
                group_id=group_id,
                is_untrusted=message.is_untrusted,
            ),
        )
        for piece in message_responses(message, _SPOKEN)
        if piece["content"]
    ]


def words_of(tx: Transaction, plan: TalkPlan, entry: Entry) -> list[Utterance]:
    """Return what was said in a turn, in all runs that it took."""
    speaker = next(one for one in plan.everyone if one.id == entry.agent_id)
    stored = messages.of_runs(tx, entry.run_ids) if entry.run_ids else []
    return [
        heard
        for message in stored
        if message.step_id
        and message.role in ("assistant", "approval")
        and message.agent_id == entry.agent_id
        for heard in heard_from(message, speaker, plan.group_id)
    ]


def input_of_talk(tx: Transaction, plan: TalkPlan, run_id: str) -> list[Utterance]:
    """Return what came with the request of this run, without an answer to calls that waited."""
    return [
        Utterance(
            None,
            NewMessage(
                one.role,
                one.parts,
                one.otid,
                one.name,
                one.sender_id,
                plan.group_id,
                one.is_untrusted,
            ),
        )
        for one in messages.of_run(tx, run_id)
        if one.step_id is None and one.role in _INPUT
    ]


@dataclass(slots=True)
class Told:
    """What was said in a talk in its order, and how much of it each agent had heard when it last spoke."""

    said: list[Utterance] = field(default_factory=list)
    heard: dict[str, int] = field(default_factory=dict)

    def missing(self, agent_id: str) -> list[NewMessage]:
        """Return what was said by others since the agent last spoke."""
        since = self.said[self.heard.get(agent_id, 0) :]
        return [one.message for one in since if one.speaker_id != agent_id]

    def add_turn(self, plan: TalkPlan, entry: Entry, words: Sequence[Utterance]) -> None:
        """Note a turn. What the manager of a dynamic group says is told to nobody."""
        self.heard[entry.agent_id] = max(self.heard.get(entry.agent_id, 0), len(self.said))
        if plan.manager is None or entry.agent_id != plan.manager.id:
            self.said += words


def told_in(tx: Transaction, record: TalkRecord, run_id: str, *, has_turns: bool) -> Told:
    """Return what was said before this run and in its request, and with `has_turns` in its turns too."""
    told = Told()
    plan = record.plan
    starts = [*record.talks, (run_id, len(record.before))]
    entries = record.entries if has_turns else record.before
    for number in range(len(entries) + 1):
        for talk_id, start in starts:
            if start == number:
                told.said += input_of_talk(tx, plan, talk_id)
        if number < len(entries):
            told.add_turn(plan, entries[number], words_of(tx, plan, entries[number]))
    return told


async def deliver(runtime: Runtime, scope: Scope, run: Run) -> list[str]:
    """Store what was said in a talk with all who did not hear it; returns the ids of agents that are busy now."""
    record = TalkRecord.from_json(run.metadata)
    plan = record.plan
    if plan.kind == "supervisor":
        return []
    said = (await runtime.store.read(lambda tx: told_in(tx, record, run.id, has_turns=True))).said
    busy: list[str] = []
    for listener in plan.everyone:
        heard = [one.message for one in said if one.speaker_id != listener.id]
        try:
            conversation = await open_conversation(runtime, scope, DEFAULT, listener.id)
            await runtime.store.write(lambda tx: store_heard(tx, scope, conversation.id, heard))  # noqa: B023 - awaited at once
        except Busy:
            busy.append(listener.id)
        except NotFound:
            continue  # it was deleted during the talk
    return busy


def add_delivery(tx: Transaction, run: Run) -> None:
    """Add the job that delivers to those who are busy now."""
    jobs.add(
        tx,
        Job(
            DELIVERY,
            run.organization_id,
            {"run_id": run.id},
            key=run.id,
            user_id=run.user_id,
            most_attempts=20,
        ),
    )


async def _deliver_later(runtime: Runtime, job: Job, _report: Report) -> None:
    scope = Scope(job.organization_id, subject_id=job.user_id)
    run = await runtime.store.read(lambda tx: runs.get(tx, scope, job.payload["run_id"]))
    if not is_talk(run):
        raise Invalid(f"{run.id} is no talk with a group.")
    if await deliver(runtime, scope, run):
        raise Busy()


HANDLER = JobHandler(DELIVERY, _deliver_later)
