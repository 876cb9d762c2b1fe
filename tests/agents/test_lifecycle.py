"""Agents from creation to deletion."""

import asyncio

import pytest

from ricordo.agents.conversations import cancel_run, create_conversation
from ricordo.agents.deletion import HANDLER, delete_archive, delete_conversation
from ricordo.agents.deletion import delete_agent as remove_agent
from ricordo.agents.lifecycle import attach_block, cancel_runs, delete_agent, reset_messages
from ricordo.agents.turn import PastTurn, collect
from ricordo.domain.event import Failed, RunEnded, RunStarted
from ricordo.domain.model import ModelRequest
from ricordo.domain.scope import Scope
from ricordo.errors import Busy, Conflict, NotFound
from ricordo.llm.scripted import Line, call
from ricordo.storage import agents, archives, blocks, conversations, deletion, jobs, runs
from ricordo.storage.engine.repository import Page
from tests.seams import make
from tests.seams.stage import Gate, Stage, all_events, roles, soon, text_of
from tests.seams.stores import killed_after


async def test_attaching_a_block_twice_has_no_effect_and_a_taken_label_is_refused(
    stage: Stage,
) -> None:
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


async def test_a_conversation_cannot_be_reset_during_a_turn(stage: Stage, agent: str) -> None:
    turn, gate = await stage.asked(agent, line="Hello.")
    with pytest.raises(Busy):
        await reset_messages(stage.runtime, Scope(), agent)
    gate.open()
    await soon(turn.wait())
    assert roles(await stage.history(agent)) == "system user assistant"
    with pytest.raises(NotFound):
        await reset_messages(stage.runtime, Scope(), "agent-unknown")


async def test_deleting_an_agent_stops_its_turn_and_keeps_its_blocks_and_archives(
    stage: Stage,
) -> None:
    agent = await stage.agent(("human", "Ada."))
    gate = Gate()
    stage.lines += [
        call("archival_memory_insert", content="Tea."),
        "Kept.",
        gate.line("Never said."),
    ]
    await stage.say(agent)
    state = await stage.state(agent)
    turn = await stage.begin(agent)
    reading = asyncio.create_task(all_events(turn))
    await gate.reached()
    await soon(delete_agent(stage.runtime, Scope(), agent))
    assert isinstance((await soon(reading))[-1], RunEnded)
    for gone in (
        stage.state(agent),
        stage.begin(agent),
        delete_agent(stage.runtime, Scope(), agent),
    ):
        with pytest.raises(NotFound):
            await gone
    assert await stage.history(agent) == []
    assert await stage.runs(agent) == []
    kept = await stage.store.read(lambda tx: blocks.get(tx, Scope(), state.blocks[0].id))
    assert kept.value == "Ada."
    found = await stage.store.read(
        lambda tx: archives.page_of_passages(tx, [state.archives[0].id], Page())
    )
    assert [passage.text for passage in found] == ["Tea."]


async def test_a_run_left_open_by_another_process_can_be_cancelled(stage: Stage) -> None:
    agent_id = await stage.agent()
    agent = (await stage.state(agent_id)).agent
    run = make.run(agent)
    await stage.store.write(lambda tx: runs.open_run(tx, run))
    assert await cancel_runs(stage.runtime, Scope(), agent_id) == {run.id: True}
    assert await cancel_runs(stage.runtime, Scope(), agent_id, [run.id]) == {run.id: False}
    with pytest.raises(NotFound):
        await cancel_runs(stage.runtime, Scope(), "agent-unknown")
    await stage.require_sound(agent_id)


async def test_a_run_of_another_user_is_not_cancelled(stage: Stage, agent: str) -> None:
    _turn, gate = await stage.asked(agent)
    (run_id,) = stage.runtime.live
    with pytest.raises(NotFound):
        await cancel_run(stage.runtime, Scope(organization_id="org-2"), run_id)
    assert run_id in stage.runtime.live
    gate.open()


async def test_a_retry_after_a_reset_is_a_new_message(stage: Stage, agent: str) -> None:
    """The reset deleted the first attempt's messages, so its run cannot answer the retry."""
    stage.lines += ["First.", "Again."]
    await stage.say(agent, "Hello.", body_hash="same")
    await reset_messages(stage.runtime, Scope(), agent)

    answer = await stage.say(agent, "Hello.", body_hash="same", is_retry=True)

    assert text_of(answer) == "Again."


async def test_an_agent_deleted_during_its_turn_fails_without_a_traceback(
    stage: Stage, agent: str, caplog: pytest.LogCaptureFixture
) -> None:
    turn, gate = await stage.asked(agent, line="Too late.")
    await remove_agent(stage.runtime, Scope(), agent)
    gate.open()

    answer = await soon(collect(turn))

    assert (answer.run.status, answer.failure.message) == (
        "failed",
        "The agent or the conversation was deleted during the answer.",
    )
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_deleted_conversation_ends_its_turn_without_blaming_the_agent(
    stage: Stage, agent: str
) -> None:
    other = await create_conversation(stage.runtime, Scope(), agent, {})
    turn, gate = await stage.asked(agent, line="Too late.", conversation_id=other.id)
    await delete_conversation(stage.runtime, Scope(), other.id)
    gate.open()

    answer = await soon(collect(turn))

    assert answer.failure
    assert "or the conversation was deleted" in answer.failure.message
    assert (await stage.state(agent)).agent.id == agent


async def test_a_reader_of_another_servers_turn_is_told_that_the_agent_was_deleted(
    stage: Stage, agent: str
) -> None:
    turn, gate = await stage.asked(agent, line="Too late.")
    (run,) = await stage.store.read(runs.open_runs)
    reader = PastTurn(stage.runtime, Scope(), run.id).events()
    assert isinstance(await anext(reader), RunStarted)
    await remove_agent(stage.runtime, Scope(), agent)
    (last,) = [event async for event in reader]
    assert isinstance(last, Failed)
    assert (last.kind, last.message) == (
        "deleted",
        "The agent or the conversation was deleted during the answer.",
    )
    gate.open()
    await soon(collect(turn))


async def with_messages(stage: Stage, number: int) -> str:
    agent_id = await stage.agent()
    state = await stage.store.read(lambda tx: agents.load(tx, Scope(), agent_id))
    said = [make.message(state.agent, f"tea {place}") for place in range(number)]
    for start in range(0, number, 500):
        await make.stored_messages(stage.store, *said[start : start + 500])
    await stage.store.write(lambda tx: conversations.add_past(tx, state.conversation.id, number, 1))
    return agent_id


async def run_jobs(stage: Stage) -> None:
    for job in await stage.store.read(
        lambda tx: jobs.page(tx, Scope(), Page(order="asc"), kind=deletion.JOB)
    ):
        await HANDLER.run(stage.runtime, job, lambda _done, _total: None)


async def test_a_turn_is_answered_between_the_portions_of_a_deletion(stage: Stage) -> None:
    agent, other = await with_messages(stage, 2_100), await stage.agent()
    deleting = asyncio.create_task(delete_agent(stage.runtime, Scope(), agent))
    stage.lines.append("ok")
    await stage.say(other, "Hello.")
    assert not deleting.done()
    await soon(deleting)
    with pytest.raises(NotFound):
        await stage.state(agent)


@pytest.mark.parametrize("writes", [1, 2, 3, 4])
async def test_an_archive_whose_deletion_was_killed_is_hidden_and_purged_later(
    stage: Stage, writes: int
) -> None:
    agent = (await stage.state(await stage.agent())).agent
    archive = await make.stored_archive(
        stage.store, agent, *(f"tea {place}" for place in range(450))
    )

    with pytest.raises(asyncio.CancelledError), killed_after(stage.runtime, writes):
        await delete_archive(stage.runtime, Scope(), archive.id)

    with pytest.raises(NotFound):
        await stage.store.read(lambda tx: archives.get(tx, Scope(), archive.id))
    assert (await stage.state(agent.id)).archives == ()
    for _ in range(2):
        await run_jobs(stage)
        assert (
            await stage.store.read(lambda tx: archives.page_of_passages(tx, [archive.id], Page()))
            == []
        )


@pytest.mark.parametrize("is_killed", [False, True])
async def test_a_long_conversation_is_reset_completely_even_after_a_kill(
    stage: Stage, is_killed: bool
) -> None:
    agent = await with_messages(stage, 1_700)
    if is_killed:
        with pytest.raises(asyncio.CancelledError), killed_after(stage.runtime, 2):
            await reset_messages(stage.runtime, Scope(), agent)
    else:
        await reset_messages(stage.runtime, Scope(), agent)
        assert [message.role for message in await stage.history(agent)] == ["system"]
    # The window is already empty, and the agent still answers.
    assert len((await stage.thread(agent)).window) == 1
    stage.lines.append("Hello.")
    await stage.say(agent, "Good morning.")

    await run_jobs(stage)

    assert [message.role for message in await stage.history(agent)] == [
        "system",
        "user",
        "assistant",
    ]
    assert (await stage.thread(agent)).message_count == 3
    await stage.require_sound(agent)


async def test_a_passage_for_an_archive_deleted_during_the_turn_goes_to_another(
    stage: Stage,
) -> None:
    """A turn uses the archives that its agent had when the turn began."""
    agent = await stage.agent()
    old = await make.stored_archive(stage.store, (await stage.state(agent)).agent, "Old.")

    async def delete_then_call(_request: ModelRequest) -> Line:
        await delete_archive(stage.runtime, Scope(), old.id)
        return call("archival_memory_insert", content="Ada likes tea.")

    stage.lines += [delete_then_call, "Kept."]
    await stage.say(agent)
    (archive,) = (await stage.state(agent)).archives
    assert archive.id != old.id
    (passage,) = await stage.store.read(
        lambda tx: archives.page_of_passages(tx, [archive.id], Page())
    )
    assert passage.text == "Ada likes tea."
