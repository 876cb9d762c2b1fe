"""Deleting what is large: other writers have their turn meanwhile, and what a kill interrupts is finished later."""

import asyncio

import pytest

from ricordo.agents.deletion import HANDLER, delete_archive
from ricordo.agents.lifecycle import delete_agent, reset_messages
from ricordo.domain.job import Job
from ricordo.domain.model import ModelRequest
from ricordo.domain.scope import Scope
from ricordo.errors import NotFound
from ricordo.llm.scripted import Line, call
from ricordo.storage import agents, archives, conversations, deletion, jobs
from ricordo.storage.paging import Page
from ricordo.storage.sqlite import SqliteStore
from tests.agents.stage import Stage, soon
from tests.support import make
from tests.support.kills import killed_after


async def told(store: SqliteStore, agent_id: str, number: int) -> None:
    """Store so many messages in the agent's thread, outside its window."""
    state = await store.read(lambda tx: agents.load(tx, Scope(), agent_id))
    for start in range(0, number, 500):
        size = min(500, number - start)
        await make.stored_messages(store, *(make.message(state.agent, f"tea {place}") for place in range(size)))
        await store.write(lambda tx, size=size: conversations.add_past(tx, state.conversation.id, size, 1))


async def removal_jobs(store: SqliteStore) -> list[Job]:
    """The jobs that wait to finish removals."""
    found = await store.read(lambda tx: jobs.page(tx, Scope(), Page(order="asc")))
    return [job for job in found if job.kind == deletion.JOB]


async def run_jobs(stage: Stage) -> None:
    """Do what waits, as the worker of the next server would."""
    for job in await removal_jobs(stage.store):
        await HANDLER.run(stage.runtime, job, lambda _done, _total: None)


async def test_a_write_waits_for_one_portion_at_most(stage: Stage) -> None:
    agent = await stage.agent()
    await told(stage.store, agent, 2_100)
    other = await stage.agent()
    deleting = asyncio.create_task(delete_agent(stage.runtime, Scope(), agent))
    stage.lines.append("ok")
    await stage.say(other, "Hello.")
    assert not deleting.done()
    await soon(deleting)
    with pytest.raises(NotFound):
        await stage.state(agent)


@pytest.mark.parametrize("writes", [1, 2, 3, 4])
async def test_an_archive_whose_deletion_was_killed_is_gone_and_its_rows_follow(stage: Stage, writes: int) -> None:
    agent = (await stage.state(await stage.agent())).agent
    archive = await make.stored_archive(stage.store, agent, *(f"tea {place}" for place in range(1_100)))

    with pytest.raises(asyncio.CancelledError), killed_after(stage.runtime, writes):
        await delete_archive(stage.runtime, Scope(), archive.id)

    with pytest.raises(NotFound):
        await stage.store.read(lambda tx: archives.get(tx, Scope(), archive.id))
    assert (await stage.state(agent.id)).archives == ()
    await run_jobs(stage)
    assert await stage.store.read(lambda tx: archives.page_of_passages(tx, [archive.id], Page())) == []
    await run_jobs(stage)


async def test_a_long_thread_whose_reset_was_killed_is_empty_in_the_end(stage: Stage) -> None:
    agent = await stage.agent()
    await told(stage.store, agent, 1_700)
    with pytest.raises(asyncio.CancelledError), killed_after(stage.runtime, 2):
        await reset_messages(stage.runtime, Scope(), agent)
    # The window is empty already, and the agent can be talked with.
    assert len((await stage.thread(agent)).window) == 1
    stage.lines.append("Hello.")
    await stage.say(agent, "Good morning.")

    await run_jobs(stage)

    assert [message.role for message in await stage.history(agent)] == ["system", "user", "assistant"]
    assert (await stage.thread(agent)).message_count == 3
    await stage.require_sound(agent)


async def test_a_long_thread_is_reset_to_the_last_message(stage: Stage) -> None:
    agent = await stage.agent()
    await told(stage.store, agent, 1_700)
    state = await reset_messages(stage.runtime, Scope(), agent)
    assert [message.id for message in await stage.history(agent)] == list(state.conversation.window)
    assert (await stage.thread(agent)).message_count == state.conversation.message_count == 1


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
