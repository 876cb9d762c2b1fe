"""Fixtures for turns: a stage with a runtime on a temporary file, closed when the test ends."""

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from ricordo.runtime import Runtime
from ricordo.storage.postgres import PostgresStore
from ricordo.storage.sqlite import SqliteStore, open_sqlite
from ricordo.tools.toolbox import ServerTool
from tests.agents.stage import Hooks, Stage
from tests.support.clock import ManualClock
from tests.support.postgres import new_store

OpenStage = Callable[..., Awaitable[Stage]]


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the schema in it, to be copied: that is faster than to migrate a new one for every test."""
    path = tmp_path_factory.mktemp("empty") / "ricordo.db"
    open_sqlite(path)._close()
    return path


@pytest.fixture
async def store(
    database: str, empty_database: Path, tmp_path: Path, clock: ManualClock
) -> AsyncIterator[SqliteStore | PostgresStore]:
    """An empty store on a database of its own."""
    if database == "postgresql":
        async with new_store(clock, tmp_path) as shared:
            yield shared
        return
    shutil.copy(empty_database, tmp_path / "ricordo.db")
    opened = open_sqlite(tmp_path / "ricordo.db", clock=clock)
    yield opened
    await opened.close()


@pytest.fixture
async def open_stage(store: SqliteStore, tmp_path: Path) -> AsyncIterator[OpenStage]:
    """Opens a stage with tools of the test's own: `stage = await open_stage(ServerTool(…))`."""
    opened: list[Stage] = []

    async def open_one(*tools: ServerTool) -> Stage:
        opened.append(await Stage(store, tmp_path, Hooks(tools)).open())
        return opened[-1]

    yield open_one
    for stage in opened:
        await stage.close()


@pytest.fixture
async def stage(open_stage: OpenStage) -> Stage:
    """A stage with the built-in tools."""
    return await open_stage()


@pytest.fixture
def runtime(stage: Stage) -> Runtime:
    """The stage's runtime."""
    return stage.runtime
