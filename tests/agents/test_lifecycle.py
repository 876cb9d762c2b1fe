"""Agents from creation to deletion."""

import asyncio
from typing import Any

import pytest

from ricordo.agents.deletion import delete_agent as remove_agent
from ricordo.agents.lifecycle import BlockSpec, attach_block, cancel_runs, delete_agent, reset_messages
from ricordo.agents.turn import collect
from ricordo.domain.event import RunEnded
from ricordo.domain.scope import Scope
from ricordo.errors import Busy, Conflict, Invalid, NotFound, RicordoError, Unsupported
from ricordo.llm.scripted import call
from ricordo.storage import agents, archives, blocks, runs
from ricordo.storage.engine.repository import Page
from tests.seams import make
from tests.seams.stage import Gate, Stage, all_events, roles, soon, text_of
from tests.seams.stores import count_statements


async def test_creating_an_agent_costs_at_most_twelve_statements(stage: Stage) -> None:
    shared = (await stage.state(await stage.agent(("team", "Tea.")))).blocks[0]
    with count_statements(stage.store) as counted:
        await stage.agent(("human", "Ada."), ("persona", "Kind."), block_ids=(shared.id,), tags=("a",))
    assert len(counted.statements) <= 12, counted.statements
    assert counted.transactions == 1


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ({"model": "nobody/model"}, NotFound),
        ({"timezone": "Mars/Olympus"}, Invalid),
        ({"agent_type": "voice_convo_agent"}, Unsupported),
        ({"tool_names": ("launch_rocket",)}, NotFound),
        ({"tool_ids": ("tool-unknown",)}, NotFound),
        ({"block_ids": ("block-unknown",)}, NotFound),
        ({"blocks": (BlockSpec("human"), BlockSpec("human"))}, Invalid),
        ({"blocks": (BlockSpec("a/../b"),)}, Invalid),
        ({"blocks": (BlockSpec("human", "Too long.", limit=5),)}, Invalid),
    ],
)
async def test_an_agent_that_cannot_be_made_leaves_nothing_behind(
    stage: Stage, spec: dict[str, Any], error: type[RicordoError]
) -> None:
    with pytest.raises(error):
        await stage.agent(**spec)
    assert await stage.store.read(lambda tx: (agents.count(tx, Scope()), blocks.count(tx, Scope()))) == (0, 0)


async def test_attaching_a_block_twice_is_once_and_a_label_stands_once(stage: Stage) -> None:
    one, other = await stage.agent(("team", "Tea.")), await stage.agent(("human", "Ada."))
    team = (await stage.state(one)).blocks[0]
    for _ in range(2):
        await stage.store.write(lambda tx: attach_block(tx, Scope(), other, team.id))
    assert [block.label for block in (await stage.state(other)).blocks] == ["human", "team"]
    human = (await stage.state(other)).blocks[0]
    third = await stage.agent(("human", "Bob."))
    with pytest.raises(Conflict, match="human"):
        await stage.store.write(lambda tx: attach_block(tx, Scope(), third, human.id))
    with pytest.raises(NotFound):
        await stage.store.write(lambda tx: attach_block(tx, Scope(), "agent-unknown", human.id))
    stage.lines += ["Yes."]
    await stage.say(other)
    assert "Tea." in stage.model.requests[0].messages[0].text


async def test_a_thread_is_not_reset_under_a_running_turn(stage: Stage, agent: str) -> None:
    turn, gate = await stage.asked(agent, line="Hello.")
    with pytest.raises(Busy):
        await reset_messages(stage.runtime, Scope(), agent)
    gate.open()
    await soon(turn.wait())
    assert roles(await stage.history(agent)) == "system user assistant"
    with pytest.raises(NotFound):
        await reset_messages(stage.runtime, Scope(), "agent-unknown")


async def test_deleting_an_agent_stops_its_turn_and_leaves_its_blocks_and_archives(stage: Stage) -> None:
    agent = await stage.agent(("human", "Ada."))
    gate = Gate()
    stage.lines += [call("archival_memory_insert", content="Tea."), "Kept.", gate.line("Never said.")]
    await stage.say(agent)
    state = await stage.state(agent)
    turn = await stage.begin(agent)
    reading = asyncio.create_task(all_events(turn))
    await gate.reached()
    await soon(delete_agent(stage.runtime, Scope(), agent))
    assert isinstance((await soon(reading))[-1], RunEnded)
    for gone in (stage.state(agent), stage.begin(agent), delete_agent(stage.runtime, Scope(), agent)):
        with pytest.raises(NotFound):
            await gone
    assert await stage.history(agent) == []
    assert await stage.runs(agent) == []
    kept = await stage.store.read(lambda tx: blocks.get(tx, Scope(), state.blocks[0].id))
    assert kept.value == "Ada."
    found = await stage.store.read(lambda tx: archives.page_of_passages(tx, [state.archives[0].id], Page()))
    assert [passage.text for passage in found] == ["Tea."]


async def test_a_run_that_another_process_left_can_be_cancelled(stage: Stage) -> None:
    agent_id = await stage.agent()
    agent = (await stage.state(agent_id)).agent
    run = make.run(agent)
    await stage.store.write(lambda tx: runs.open_run(tx, run))
    assert await cancel_runs(stage.runtime, Scope(), agent_id) == {run.id: True}
    assert await cancel_runs(stage.runtime, Scope(), agent_id, [run.id]) == {run.id: False}
    with pytest.raises(NotFound):
        await cancel_runs(stage.runtime, Scope(), "agent-unknown")
    await stage.require_sound(agent_id)


async def test_after_a_reset_a_clients_retry_is_a_new_message(stage: Stage, agent: str) -> None:
    """The messages of the first try are gone, so its run has nothing left to answer with."""
    stage.lines += ["First.", "Again."]
    await stage.say(agent, "Hello.", body_hash="same")
    await reset_messages(stage.runtime, Scope(), agent)

    answer = await stage.say(agent, "Hello.", body_hash="same", is_retry=True)

    assert text_of(answer) == "Again."


async def test_an_agent_that_is_deleted_while_it_begins_fails_quietly(
    stage: Stage, agent: str, caplog: pytest.LogCaptureFixture
) -> None:
    turn, gate = await stage.asked(agent, line="Too late.")
    await remove_agent(stage.runtime, Scope(), agent)
    gate.open()

    answer = await soon(collect(turn))

    assert answer.failure is not None
    assert (answer.run.status, answer.failure.message) == ("failed", "The agent was deleted while it answered.")
    assert not [record for record in caplog.records if record.exc_info]
