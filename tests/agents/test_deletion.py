"""Deletion of what is large: other writers have their turn meanwhile, and what a kill interrupts is finished later."""

import asyncio

import pytest

from ricordo.agents.deletion import HANDLER, delete_archive
from ricordo.agents.lifecycle import delete_agent, reset_messages
from ricordo.domain.model import ModelRequest
from ricordo.domain.scope import Scope
from ricordo.errors import NotFound
from ricordo.llm.scripted import Line, call
from ricordo.storage import agents, archives, conversations, deletion, jobs
from ricordo.storage.engine.repository import Page
from tests.seams import make
from tests.seams.stage import Stage, soon
from tests.seams.stores import killed_after


async def with_messages(stage: Stage, number: int) -> str:
    agent_id = await stage.agent()
    state = await stage.store.read(lambda tx: agents.load(tx, Scope(), agent_id))
    said = [make.message(state.agent, f"tea {place}") for place in range(number)]
    for start in range(0, number, 500):
        await make.stored_messages(stage.store, *said[start : start + 500])
    await stage.store.write(lambda tx: conversations.add_past(tx, state.conversation.id, number, 1))
    return agent_id


async def run_jobs(stage: Stage) -> None:
    """Do the deletions that wait, as the worker of the next server would."""
    for job in await stage.store.read(lambda tx: jobs.page(tx, Scope(), Page(order="asc"), kind=deletion.JOB)):
        await HANDLER.run(stage.runtime, job, lambda _done, _total: None)


async def test_a_write_waits_for_one_portion_at_most(stage: Stage) -> None:
    agent, other = await with_messages(stage, 2_100), await stage.agent()
    deleting = asyncio.create_task(delete_agent(stage.runtime, Scope(), agent))
    stage.lines.append("ok")
    await stage.say(other, "Hello.")
    assert not deleting.done()
    await soon(deleting)
    with pytest.raises(NotFound):
        await stage.state(agent)


@pytest.mark.parametrize("writes", [1, 2, 3, 4])
async def test_an_archive_whose_deletion_was_killed_is_hidden_and_its_rows_follow(stage: Stage, writes: int) -> None:
    agent = (await stage.state(await stage.agent())).agent
    archive = await make.stored_archive(stage.store, agent, *(f"tea {place}" for place in range(450)))

    with pytest.raises(asyncio.CancelledError), killed_after(stage.runtime, writes):
        await delete_archive(stage.runtime, Scope(), archive.id)

    with pytest.raises(NotFound):
        await stage.store.read(lambda tx: archives.get(tx, Scope(), archive.id))
    assert (await stage.state(agent.id)).archives == ()
    for _ in range(2):
        await run_jobs(stage)
        assert await stage.store.read(lambda tx: archives.page_of_passages(tx, [archive.id], Page())) == []


@pytest.mark.parametrize("is_killed", [False, True])
async def test_a_long_conversation_is_reset_to_the_last_message_also_after_a_kill(
    stage: Stage, is_killed: bool
) -> None:
    agent = await with_messages(stage, 1_700)
    if is_killed:
        with pytest.raises(asyncio.CancelledError), killed_after(stage.runtime, 2):
            await reset_messages(stage.runtime, Scope(), agent)
    else:
        await reset_messages(stage.runtime, Scope(), agent)
        assert [message.role for message in await stage.history(agent)] == ["system"]
    # The window is empty already, and the agent can be talked with.
    assert len((await stage.thread(agent)).window) == 1
    stage.lines.append("Hello.")
    await stage.say(agent, "Good morning.")

    await run_jobs(stage)

    assert [message.role for message in await stage.history(agent)] == ["system", "user", "assistant"]
    assert (await stage.thread(agent)).message_count == 3
    await stage.require_sound(agent)


async def test_a_passage_meant_for_an_archive_that_was_deleted_meanwhile_finds_another(stage: Stage) -> None:
    """A turn knows the archives its agent had when it began."""
    agent = await stage.agent()
    old = await make.stored_archive(stage.store, (await stage.state(agent)).agent, "Old.")

    async def delete_then_call(_request: ModelRequest) -> Line:
        await delete_archive(stage.runtime, Scope(), old.id)
        return call("archival_memory_insert", content="Ada likes tea.")

    stage.lines += [delete_then_call, "Kept."]
    await stage.say(agent)
    (archive,) = (await stage.state(agent)).archives
    assert archive.id != old.id
    (passage,) = await stage.store.read(lambda tx: archives.page_of_passages(tx, [archive.id], Page()))
    assert passage.text == "Ada likes tea."
