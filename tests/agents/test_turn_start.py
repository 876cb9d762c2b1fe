"""The beginning of a turn.

The tests cover the lease, repeated messages, and the rows that are stored before the model is
called. They also check when the prompt is rendered again.
"""

import asyncio
import threading
import time
from typing import Any

import pytest

from ricordo.agents.conversations import set_window
from ricordo.agents.repeats import REPEAT_WINDOW
from ricordo.agents.request import (
    NewMessage,
    TurnDelivery,
    TurnRequest,
)
from ricordo.agents.run_end import close_run
from ricordo.agents.turn import PastTurn, collect, run_turn
from ricordo.agents.turn_start import LEASE
from ricordo.domain.clock import SECOND
from ricordo.domain.ids import new_id
from ricordo.domain.message import Message, TextPart
from ricordo.domain.run import INTERRUPTED, Run
from ricordo.domain.scope import Scope
from ricordo.errors import Busy, Conflict, Invalid, ModelError, NotFound
from ricordo.llm.scripted import call
from ricordo.search.index import insert_messages
from ricordo.storage import agents, conversations, runs
from ricordo.storage.engine.store import Transaction
from ricordo.tools.toolbox import ServerTool, ToolContext
from tests.agents.conftest import OpenStage
from tests.seams import make
from tests.seams.stage import LIMIT, Gate, Stage, all_events, roles, saved, soon, text_of
from tests.seams.stores import START, Held, ManualClock

DATABASES = ("sqlite", "postgresql")
DAY = 86_400


async def test_new_messages_are_stored_before_the_model_is_asked(stage: Stage, agent: str) -> None:
    gate = Gate()
    stage.lines += [gate.line("Hello.")]
    turn = await stage.begin(agent, "One.", "Two.")
    assert [message.text for message in (await stage.history(agent))[1:]] == ["One.", "Two."]
    (run,) = await stage.runs(agent)
    assert (run.status, run.ended_at) == ("running", None)
    await gate.reached()
    gate.open()
    await collect(turn)
    await stage.require_sound(agent)


async def run_of_another_process(stage: Stage, agent_id: str, *, expires_at: int) -> str:
    """A run that another process holds, with the message it was about to answer."""

    def hold(tx: Transaction) -> str:
        agent = agents.load(tx, Scope(), agent_id).agent
        run = make.run(agent, created_at=tx.clock.now(), lease_expires_at=expires_at)
        runs.open_run(tx, run)
        insert_messages(
            tx,
            [make.message(agent, "Lost?", run_id=run.id, otid="lost", created_at=tx.clock.now())],
        )
        return run.id

    return await stage.store.write(hold)


async def test_a_lease_of_another_process_is_respected_until_it_expires(
    stage: Stage, agent: str, clock: ManualClock
) -> None:
    held = await run_of_another_process(stage, agent, expires_at=clock.now() + LEASE)
    with pytest.raises(Busy) as busy:
        await stage.begin(agent)
    assert busy.value.run_id == held
    clock.advance(LEASE / SECOND + 1)
    stage.lines += ["Here I am."]
    assert text_of(await stage.say(agent, "Are you there?")) == "Here I am."
    healed, answered = await stage.runs(agent)
    assert (healed.id, healed.status, healed.stop_reason) == (held, "failed", "error")
    assert healed.error["type"] == "interrupted"
    assert answered.status == "completed"
    sent = stage.model.requests[-1].messages
    assert [message.text for message in sent if message.role == "user"] == [
        "Lost?",
        "Are you there?",
    ]
    await stage.require_sound(agent)


async def test_a_retry_does_not_find_a_run_of_another_organization(
    stage: Stage, agent: str
) -> None:
    stage.lines += ["Secret."]
    await stage.say(agent, body_hash="abc")
    request = TurnRequest(
        Scope("org-other"),
        agent,
        (NewMessage("user", (TextPart("Hi."),)),),
        delivery=TurnDelivery(body_hash="abc", is_retry=True),
    )
    with pytest.raises(NotFound):
        await run_turn(stage.runtime, request)


async def test_equal_texts_without_an_otid_or_retry_are_new_messages(
    stage: Stage, agent: str
) -> None:
    stage.lines += ["One.", "Two."]
    await stage.say(agent, "Hi.", body_hash="abc")
    assert text_of(await stage.say(agent, "Hi.", body_hash="abc")) == "Two."
    assert [m.text for m in (await stage.history(agent))[1:]] == ["Hi.", "One.", "Hi.", "Two."]


async def test_a_repetition_gets_the_stored_failure_and_a_retry_counts_for_ten_minutes(
    stage: Stage, agent: str, clock: ManualClock
) -> None:
    stage.lines += [ModelError("llm_rate_limit", "Too fast."), "One.", "Two.", "Three."]
    failed, again = [await stage.say(agent, otids=["a"]) for _ in range(2)]
    assert failed.failure
    assert (again.run, again.failure.kind) == (failed.run, "llm_rate_limit")
    first = await stage.say(agent, "Hi.", body_hash="abc")
    clock.advance(REPEAT_WINDOW / SECOND - 10)
    assert (await stage.say(agent, "Hi.", body_hash="abc", is_retry=True)).run == first.run
    assert text_of(await stage.say(agent, "Ho.", body_hash="def", is_retry=True)) == "Two."
    clock.advance(20)
    assert text_of(await stage.say(agent, "Hi.", body_hash="abc", is_retry=True)) == "Three."


async def test_otids_that_do_not_match_their_first_request_are_refused(
    stage: Stage, agent: str
) -> None:
    other = await stage.agent()
    stage.lines += ["One.", "Two.", "Three."]
    await stage.say(agent, "A", "B", otids=["a", "b"])
    await stage.say(agent, "D", otids=["d"])
    for texts, otids in (
        ("AC", ["a", "c"]),
        ("ABC", ["a", "b", "c"]),
        ("AX", ["a"]),
        ("BD", ["b", "d"]),
    ):
        with pytest.raises(Conflict, match="otid"):
            await stage.begin(agent, *texts, otids=otids)
    with pytest.raises(Invalid, match="otid"):
        await stage.begin(agent, "A", "B", otids=["e", "e"])
    assert text_of(await stage.say(other, "A", otids=["a"])) == "Three."
    await stage.require_sound(agent)


async def test_a_known_otid_with_another_text_is_refused(stage: Stage, agent: str) -> None:
    stage.lines += ["One."]
    await stage.say(agent, "I moved to Rome.", otids=["a"])
    with pytest.raises(Conflict, match="otid a already belongs to a message of another request"):
        await stage.begin(agent, "I moved to Paris.", otids=["a"])
    assert text_of(await stage.say(agent, "I moved to Rome.", otids=["a"])) == "One."


async def interrupt_turn(stage: Stage, agent: str, *texts: str, **request: Any) -> None:
    """Begin a turn, and stop it like a kill.

    The run stays open, and is closed as after a restart.
    """
    gate = Gate()
    stage.lines.append(gate.line("Too late."))
    turn = await stage.begin(agent, *texts, **request)
    await gate.reached()
    run = turn._context.run  # type: ignore[attr-defined]
    error = {"type": INTERRUPTED, "message": "The server stopped during this turn."}
    await stage.store.write(lambda tx: close_run(tx, run, "error", error))
    gate.open()
    await collect(turn)


@pytest.mark.parametrize("by", ["otid", "retry"])
async def test_repeating_a_turn_that_a_kill_interrupted_answers_it_once(
    stage: Stage, agent: str, by: str
) -> None:
    first: dict[str, Any] = {"otids": ["a"]} if by == "otid" else {"body_hash": "abc"}
    again = first if by == "otid" else {"body_hash": "abc", "is_retry": True}
    await interrupt_turn(stage, agent, "Hi.", **first)
    stage.lines += ["Hello."]
    twice = await asyncio.gather(*(stage.say(agent, "Hi.", **again) for _ in range(3)))
    assert {text_of(answer) for answer in twice} == {"Hello."}
    assert text_of(await stage.say(agent, "Hi.", **again)) == "Hello."
    assert [message.text for message in (await stage.history(agent))[1:]] == ["Hi.", "Hello."]
    assert [(run.status, run.stop_reason) for run in await stage.runs(agent)] == [
        ("failed", "error"),
        ("completed", "end_turn"),
    ]
    await stage.require_sound(agent)


async def test_a_repeated_message_follows_messages_sent_after_the_kill(
    stage: Stage, agent: str
) -> None:
    await interrupt_turn(stage, agent, "Hi.", otids=["a"])
    stage.lines += ["I am here.", "Hello."]
    await stage.say(agent, "Are you there?")
    assert text_of(await stage.say(agent, "Hi.", otids=["a"])) == "Hello."
    sent = stage.model.requests[-1].messages
    assert [message.text for message in sent if message.role != "system"] == [
        "Are you there?",
        "I am here.",
        "Hi.",
    ]
    assert text_of(await stage.say(agent, "Hi.", otids=["a"])) == "Hello."


async def test_a_tool_that_ran_before_a_kill_does_not_run_again(stage: Stage, agent: str) -> None:
    stage.lines.append(call("memory_insert", label="human", new_string="Likes tea."))
    await interrupt_turn(stage, agent, "I like tea.", otids=["a"])
    stage.lines += ["Noted."]
    assert text_of(await stage.say(agent, "I like tea.", otids=["a"])) == "Noted."
    sent = stage.model.requests[-1].messages
    assert [message.role for message in sent] == ["system", "user", "assistant", "tool"]
    await stage.require_sound(agent)


async def test_a_repeated_message_that_the_model_refuses_leaves_the_window(
    stage: Stage, agent: str
) -> None:
    await interrupt_turn(stage, agent, "Poison.", otids=["a"])
    stage.lines += [ModelError("llm_bad_request", "Refused."), "Hello."]
    refused = await stage.say(agent, "Poison.", otids=["a"])
    assert refused.failure
    await stage.say(agent, "Hi.")
    assert "Poison." not in [message.text for message in stage.model.requests[-1].messages]
    assert "Poison." in [message.text for message in await stage.history(agent)]
    assert (await stage.thread(agent)).message_count == len(await stage.history(agent))


@pytest.mark.parametrize("by", ["otid", "retry"])
async def test_equal_requests_at_the_same_time_run_once(
    stage: Stage, agent: str, database: str, by: str
) -> None:
    # If units of work run in parallel, a retry without an otid could arrive before its original.
    # The original then counts as a new message.
    begins_with_original = database == "postgresql" and by == "retry"
    for turn in range(10):
        stage.lines.append(f"Answer {turn}.")
        if by == "otid":
            twice = [stage.say(agent, "Hi.", otids=[f"otid-{turn}"]) for _ in range(3)]
        else:
            first = (
                [await stage.begin(agent, "Hi.", body_hash=str(turn))]
                if begins_with_original
                else []
            )
            told = range(len(first), 3)
            twice = [
                stage.say(agent, "Hi.", body_hash=str(turn), is_retry=number > 0) for number in told
            ]
            twice += [collect(begun) for begun in first]
        answers = await asyncio.gather(*twice)
        assert {answer.run.id for answer in answers} == {answers[0].run.id}
        assert {text_of(answer) for answer in answers} == {f"Answer {turn}."}
    assert len(stage.model.requests) == len(await stage.runs(agent)) == 10
    await stage.require_sound(agent)


async def test_of_two_different_requests_at_once_one_runs_and_one_is_busy(
    stage: Stage, agent: str
) -> None:
    gate = Gate()
    stage.lines += [gate.line("Hello.")]
    begun = await asyncio.gather(
        stage.begin(agent, "A"), stage.begin(agent, "B"), return_exceptions=True
    )
    (busy,) = [outcome for outcome in begun if isinstance(outcome, Busy)]
    assert busy.run_id
    gate.open()
    (turn,) = [outcome for outcome in begun if not isinstance(outcome, BaseException)]
    await turn.wait()
    assert len(await stage.history(agent)) == 3


async def test_a_planned_turn_waits_for_a_change_of_its_conversation(
    stage: Stage, agent: str
) -> None:
    stage.lines += ["Hello.", "Yes."]
    await stage.say(agent, "My secret.")
    history = await stage.history(agent)
    (done,) = await stage.runs(agent)
    plan = Run(new_id("run"), done.organization_id, agent, done.conversation_id, created_at=START)
    await stage.store.write(lambda tx: runs.open_run(tx, plan))
    is_changed = threading.Event()

    def change_until_the_turn_waits(tx: Transaction) -> None:
        set_window(tx, Scope(), done.conversation_id, [history[0].id])
        is_changed.set()
        end = time.monotonic() + LIMIT
        # SQLite has one writer, so the turn waits in any case.
        while tx.connection.dialect.name == "postgresql":
            if tx.connection.exec_driver_sql("SELECT 1 FROM pg_locks WHERE NOT granted").first():
                break
            assert time.monotonic() < end
            time.sleep(0.005)

    changing = asyncio.create_task(stage.store.write(change_until_the_turn_waits))
    assert await asyncio.to_thread(is_changed.wait, LIMIT)
    answer = await stage.say(agent, "Are you there?", planned_run=plan.id)
    await changing
    assert answer.run.id == plan.id
    asked = [m.text for m in stage.model.requests[-1].messages if m.role != "system"]
    assert asked == ["Are you there?"]
    assert (await stage.thread(agent)).window[1:] == tuple(
        m.id for m in (await stage.history(agent))[3:]
    )


async def test_a_repetition_in_another_process_waits_for_the_stored_answer(
    stage: Stage, agent: str
) -> None:
    gate = Gate()
    stage.lines += [gate.line("Once.")]
    turn = await stage.begin(agent)
    elsewhere = PastTurn(stage.runtime, Scope(), (await stage.runs(agent))[0].id)
    reading = asyncio.create_task(all_events(elsewhere))
    await gate.reached()
    gate.open()
    here, there = await all_events(turn), await soon(reading)
    assert saved(here) == saved(there) != []
    assert here[-1] == there[-1]


async def test_a_turn_completes_although_its_caller_left_at_the_start(
    stage: Stage, agent: str
) -> None:
    stage.lines += ["Hello."]
    with Held(stage.store, "INSERT INTO runs") as held:
        beginning = asyncio.create_task(stage.begin(agent, "Bye!"))
        await held.reached()
        beginning.cancel()
        await asyncio.wait([beginning])
        held.release()
    async with asyncio.timeout(LIMIT):
        while [run.status for run in await stage.runs(agent)] != ["completed"]:  # noqa: ASYNC110 - in the database
            await asyncio.sleep(0.01)
    await stage.require_sound(agent)


# The prompt is rendered again only when it must change; otherwise its bytes stay the same.


def prompts(stage: Stage) -> list[Message]:
    return [request.messages[0] for request in stage.model.requests]


async def test_the_system_prompt_is_rebuilt_in_place_at_the_step_after_an_edit(
    stage: Stage,
) -> None:
    agent = await stage.agent(("human", "Ada."))
    (before,) = await stage.history(agent)
    stage.lines += [call("memory_insert", label="human", new_string="Likes tea."), "Noted.", "Yes."]
    await stage.say(agent)
    first, second = prompts(stage)
    assert first == before
    assert "Likes tea." in second.text
    stored = (await stage.history(agent))[0]
    assert (stored.id, stored.seq, stored.created_at) == (before.id, before.seq, before.created_at)
    assert stored.text == second.text
    await stage.say(agent, "Still?")
    assert prompts(stage)[2].text == second.text
    assert roles(await stage.history(agent)).count("system") == 1


async def test_on_a_new_day_the_system_prompt_is_rebuilt_only_at_a_turns_first_step(
    open_stage: OpenStage, clock: ManualClock
) -> None:
    def sleep(context: ToolContext) -> str:
        """Let a day pass."""
        clock.advance(DAY)
        return "Slept."

    stage = await open_stage(ServerTool(sleep, "custom"))
    agent = await stage.agent(tool_names=("sleep",))
    stage.lines += [call("sleep"), "Good morning.", "Hello."]
    await stage.say(agent)
    await stage.say(agent)
    first, second, third = (prompt.text for prompt in prompts(stage))
    assert first == second
    assert "January 01, 2026" in first
    assert "January 02, 2026" in third


async def test_the_system_prompt_shows_new_archive_tags_but_not_each_new_count(
    stage: Stage, agent: str
) -> None:

    def keep(text: str, *tags: str) -> list[object]:
        return [call("archival_memory_insert", content=text, tags=list(tags)), "Kept."]

    stage.lines += [
        *keep("One."),
        *keep("Two."),
        *keep("Three.", "tea"),
        *keep("Four.", "tea"),
        "Yes.",
    ]  # type: ignore[list-item]
    for text in "ABCDE":
        await stage.say(agent, text)
    made = [prompt.text for prompt in prompts(stage)]
    assert "archival memory" not in made[0]
    # Within a turn a new passage changes nothing. From the next turn on, the prompt says that there
    # is an archive.
    assert made[1] == made[0]
    assert made[2] != made[1]  # the second turn begins, and the archive has a passage
    # Further passages without new tags change only the count, for which nothing is rendered again.
    assert made[3:6] == [made[2]] * 3
    assert "Available archival memory tags: tea" in made[6]
    assert "3 total memories" in made[6]
    assert made[7:] == [made[6]] * 2


async def test_a_running_turn_stays_alive_whatever_the_clock_says(
    stage: Stage, agent: str, clock: ManualClock
) -> None:
    """When the machine sleeps, all leases expire, but a turn that runs keeps its answer."""
    turn, gate = await stage.asked(agent, line="Good morning.")
    clock.advance(3600)

    with pytest.raises(Busy):
        await stage.begin(agent, "Are you there?")

    gate.open()
    assert text_of(await collect(turn)) == "Good morning."


@pytest.mark.parametrize("kept", [0, 1])
async def test_a_window_without_a_system_message_gets_one_and_keeps_its_messages(
    stage: Stage, agent: str, kept: int
) -> None:
    stage.lines.append("Noted.")
    await stage.say(agent, "I like tea.")
    before = (await stage.history(agent))[1:]
    window = [message.id for message in before][: kept * 2]
    thread = await stage.thread(agent)
    await stage.store.write(
        lambda tx: conversations.save_window(tx, thread.id, window, thread.prompt_key, added=0)
    )
    stage.lines.append("Still here.")
    await stage.say(agent, "Are you there?")
    history = await stage.history(agent)
    assert [message for message in history if message in before] == before
    roles = [message.role for message in stage.model.requests[-1].messages]
    assert roles == ["system", *(["user", "assistant"] * kept), "user"]
    assert (await stage.thread(agent)).message_count == len(history)


async def test_an_agent_that_clears_its_buffer_does_so_also_after_a_failed_turn(
    stage: Stage,
) -> None:
    agent = await stage.agent(clears_buffer=True)
    stage.lines += [ModelError("llm_error", "Down."), "Two."]
    assert (await stage.say(agent, "First.")).failure
    assert text_of(await stage.say(agent, "Second.")) == "Two."
    assert [message.text for message in stage.model.requests[-1].messages[1:]] == ["Second."]
    assert roles(await stage.history(agent)) == "system user user assistant"
    assert (await stage.thread(agent)).message_count == 4


async def test_a_repetition_is_recognized_if_only_some_messages_have_an_otid(
    stage: Stage, agent: str
) -> None:
    stage.lines += ["One."]
    first = await stage.say(agent, "A", "B", otids=["a", None])
    again = await stage.say(agent, "A", "B", otids=["a", None])
    assert again.run == first.run
    for texts, otids in (("AC", ["a", None]), ("ABB", ["a", None, None]), ("CA", [None, "a"])):
        with pytest.raises(Conflict, match="otid a already belongs"):
            await stage.begin(agent, *texts, otids=otids)
