"""Fixtures that many tests share: a clock, a store on a temporary file, and who is asking."""

import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from ricordo.domain.scope import Scope
from ricordo.storage.sqlite import SqliteStore, open_sqlite
from tests.support.clock import ManualClock

# The machine that runs the tests may be busy, so time proves nothing here; a failure is replayed from what it prints.
settings.register_profile(
    "ricordo",
    deadline=None,
    max_examples=60,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("ricordo")


@pytest.fixture
def clock() -> ManualClock:
    """A clock that moves by one microsecond a call, and by `advance(seconds)`."""
    return ManualClock()


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[SqliteStore]:
    """An empty store on a file of its own."""
    opened = open_sqlite(tmp_path / "ricordo.db", clock=clock)
    yield opened
    await opened.close()


@pytest.fixture
def scope() -> Scope:
    """The local organisation and user."""
    return Scope()


@pytest.fixture
def quiet_logs() -> Iterator[None]:
    """Puts the loggers back as they were before a test that sets them up."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)
    logging.captureWarnings(False)
