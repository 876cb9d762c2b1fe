"""Fixtures that many tests share: a clock, a store on a temporary file, and a scope.

A test over HTTP takes `server`, `client`, `http` or `agent` from tests/api/conftest.py. Tests of
features have the same fixtures. All tests of a module share one server. `serving(tmp_path,
setting=…)` starts another server in a twentieth of a second, and `shell.run(…)` runs a command in
this process.
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
from ricordo.storage.engine import repository, sqlite
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

# A busy machine makes tests slow, so there is no deadline. A failure prints the data that replays
# it.
settings.register_profile(
    "ricordo",
    deadline=None,
    max_examples=15,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
# The profile for authors of a change: make test ARGS="--hypothesis-profile=long
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

# Tests of repositories run on both databases. Tests of memory run on PostgreSQL only under `make
# soak`. Any other module for both databases sets `DATABASES = BOTH`, and also runs on PostgreSQL
# only under `make soak`. A module for one database names only that one.
BOTH = ("sqlite", "postgresql")
_REPOSITORIES, _ON_BOTH = ("storage", "search"), ("storage", "memory")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests that use a store on each of their databases."""
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
    """Fail a test if a person's text gets into the log during it.

    Afterwards restore the log handlers and the log level.
    """
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.addHandler(_LOGS)
    try:
        yield
    finally:
        root.handlers[:] = handlers
        if root.level != level:
            root.setLevel(level)  # This empties the caches of all loggers.
        found = _LOGS.found.copy()
        _LOGS.found.clear()
    assert not found, f"a text of a person is in the log: {found}"


def pytest_configure(config: pytest.Config) -> None:
    """Turn the garbage collector off during imports.

    Imported objects are no garbage. Scanning them repeatedly takes a fifth of the time of the
    start.
    """
    gc.disable()
    campaign_record.pytest_configure(config)
    # On a machine with tesseract the server would read the pictures of every test. Tests of picture
    # reading turn it on.
    os.environ["RICORDO_PICTURE_TEXT"] = "off"
    repository.report_unlocked_change = _refuse_unlocked_change
    _keep_files_in_memory()


LOG_UNLOCKED_CHANGE = repository.report_unlocked_change


def _refuse_unlocked_change(table: str) -> None:
    raise RuntimeError(f"A row of {table} was not locked before its change.")


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
    """Start the helper, and turn the garbage collector on.

    Imported objects are frozen, so the collector skips them. Work that every fork would repeat is
    done before.
    """
    if forks.will_fork(session):
        warm.warm_up(session.config._tmp_path_factory.mktemp("warm"))  # type: ignore[attr-defined]
        warm.generate_once()
    gc.freeze()
    fork_helper()
    # Parsed sources and servers make many objects that stay. With the default threshold of 700,
    # searching them takes half of the time.
    gc.set_threshold(100_000, 20, 20)
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the outcome and the time of each module after the long tests."""
    if terminalreporter.config.option.markexpr == "soak":
        terminalreporter.section("long tests")
        for line in summary_lines(terminalreporter.stats):
            terminalreporter.write_line(line)


@pytest.fixture(scope="session", autouse=True)
def _shared_work() -> Iterator[None]:
    """Share work that is slow and the same for all tests.

    See `tests/support/sharing.py`.
    """
    with nullcontext() if warm.is_warm() else sharing.shared_work():
        yield
        people.forget_world()


@pytest.fixture(scope="session")
def helper() -> Helper:
    """The process that forks `ricordo` commands for all tests."""
    return running_helper()


def pytest_unconfigure() -> None:
    close_helper()
    postgres.stop_server()


@pytest.fixture
def database(request: pytest.FixtureRequest) -> str:
    return str(getattr(request, "param", BOTH[0]))


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with an empty database, which tests copy.

    A copy is faster than migrating a new file for every test. The file also has the tables of all
    features, because deletions read them once a test has imported the features.
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
    """An empty store on a separate database."""
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
    """Restores the loggers after a test that configures them."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)
    logging.captureWarnings(False)
