"""Several servers on one PostgreSQL.

Kills and freezes lose no turn, no job and no document. A change made by one server takes effect on
all servers.
"""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from ricordo.agents.lifecycle import cancel_runs, delete_agent
from ricordo.agents.run_end import close_expired
from ricordo.agents.turn import Answer, collect
from ricordo.agents.turn_start import LEASE
from ricordo.domain.clock import SECOND
from ricordo.domain.job import Job
from ricordo.domain.scope import LOCAL_ORGANIZATION, Scope
from ricordo.errors import NotFound
from ricordo.search import index
from ricordo.search.index import MessageFilter, Query
from ricordo.storage import jobs, runs
from ricordo.storage.engine.postgres import PostgresStore, open_postgres
from ricordo.storage.engine.store import Transaction
from tests.seams import make
from tests.seams.stage import LIMIT, Gate, Hooks, Stage, soon, text_of
from tests.seams.stores import Held, ManualClock, flush
from tests.support.postgres import server

DATABASES = ("postgresql",)


@pytest.fixture
async def other(
    store: PostgresStore, clock: ManualClock, tmp_path: Path
) -> AsyncIterator[PostgresStore]:
    opened = open_postgres(server().shared_database(), connections=4, clock=clock, backups=tmp_path)
    yield opened
    await opened.close()


@pytest.fixture
async def here(store: PostgresStore, tmp_path: Path) -> AsyncIterator[Stage]:
    stage = await Stage(store, tmp_path, Hooks()).open()
    yield stage
    await stage.close()


@pytest.fixture
async def there(here: Stage, other: PostgresStore, tmp_path: Path) -> AsyncIterator[Stage]:
    stage = await Stage(other, tmp_path, Hooks()).open()
    yield stage
    await stage.close()


async def answering(
    stage: Stage, agent: str, gate: Gate, line: str, otid: str
) -> "asyncio.Task[Answer]":
    stage.lines.append(gate.line(line))
    task = asyncio.ensure_future(collect(await stage.begin(agent, "Are you there?", otids=[otid])))
    await gate.reached()
    return task


async def test_a_repeat_at_another_server_gets_the_answer_of_the_turn_that_runs(
    here: Stage, there: Stage
) -> None:
    agent, gate = await here.agent(), Gate()
    first = await answering(here, agent, gate, "I am.", "otid-1")
    again = asyncio.ensure_future(there.say(agent, "Are you there?", otids=["otid-1"]))
    await asyncio.sleep(0.05)
    assert not again.done()
    gate.open()
    assert text_of(await soon(first)) == text_of(await soon(again)) == "I am."
    assert there.model.requests == []
    assert len(await here.runs(agent)) == 1
    await there.require_sound(agent)


async def test_a_turn_that_another_server_cancels_writes_nothing_more(
    here: Stage, there: Stage
) -> None:
    agent, gate = await here.agent(), Gate()
    first = await answering(here, agent, gate, "Too late.", "otid-1")
    (run,) = await here.runs(agent)
    assert await cancel_runs(there.runtime, Scope(), agent) == {run.id: True}
    there.lines.append("Here.")
    assert text_of(await there.say(agent, "And you?")) == "Here."
    gate.open()
    ended = await soon(first)
    assert (ended.run.status, ended.messages) == ("cancelled", ())
    assert "Too late." not in [message.text for message in await here.history(agent)]
    await here.require_sound(agent)


async def test_an_agent_that_another_server_deletes_takes_its_running_turn_along(
    here: Stage, there: Stage
) -> None:
    agent, gate = await here.agent(), Gate()
    first = await answering(here, agent, gate, "Too late.", "otid-1")
    await delete_agent(there.runtime, Scope(), agent)
    gate.open()
    ended = await soon(first)
    assert "deleted" in ended.failure.message
    assert await leftovers(here, agent) == []


async def test_a_turn_that_begins_while_another_server_deletes_the_agent_ends_and_leaves_nothing(
    here: Stage, there: Stage
) -> None:
    agent, gate = await here.agent(), Gate()
    with Held(there.store, "INSERT INTO jobs") as hiding:
        deleting = asyncio.create_task(delete_agent(there.runtime, Scope(), agent))
        await hiding.reached()
        first = await answering(here, agent, gate, "Too late.", "otid-1")
        hiding.release()
        await soon(deleting)
    gate.open()
    assert (await soon(first)).failure
    assert await leftovers(here, agent) == []
    with pytest.raises(NotFound):
        await here.begin(agent)


async def leftovers(stage: Stage, agent: str) -> list[str]:
    columns = {
        "messages": "agent_id",
        "runs": "agent_id",
        "steps": "agent_id",
        "search_buffer": "owner_id",
    }
    columns |= {"agents": "id", "conversations": "agent_id", "search_partitions": "owner_id"}
    found = [
        f"SELECT '{table}' FROM {table} WHERE {column} = '{agent}'"  # noqa: S608
        for table, column in columns.items()
    ]
    sql = " UNION ALL ".join(found)
    return await stage.store.read(lambda tx: [row[0] for row in tx.all(text(sql))])


async def test_two_servers_that_merge_a_space_at_once_pack_each_document_once(
    store: PostgresStore, other: PostgresStore
) -> None:
    """A worker freezes in a merge, and another server takes over its job.

    When the worker continues, it has nothing left to do.
    """
    agent = (await make.stored_agent(store)).agent
    said = await make.stored_messages(
        store, *(make.message(agent, f"pear number{n}") for n in range(3))
    )
    with Held(store, "SELECT search_partitions") as late:
        merging = asyncio.create_task(store.write(lambda tx: flush(tx, agent.id)))
        await late.reached()
        assert await other.write(lambda tx: flush(tx, agent.id)) == len(said)
        late.release()
        # If the partition is new, this write may fail; a server would then retry its job.
        await asyncio.wait([merging])
    wanted = MessageFilter((agent.id,))
    found = await store.read(lambda tx: index.find_messages(tx, Query("pear"), wanted, 10).hits)
    assert len(found) == len(said)
    rows = await store.read(
        lambda tx: tx.all(text("SELECT owner_id, documents FROM search_partitions"))
    )
    assert [tuple(row) for row in rows] == [(agent.id, len(said))]


@asynccontextmanager
async def frozen(store: PostgresStore, sql: str) -> AsyncIterator[None]:
    """A server that freezes in a transaction after it has run `sql`, which locks a row."""
    stands, thawed = threading.Event(), threading.Event()

    def work(tx: Transaction) -> None:
        tx.run(text(sql))
        stands.set()
        thawed.wait(LIMIT)

    task = asyncio.ensure_future(store.write(work))
    assert await asyncio.to_thread(stands.wait, LIMIT)
    try:
        yield
    finally:
        thawed.set()
        await task


async def test_a_server_that_froze_while_it_wrote_does_not_keep_the_runs_of_others_from_healing(
    store: PostgresStore, other: PostgresStore, clock: ManualClock
) -> None:
    """A start also closes expired runs, and must not wait for a row that a frozen server locks."""
    held, dead = (await make.stored_agent(store)).agent, (await make.stored_agent(store)).agent
    now = clock.now()
    open_runs = [
        make.run(agent, lease_token="t", lease_expires_at=now + LEASE) for agent in (held, dead)
    ]
    for run in open_runs:
        await store.write(
            lambda tx, run=run: runs.open_run(tx, replace(run, status="running", ended_at=None))
        )  # type: ignore[misc]
    clock.advance(LEASE / SECOND + 1)
    async with frozen(other, f"UPDATE runs SET step_count = 7 WHERE id = '{open_runs[0].id}'"):  # noqa: S608
        closed = await asyncio.wait_for(store.write(close_expired), 3)
        assert [run.id for run in closed] == [open_runs[1].id]
    assert [run.id for run in await store.write(close_expired)] == [open_runs[0].id]


async def test_a_server_that_froze_while_it_wrote_does_not_keep_the_jobs_of_others_from_being_taken_over(
    store: PostgresStore, other: PostgresStore, clock: ManualClock
) -> None:
    added = [Job("work", LOCAL_ORGANIZATION), Job("work", LOCAL_ORGANIZATION)]
    await store.write(lambda tx: [jobs.add(tx, job) for job in added])
    await store.write(lambda tx: [jobs.claim_one(tx, "dead", job.id) for job in added])
    clock.advance(60)
    async with frozen(other, f"UPDATE jobs SET progress = '{{}}' WHERE id = '{added[0].id}'"):  # noqa: S608
        freed = await asyncio.wait_for(
            store.write(lambda tx: jobs.take_over(tx, silent_for=30 * SECOND)), 3
        )
        assert [job.id for job in freed] == [added[1].id]
    freed = await store.write(lambda tx: jobs.take_over(tx, silent_for=30 * SECOND))
    assert [job.id for job in freed] == [added[0].id]


async def test_a_unit_whose_server_froze_until_the_database_gave_it_up_runs_again_whole(
    store: PostgresStore,
) -> None:
    agent = (await make.stored_agent(store)).agent
    tries = []

    def work(tx: Transaction) -> None:
        tries.append(1)
        tx.run(text("UPDATE agents SET description = 'written'"))
        if len(tries) == 1:
            tx.run(text("SET LOCAL idle_in_transaction_session_timeout = '20ms'"))
            threading.Event().wait(0.15)
        tx.run(text("UPDATE agents SET name = 'Twice'"))

    await store.write(work)
    row = await store.read(
        lambda tx: tx.all(text(f"SELECT name, description FROM agents WHERE id = '{agent.id}'"))  # noqa: S608
    )
    assert [tuple(one) for one in row] == [("Twice", "written")]
    assert len(tries) == 2
