"""Moving a database to another.

Nothing is lost, no half-moved database is served, and the old one is unchanged.
"""

import asyncio
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import JSON, LargeBinary, Table, delete, insert, select, update

from ricordo.domain.job import Job
from ricordo.domain.scope import LOCAL_ORGANIZATION, LOCAL_USER, Scope
from ricordo.errors import Conflict, Invalid, NotFound, Unavailable
from ricordo.features import FEATURES
from ricordo.features.operations.move import service
from ricordo.features.operations.move.service import MoveOptions, MoveReport, TableHash, portions
from ricordo.memory.proposals import ProposalDraft, propose
from ricordo.plugins import load_plugins
from ricordo.search.index import insert_messages
from ricordo.settings import Settings
from ricordo.storage import blocks as stored_blocks
from ricordo.storage import jobs, keys, messages, runs
from ricordo.storage.engine import database
from ricordo.storage.engine.database import check, exclusive_access, open_store, read_transaction
from ricordo.storage.engine.store import Store, Transaction
from ricordo.storage.schema.columns import metadata
from ricordo.storage.schema.core_tables import (
    agents,
    agents_users,
    expenses,
    providers,
    run_events,
    traces,
)
from ricordo.storage.schema.core_tables import messages as messages_table
from ricordo.storage.schema.memory_tables import (
    agents_pairs,
    blocks,
    blocks_users,
    git_objects,
    memory_remotes,
    number_of_chain,
)
from tests.seams import make
from tests.support import postgres
from tests.support.library import Library

ODD: dict[str, Any] = {
    "emoji": "👩‍👩‍👧‍👦 🇮🇹",
    "größe": 2**63 - 1,
    "most": 2**64 - 1,
    "least": -(2**63),
    "empty": "",
    "floats": [1e16, 1e300, 5e-324, 0.1, 1.0, -0.0, 1.5e-7],
    "nothing": None,
    "bools": [True, False, 0, 1],
    "zz": {"b": 1, "aa": {"": []}},
    "deep": None,
}
for _ in range(100):
    ODD["deep"] = {"in": [ODD["deep"]]}


def at(folder: Path, name: str = "ricordo") -> Settings:
    return Settings(
        data_dir=folder, database_url=f"sqlite:///{folder / name}.db", find_local_models=False
    )


@pytest.fixture
def on_postgres(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Settings]:
    """Make a migrated database on PostgreSQL; with the parameter "bare", one without tables."""
    url = postgres.server().new_database(empty=getattr(request, "param", "") == "bare")
    yield Settings(data_dir=tmp_path, database_url=url, find_local_models=False)
    postgres.server().drop(url)


bare = pytest.mark.parametrize("on_postgres", ["bare"], indirect=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A database with rows in every table, to be copied for each test, and its agent's id."""
    settings = at(tmp_path_factory.mktemp("model"))
    agent_id = asyncio.run(fill(settings))
    return settings.database_path, agent_id


@pytest.fixture
def first(tmp_path: Path, model: tuple[Path, str]) -> Settings:
    """A database with rows in every table."""
    settings = at(tmp_path / "first")
    settings.database_path.parent.mkdir()
    shutil.copy(model[0], settings.database_path)
    return settings


@pytest.fixture
def last(tmp_path: Path) -> Settings:
    return at(tmp_path / "last")


@pytest.fixture
def agent_id(model: tuple[Path, str]) -> str:
    return model[1]


def name_of(settings: Settings) -> str:
    return postgres.name_in(settings.postgres_url or "")


def ignore_progress(*_: object) -> None:
    pass


async def move(
    source: Settings,
    target: Settings,
    choices: MoveOptions | None = None,
    report: Any = ignore_progress,
) -> MoveReport:
    return await asyncio.to_thread(service.move, source, target, choices or MoveOptions(), report)


# Tables of features. Each gets one row of arbitrary values.
OF_FEATURES = {table.name for table in load_plugins(FEATURES).tables()}


def some_row(tx: Transaction, table: Table) -> dict[str, Any]:
    """Return a value for each column: an existing id for a reference, else any value."""
    row: dict[str, Any] = {}
    for column in table.columns:
        if column.name == "seq":
            continue
        kind: Any = str if isinstance(column.type, JSON) else column.type.python_type
        row[column.name] = {int: 1, bool: True, bytes: b"\0\xff", float: 0.5}.get(
            kind, f"{table.name}-1"
        )
        if isinstance(column.type, JSON):
            row[column.name] = {"odd": ODD}
        for key in column.foreign_keys:
            row[column.name] = tx.connection.execute(select(key.column).limit(1)).scalar_one()
    return row


async def hash_in(settings: Settings) -> str:
    def read() -> str:
        with exclusive_access(settings) as connection, read_transaction(connection):
            hashes = []
            for table in metadata.sorted_tables:
                whole = TableHash(table)
                for rows in portions(connection, table):
                    whole.add(rows)
                hashes.append(whole.hexadecimal())
            return "".join(hashes)

    return await asyncio.to_thread(read)


async def fill(settings: Settings) -> str:
    """Fill every table as the product does, and with odd values; return the agent's id."""
    store = open_store(settings)
    block = make.block(value="Her name is Ada. 👋", tags=("a", "b"))
    state = await make.stored_agent(
        store, with_blocks=[block], with_tools=[make.tool()], tags=["x", "y"]
    )
    agent = state.agent
    said = [f"We spoke of jasmine tea on day {n}." for n in range(600)]
    await make.stored_messages(
        store, *(make.message(agent, one, created_at=n) for n, one in enumerate(said))
    )
    archive = await make.stored_archive(
        store, agent, "Tea grows in Darjeeling.", "Rain in Lisbon.", tags=("tea", "ö")
    )
    library = Library(store, settings.data_dir)
    for owner_id in (agent.id, archive.id):
        await library.index(owner_id)

    def odd(tx: Transaction) -> None:
        run = make.run(agent, metadata={"odd": ODD})
        runs.open_run(tx, run)
        runs.insert_step(tx, step := make.step(run))
        here = {"organization_id": LOCAL_ORGANIZATION, "created_at": 1}
        tx.run(
            insert(run_events), {"run_id": run.id, "number": 1, "data": "data: {}", "created_at": 1}
        )
        tx.run(
            insert(traces),
            {"run_id": run.id, "step_id": step.id, "request": "{}", "response": None, **here},
        )
        tx.run(
            insert(expenses),
            {"agent_id": agent.id, "purpose": "compaction", "model": "a/b", **here},
        )
        tx.run(
            insert(providers),
            {
                "id": "provider-1",
                "name": "mine",
                "provider_type": "openai",
                "updated_at": 1,
                **here,
            },
        )
        tx.run(insert(agents_users), {"agent_id": agent.id, "user_id": LOCAL_USER})
        tx.run(insert(agents_pairs), {"agent_id": agent.id, "other_id": agent.id})
        keys.create(tx, Scope(), b"secret", keys.KeyDraft("Ada's laptop", user="ada"))
        told = stored_blocks.get(tx, Scope(), state.blocks[0].id)
        stored_blocks.update(
            tx, told, replace(told, description="Who she is."), make.change_metadata()
        )
        tx.run(insert(blocks_users), {"block_id": told.id, "user_id": LOCAL_USER})
        draft = ProposalDraft(
            told.chain_id, told.label, "Her name is Ada Lovelace.", told, confidence=0.7
        )
        propose(tx, draft, make.change_metadata(agent.id))
        in_chain = {"chain_id": told.chain_id}
        raw = insert(git_objects).values(chain=number_of_chain())
        tx.run(raw, {**in_chain, "id": bytes(range(20)), "kind": "tree", "data": b"\0\xff"})
        address = {"kind": "git", "address": "/srv/ada.git", "settings": {"odd": ODD}}
        tx.run(insert(memory_remotes), {**in_chain, "id": "remote-1", **address, **here})
        jobs.add(tx, Job("later", LOCAL_ORGANIZATION, {"odd": ODD}, not_before=2**62))
        # These messages stay in the write buffer. The message inserted next is deleted, so its
        # number is left free.
        insert_messages(
            tx,
            [make.message(agent, "", name=""), make.message(agent, "quote ' \" \\ \\u0000 % :x")],
        )
        insert_messages(tx, [gone := make.message(agent, "to be forgotten")])
        tx.run(delete(messages_table).where(messages_table.c.id == gone.id))
        tx.run(update(agents).values(metadata=ODD))
        for table in metadata.sorted_tables:
            if table.name in OF_FEATURES:
                tx.run(insert(table), some_row(tx, table))

    await store.write(lambda tx: metadata.create_all(tx.connection))
    await store.write(odd)
    await store.close()
    return agent.id


@bare
async def test_moving_there_and_back_changes_nothing_and_reuses_no_numbers(
    first: Settings, last: Settings, on_postgres: Settings, agent_id: str
) -> None:
    with closing(sqlite3.connect(first.database_path)) as connection:
        # These texts are not in normal form, like texts that an older server stored.
        connection.execute("UPDATE passages SET text = text || ?", ("e\u0301\r\n\ufeff",))
        connection.execute("UPDATE agents SET name = ?", ("Zoe\u0308\u200b",))
        connection.commit()
    before = await hash_in(first)
    there = await move(first, on_postgres)
    assert {name for name, rows in there.rows.items() if not rows} == set(), (
        "the test must fill every table"
    )
    assert not there.leaves_vectors
    back = await move(on_postgres, last)
    assert there == back
    assert await hash_in(first) == await hash_in(on_postgres) == await hash_in(last) == before
    numbers = [await _next_number(settings, agent_id) for settings in (first, on_postgres, last)]
    assert len(set(numbers)) == 1, numbers


async def test_the_table_hash_changes_with_any_column(first: Settings) -> None:

    def look() -> None:
        with exclusive_access(first) as connection, read_transaction(connection):
            for table in metadata.sorted_tables:
                # `next` has a default, since a future cannot hold StopIteration: the thread would
                # end and the test hang.
                rows = next(iter(portions(connection, table)), [])
                assert rows, f"the test must fill {table.name}"
                for column in table.columns:
                    whole, changed = TableHash(table), TableHash(table)
                    whole.add(rows)
                    other = b"other" if isinstance(column.type, LargeBinary) else "other"
                    changed.add([rows[0] | {column.name: other}])
                    changed.add(rows[1:])
                    assert whole.hexadecimal() != changed.hexadecimal(), (
                        f"{table.name}.{column.name}"
                    )

    await asyncio.to_thread(look)


async def _next_number(settings: Settings, agent_id: str) -> int:
    """Add a message to the agent, and return the message's number.

    Another agent with a passage is added first.
    """
    store = open_store(settings)
    state = await make.stored_agent(store)
    await make.stored_archive(store, state.agent, "One more.")
    agent = make.agent(id=agent_id)
    (added,) = await make.stored_messages(store, make.message(agent, "and one more"))
    await store.close()
    return added.seq


async def test_a_killed_copy_cannot_be_served_until_it_is_repeated(
    tmp_path: Path, first: Settings, last: Settings
) -> None:
    code = (
        "import os, sys; from pathlib import Path\nfrom ricordo.settings import Settings; from "
        "ricordo.features.operations.move.service import MoveOptions, move\nfirst, last = "
        "(Settings(data_dir=Path(one).parent, database_url='sqlite:///' + one) for one in "
        "sys.argv[1:])\ndef report(phase, table, done, total):\n    if (phase, table) == "
        "('copied', 'messages'): os._exit(9)\nmove(first, last, MoveOptions(), report)"
    )
    files = [str(one.database_path) for one in (first, last)]
    killed = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", code, *files], check=False
    )
    assert killed.returncode == 9
    with pytest.raises(Unavailable, match="half-finished copy"):
        open_store(last)
    looked = check(last)
    assert looked.state == "broken"
    assert "half-finished copy" in looked.reason
    with pytest.raises(Unavailable, match="half-finished copy"):
        await move(last, at(tmp_path / "third"))
    with pytest.raises(Conflict, match="--replace"):
        await move(first, last)
    await move(first, last, MoveOptions(replace=True))
    assert await hash_in(last) == await hash_in(first)
    await open_store(last).close()


async def test_a_copy_that_was_changed_meanwhile_is_refused(
    first: Settings, on_postgres: Settings
) -> None:

    def meddles(phase: str, table: str, _done: int, _total: int) -> None:
        if (phase, table) == ("copied", "steps"):
            postgres.server().run(
                "UPDATE passages SET text = 'Rain in Porto.'", name_of(on_postgres)
            )

    with pytest.raises(Conflict, match="not equal to the old database in: passages"):
        await move(first, on_postgres, report=meddles)
    with pytest.raises(Unavailable, match="half-finished copy"):
        open_store(on_postgres)
    assert (await asyncio.to_thread(check, on_postgres)).state == "broken"
    await move(first, on_postgres, MoveOptions(replace=True))
    assert await hash_in(on_postgres) == await hash_in(first)


@bare
async def test_a_target_that_is_not_empty_is_refused_and_unchanged(
    first: Settings, last: Settings, on_postgres: Settings
) -> None:
    shutil.copy(first.database_path, _made(last))
    before = await hash_in(last)
    for choices in (MoveOptions(), MoveOptions(replace=True, force=True)):
        with pytest.raises(Conflict, match=r"not empty; it holds .*messages \(60"):
            await move(first, last, choices)
    assert await hash_in(last) == before
    postgres.server().run("CREATE TABLE orders (id int)", name_of(on_postgres))
    with pytest.raises(Conflict, match="another program"):
        await move(first, on_postgres)
    assert postgres.server().run("SELECT count(*) FROM orders", name_of(on_postgres)) == [(0,)]


async def test_vectors_left_behind_in_pgvector_are_reported(
    last: Settings, on_postgres: Settings
) -> None:
    postgres.server().run(
        "INSERT INTO search_pgvector (partition, model, document, dimension,"
        " created_at, role, conversation, user_id, tags, embedding)"
        " VALUES ('archive-1', 'some/model', 1, 2, 0, '', '', '', '{}', '[0,1]')",
        name_of(on_postgres),
    )
    assert (await move(on_postgres, last)).leaves_vectors


def _made(settings: Settings) -> Path:
    settings.database_path.parent.mkdir()
    return settings.database_path


async def test_a_database_in_use_cannot_be_source_or_target(
    first: Settings, last: Settings, on_postgres: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "PAUSE_SECONDS", 0.001)
    server = open_store(first)
    with pytest.raises(Conflict, match="Another Ricordo server"):
        await move(first, on_postgres)
    await server.close()
    server = open_store(on_postgres)
    await server.read(lambda tx: tx.all(select(agents)))
    with pytest.raises(Conflict, match="servers have 1 connections"):
        await move(first, on_postgres, MoveOptions(force=True))
    with pytest.raises(Conflict, match="in use"):
        await move(on_postgres, last)
    assert (await move(on_postgres, last, MoveOptions(force=True))).rows["agents"] == 0
    await server.close()


async def test_a_server_starting_on_postgresql_waits_for_the_end_of_the_move(
    tmp_path: Path, on_postgres: Settings
) -> None:
    opened = open_store(on_postgres)
    await make.stored_agent(opened)
    await opened.close()
    starting: list[Future[Store]] = []
    loop = asyncio.get_running_loop()

    def starts_one(phase: str, table: str, _done: int, _total: int) -> None:
        if (phase, table) == ("copied", "agents"):
            starting.append(
                asyncio.run_coroutine_threadsafe(asyncio.to_thread(open_store, on_postgres), loop)
            )
        assert not any(one.done() for one in starting)

    await move(on_postgres, at(tmp_path), report=starts_one)
    (one,) = starting
    store = await asyncio.wrap_future(one)
    await store.close()


@bare
async def test_nul_characters_are_reported_before_copying_or_replaced(
    tmp_path: Path, on_postgres: Settings
) -> None:
    store = open_store(at(tmp_path))
    state = await make.stored_agent(store, with_blocks=[block := make.block()])
    said = make.message(state.agent, "before\0after")
    await make.stored_messages(store, said)
    # An older server could store this value; today's server refuses it.
    await store.write(lambda tx: tx.run(update(blocks).values(value="before\0after")))
    await store.close()
    with pytest.raises(Invalid) as refused:
        await move(at(tmp_path), on_postgres)
    assert [line for line in str(refused.value).splitlines() if line.startswith(" ")] == [
        f"  blocks.value of {block.id}"
    ]
    tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    assert postgres.server().run(tables, name_of(on_postgres)) == []
    await move(at(tmp_path), on_postgres, MoveOptions(replace_nul=True))
    moved = open_store(on_postgres)
    (kept,) = await moved.read(lambda tx: messages.by_ids(tx, [said.id]))
    (row,) = await moved.read(lambda tx: tx.all(select(blocks.c.value)))
    await moved.close()
    assert kept.text == "before\0after"
    assert row.value == "before␀after"


async def test_missing_identical_and_outdated_sources_are_refused(
    tmp_path: Path, first: Settings, last: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotFound, match="There is no database"):
        await move(at(tmp_path / "none"), at(tmp_path / "last"))
    assert not (tmp_path / "last").exists()
    with pytest.raises(Invalid, match="already"):
        await move(first, first)
    monkeypatch.setattr(database, "MIGRATIONS", (*database.MIGRATIONS, lambda _: None))
    with pytest.raises(Conflict, match=r"has schema \d+.* Start this Ricordo on it once"):
        await move(first, last)


async def test_a_postgresql_database_is_not_copied_into_itself(
    on_postgres: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "PAUSE_SECONDS", 0.001)
    await open_store(on_postgres).close()
    url = on_postgres.postgres_url or ""
    again = on_postgres.model_copy(
        update={"database_url": SecretStr(url.replace("postgres@", "postgres:any@"))}
    )
    with pytest.raises(Conflict, match="both source and target"):
        await move(on_postgres, again)


async def test_a_table_missing_in_the_source_is_empty_in_the_copy(
    first: Settings, last: Settings
) -> None:
    with closing(sqlite3.connect(first.database_path)) as connection:
        connection.execute("DROP TABLE blocks_users")
        connection.commit()
    moved = await move(first, last)
    assert moved.rows["blocks_users"] == 0
    assert moved.rows["blocks"] > 0
