"""Ending runs from outside.

The messages of the run enter the window, open calls get a result, and each run ends once.
"""

import logging
from dataclasses import replace
from typing import Any

import pytest

from ricordo.agents.run_end import CALLBACK, HANDLER, close_all, close_expired_runs, close_run
from ricordo.agents.turn_start import LEASE
from ricordo.domain.clock import SECOND
from ricordo.domain.job import Job
from ricordo.domain.message import Message, ToolCallPart, ToolReturnPart
from ricordo.domain.run import Run, StopReason
from ricordo.domain.scope import Scope
from ricordo.errors import ModelError
from ricordo.llm.scripted import call
from ricordo.prompt.transcript import CANCELLED, FAILED, INTERRUPTED
from ricordo.storage import agents, jobs, runs
from ricordo.storage.engine.repository import Page
from tests.seams import make
from tests.seams.stage import Stage, roles, soon
from tests.seams.stores import ManualClock

DATABASES = ("sqlite", "postgresql")
ERROR = {"type": "interrupted", "message": "Gone."}


async def open_run(stage: Stage, agent_id: str, *said: Message, lease: int = 30_000_000) -> Run:
    """An open run whose messages are not in the window yet."""
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


def user_message(text: str = "Hello?") -> Message:
    return make.message(make.agent(), text)


def message_with_calls(*call_ids: str) -> Message:
    parts = tuple(ToolCallPart(id, "ring", "{}") for id in call_ids)
    return make.message(
        make.agent(), role="assistant", parts=parts, step_id="step-1", model="model", otid=None
    )


def message_with_results(*call_ids: str) -> Message:
    parts = tuple(ToolReturnPart(id, "ring", "success", "Rang.") for id in call_ids)
    return make.message(make.agent(), role="tool", parts=parts, step_id="step-1")


@pytest.mark.parametrize(("reason", "status"), [("error", "failed"), ("cancelled", "cancelled")])
async def test_closing_a_run_ends_it_and_keeps_its_messages_in_the_window(
    stage: Stage, agent: str, reason: StopReason, status: str
) -> None:
    run = await open_run(stage, agent, user_message("One."), user_message("Two."))
    error = ERROR if reason == "error" else None
    ended = await stage.store.write(lambda tx: close_run(tx, run, reason, error))
    assert (ended.status, ended.stop_reason, ended.error) == (status, reason, error)
    assert ended.ended_at
    assert await stage.runs(agent) == [ended]
    thread = await stage.thread(agent)
    assert (thread.last_stop_reason, thread.last_run_ended_at) == (reason, ended.ended_at)
    await stage.require_sound(agent)


async def test_open_calls_get_one_result_each_and_answered_calls_keep_theirs(
    stage: Stage, agent: str
) -> None:
    run = await open_run(
        stage, agent, user_message(), message_with_calls("a", "b", "c"), message_with_results("b")
    )
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


@pytest.mark.parametrize(
    ("reason", "kind", "words"),
    [
        ("cancelled", None, CANCELLED),
        ("error", "interrupted", INTERRUPTED),
        ("llm_api_error", "llm_timeout", FAILED),
        ("error", "internal_error", FAILED),
    ],
)
async def test_the_result_of_an_open_call_says_why_the_run_ended(
    stage: Stage, agent: str, reason: StopReason, kind: str | None, words: str
) -> None:
    run = await open_run(stage, agent, user_message(), message_with_calls("a"))
    error = {"type": kind, "message": "Gone."} if kind else None
    await stage.store.write(lambda tx: close_run(tx, run, reason, error))
    history = await stage.history(agent)
    assert [part.content for part in history[-1].tool_returns] == [words]


async def test_an_open_call_gets_a_result_although_an_earlier_step_used_its_id(
    stage: Stage, agent: str
) -> None:
    run = await open_run(
        stage,
        agent,
        user_message(),
        message_with_calls("call_0"),
        message_with_results("call_0"),
        message_with_calls("call_0"),
    )
    await stage.store.write(lambda tx: close_run(tx, run, "error", ERROR))
    history = await stage.history(agent)
    assert roles(history) == "system user assistant tool assistant tool"
    assert history[-1].tool_returns[0].content == INTERRUPTED
    await stage.require_sound(agent)


async def test_a_run_is_closed_once_and_keeps_what_was_saved_meanwhile(
    stage: Stage, agent: str
) -> None:
    run = await open_run(stage, agent, user_message(), message_with_calls("a"))
    await stage.store.write(lambda tx: runs.save(tx, replace(run, step_count=3)))
    first = await stage.store.write(lambda tx: close_run(tx, run, "cancelled"))
    assert first.step_count == 3
    assert await stage.store.write(lambda tx: close_run(tx, run, "error", ERROR)) is None
    assert await stage.runs(agent) == [first]
    assert roles(await stage.history(agent)) == "system user assistant tool"
    await stage.require_sound(agent)


async def test_a_start_closes_every_open_run_and_keeps_ended_ones(stage: Stage) -> None:
    agents = [await stage.agent() for _ in range(3)]
    stage.lines += ["Hello."]
    await stage.say(agents[0])
    (before,) = await stage.runs(agents[0])
    opened = [await open_run(stage, agent, user_message()) for agent in agents]
    closed = await stage.store.write(close_all)
    assert [run.id for run in closed] == [run.id for run in opened]
    assert {run.status for run in closed} == {"failed"}
    assert (await stage.runs(agents[0]))[0] == before
    assert await stage.store.write(close_all) == []
    for agent in agents:
        await stage.require_sound(agent)


# Runs that a dead server left open.


async def test_a_run_left_open_by_a_dead_server_is_closed_after_its_lease(
    stage: Stage, agent: str, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    turn, gate = await stage.asked(agent, "Are you there?", line="Late.")
    ours = stage.runtime.live.copy()
    clock.advance(LEASE / SECOND + 1)
    assert await close_expired_runs(stage.runtime) == 0

    stage.runtime.live.clear()  # as on another server
    with caplog.at_level(logging.WARNING):
        assert await close_expired_runs(stage.runtime) == 1
    assert "left open" in caplog.text
    (run,) = await stage.runs(agent)
    assert (run.status, (run.error or {})["type"]) == ("failed", "interrupted")
    assert await close_expired_runs(stage.runtime) == 0

    stage.runtime.live.update(ours)
    gate.open()
    await soon(turn.wait())
    await stage.require_sound(agent)


async def test_the_sweep_of_expired_runs_is_scheduled_more_often_than_a_lease(stage: Stage) -> None:
    assert HANDLER.every_seconds is not None
    assert HANDLER.every_seconds < LEASE / SECOND
    state = await make.stored_agent(stage.store)
    await HANDLER.run(stage.runtime, None, lambda _done, _total: None)  # type: ignore[arg-type]
    assert (
        await stage.store.read(lambda tx: agents.load(tx, Scope(), state.agent.id))
    ).agent.id == state.agent.id


# Callbacks.


URL = "https://example.com/done"


async def callback_jobs(stage: Stage) -> list[Job]:
    return await stage.store.read(lambda tx: jobs.page(tx, Scope(), Page(), kind=CALLBACK))


@pytest.mark.parametrize(
    "lines",
    [
        ("Done.",),
        (call("conversation_search", query="x"), "Done."),
        (ModelError("llm_timeout", "No."),),
    ],
)
async def test_the_end_of_a_run_adds_one_callback_job(stage: Stage, lines: tuple[Any, ...]) -> None:
    stage.lines += lines
    answer = await stage.say(await stage.agent(), callback={"url": URL})

    (job,) = await callback_jobs(stage)

    assert answer.run.callback == {"url": URL}
    assert (job.payload, job.key) == ({"run_id": answer.run.id}, f"callback:{answer.run.id}")
