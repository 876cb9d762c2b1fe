"""A turn as its callers see it.

The tests cover failures, cancellation, leases, shutdown, and readers that join late or leave early.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from ricordo.agents import turn as turns
from ricordo.agents.lifecycle import AgentSpec, create_agent
from ricordo.agents.request import (
    NewMessage,
    TurnRequest,
)
from ricordo.agents.run_end import close_run
from ricordo.agents.turn import collect, run_turn
from ricordo.agents.turn_start import LEASE
from ricordo.app import finish_turns, open_runtime
from ricordo.domain.clock import SECOND, Backoff
from ricordo.domain.event import Event, Failed, RunEnded, RunStarted
from ricordo.domain.message import TextPart
from ricordo.domain.model import ModelReply
from ricordo.domain.run import DATABASE_FAILED, INTERRUPTED, StopReason
from ricordo.domain.scope import LOCAL_ORGANIZATION, Scope
from ricordo.domain.usage import Usage
from ricordo.errors import DatabaseFailed, ModelError, ModelErrorKind, Unavailable
from ricordo.llm.scripted import Line, ScriptedModel, call
from ricordo.memory.recall import Recall
from ricordo.prompt.transcript import CANCELLED
from ricordo.runtime import LiveTurn, Runtime
from ricordo.settings import ProviderSettings, Settings
from ricordo.storage import jobs, runs
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction
from ricordo.tools.toolbox import ServerTool, ToolContext
from tests.agents.conftest import OpenStage
from tests.seams.stage import Gate, Stage, all_events, roles, saved, soon, text_of
from tests.seams.stores import Held, ManualClock, broken, mended

T = TypeVar("T")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("llm_timeout", "llm_api_error"),
        ("llm_insufficient_credits", "insufficient_credits"),
        ("llm_empty_response", "invalid_llm_response"),
    ],
)
async def test_a_model_error_fails_the_run_and_keeps_the_users_message(
    stage: Stage, agent: str, kind: ModelErrorKind, reason: StopReason
) -> None:
    stage.lines += [ModelError(kind, "It is down.")]
    events = await all_events(await stage.begin(agent, "Are you well?"))
    end = events[-1]
    assert isinstance(end, Failed)
    assert (end.kind, end.message, end.run.status, end.run.stop_reason) == (
        kind,
        "It is down.",
        "failed",
        reason,
    )
    assert end.run.error == {"type": kind, "message": "It is down."}
    assert (await stage.thread(agent)).last_stop_reason == reason
    assert [message.text for message in (await stage.history(agent))[1:]] == ["Are you well?"]
    await stage.require_sound(agent)
    assert [m.text for m in stage.model.requests[-1].messages[1:]] == [
        "Are you well?",
        "Are you there?",
    ]


@pytest.mark.parametrize("kind", ["llm_bad_request", "context_window_exceeded"])
async def test_a_message_refused_as_a_bad_request_is_kept_but_not_sent_again(
    stage: Stage, agent: str, kind: ModelErrorKind
) -> None:
    # Nothing can be left out of this request: there is one word besides the system prompt.
    stage.lines += [ModelError(kind, "Not like this."), "Better."]
    answer = await stage.say(agent, "Poison.")
    assert (answer.run.status, answer.run.stop_reason) == ("failed", "llm_api_error")
    assert text_of(await stage.say(agent, "Are you there?")) == "Better."
    assert [message.text for message in stage.model.requests[-1].messages[1:]] == ["Are you there?"]
    assert [message.text for message in (await stage.history(agent))[1:]] == [
        "Poison.",
        "Are you there?",
        "Better.",
    ]


async def test_an_unexpected_exception_fails_the_run_without_showing_details(
    stage: Stage, agent: str
) -> None:
    stage.lines += [ZeroDivisionError("secret detail")]
    answer = await stage.say(agent)
    assert answer.failure
    assert (answer.run.status, answer.run.stop_reason) == ("failed", "error")
    assert "secret" not in f"{answer.failure} {answer.run.error}"
    await stage.require_sound(agent)


async def test_a_failure_of_the_database_in_a_tool_fails_the_run_and_is_not_told_to_the_model(
    stage: Stage, agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any, **__: Any) -> None:
        raise DatabaseFailed("The database is down.")

    stage.lines += [call("conversation_search", query="tea"), "I could not find it."]
    with monkeypatch.context() as patched:
        patched.setattr(Recall, "messages", fail)
        answer = await stage.say(agent)
    assert answer.failure
    assert (answer.failure.kind, answer.failure.message) == (INTERRUPTED, DATABASE_FAILED)
    assert answer.run.status == "failed"
    assert len(stage.model.requests) == 1
    await stage.require_sound(agent)
    told = [part.content for m in stage.model.requests[-1].messages for part in m.tool_returns]
    assert "The database is down." not in told


# Plugins.


async def test_a_kill_right_after_a_failed_turn_keeps_the_job_that_takes_notes(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await stage.agent(settings={"model_profile": "notes"}, system=None)
    stage.lines += [ModelError("llm_bad_request", "It is down.")]
    write = stage.store.write

    async def write_until_the_end(work: Callable[[Transaction], T]) -> T:
        ended = await stage.store.read(
            lambda tx: [run.status for run in runs.page(tx, Scope(), Page())] == ["failed"]
        )
        if ended:
            raise Unavailable("The server is gone.")
        return await write(work)

    monkeypatch.setattr(stage.store, "write", write_until_the_end)
    assert (await stage.say(agent, "My dog is called Rex.")).failure is not None
    waiting = await stage.store.read(lambda tx: jobs.page(tx, Scope(), Page()))
    assert "take_notes" in [job.kind for job in waiting]


async def test_a_plugin_that_fails_after_a_turn_does_not_disturb_it(
    stage: Stage, agent: str
) -> None:
    stage.hooks.fails = True
    stage.lines += ["One."]
    turn = await stage.begin(agent)
    assert text_of(await soon(collect(turn))) == "One."
    await soon(turn.wait())
    assert len(stage.hooks.ended) == 1
    await stage.require_sound(agent)


# Cancelling.


async def cancelled(stage: Stage, agent: str, turn: LiveTurn) -> list[Event]:
    """Cancel the turn and check its end; return all that a reader received."""
    reading = asyncio.create_task(all_events(turn))
    await asyncio.sleep(0)
    await soon(turn.cancel())
    events = await soon(reading)
    assert isinstance(events[-1], RunEnded)
    assert (events[-1].run.status, events[-1].run.stop_reason) == ("cancelled", "cancelled")
    assert (await stage.runs(agent))[-1].status == "cancelled"
    assert stage.runtime.live == {}
    return events


@pytest.mark.parametrize("acts_outside", [False, True])
@pytest.mark.parametrize("is_ended_elsewhere", [False, True])
async def test_the_tokens_of_a_reply_are_in_the_ledger_if_its_tool_is_cancelled(
    open_stage: OpenStage, acts_outside: bool, is_ended_elsewhere: bool
) -> None:
    gate = Gate()

    async def wait(context: ToolContext) -> str:
        """Wait."""
        await gate.pass_through()
        return "Waited."

    stage = await open_stage(ServerTool(wait, "custom", acts_outside=acts_outside))
    agent = await stage.agent(tool_names=("wait",))
    stage.lines += ["Hi.", ModelReply((call("wait"),), Usage(100, 200))]
    await stage.say(agent)
    used = partial(runs.used_since, organization_id=LOCAL_ORGANIZATION, since=0)
    before = await stage.store.read(used)
    turn = await stage.begin(agent)
    await gate.reached()
    if is_ended_elsewhere:
        await end_elsewhere(stage, agent, "cancelled")
    await soon(turn.cancel())
    assert await stage.store.read(used) - before == 300


@pytest.mark.parametrize("acts_outside", [False, True])
async def test_a_turn_cancelled_during_a_tool_keeps_only_calls_that_act_outside(
    open_stage: OpenStage, acts_outside: bool
) -> None:
    gate = Gate()

    async def wait(context: ToolContext) -> str:
        """Wait."""
        await gate.pass_through()
        return "Waited."

    stage = await open_stage(ServerTool(wait, "custom", acts_outside=acts_outside))
    agent = await stage.agent(("human", "Ada."), tool_names=("wait",))
    stage.lines += [(call("memory_insert", label="human", new_string="Tea."), call("wait"))]
    turn = await stage.begin(agent)
    await gate.reached()
    events = await cancelled(stage, agent, turn)
    history = await stage.history(agent)
    assert saved(events) == [message.id for message in history][2:]
    assert roles(history) == ("system user assistant tool" if acts_outside else "system user")
    results = [("error", CANCELLED)] * 2 if acts_outside else []
    assert [(part.status, part.content) for part in history[-1].tool_returns] == results
    assert await stage.block(agent, "human") == "Ada."
    await stage.require_sound(agent)


async def test_cancelling_twice_or_after_the_end_is_harmless(stage: Stage, agent: str) -> None:
    turn, _gate = await stage.asked(agent, line="Never said.")
    await soon(asyncio.gather(turn.cancel(), turn.cancel()))
    await soon(turn.cancel())
    assert [run.status for run in await stage.runs(agent)] == ["cancelled"]
    stage.lines += ["Hello."]
    done = await stage.begin(agent)
    assert text_of(await soon(collect(done))) == "Hello."
    await soon(done.cancel())
    assert [run.status for run in await stage.runs(agent)] == ["cancelled", "completed"]
    await stage.require_sound(agent)


@pytest.mark.parametrize(
    ("line", "held_at", "end", "status"),
    [
        ("Said.", "INSERT INTO steps", RunEnded, "completed"),
        (call("conversation_search", query="tea"), "INSERT INTO steps", RunEnded, "cancelled"),
        (ModelError("llm_rate_limit", "Too fast."), "UPDATE runs", Failed, "failed"),
    ],
)
async def test_cancelling_during_a_save_keeps_what_is_saved_for_readers_too(
    stage: Stage, agent: str, line: Line, held_at: str, end: type[Event], status: str
) -> None:
    stage.lines += [line]
    with Held(stage.store, held_at) as held:
        turn = await stage.begin(agent)
        reading = asyncio.create_task(all_events(turn))
        await held.reached()
        cancelling = asyncio.create_task(turn.cancel())
        await asyncio.sleep(0.01)
        held.release()
        await soon(cancelling)
        events = await soon(reading)
    assert isinstance(events[-1], RunEnded | Failed)
    assert (type(events[-1]), events[-1].run.status) == (end, status)
    assert saved(events) == [message.id for message in await stage.history(agent)][2:]
    await stage.require_sound(agent)


# The lease.


async def end_elsewhere(stage: Stage, agent: str, reason: StopReason) -> None:

    def end(tx: Transaction) -> None:
        (run,) = runs.open_runs(tx, agent_id=agent)
        close_run(
            tx,
            run,
            reason,
            None if reason == "cancelled" else {"type": "interrupted", "message": "Gone."},
        )

    await stage.store.write(end)


@pytest.mark.parametrize(
    ("reason", "end", "status"), [("cancelled", RunEnded, "cancelled"), ("error", Failed, "failed")]
)
async def test_a_turn_that_lost_its_lease_saves_nothing_more(
    stage: Stage, reason: StopReason, end: type[Event], status: str
) -> None:
    agent = await stage.agent(("human", "Ada."))
    gate = Gate()
    stage.lines += [
        gate.line(call("memory_insert", label="human", new_string="Tea.")),
        "Never asked.",
    ]
    turn = await stage.begin(agent)
    await gate.reached()
    await end_elsewhere(stage, agent, reason)
    gate.open()
    last = (await all_events(turn))[-1]
    assert isinstance(last, RunEnded | Failed)
    assert (type(last), last.run.status) == (end, status)
    assert isinstance(last, RunEnded) or (last.kind, last.message) == ("interrupted", "Gone.")
    assert roles(await stage.history(agent)) == "system user"
    assert await stage.block(agent, "human") == "Ada."
    await stage.require_sound(agent)


async def test_a_turn_renews_its_lease_and_stops_when_it_is_lost(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "RENEWAL", 0.005)
    agent = await stage.agent()
    turn, _gate = await stage.asked(agent, line="Never said.")
    (before,) = await stage.runs(agent)
    await asyncio.sleep(0.05)
    (renewed,) = await stage.runs(agent)
    assert renewed.lease_expires_at > before.lease_expires_at
    assert renewed.lease_expires_at - stage.store.clock.now() == pytest.approx(LEASE, rel=0.01)
    await end_elsewhere(stage, agent, "cancelled")
    await soon(turn.wait())  # the gate is still closed, so only the lost lease can end it
    await stage.require_sound(agent)


async def test_a_failed_renewal_of_a_lease_is_tried_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "RENEWAL", 0.005)
    agent = await stage.agent()
    await broken(stage.store, "UPDATE OF lease_expires_at ON runs")
    turn, gate = await stage.asked(agent, line="Hello.")
    await asyncio.sleep(0.03)
    await mended(stage.store)
    (before,) = await stage.runs(agent)
    await asyncio.sleep(0.05)
    (renewed,) = await stage.runs(agent)
    assert renewed.lease_expires_at > before.lease_expires_at
    gate.open()
    assert text_of(await soon(collect(turn))) == "Hello."


# Readers always get an end, whatever happens.


async def test_readers_get_an_end_even_if_it_cannot_be_saved(
    stage: Stage, agent: str, clock: ManualClock
) -> None:
    stage.lines += ["Never saved."]
    await broken(stage.store, "UPDATE ON runs")
    events = await all_events(await stage.begin(agent, "Hello?"))
    assert isinstance(events[-1], Failed)
    assert saved(events) == []
    assert stage.runtime.live == {}
    await mended(stage.store)
    clock.advance(LEASE / SECOND + 1)
    stage.lines += ["Yes?"]
    assert text_of(await stage.say(agent, "Are you there?")) == "Yes?"
    assert [message.text for message in stage.model.requests[-1].messages[1:]] == [
        "Hello?",
        "Are you there?",
    ]
    (failed_run,) = [run for run in await stage.runs(agent) if run.status == "failed"]
    assert failed_run.error == {"type": INTERRUPTED, "message": DATABASE_FAILED}
    await stage.require_sound(agent)


async def test_a_run_whose_end_could_not_be_saved_is_closed_without_another_message(
    stage: Stage, agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "CLOSE_AGAIN", Backoff(0.01, 1, 0.01))
    stage.lines += ["Never saved."]
    await broken(stage.store, "UPDATE ON runs")
    assert isinstance((await all_events(await stage.begin(agent, "Hello?")))[-1], Failed)
    await asyncio.sleep(0.03)  # it fails some more times
    (closing,) = stage.runtime.unended.values()
    await mended(stage.store)
    await soon(closing)

    (run,) = await stage.runs(agent)
    assert run.status == "failed"
    assert run.error == {"type": INTERRUPTED, "message": DATABASE_FAILED}
    assert stage.runtime.unended == {}
    stage.lines += ["Yes?"]
    assert text_of(await stage.say(agent, "Are you there?")) == "Yes?"
    await stage.require_sound(agent)


async def test_a_run_whose_end_could_not_be_saved_does_not_delay_a_stop(
    stage: Stage, agent: str
) -> None:
    stage.lines += ["Never saved."]
    await broken(stage.store, "UPDATE ON runs")
    await all_events(await stage.begin(agent, "Hello?"))
    (closing,) = stage.runtime.unended.values()
    await soon(finish_turns(stage.runtime))
    assert closing.cancelled()
    await mended(stage.store)


# Readers.


async def test_a_reader_that_leaves_does_not_stop_the_turn(stage: Stage, agent: str) -> None:
    gate = Gate()
    stage.lines += [gate.line("Hello.")]
    turn = await stage.begin(agent)
    events = turn.events()
    assert isinstance(await anext(events), RunStarted)
    await events.aclose()
    await gate.reached()
    gate.open()
    await soon(turn.wait())
    assert [run.status for run in await stage.runs(agent)] == ["completed"]
    await stage.require_sound(agent)


# Shutdown.


async def begin(runtime: Runtime, agent: str) -> LiveTurn:
    return await run_turn(
        runtime, TurnRequest(Scope(), agent, (NewMessage("user", (TextPart("Hi."),)),))
    )


async def a_turn(runtime: Runtime) -> tuple[str, LiveTurn]:
    agent = (await create_agent(runtime, Scope(), AgentSpec(model="scripted/model"))).agent.id
    return agent, await begin(runtime, agent)


async def test_a_running_turn_may_finish_during_shutdown_and_new_ones_are_refused(
    tmp_path: Path,
) -> None:
    gate = Gate()
    model = ScriptedModel(gate.line("Goodbye."))
    settings = Settings(data_dir=tmp_path, find_local_models=False, shutdown_grace=4)
    async with open_runtime(settings, ProviderSettings(), extra_models=[model]) as runtime:
        agent, turn = await a_turn(runtime)
        reading = asyncio.create_task(collect(turn))
        await gate.reached()
        runtime.is_stopping = True
        with pytest.raises(Unavailable):
            await begin(runtime, agent)
        asyncio.get_running_loop().call_later(0.05, gate.open)
    answer = await soon(reading)
    assert (answer.run.status, text_of(answer)) == ("completed", "Goodbye.")


async def test_an_unfinished_turn_fails_at_shutdown_and_the_agent_answers_after_a_restart(
    tmp_path: Path,
) -> None:
    gate = Gate()
    settings = Settings(data_dir=tmp_path, find_local_models=False, shutdown_grace=0.02)
    async with open_runtime(
        settings, ProviderSettings(), extra_models=[ScriptedModel(gate.line("Late."))]
    ) as runtime:
        agent, turn = await a_turn(runtime)
        reading = asyncio.create_task(all_events(turn))
        await gate.reached()
    end = (await soon(reading))[-1]
    assert isinstance(end, Failed)
    assert (end.run.status, end.run.stop_reason) == ("failed", "error")
    async with open_runtime(
        settings, ProviderSettings(), extra_models=[ScriptedModel(["Back."])]
    ) as runtime:
        assert text_of(await soon(collect(await begin(runtime, agent)))) == "Back."


async def test_a_turn_whose_start_the_database_lost_fails_and_its_repetition_is_answered(
    stage: Stage,
) -> None:
    agent = await stage.agent()
    turn, gate = await stage.asked(agent, "Hello.", otids=["otid-1"])
    (run,) = await stage.runs(agent)
    input_id = (await stage.history(agent))[-1].id

    def undo(tx: Transaction) -> None:
        # PostgreSQL can lose the first commit of a turn if synchronous_commit is off.
        for table, id in (("messages", input_id), ("runs", run.id)):
            tx.connection.exec_driver_sql(f"DELETE FROM {table} WHERE id = '{id}'")  # noqa: S608
        tx.connection.exec_driver_sql("UPDATE conversations SET message_count = 1")

    await stage.store.write(undo)
    gate.open()
    answer = await soon(collect(turn))
    assert answer.failure is not None
    assert (answer.failure.kind, answer.failure.message) == (INTERRUPTED, DATABASE_FAILED)
    assert await stage.runs(agent) == []
    await stage.require_sound(agent)
    stage.lines.append("Hello again.")
    assert text_of(await stage.say(agent, "Hello.", otids=["otid-1"])) == "Hello again."
