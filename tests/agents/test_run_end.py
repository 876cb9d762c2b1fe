"""Ending runs from outside: what was said enters the window, open calls get a result, and each run ends once."""

from dataclasses import replace

import pytest

from ricordo.agents.run_end import close_all, close_run, heal
from ricordo.domain.message import CompactionPart, Message, TextPart, ToolCallPart, ToolReturnPart
from ricordo.domain.run import Run, StopReason
from ricordo.prompt.transcript import INTERRUPTED
from ricordo.storage import conversations, messages, runs
from ricordo.storage.sqlite import SqliteStore
from tests.agents.stage import Stage, roles
from tests.support import make
from tests.support.clock import ManualClock

ERROR = {"type": "interrupted", "message": "Gone."}


async def open_run(stage: Stage, agent_id: str, *said: Message, lease: int = 30_000_000) -> Run:
    """A run that was left open, with messages that are not in the window yet."""
    agent, now = (await stage.state(agent_id)).agent, stage.store.clock.now()
    run = make.run(agent, created_at=now, lease_expires_at=now + lease)
    await stage.store.write(lambda tx: runs.open_run(tx, run))
    await make.stored_messages(
        stage.store,
        *(
            replace(
                one,
                agent_id=agent_id,
                conversation_id=run.conversation_id,
                run_id=run.id,
                created_at=stage.store.clock.now(),
            )
            for one in said
        ),
    )
    return run


def said(text: str = "Hello?") -> Message:
    return make.message(make.agent(), text)


def asked(*call_ids: str) -> Message:
    parts = tuple(ToolCallPart(id, "ring", "{}") for id in call_ids)
    return make.message(make.agent(), role="assistant", parts=parts, step_id="step-1", model="model", otid=None)


def answered(*call_ids: str) -> Message:
    parts = tuple(ToolReturnPart(id, "ring", "success", "Rang.") for id in call_ids)
    return make.message(make.agent(), role="tool", parts=parts, step_id="step-1")


@pytest.mark.parametrize(("reason", "status"), [("error", "failed"), ("cancelled", "cancelled")])
async def test_a_closed_run_is_ended_and_what_was_said_is_in_the_window(
    stage: Stage, agent: str, reason: StopReason, status: str
) -> None:
    run = await open_run(stage, agent, said("One."), said("Two."))
    error = ERROR if reason == "error" else None
    ended = await stage.store.write(lambda tx: close_run(tx, run, reason, error))
    assert ended
    assert (ended.status, ended.stop_reason, ended.error) == (status, reason, error)
    assert ended.ended_at
    assert await stage.runs(agent) == [ended]
    thread = await stage.thread(agent)
    assert (thread.last_stop_reason, thread.last_run_ended_at) == (reason, ended.ended_at)
    await stage.require_sound(agent)


async def test_open_calls_get_one_result_each_and_answered_ones_keep_theirs(stage: Stage, agent: str) -> None:
    run = await open_run(stage, agent, said(), asked("a", "b", "c"), answered("b"))
    await stage.store.write(lambda tx: close_run(tx, run, "error", ERROR))
    history = await stage.history(agent)
    assert roles(history) == "system user assistant tool tool"
    assert [(part.call_id, part.status, part.content) for part in history[-1].tool_returns] == [
        ("a", "error", INTERRUPTED),
        ("c", "error", INTERRUPTED),
    ]
    assert history[-1].run_id == run.id
    assert len({message.id for message in history}) == len(history)
    await stage.require_sound(agent)


async def test_a_call_id_that_an_earlier_step_used_does_not_hide_an_open_call(stage: Stage, agent: str) -> None:
    run = await open_run(stage, agent, said(), asked("call_0"), answered("call_0"), asked("call_0"))
    await stage.store.write(lambda tx: close_run(tx, run, "error", ERROR))
    history = await stage.history(agent)
    assert roles(history) == "system user assistant tool assistant tool"
    assert history[-1].tool_returns[0].content == INTERRUPTED
    await stage.require_sound(agent)


async def test_a_run_is_closed_once(stage: Stage, agent: str) -> None:
    run = await open_run(stage, agent, said(), asked("a"))
    first = await stage.store.write(lambda tx: close_run(tx, run, "cancelled"))
    assert first
    assert await stage.store.write(lambda tx: close_run(tx, run, "error", ERROR)) is None
    assert await stage.runs(agent) == [first]
    assert roles(await stage.history(agent)) == "system user assistant tool"
    await stage.require_sound(agent)


async def test_a_start_closes_every_open_run_and_leaves_ended_ones_alone(stage: Stage) -> None:
    agents = [await stage.agent() for _ in range(3)]
    stage.lines += ["Hello."]
    await stage.say(agents[0])
    (before,) = await stage.runs(agents[0])
    opened = [await open_run(stage, agent, said()) for agent in agents]
    closed = await stage.store.write(close_all)
    assert [run.id for run in closed] == [run.id for run in opened]
    assert {run.status for run in closed} == {"failed"}
    assert (await stage.runs(agents[0]))[0] == before
    assert await stage.store.write(close_all) == []
    for agent in agents:
        await stage.require_sound(agent)


async def test_only_a_run_whose_lease_expired_is_healed(
    stage: Stage, agent: str, clock: ManualClock, store: SqliteStore
) -> None:
    run = await open_run(stage, agent, said())
    assert not await store.write(lambda tx: heal(tx, run))
    clock.advance(31)
    assert await store.write(lambda tx: heal(tx, run))
    (ended,) = await stage.runs(agent)
    assert ended.status == "failed"
    assert not await store.write(lambda tx: heal(tx, ended))
    assert [m.text for m in await store.read(lambda tx: messages.of_run(tx, run.id))] == ["Hello?"]
    await stage.require_sound(agent)


async def test_what_a_turn_summed_up_does_not_come_back_when_it_fails(stage: Stage, agent: str) -> None:
    run = await open_run(stage, agent, said("One."), asked("call-1"), answered("call-1"))
    first = await stage.history(agent)
    before = len(first)
    gone = tuple(message.id for message in first if message.role in ("assistant", "tool"))
    part = CompactionPart("window", gone, 10, 5, 1000, 4, 3)
    summary = make.message(make.agent(), role="summary", parts=(TextPart("They rang."), part), step_id=None)
    thread = await stage.thread(agent)
    placed = replace(summary, agent_id=agent, conversation_id=thread.id, run_id=run.id)
    await make.stored_messages(stage.store, placed)
    system, heard = first[0].id, next(message.id for message in first if message.role == "user")
    window = [system, placed.id, heard]
    await stage.store.write(lambda tx: conversations.save_window(tx, thread.id, window, "", added=before))
    await stage.store.write(lambda tx: close_run(tx, run, "error", ERROR))
    closed = await stage.thread(agent)
    assert list(closed.window) == window
    assert closed.message_count == len(await stage.history(agent))
