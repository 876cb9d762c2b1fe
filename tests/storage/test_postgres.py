"""PostgreSQL: several servers on one database, lost connections, a bounded pool.

Differences from SQLite must not show.
"""

import asyncio
import logging
import stat
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from sqlalchemy import (
    Connection,
    bindparam,
    column,
    create_engine,
    literal,
    select,
    table,
    text,
)

from ricordo.agents.deletion import purge_portion
from ricordo.agents.run_end import heal
from ricordo.agents.turn_start import LEASE
from ricordo.domain.agent import Agent
from ricordo.domain.block import Block
from ricordo.domain.clock import SECOND
from ricordo.domain.ids import new_id
from ricordo.domain.run import Run
from ricordo.domain.scope import Scope, User
from ricordo.errors import Collision, DatabaseFailed, Invalid, NotFound, Unavailable
from ricordo.memory import commit as committing
from ricordo.memory.commit import file_passages
from ricordo.memory.edits import PassageDraft, WorkingMemory
from ricordo.search import rebuild
from ricordo.search.index import delete_passage, insert_messages
from ricordo.settings import Settings
from ricordo.storage import (
    agents,
    archives,
    blocks,
    conversations,
    deletion,
    migrations,
    proposals,
    runs,
    tools,
    users,
)
from ricordo.storage.engine import postgres as module
from ricordo.storage.engine import shared_connections
from ricordo.storage.engine.database import check, open_store
from ricordo.storage.engine.postgres import PostgresStore, open_postgres
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.seal import require_sound_dump
from ricordo.storage.engine.store import Overtaken, Transaction
from ricordo.storage.schema.columns import metadata
from ricordo.storage.schema.core_tables import messages as messages_table
from ricordo.storage.users import UserDraft
from ricordo.tools.builtin import TOOLS
from ricordo.tools.toolbox import Toolbox, sync_tools
from tests.seams import make
from tests.seams.stores import ManualClock, flush
from tests.storage.test_proposals import proposal, stored
from tests.support.pooler import transaction_pooler
from tests.support.postgres import Server, name_in, server

DATABASES = ("postgresql",)
LIMIT = 60  # seconds


@pytest.fixture
async def other(
    store: PostgresStore, clock: ManualClock, tmp_path: Path
) -> AsyncIterator[PostgresStore]:
    opened = open_postgres(server().shared_database(), connections=4, clock=clock, backups=tmp_path)
    yield opened
    await opened.close()


@pytest.fixture
def empty_database() -> Iterator[str]:
    """The address of a database without a schema."""
    url = server().new_database(empty=True)
    yield url
    server().drop(url)


def backend(tx: Transaction) -> int:
    return int(tx.all(text("SELECT pg_backend_pid()"))[0][0])


def kill(pid: int) -> None:
    server().run(f"SELECT pg_terminate_backend({pid}, 5000)")


async def until(sql: str) -> None:
    async with asyncio.timeout(LIMIT):
        while not await asyncio.to_thread(server().run, sql):  # noqa: ASYNC110 - in the database
            await asyncio.sleep(0.01)


@asynccontextmanager
async def kept_open(
    store: PostgresStore, work: Callable[[Transaction], Any]
) -> AsyncIterator["asyncio.Task[Any]"]:
    """Run the unit in a transaction that stays open until another one waits for its lock."""
    is_done, ends = threading.Event(), threading.Event()

    def wait(tx: Transaction) -> Any:
        result = work(tx)
        is_done.set()
        ends.wait(LIMIT)
        return result

    working = asyncio.create_task(store.write(wait))
    assert await asyncio.to_thread(is_done.wait, LIMIT)
    yield working
    await until("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    ends.set()
    await working


def open_run(agent: Agent, now: int) -> Run:
    return make.run(
        agent, created_at=now, lease_token=new_id("token"), lease_expires_at=now + LEASE
    )


async def begun(store: PostgresStore) -> Run:
    run = open_run((await make.stored_agent(store)).agent, store.clock.now())
    await store.write(lambda tx: runs.open_run(tx, run))
    return run


# --- the schema ---


def test_all_text_is_in_byte_order_and_json_columns_keep_their_text() -> None:
    columns = server().run(
        (
            "SELECT data_type, collation_name FROM information_schema.columns WHERE table_schema = "
            "'public' AND table_name NOT LIKE 'procrastinate%' AND table_name NOT IN "
            "('schema_versions', 'search_pgvector')"
        ),
        "ricordo_template",
    )
    kinds = {kind for kind, _ in columns}
    assert {collation for kind, collation in columns if kind in ("text", "character varying")} == {
        "C"
    }
    assert kinds == {
        "bigint",
        "boolean",
        "bytea",
        "character varying",
        "double precision",
        "json",
        "text",
    }


def test_partial_indexes_have_their_conditions_and_the_database_numbers_rows() -> None:
    narrow = {
        index.name
        for table in metadata.tables.values()
        for index in table.indexes
        if "where" in index.info
    }
    sql = (
        "SELECT indexname FROM pg_indexes WHERE schemaname = 'public' AND indexdef LIKE '% WHERE %'"
    )
    made = {
        name
        for (name,) in server().run(sql, "ricordo_template")
        if not name.startswith(("procrastinate", "idx_"))
    }
    assert made == narrow
    sql = (
        "SELECT count(*) FROM information_schema.columns WHERE column_name = 'seq' AND "
        "is_identity = 'NO'"
    )
    assert server().run(sql, "ricordo_template") == [(0,)]


async def test_several_servers_may_start_at_once_on_an_empty_database(
    empty_database: str, tmp_path: Path
) -> None:
    def start(_number: int) -> PostgresStore:
        return open_postgres(empty_database, connections=1, backups=tmp_path)

    opened = await asyncio.gather(*(asyncio.to_thread(start, number) for number in range(5)))
    versions = server().run(
        "SELECT version FROM schema_versions ORDER BY version", name_in(empty_database)
    )
    assert [version for (version,) in versions] == [len(migrations.MIGRATIONS)]
    for store in opened:
        await make.stored_agent(store)
    assert await opened[0].read(lambda tx: agents.count(tx, Scope())) == 5
    for store in opened:
        await store.close()


def test_tasks_of_an_older_database_outlive_their_agents(empty_database: str) -> None:
    address = empty_database.replace("postgresql://", "postgresql+psycopg://")
    engine = create_engine(address)
    with engine.begin() as connection:
        for sql in (
            "CREATE TABLE agents (id VARCHAR PRIMARY KEY)",
            "CREATE TABLE background_tasks (id VARCHAR PRIMARY KEY, agent_id VARCHAR NOT NULL "
            "REFERENCES agents (id) ON DELETE CASCADE)",
            "INSERT INTO agents VALUES ('agent-1')",
            "INSERT INTO background_tasks VALUES ('task-1', 'agent-1')",
        ):
            connection.exec_driver_sql(sql)
        migrations.keep_tasks_without_agents(connection)
        connection.exec_driver_sql("DELETE FROM agents")
        rows = connection.exec_driver_sql("SELECT id FROM background_tasks").all()
    engine.dispose()
    assert [tuple(row) for row in rows] == [("task-1",)]


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a database that lacks a migration."""
    url = server().new_database()
    original, known = migrations.migrate, (*migrations.MIGRATIONS, add_colour)
    monkeypatch.setattr(
        migrations, "migrate", lambda c, back_up: original(c, back_up=back_up, migrations=known)
    )
    yield url
    server().drop(url)


def add_colour(connection: module.Connection) -> None:
    connection.exec_driver_sql("ALTER TABLE agents ADD COLUMN colour TEXT")


async def test_an_upgrade_is_backed_up_by_pg_dump(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, older: str
) -> None:
    monkeypatch.setenv("PATH", str(server().programs))
    with caplog.at_level(logging.INFO, "ricordo.storage.engine.backups"):
        await open_postgres(older, connections=1, backups=tmp_path / "backups").close()
    (kept,) = (tmp_path / "backups").iterdir()
    listing = ["pg_restore", "--list", str(kept)]
    listed = await asyncio.to_thread(
        subprocess.run, listing, capture_output=True, text=True, check=True
    )
    assert "TABLE DATA public messages" in listed.stdout
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert str(kept) == caplog.records[-1].__dict__["file"]


async def test_a_sealed_dump_can_be_restored_and_any_damage_is_detected(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, older: str, empty_database: str
) -> None:
    monkeypatch.setenv("PATH", str(server().programs))
    await open_postgres(older, connections=1, backups=tmp_path / "backups").close()
    (kept,) = (tmp_path / "backups").iterdir()
    assert require_sound_dump(kept)

    restoring = ["pg_restore", "--exit-on-error", f"--dbname={empty_database}", str(kept)]
    await asyncio.to_thread(subprocess.run, restoring, capture_output=True, check=True)
    tables = "SELECT count(*) FROM information_schema.tables WHERE table_name = 'messages'"
    assert server().run(tables, name_in(empty_database)) == [(1,)]

    whole = kept.read_bytes()
    for place in range(0, len(whole) - 121, len(whole) // 50):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        kept.write_bytes(changed)
        with pytest.raises(Invalid, match="its bytes were changed"):
            require_sound_dump(kept)
    for length in (0, 1, 120, 121, len(whole) // 2, len(whole) - 1):
        kept.write_bytes(whole[:length])
        assert not require_sound_dump(kept)


async def test_without_pg_dump_the_log_says_that_there_is_no_backup(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, older: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with caplog.at_level(logging.WARNING, "ricordo.storage.engine.backups"):
        await open_postgres(older, connections=1, backups=tmp_path / "backups").close()
    assert "no backup" in caplog.text
    assert "colour" in str(
        server().run("SELECT column_name FROM information_schema.columns", name_in(older))
    )


async def test_a_failed_dump_stops_the_upgrade(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, older: str
) -> None:
    broken = tmp_path / "pg_dump"
    broken.write_text(
        '#!/bin/sh\ncase "$1" in --version) echo "pg_dump (PostgreSQL) 99.0";; *) exit 1;; esac\n'
    )
    broken.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    with pytest.raises(
        Unavailable, match="backup before an upgrade failed, so nothing was changed"
    ):
        open_postgres(older, connections=1, backups=tmp_path / "backups")
    assert list((tmp_path / "backups").iterdir()) == []
    assert "colour" not in str(
        server().run("SELECT column_name FROM information_schema.columns", name_in(older))
    )


# --- several servers ---


async def test_of_many_callers_one_gets_a_conversations_lease(
    store: PostgresStore, other: PostgresStore, clock: ManualClock
) -> None:
    state = await make.stored_agent(store)

    async def begin(which: PostgresStore) -> str:
        run = open_run(state.agent, clock.now())
        try:
            await which.write(lambda tx: runs.open_run(tx, run))
        except Collision:
            return "refused"
        return "begun"

    for _ in range(5):
        outcome = sorted(await asyncio.gather(*(begin(which) for which in (store, other) * 6)))
        assert outcome == ["begun", *["refused"] * 11]
        (run,) = await store.read(runs.open_runs)
        ended = replace(run, status="completed", ended_at=clock.now())
        assert await other.write(lambda tx, ended=ended: runs.end(tx, ended))  # type: ignore[misc]


async def test_concurrent_edits_of_one_block_by_several_servers_lose_nothing(
    store: PostgresStore, other: PostgresStore
) -> None:
    (block,) = await make.stored_blocks(store, make.block(value="0"))

    async def add_one(which: PostgresStore) -> int:
        conflicts = 0
        while True:

            def work(tx: Transaction) -> Block | None:
                now = blocks.get(tx, Scope(), block.id)
                return blocks.write(
                    tx, now, str(int(now.value) + 1), make.change_metadata("user-1")
                )

            if await which.write(work):
                return conflicts
            conflicts += 1

    await asyncio.gather(*(add_one(which) for which in (store, other) * 10))
    after = await store.read(lambda tx: blocks.get(tx, Scope(), block.id))
    assert (after.value, after.version) == ("20", 21)


async def test_a_change_that_met_another_is_repeated_on_the_new_state(
    store: PostgresStore, other: PostgresStore
) -> None:
    """An owner's change of a block is never refused because an agent wrote at the same moment."""
    (block,) = await make.stored_blocks(store, make.block(value="old"))
    tries: list[str] = []
    loop = asyncio.get_running_loop()

    def change(tx: Transaction) -> Block:
        now = blocks.get(tx, Scope(), block.id)
        tries.append(now.value)
        if len(tries) == 1:
            wrote = other.write(
                lambda its: blocks.write(its, now, "new", make.change_metadata("agent-1"))
            )
            asyncio.run_coroutine_threadsafe(wrote, loop).result(LIMIT)
        return blocks.update(
            tx, now, replace(now, description="Described."), make.change_metadata()
        )

    changed = await store.write(change)
    assert tries == ["old", "new"]
    assert (changed.value, changed.description, changed.version) == ("new", "Described.", 3)


async def test_a_run_whose_lease_was_renewed_is_not_ended(
    store: PostgresStore, other: PostgresStore, clock: ManualClock
) -> None:
    """A server that closes runs waits for the row, and then sees the renewed lease."""
    run = await begun(store)
    clock.advance(LEASE / SECOND + 1)
    token, later = run.lease_token or "", clock.now() + LEASE
    async with kept_open(store, lambda tx: runs.renew(tx, run.id, token, later)) as renewing:
        healing = asyncio.create_task(other.write(lambda tx: heal(tx, run)))
    assert await renewing
    assert await healing is False


async def test_a_deadlock_is_resolved_and_both_units_complete(
    store: PostgresStore, other: PostgresStore
) -> None:
    first, second = await make.stored_blocks(
        store, make.block(label="one"), make.block(label="two")
    )
    both, is_one_done, tries = threading.Barrier(2), threading.Event(), list[Block]()

    def both_of(*order: Block) -> Callable[[Transaction], None]:
        def work(tx: Transaction) -> None:
            is_first_try = order[0] not in tries
            tries.append(order[0])
            if not is_first_try:
                # Without the wait this unit could take its first row before the survivor wakes up.
                # On a busy machine that could happen again and again.
                assert is_one_done.wait(LIMIT)
            for place, block in enumerate(order):
                now = blocks.get(tx, Scope(), block.id)
                if not blocks.write(tx, now, now.value + "+", make.change_metadata("agent-1")):
                    raise Overtaken("The other unit was faster.")
                if place == 0 and is_first_try:
                    both.wait(LIMIT)

        return work

    async def write(which: PostgresStore, *order: Block) -> None:
        await which.write(both_of(*order))
        is_one_done.set()

    await asyncio.gather(write(store, first, second), write(other, second, first))
    assert len(tries) == 3  # the database ended one of the transactions once
    after = await store.read(lambda tx: blocks.by_ids(tx, Scope(), [first.id, second.id]))
    assert [block.value for block in after] == [first.value + "++", second.value + "++"]


async def test_a_step_that_files_passages_never_deadlocks_with_one_that_changes_blocks(
    store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first needs a chain and then the agent, to create its archive.

    The second needs the agent and then its chains.
    """
    state = await make.stored_agent(store, with_blocks=[make.block("human", "Ada")])
    has_written, tries = threading.Event(), list[str]()
    original = committing.file_passages

    def file_when_the_other_waits(tx: Transaction, *arguments: Any) -> Any:
        has_written.set()
        end = time.monotonic() + LIMIT
        while not tx.connection.exec_driver_sql("SELECT 1 FROM pg_locks WHERE NOT granted").first():
            assert time.monotonic() < end
            time.sleep(0.005)
        return original(tx, *arguments)

    def step(name: str, memory: WorkingMemory) -> Callable[[Transaction], Any]:
        def work(tx: Transaction) -> Any:
            tries.append(name)
            return committing.commit(tx, state, memory, Scope(), make.edit_context(state))

        return work

    writes, reshapes = WorkingMemory(state), WorkingMemory(state)
    writes.write("human", "Ada L.", "call-1")
    writes.archive(PassageDraft("call-1", new_id("passage"), "Tea grows.", ()))
    reshapes.create("plans", "Rest", "", "call-2")
    monkeypatch.setattr(committing, "file_passages", file_when_the_other_waits)
    writing = asyncio.create_task(store.write(step("writes", writes)))
    assert await asyncio.to_thread(has_written.wait, LIMIT)
    await asyncio.gather(writing, other.write(step("reshapes", reshapes)))
    assert tries == ["writes", "reshapes"]  # the database ended neither transaction


async def test_no_run_begins_while_its_conversation_is_locked(
    store: PostgresStore, other: PostgresStore
) -> None:
    """If a run began meanwhile, a reset could delete the messages of its turn."""
    state = await make.stored_agent(store)
    run = open_run(state.agent, store.clock.now())
    async with kept_open(store, lambda tx: conversations.lock(tx, state.conversation.id)):
        beginning = asyncio.create_task(other.write(lambda tx: runs.open_run(tx, run)))
    await beginning


async def test_concurrent_filing_creates_one_archive_for_an_agent(
    store: PostgresStore, other: PostgresStore
) -> None:
    state = await make.stored_agent(store)

    async def file(which: PostgresStore, number: int) -> None:
        one = make.passage(make.archive(), f"Fact {number}.", tags=(f"tag-{number}",))
        await which.write(lambda tx: file_passages(tx, state, [one]))

    await asyncio.gather(*(file((store, other)[number % 2], number) for number in range(8)))
    (archive,) = await store.read(lambda tx: archives.of_agent(tx, state.agent.id))
    assert (archive.passage_count, archive.tags) == (
        8,
        tuple(f"tag-{number}" for number in range(8)),
    )


async def test_an_archive_detached_by_an_open_transaction_gets_no_new_passage(
    store: PostgresStore, other: PostgresStore
) -> None:
    state = await make.stored_agent(store)
    left = await make.stored_archive(store, state.agent)
    state = await store.read(lambda tx: agents.load(tx, Scope(), state.agent.id))
    async with kept_open(store, lambda tx: archives.detach(tx, state.agent.id, left.id)):
        filing = asyncio.create_task(
            other.write(lambda tx: file_passages(tx, state, [make.passage(left, "Late.")]))
        )
    (own,) = await filing
    assert own.id != left.id
    assert (await store.read(lambda tx: archives.get(tx, Scope(), left.id))).passage_count == 0


async def test_a_passage_that_two_servers_delete_at_once_is_counted_once(
    store: PostgresStore, other: PostgresStore
) -> None:
    agent = (await make.stored_agent(store)).agent
    archive = await make.stored_archive(store, agent, "First", "Second", "Third")
    page = await store.read(lambda tx: archives.page_of_passages(tx, [archive.id], Page()))
    doomed = page[0].id
    delete = partial(delete_passage, scope=Scope(), attached=[archive], passage_id=doomed)
    async with kept_open(store, delete):
        deleting = asyncio.create_task(other.write(delete))
    with pytest.raises(NotFound, match=f"Passage with ID {doomed} not found"):
        await deleting
    assert (await store.read(lambda tx: archives.get(tx, Scope(), archive.id))).passage_count == 2


async def test_a_user_disabled_while_another_field_changes_stays_disabled(
    store: PostgresStore, other: PostgresStore
) -> None:
    """A request with a new name must not take an administrator's change back."""
    user = await store.write(
        lambda tx: users.create(tx, Scope(), UserDraft("ada", "ada", "ada@example.org"))
    )

    def disable(tx: Transaction) -> User:
        return users.change(tx, Scope(), user.id, lambda stored: replace(stored, disabled_at=1))

    async with kept_open(store, disable):
        naming = asyncio.create_task(
            other.write(lambda tx: users.give_name(tx, Scope(), "ada", "Ada Lovelace"))
        )
    changed = await naming
    assert (changed.name, changed.disabled_at) == ("Ada Lovelace", 1)
    assert await store.read(lambda tx: users.require(tx, Scope(), user.id)) == changed


async def test_of_two_turns_that_start_at_once_one_reports_a_rejection(
    store: PostgresStore, other: PostgresStore
) -> None:
    rejected = proposal(status="rejected", is_untold=True)  # of agent-1 for user-1
    await stored(store, rejected)
    take = partial(proposals.take_untold, agent_id="agent-1", user_id="user-1", limit=9)
    async with kept_open(store, take) as first:
        second = asyncio.create_task(other.write(take))
    assert [one.proposal_id for one in await first] == [rejected.id]
    assert await second == []


async def test_an_agent_deleted_while_its_new_index_takes_over_leaves_no_index(
    store: PostgresStore, other: PostgresStore
) -> None:
    state = await make.stored_agent(store)
    agent_id = state.agent.id
    await make.stored_messages(store, make.message(state.agent, "A secret."))
    await store.write(lambda tx: flush(tx, agent_id))
    portion = await store.read(lambda tx: rebuild.read_portion(tx, agent_id, (-1, 0), {}))
    assert portion
    await store.write(lambda tx: rebuild.add_portion(tx, agent_id, portion))

    async def remove() -> None:
        await other.write(lambda tx: deletion.hide_agent(tx, Scope(), agent_id))
        while await other.write(lambda tx: purge_portion(tx, "agent", agent_id)):
            pass

    async with kept_open(store, lambda tx: rebuild.take_over(tx, agent_id, [])):
        removing = asyncio.create_task(remove())
    await removing
    while await store.write(lambda tx: rebuild.drop_remains(tx, agent_id)):
        pass
    left = await store.read(lambda tx: tx.all(text("SELECT owner_id FROM search_partitions")))
    assert left == []


async def test_servers_that_start_at_once_agree_on_their_tools(
    store: PostgresStore, other: PostgresStore
) -> None:
    toolbox = Toolbox(TOOLS)
    await asyncio.gather(
        *(which.write(lambda tx: sync_tools(tx, Scope(), toolbox)) for which in (store, other) * 3)
    )
    names = [tool.name for tool in toolbox]
    assert set(await store.read(lambda tx: tools.by_names(tx, Scope(), names))) == set(names)
    assert await store.read(lambda tx: tools.count(tx, Scope())) == len(names)


# --- connections ---


async def test_a_unit_whose_backend_is_killed_runs_again_completely(
    store: PostgresStore,
) -> None:
    agent = (await make.stored_agent(store)).agent
    kill(await store.read(backend))
    pids: list[int] = []

    def work(tx: Transaction) -> None:
        pids.append(backend(tx))
        insert_messages(tx, [make.message(agent, "first half")])
        if len(pids) == 1:
            kill(pids[0])
        insert_messages(tx, [make.message(agent, "second half")])

    await store.write(work)
    assert len(set(pids)) == 2
    texts = await store.read(lambda tx: [row.text for row in tx.all(select(messages_table.c.text))])
    assert sorted(filter(None, texts))[-2:] == ["first half", "second half"]


async def test_a_connection_lost_during_a_commit_is_not_retried(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The unit may have been saved, and saving it twice would be worse than an error."""
    ran: list[int] = []
    doomed: list[int] = []
    original = module._command

    def command(connection: Connection, sql: str) -> None:
        while sql == "COMMIT" and doomed:
            kill(doomed.pop())
        original(connection, sql)

    def work(tx: Transaction) -> None:
        ran.append(backend(tx))
        doomed.append(ran[-1])

    monkeypatch.setattr(module, "_command", command)
    with pytest.raises(Unavailable, match="which may have succeeded"):
        await store.write(work)
    assert len(ran) == 1
    assert await store.read(lambda tx: agents.count(tx, Scope())) == 0


async def test_a_lost_server_is_unavailable_after_some_tries(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.time, "sleep", lambda _seconds: None)
    kill(await store.read(backend))
    monkeypatch.setattr(
        store, "engine", create_engine(module.driver_url("postgresql://x@/x?host=/nowhere"))
    )

    async def use() -> None:
        for _ in range(5):  # several times, for the connection of any worker
            kill(await store.read(backend))

    with pytest.raises(Unavailable, match=r"The database failed.*Nothing was changed"):
        await use()


async def test_the_pool_is_bounded_and_callers_wait(tmp_path: Path) -> None:
    url = server().new_database()
    store = open_postgres(url, connections=3, backups=tmp_path)
    running, most = 0, 0
    lock = threading.Lock()

    def work(tx: Transaction) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.01)
        with lock:
            running -= 1
        return backend(tx)

    pids = await asyncio.gather(
        *(store.write(work) if number % 2 else store.read(work) for number in range(30))
    )
    assert len(set(pids)) <= 3
    assert most == 3
    await store.close()
    # The server notices a moment later that a connection was closed.
    left = f"SELECT 1 FROM pg_stat_activity WHERE datname = '{name_in(url)}'"  # noqa: S608 - our own name
    await until(f"SELECT 1 WHERE NOT EXISTS ({left})")
    server().drop(url)


@pytest.fixture
async def own(tmp_path: Path) -> AsyncIterator[PostgresStore]:
    """A store with three threads and a database of its own."""
    url = server().new_database()
    opened = open_postgres(url, connections=3, backups=tmp_path)
    yield opened
    await opened.close()
    server().drop(url)


async def opened_at_once(store: PostgresStore, count: int) -> set[int]:
    """Open connections with units that run at the same time; return their backends."""
    together = threading.Barrier(count)

    def work(tx: Transaction) -> int:
        together.wait(LIMIT)
        return backend(tx)

    return set(await asyncio.gather(*(store.read(work) for _ in range(count))))


def refuse_connections(store: PostgresStore) -> None:
    """Let PostgreSQL refuse new connections to the store's database, as at its limit."""
    server().run(f"ALTER DATABASE {store.engine.url.database} ALLOW_CONNECTIONS false")


async def test_units_share_the_connections_when_the_server_refuses_another(
    own: PostgresStore,
) -> None:
    (pid,) = await opened_at_once(own, 1)
    refuse_connections(own)

    def work(tx: Transaction) -> int:
        time.sleep(0.01)
        return backend(tx)

    pids = await asyncio.gather(
        *(own.write(work) if number % 2 else own.read(work) for number in range(12))
    )
    assert set(pids) == {pid}


async def test_a_unit_without_a_connection_says_that_all_are_in_use(
    own: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_connections, "_WAIT", 0.01)
    begun, ends = threading.Event(), threading.Event()

    def hold(_tx: Transaction) -> None:
        begun.set()
        ends.wait(LIMIT)

    holding = asyncio.create_task(own.read(hold))
    assert await asyncio.to_thread(begun.wait, LIMIT)
    refuse_connections(own)
    try:
        with pytest.raises(DatabaseFailed, match=r"of this server \(1\) are in use") as caught:
            await own.read(backend)
        assert "not currently accepting connections" in str(caught.value)
    finally:
        ends.set()
        await holding
    await own.read(backend)


async def test_one_lost_connection_shows_that_the_idle_ones_are_lost_too(
    own: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ATTEMPTS", 2)
    pids = await opened_at_once(own, 3)
    for pid in pids:
        kill(pid)
    assert await own.read(backend) not in pids
    assert len(own._connections) == 1


async def test_a_lost_connection_leaves_the_others_open(own: PostgresStore) -> None:
    pids = await opened_at_once(own, 3)
    last = await own.read(backend)
    kill(last)
    refuse_connections(own)
    assert await own.read(backend) in pids - {last}
    assert len(own._connections) == 2


# --- values ---


async def test_values_that_cannot_be_stored_are_refused_as_invalid(store: PostgresStore) -> None:
    long = "".join(new_id("x") for _ in range(200))
    agent = make.agent()
    cases: list[tuple[Agent, list[str]]] = [
        *((agent, [tag]) for tag in ("a\0b", "\ud83d", long)),
        *((replace(agent, metadata=spoiled), []) for spoiled in ({"a": "\ud83d"}, {"a": 2**70})),
        (replace(agent, context_window=2**63), []),
    ]
    for spoiled, tags in cases:
        with pytest.raises(Invalid):
            await store.write(
                lambda tx, spoiled=spoiled, tags=tags: agents.insert_one(tx, spoiled, tags)
            )  # type: ignore[misc]
    assert await store.read(lambda tx: agents.count(tx, Scope())) == 0


async def test_an_error_quotes_no_stored_values(
    store: PostgresStore, caplog: pytest.LogCaptureFixture
) -> None:
    state = await make.stored_agent(store, tags=["private words"])
    with pytest.raises(Collision) as caught, caplog.at_level(logging.DEBUG):
        await store.write(lambda tx: agents.insert_one(tx, state.agent, ["private words"]))
    assert state.agent.id not in str(caught.value)
    assert "private" not in str(caught.value) + caplog.text


WORDS = st.text(max_size=20)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)


# --- opening ---


def test_without_psycopg_an_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "ricordo.storage.engine.postgres")
    monkeypatch.delattr("ricordo.storage.engine.postgres")
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(Unavailable, match=r"pip install 'ricordo\[postgres\]'"):
        open_store(Settings(data_dir=tmp_path, database_url="postgresql://x@localhost/x"))


# This test runs only under `make soak`. In the suite tests/test_package.py starts a server without
# any package for PostgreSQL.
@pytest.mark.soak
def test_a_start_on_sqlite_imports_nothing_for_postgresql(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys\nfrom ricordo.app import create_app\nfrom ricordo.settings import "
        "Settings\nfrom ricordo.storage.engine.database import open_store\n"
        f"asyncio.run(open_store(Settings(data_dir={str(tmp_path)!r})).close())\nprint([name for "
        "name in sys.modules if 'psycopg' in name or 'dialects.postgresql' in name])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_start_without_a_schema_for_its_tables_says_what_to_check(
    empty_database: str, tmp_path: Path
) -> None:
    server().run(f"ALTER DATABASE {name_in(empty_database)} SET search_path = elsewhere")
    with pytest.raises(Unavailable, match=r"no schema has been selected.*search_path"):
        open_postgres(empty_database, connections=1, backups=tmp_path)


def test_a_check_reports_the_state_of_the_database_and_changes_nothing(
    empty_database: str, tmp_path: Path
) -> None:
    migrated = Settings(data_dir=tmp_path, database_url=server().shared_database())
    found = check(migrated)
    assert found.state == "shared"
    assert (found.schema, found.vectors) == (len(migrations.MIGRATIONS), "with pgvector 0.8.5")
    assert (found.version.split(".")[0], found.size > 1_000_000) == ("18", True)
    empty = check(Settings(data_dir=tmp_path, database_url=empty_database))
    assert empty.state == "shared"
    assert empty.schema == 0
    assert server().run(
        "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'", name_in(empty_database)
    ) == [(0,)]
    gone = check(
        Settings(data_dir=tmp_path, database_url=f"postgresql://x:s3cret@/x?host={tmp_path}")
    )
    assert gone.state == "broken"
    assert "postgresql://x:***@/x cannot be opened" in gone.reason
    assert "s3cret" not in gone.reason


async def test_full_durability_turns_synchronous_commit_on(tmp_path: Path) -> None:
    found = []
    for durability in ("normal", "full"):
        store = open_postgres(
            server().shared_database(), connections=1, durability=durability, backups=tmp_path
        )
        found.append(await store.read(lambda tx: tx.all(text("SHOW synchronous_commit"))[0][0]))
        await store.close()
    assert found == ["off", "on"]  # the tests' server is set to off


async def test_texts_are_sent_as_utf8_whatever_encoding_is_set_for_clients(
    empty_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server().run(f"ALTER DATABASE {name_in(empty_database)} SET client_encoding = 'LATIN1'")
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    store = open_postgres(empty_database, connections=1, backups=tmp_path)
    try:
        rows = await store.read(lambda tx: tx.all(select(literal("Zoë 😀"))))
    finally:
        await store.close()
    assert rows[0][0] == "Zoë 😀"


async def test_a_connection_to_a_machine_that_vanished_ends_soon_unless_the_address_says_more(
    own: PostgresStore,
) -> None:
    options = {"tcp_user_timeout": "30000", "keepalives_count": "3"}

    def used(tx: Transaction) -> dict[str, str]:
        driver = tx.connection.connection.driver_connection
        return {name: driver.info.get_parameters()[name] for name in options}  # type: ignore[union-attr]

    assert await own.read(used) == options
    chosen = module.queue_address(f"{server().url('x')}&keepalives_count=9")
    assert {"tcp_user_timeout=30000", "keepalives_count=9"} <= set(chosen.split())


def test_a_pooler_in_transaction_mode_is_refused_with_what_to_set(
    empty_database: str, tmp_path: Path
) -> None:
    with transaction_pooler(str(server().folder)) as port:
        url = f"postgresql://postgres@127.0.0.1:{port}/{name_in(empty_database)}"
        with pytest.raises(Unavailable, match="pool_mode = session"):
            open_postgres(url, connections=1, backups=tmp_path)
        status = check(Settings(data_dir=tmp_path, database_url=url))
        assert (status.state, "pool_mode = session" in status.reason) == ("broken", True)
    tables = server().run(
        "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'", name_in(empty_database)
    )
    assert tables == [(0,)]


# --- a server that becomes a standby ---


@pytest.fixture
def demoted() -> Iterator[Server]:
    """A separate PostgreSQL that can become a standby, as after a failover."""
    made = Server({"wal_level": "replica", "hot_standby": "on"})
    yield made
    made.stop()


async def test_a_server_that_became_a_standby_is_read_only_until_it_is_promoted(
    demoted: Server, tmp_path: Path
) -> None:
    store = open_postgres(demoted.new_database(), connections=2, backups=tmp_path)
    draft = UserDraft("ada", "ada", "ada@example.org")

    def add(tx: Transaction) -> User:
        return users.create(tx, Scope(), draft)

    await store.write(lambda tx: tx.run(text("UPDATE users SET name = 'before'")))
    demoted.restart_as_standby()
    try:
        with pytest.raises(DatabaseFailed, match="leads to the primary server") as caught:
            await store.write(add)
        assert caught.value.kind == "read-only"
        names = await store.read(lambda tx: tx.all(text("SELECT name FROM users")))
        assert [name for (name,) in names] == ["before"]
        with pytest.raises(DatabaseFailed):
            store.require_writes()
        demoted.run("SELECT pg_promote()")
        assert (await store.write(add)).email == "ada@example.org"
        store.require_writes()
    finally:
        await store.close()


async def test_a_unit_runs_again_if_a_column_of_its_prepared_statement_changed(
    own: PostgresStore,
) -> None:
    """Another server may have migrated the schema."""
    name = own.engine.url.database or ""
    server().run("CREATE TABLE changing (id integer)", name)
    statement = (
        select(column("id")).select_from(table("changing")).where(literal(1) == bindparam("one"))
    )

    async def read() -> None:
        await own.read(lambda tx: tx.all(statement, {"one": 1}))

    for _ in range(3):
        await read()
    server().run("ALTER TABLE changing ALTER id TYPE bigint", name)
    await read()
