"""Fixtures for turns: a stage with a runtime on a temporary file, closed when the test ends."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.tools.toolbox import ServerTool, ToolRunner
from tests.seams.stage import Hooks, Stage

OpenStage = Callable[..., Awaitable[Stage]]


@pytest.fixture
async def open_stage(store: SqliteStore, tmp_path: Path) -> AsyncIterator[OpenStage]:
    """Yield a function that opens a stage with a test's tools and runners.

    `await open_stage(ServerTool(…), runners=[…])`.
    """
    opened: list[Stage] = []

    async def open_one(*tools: ServerTool, runners: Sequence[ToolRunner] = ()) -> Stage:
        opened.append(await Stage(store, tmp_path, Hooks(tools, runners)).open())
        return opened[-1]

    yield open_one
    for stage in opened:
        await stage.close()


@pytest.fixture
async def stage(open_stage: OpenStage) -> Stage:
    return await open_stage()


@pytest.fixture
async def agent(stage: Stage) -> str:
    return await stage.agent()
