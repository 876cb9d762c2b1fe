"""The stored record of a talk: its turns, their texts, and the delivery to members."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ricordo.agents.conversations import DEFAULT, open_conversation
from ricordo.agents.hearing import store_heard
from ricordo.agents.repeats import was_cut_off
from ricordo.agents.request import (
    NewMessage,
)
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
    """A text of a talk, in the form in which other members read it.

    `speaker_id` is None for a message of the request.
    """

    speaker_id: str | None
    message: NewMessage


@dataclass(frozen=True, slots=True)
class TalkRecord:
    """The metadata of a talk's run.

    `turns` are the turns of this run, `before` the turns of earlier runs, and `asked` the members
    that a supervisor asked. After an approval a new run resumes the talk. Its `talks` name the
    earlier runs, each with the number of turns before it.
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
            name: tuple(Entry.from_json(entry) for entry in stored.get(name, ()))
            for name in ("turns", "before", "asked")
        }
        return cls(
            TalkPlan.from_json(stored["plan"]),
            **lists,
            talks=tuple((run_id, start) for run_id, start in stored.get("talks", ())),
            notes=tuple(stored.get("notes", ())),
        )

    def with_run(self, number: int, entry: Entry, run_id: str) -> "TalkRecord":
        """Return the record with this run added to a turn.

        The turn is new, or was interrupted by a kill.

        Args:
            number: The index of the turn in `turns`, or their number for a new turn.
            entry: The turn, if it is new.
            run_id: The run; a known run is not added again.
        """
        turns = list(self.turns)
        if number == len(turns):
            turns.append(entry)
        turns[number] = replace(
            turns[number], run_ids=tuple(unique([*turns[number].run_ids, run_id]))
        )
        return replace(self, turns=tuple(turns))

    def with_asked(self, agent_id: str, run_id: str) -> "TalkRecord":
        """Return the record with this run of a member that the supervisor asked.

        Args:
            agent_id: The member.
            run_id: Its run; a known run is not added again.
        """
        entries = {entry.agent_id: entry for entry in self.asked}
        entry = entries.get(agent_id) or Entry(agent_id, "speaker")
        entries[agent_id] = replace(entry, run_ids=tuple(unique([*entry.run_ids, run_id])))
        return replace(self, asked=tuple(entries.values()))


def is_talk(run: Run) -> bool:
    return "plan" in run.metadata


def is_answer_elsewhere(run: Run) -> bool:
    """Return True for a member's run that took the answer to an approval outside of the talk.

    An interrupted run does not count, since it may still be repeated.
    """
    is_ours = "group_id" in run.metadata and "talk_id" not in run.metadata
    return is_ours and _has_ended(run) and run.stop_reason != "requires_approval"


def _has_ended(run: Run) -> bool:
    return run.ended_at is not None and not was_cut_off(run)


def is_resumed_by_itself(run: Run) -> bool:
    """Return whether the end of a member's turn resumed this talk.

    A client does not send such a talk again.
    """
    if not is_talk(run):
        return False
    before = TalkRecord.from_json(run.metadata).before
    return bool(before) and before[-1].kind == "resumed"


def answers_elsewhere(tx: Transaction, paused: Run) -> list[Run]:
    """Return the runs that accepted the answer for which a talk waits, oldest first.

    They belong to the member that waits. After a kill there may be several.
    """
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
    """Return the run whose end resumes the newest talk of a conversation, or None.

    Args:
        tx: The transaction.
        organization_id: The organization of the group.
        conversation_id: A conversation of talks.
    """
    scope = Scope(organization_id)
    newest = next(iter(runs.page(tx, scope, Page(limit=1), conversation_id=conversation_id)), None)
    if newest is None or not is_talk(newest):
        return None
    if newest.stop_reason == "requires_approval":
        answers = answers_elsewhere(tx, newest)
        if answers and is_answer_elsewhere(answers[-1]):
            return answers[-1]
        return None
    if was_cut_off(newest) and is_resumed_by_itself(newest):
        return runs.find(tx, scope, TalkRecord.from_json(newest.metadata).before[-1].run_ids[-1])
    return None


def with_totals(tx: Transaction, run: Run, record: TalkRecord) -> Run:
    """Return the talk's run with the usage of all its turns; nothing is stored.

    Args:
        tx: The transaction.
        run: The talk's run, with the ids of its turns' runs.
        record: The talk's record, which becomes the run's metadata.
    """
    parts = runs.by_ids(tx, run.part_ids)
    usage = sum((part.usage for part in parts), Usage())
    counts = {name: getattr(usage, name) for name in runs.TOKENS}
    steps = sum(bool(entry.run_ids) for entry in record.turns)
    if record.plan.kind == "supervisor":
        turn_run_ids = {run_id for entry in record.turns for run_id in entry.run_ids}
        steps = sum(part.step_count for part in parts if part.id in turn_run_ids)
    metadata = {
        **record.to_json(),
        "usage": {name: count for name, count in counts.items() if count is not None},
    }
    return replace(run, metadata=metadata, step_count=steps)


def utterances_in(message: Message, speaker: Speaker, group_id: str) -> list[Utterance]:
    """Return the texts in an agent's message, without thoughts and tool calls.

    Args:
        message: A message that the agent wrote.
        speaker: The agent, with the name that listeners see.
        group_id: The group, for the messages to listeners.
    """
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
                egress=message.egress,
            ),
        )
        for piece in message_responses([message], _SPOKEN)
        if piece["content"]
    ]


def utterances_of(tx: Transaction, plan: TalkPlan, entry: Entry) -> list[Utterance]:
    """Return the texts of a turn, from all its runs.

    Args:
        tx: The transaction.
        plan: The talk's plan, which names the speaker.
        entry: The turn.
    """
    speaker = next(speaker for speaker in plan.everyone if speaker.id == entry.agent_id)
    if entry.run_ids:
        stored = messages.of_runs(tx, entry.run_ids)
    else:
        stored = []
    return [
        utterance
        for message in stored
        if message.step_id
        and message.role in ("assistant", "approval")
        and message.agent_id == entry.agent_id
        for utterance in utterances_in(message, speaker, plan.group_id)
    ]


def input_of_talk(tx: Transaction, plan: TalkPlan, run_id: str) -> list[Utterance]:
    """Return the messages in this run's request, without answers to waiting calls.

    Args:
        tx: The transaction.
        plan: The talk's plan.
        run_id: The talk's run, which has the messages.
    """
    return [
        Utterance(None, replace(NewMessage.of(message), group_id=plan.group_id))
        for message in messages.of_run(tx, run_id)
        if message.step_id is None and message.role in _INPUT
    ]


@dataclass(slots=True)
class TalkHistory:
    """The utterances of a talk in their order.

    `heard_counts` has the number of texts that each agent had heard when it last spoke.
    """

    utterances: list[Utterance] = field(default_factory=list)
    heard_counts: dict[str, int] = field(default_factory=dict)

    def missing(self, agent_id: str) -> list[NewMessage]:
        """Return the messages of others since the agent last spoke."""
        since = self.utterances[self.heard_counts.get(agent_id, 0) :]
        return [utterance.message for utterance in since if utterance.speaker_id != agent_id]

    def add_turn(self, plan: TalkPlan, entry: Entry, utterances: Sequence[Utterance]) -> None:
        """Add a turn. Members do not hear the manager of a group.

        Args:
            plan: The talk's plan, which names the manager.
            entry: The turn.
            utterances: Its texts, from `utterances_of`.
        """
        heard_count = self.heard_counts.get(entry.agent_id, 0)
        self.heard_counts[entry.agent_id] = max(heard_count, len(self.utterances))
        if plan.manager is None or entry.agent_id != plan.manager.id:
            self.utterances += utterances


def history_of_talk(
    tx: Transaction, record: TalkRecord, run_id: str, *, has_turns: bool
) -> TalkHistory:
    """Return the texts before this run, and those of its request.

    Args:
        tx: The transaction.
        record: The talk's record.
        run_id: The talk's run.
        has_turns: Add also the texts of this run's turns.
    """
    history = TalkHistory()
    plan = record.plan
    starts = [*record.talks, (run_id, len(record.before))]
    entries = record.entries if has_turns else record.before
    for number in range(len(entries) + 1):
        for talk_id, start in starts:
            if start == number:
                history.utterances += input_of_talk(tx, plan, talk_id)
        if number < len(entries) and entries[number].run_ids:
            history.add_turn(plan, entries[number], utterances_of(tx, plan, entries[number]))
    return history


async def deliver(runtime: Runtime, scope: Scope, run: Run) -> list[str]:
    """Store the talk's texts in the conversations of all agents that have not heard them.

    A supervisor's group has nothing to deliver, since its members have the supervisor's question.

    Args:
        runtime: The running server.
        scope: The user of the talk.
        run: The talk's run, ended or not.

    Returns:
        The ids of the agents that are busy now.

    Raises:
        RicordoError: if the texts cannot be stored for another reason.
    """
    record = TalkRecord.from_json(run.metadata)
    plan = record.plan
    if plan.kind == "supervisor":
        return []
    history = await runtime.store.read(
        lambda tx: history_of_talk(tx, record, run.id, has_turns=True)
    )
    busy: list[str] = []
    for listener in plan.everyone:
        heard = [
            utterance.message
            for utterance in history.utterances
            if utterance.speaker_id != listener.id
        ]
        try:
            conversation = await open_conversation(runtime, scope, DEFAULT, listener.id)
            await runtime.store.write(
                lambda tx: store_heard(tx, scope, conversation.id, heard)  # noqa: B023 - awaited at once
            )
        except Busy:
            busy.append(listener.id)
        except NotFound:
            continue  # the agent was deleted during the talk
    return busy


def add_delivery(tx: Transaction, run: Run) -> None:
    """Add the job that delivers the talk to agents that are now busy."""
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
        raise Invalid(f"{run.id} is not a talk with a group.")
    if await deliver(runtime, scope, run):
        raise Busy()


HANDLER = JobHandler(DELIVERY, _deliver_later)
