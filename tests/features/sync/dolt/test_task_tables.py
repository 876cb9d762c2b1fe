"""A user's background tasks in Dolt.

Only the user's rows are there, also in a database of many users and after any kill.
"""

from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ricordo.domain.ids import new_id
from ricordo.domain.scope import LOCAL_ORGANIZATION, Scope
from ricordo.features.sync.dolt import sync as following
from ricordo.features.sync.dolt.engines import DoltAddress, open_engine
from ricordo.features.tutor.tasks import queries
from ricordo.features.tutor.tasks.queries import BackgroundTask, TaskRun
from ricordo.memory import user_memory
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.engine.store import Transaction
from tests.features.sync.dolt.test_sync import Memory, require_same
from tests.seams import make
from tests.support import dolt
from tests.support.synced import Killed

TABLES = ("background_tasks", "task_runs", "user_activity")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[DoltAddress]:
    with dolt.new_place(tmp_path) as made:
        yield made


@pytest.fixture
def memory(store: SqliteStore, tmp_path: Path, place: DoltAddress) -> Memory:
    return Memory(store, tmp_path, place)


def dolt_rows(place: DoltAddress, table: str, columns: str = "*") -> list[tuple[Any, ...]]:
    with closing(open_engine(place)) as engine:
        return sorted(tuple(row) for row in engine.run(f"SELECT {columns} FROM {table}"))  # noqa: S608 - a test's words


async def store_task_run(
    memory: Memory, name: str, user: str, window: int = 0, **more: Any
) -> tuple[BackgroundTask, TaskRun]:
    """Store a task of this name, and a run of it for this user."""
    agent = (await make.stored_agent(memory.store, make.agent(new_id("agent")))).agent

    def work(tx: Transaction) -> tuple[BackgroundTask, TaskRun]:
        owner = user_memory.open_memory(tx, Scope(), user, makes=True).user
        task = queries.find(tx, Scope(), name)
        if task is None:
            task = BackgroundTask(
                new_id("task"),
                LOCAL_ORGANIZATION,
                name,
                agent.id,
                f"Look after {name}.",
                cron="0 3 * * *",
            )
            queries.insert_task(tx, task)
        made = {
            "trigger": "cron",
            "status": "done",
            "created_at": tx.clock.now(),
            "ended_at": tx.clock.now(),
            **more,
        }
        run = TaskRun(new_id("taskrun"), LOCAL_ORGANIZATION, task.id, owner.id, window, **made)
        assert queries.add_runs(tx, [run])
        return task, run

    return await memory.store.write(work)


async def test_a_users_tasks_runs_and_activity_are_synced_to_dolt(memory: Memory) -> None:
    await memory.put("human", "Likes tea")
    await memory.sync()
    before = (await memory.noted()).seen
    assert await memory.sync() is not None
    assert (await memory.noted()).seen == before  # no task, no tables, no commits
    task, run = await store_task_run(
        memory, "nightly", "ada", problem='It\'s \\ "odd" ✓', changes=({"label": "human"},)
    )
    assert (await memory.sync()).last_error is None
    (defined,) = dolt_rows(
        memory.place, "background_tasks", "user_id, name, agent_id, instructions, cron, enabled"
    )
    assert defined == ("ada", "nightly", task.agent_id, "Look after nightly.", "0 3 * * *", "True")
    (done,) = dolt_rows(memory.place, "task_runs", "user_id, id, task, status, problem, changes")
    assert done == ("ada", run.id, "nightly", "done", 'It\'s \\ "odd" ✓', '[{"label":"human"}]')
    assert [row[0] for row in dolt_rows(memory.place, "user_activity")] == ["ada"]
    # Unchanged rows make no commit.
    head = (await memory.noted()).seen
    await memory.sync()
    assert (await memory.noted()).seen == head
    await require_same(memory)
    # A task that is deleted takes its runs along; Dolt's history has them.
    await memory.store.write(lambda tx: queries.remove(tx, task))
    await memory.sync()
    assert [dolt_rows(memory.place, table) for table in TABLES] == [[], [], []]
    await require_same(memory)


async def test_users_sharing_a_database_get_only_their_own_task_rows(memory: Memory) -> None:
    other = Memory(memory.store, memory.settings.data_dir, memory.place)
    other.user = "bob"
    for one in (memory, other):
        await one.put("human", f"This is {one.user}.", user=one.user)
        await store_task_run(one, "nightly", one.user)
        await store_task_run(one, f"only-{one.user}", one.user)
        await one.sync()
    for _ in range(2):
        for one in (memory, other):
            assert (await one.sync()).last_error is None
    names = dolt_rows(memory.place, "background_tasks", "user_id, name")
    assert names == [
        ("ada", "nightly"),
        ("ada", "only-ada"),
        ("bob", "nightly"),
        ("bob", "only-bob"),
    ]
    assert [row[0] for row in dolt_rows(memory.place, "task_runs", "user_id")] == [
        "ada",
        "ada",
        "bob",
        "bob",
    ]
    assert await memory.text() == "This is ada."
    # In a separate database a user has only their rows.
    folder = memory.settings.data_dir / "own"
    folder.mkdir()
    with dolt.new_place(folder) as place:
        own = Memory(memory.store, memory.settings.data_dir, place)
        own.user = "cyd"
        await own.put("human", "Cyd.", user="cyd")
        await store_task_run(own, "nightly", "cyd")
        await own.sync()
        assert {row[0] for table in TABLES for row in dolt_rows(place, table)} == {"cyd"}


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.soak)])
async def test_task_rows_are_synced_once_despite_kills(
    memory: Memory, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = Random(seed)  # noqa: S311 - replayed by its seed
    await memory.put("human", "Likes tea")
    await memory.add()
    wanted = []
    for number in range(3):
        wanted.append((await store_task_run(memory, "nightly", "ada", number))[1].id)
        await memory.put("human", f"Likes tea, {number}")
        with monkeypatch.context() as patched:
            patched.setattr(following, "open_engine", lambda place: dolt.mortal(place, chance))
            with suppress(Killed):
                await memory.sync()
    assert (await memory.sync()).last_error is None
    assert sorted(row[1] for row in dolt_rows(memory.place, "task_runs", "user_id, id")) == sorted(
        wanted
    )
    await require_same(memory)
