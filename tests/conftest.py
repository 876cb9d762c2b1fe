"""Fixtures that many tests share: a clock, a store on a temporary file, and who is asking.

A test over HTTP takes `server`, `client`, `http` or `agent` (tests/api/conftest.py; also in
tests/features): one server for each module. `serving(tmp_path, setting=…)` starts another in a
twentieth of a second, and `shell.run(…)` runs a command in this process.
"""

import gc
import logging
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from ricordo.domain.scope import Scope
from ricordo.features import FEATURES
from ricordo.plugins import load_plugins
from ricordo.storage.engine import sqlite
from ricordo.storage.engine.postgres import PostgresStore
from ricordo.storage.engine.sqlite import SqliteStore, open_sqlite
from ricordo.storage.schema.columns import metadata
from tests.seams import people
from tests.seams.stores import ManualClock
from tests.support import campaign_record, forks, order, postgres, sharing, warm
from tests.support.canaries import LogWatch
from tests.support.ready import Helper, close_helper, fork_helper
from tests.support.ready import helper as running_helper
from tests.support.summary import summary_lines

# The machine that runs the tests may be busy, so time proves nothing here; a failure is replayed
# from what it prints.
settings.register_profile(
    "ricordo",
    deadline=None,
    max_examples=15,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
# For who changes what they are about: make test ARGS="--hypothesis-profile=long
# tests/memory/test_merge.py".
settings.register_profile("long", settings.get_profile("ricordo"), max_examples=1000)
settings.load_profile("ricordo")

forks.at_end.append(postgres.stop_server)
pytest_runtestloop = forks.pytest_runtestloop


def pytest_addoption(parser: pytest.Parser) -> None:
    forks.pytest_addoption(parser)
    campaign_record.pytest_addoption(parser)


@pytest.fixture
def clock() -> ManualClock:
    """A clock that moves by one microsecond a call, and by `advance(seconds)`."""
    return ManualClock()


ROOM = 4_000_000_000  # bytes

# Tests of repositories run on both databases, and those of memory on PostgreSQL under `make soak`.
# Elsewhere a module that is for both says `DATABASES = BOTH`, and runs on PostgreSQL under `make
# soak` too. A module about one database names that one alone.
BOTH = ("sqlite", "postgresql")
_REPOSITORIES, _ON_BOTH = ("storage", "search"), ("storage", "memory")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests that use a store on each database they are for."""
    if "database" in metafunc.fixturenames:
        folder = metafunc.definition.path.parent.name
        databases = getattr(metafunc.module, "DATABASES", BOTH if folder in _ON_BOTH else BOTH[:1])
        if databases == BOTH[:1]:
            return
        is_soak = databases == BOTH and folder not in _REPOSITORIES
        postgresql = pytest.param("postgresql", marks=pytest.mark.soak) if is_soak else "postgresql"
        chosen = [postgresql if database == "postgresql" else database for database in databases]
        metafunc.parametrize("database", chosen, indirect=True)


_LOGS = LogWatch()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Fail a test during which a text of a person came into the log.

    Undo what it set up for logs.
    """
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.addHandler(_LOGS)
    try:
        yield
    finally:
        root.handlers[:] = handlers
        if root.level != level:
            root.setLevel(level)  # which empties the caches of all loggers
        found = _LOGS.found.copy()
        _LOGS.found.clear()
    assert not found, f"a text of a person is in the log: {found}"


def pytest_configure(config: pytest.Config) -> None:
    """What is imported is no garbage.

    To look through it again and again takes a fifth of the start.
    """
    gc.disable()
    campaign_record.pytest_configure(config)
    # A machine with tesseract would read the pictures of every test. Tests of them switch it on.
    os.environ["RICORDO_PICTURE_TEXT"] = "off"
    _keep_files_in_memory()


def _keep_files_in_memory() -> None:
    """Keep temporary files in memory, if a whole run fits and TMPDIR is not set."""
    memory = Path("/dev/shm")
    if "TMPDIR" not in os.environ and os.access(memory, os.W_OK | os.X_OK):
        found = os.statvfs(memory)
        if found.f_bavail * found.f_frsize >= ROOM and not found.f_flag & os.ST_NOEXEC:
            os.environ["TMPDIR"] = tempfile.tempdir = str(memory)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = order.in_order(items)


def pytest_collection_finish(session: pytest.Session) -> None:
    """From here on there is garbage, but not among what was imported.

    And the helper, which has imported the same. What all forks would do first is done before.
    """
    if forks.will_fork(session):
        warm.warm_up(session.config._tmp_path_factory.mktemp("warm"))  # type: ignore[attr-defined]
        warm.generate_once()
    gc.freeze()
    fork_helper()
    # Parsed sources and servers make many objects that stay: to look through them after every 700
    # takes half of the time.
    gc.set_threshold(100_000, 20, 20)
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say at the end of the long tests what each module came to, and how long it took."""
    if terminalreporter.config.option.markexpr == "soak":
        terminalreporter.section("long tests")
        for line in summary_lines(terminalreporter.stats):
            terminalreporter.write_line(line)


@pytest.fixture(scope="session", autouse=True)
def _shared_work() -> Iterator[None]:
    """What takes longer than most tests and is the same for all is done once or not at all.

    See `tests/support/sharing.py`.
    """
    with nullcontext() if warm.is_warm() else sharing.shared_work():
        yield
        people.forget_world()


@pytest.fixture(scope="session")
def helper() -> Helper:
    """What forks processes of `ricordo`, for all tests."""
    return running_helper()


def pytest_unconfigure() -> None:
    close_helper()
    postgres.stop_server()


@pytest.fixture
def database(request: pytest.FixtureRequest) -> str:
    return str(getattr(request, "param", BOTH[0]))


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the schema in it, to be copied.

    That is faster than to migrate a new one for every test.

    The tables of features are in it too: once a test imported them, deletions look into them.
    """
    path = tmp_path_factory.mktemp("empty") / "ricordo.db"
    open_sqlite(path)._close()
    engine = sqlite.make_engine(path, "normal")
    with engine.begin() as connection:
        metadata.create_all(connection, tables=load_plugins(FEATURES).tables())
    engine.dispose()
    return path


@pytest.fixture
async def store(
    database: str, empty_database: Path, tmp_path: Path, clock: ManualClock
) -> AsyncIterator[SqliteStore | PostgresStore]:
    """An empty store on a database of its own."""
    if database == "postgresql":
        async with postgres.new_store(clock) as opened:
            yield opened
        return
    path = tmp_path / "ricordo.db"
    shutil.copy(empty_database, path)
    file = SqliteStore(sqlite.make_engine(path, "normal"), clock, sqlite.lock_file(path))
    yield file
    await file.close()


@pytest.fixture
def scope() -> Scope:
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
