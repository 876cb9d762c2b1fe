"""Write-ahead logs that were cut off or torn, and disks that fill up at a write.

After damage to the log, the database holds the acknowledged writes up to some point, without a gap.
A full disk loses no acknowledged write.
"""

import itertools
import resource
import shutil
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest

from ricordo.agents.run_end import close_all
from ricordo.agents.turn import Answer
from ricordo.errors import RicordoError, Unavailable
from ricordo.storage.engine.file_mark import mark_path
from ricordo.storage.engine.sqlite import SqliteStore, open_sqlite
from tests.campaigns.sizes import RecordProperty, short_and_long
from tests.seams.stage import Hooks, Stage, call

_HEADER, _FRAME = 32, 24 + 4096  # Bytes of a log's header, and of one page in it.
_TORN_EACH = 4  # every fourth cut has a torn variant
_MOST_OF_A_TURN = 60 * _FRAME
_TURNS_OF_AN_AGENT = 20
TURNS = 8


@dataclass(frozen=True)
class Killed:
    """The files of a server that was killed, and its agent."""

    folder: Path
    agent: str

    def copy(self, name: str, *, log: bytes) -> Path:
        """Return a database with this log in a separate folder, with the server's marker file."""
        folder = self.folder.with_name(name)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for part in ("ricordo.db", "ricordo.mark"):
            shutil.copy(self.folder / part, folder / part)
        path = folder / "ricordo.db"
        mark = mark_path(path)
        here, there = str(self.folder).encode(), str(folder).encode()
        mark.write_bytes(mark.read_bytes().replace(here, there))
        path.with_name("ricordo.db-wal").write_bytes(log)
        return path

    @property
    def log(self) -> bytes:
        return (self.folder / "ricordo.db-wal").read_bytes()


@asynccontextmanager
async def stage_on(path: Path) -> AsyncIterator[Stage]:
    """Open a database as a server does that starts on it."""
    store = open_sqlite(path)
    await store.write(close_all)
    stage = await Stage(store, path.parent, Hooks()).open()
    yield stage
    await stage.close()
    await store.close()


async def say(stage: Stage, agent: str, number: int) -> Answer:
    """Take a turn that edits memory and answers."""
    fact = f"Fact {number}."
    stage.lines.extend([call("memory_insert", label="human", new_string=fact), "Noted."])
    return await stage.say(agent, f"Message {number}")


async def said(stage: Stage, agent: str) -> list[int]:
    """Return the numbers of the messages that the database holds, in order."""
    texts = [message.text for message in await stage.history(agent) if message.role == "user"]
    return [int(text.split()[-1]) for text in texts if text.startswith("Message ")]


async def facts(stage: Stage, agent: str) -> list[int]:
    lines = (await stage.block(agent, "human")).splitlines()
    return [int(line[5:-1]) for line in lines if line.startswith("Fact ")]


@pytest.fixture
async def killed(tmp_path: Path) -> Killed:
    """The files that a kill leaves of a server whose agent took some turns."""
    folder, running = tmp_path / "killed", tmp_path / "running"
    path = running / "ricordo.db"
    async with stage_on(path) as stage:
        agent = await stage.agent(("human", "Ada."))
    async with stage_on(path) as stage:
        for number in range(TURNS):
            await say(stage, agent, number)
        store = stage.store
        assert isinstance(store, SqliteStore)
        store._mark_later()
        store._writers.submit(int).result()
        shutil.copytree(running, folder)
    mark = mark_path(folder / path.name)
    mark.write_bytes(mark.read_bytes().replace(str(running).encode(), str(folder).encode()))
    return Killed(folder, agent)


def cuts(log: bytes, step: int) -> Iterator[tuple[int, bytes]]:
    """Yield lengths and logs: cut at page boundaries, some inside a page, some with a torn page."""
    pages = (len(log) - _HEADER) // _FRAME
    for number in range(pages, -1, -step):
        end = _HEADER + number * _FRAME
        yield end, log[:end]
        if number < pages and number // step % _TORN_EACH == 0:
            yield end, log[: end + _FRAME // 2]
            torn = bytes(byte ^ 0xFF for byte in log[end + 24 + 2048 : end + _FRAME])
            yield end, log[: end + 24 + 2048] + torn + log[end + _FRAME :]


@pytest.mark.parametrize("step", short_and_long(23, 1))
async def test_a_cut_or_torn_log_keeps_the_acknowledged_writes_up_to_some_point(
    step: int, killed: Killed, tmp_path: Path, record_property: RecordProperty
) -> None:
    damaged = 0
    most = TURNS
    for length, log in cuts(killed.log, step):
        path = killed.copy("damaged", log=log)
        if log != killed.log:
            # The marker file records later writes. So the start is refused, and the error says what
            # to do.
            with pytest.raises(Unavailable, match=r"are missing|another database, or is damaged"):
                open_sqlite(path)
            mark_path(path).unlink()
        if length == _HEADER:
            path.with_name("ricordo.db-wal").unlink()
        damaged += 1
        async with stage_on(path) as stage:
            numbers = await said(stage, killed.agent)
            assert numbers == list(range(len(numbers)))
            assert len(numbers) <= most, "a shorter log holds no more"
            most = len(numbers)
            known = await facts(stage, killed.agent)
            assert known == list(range(len(known)))
            assert len(known) in (len(numbers), len(numbers) - 1)
            await say(stage, killed.agent, len(numbers))
            assert await said(stage, killed.agent) == list(range(len(numbers) + 1))
    record_property("logs", damaged)


@contextmanager
def room_for(size: int, path: Path) -> Iterator[None]:
    """Let the database's log grow by at most this number of bytes, as on a nearly full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    log_size = path.with_name(f"{path.name}-wal").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (log_size + size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def failure_of(
    stage: Stage, agent: str, number: int, limit: AbstractContextManager[None]
) -> str:
    """Take a turn within a limit; return its error, or ""."""
    try:
        with limit:
            answer = await say(stage, agent, number)
    except RicordoError as error:
        return str(error)
    return answer.failure.message if answer.failure else ""


@pytest.mark.parametrize("step", short_and_long(3 * _FRAME, _FRAME // 4))
async def test_a_disk_that_fills_up_at_any_write_of_a_turn_loses_nothing_acknowledged(
    step: int, tmp_path: Path, record_property: RecordProperty
) -> None:
    path = tmp_path / "ricordo.db"
    full = 0
    async with stage_on(path) as stage:
        for number, size in enumerate(range(0, _MOST_OF_A_TURN, step)):
            if number % _TURNS_OF_AN_AGENT == 0:
                agent = await stage.agent(("human", "Ada."))
                acknowledged: list[int] = []
            if failure := await failure_of(stage, agent, number, room_for(size, path)):
                assert "disk is full" in failure or "database failed" in failure
                full += 1
            else:
                acknowledged.append(number)
            stage.lines.clear()
            stage.lines.append("Still here.")
            await stage.say(agent, "Are you there?")
            await stage.require_sound(agent)
            held = await said(stage, agent)
            assert held == sorted(set(held)), "no message may be doubled"
            assert set(acknowledged) <= set(held), "no message may be lost"
            assert set(acknowledged) <= set(await facts(stage, agent))
        assert acknowledged, "the largest room must be enough for a turn"
    async with stage_on(path) as stage:
        assert set(acknowledged) <= set(await said(stage, agent))
    assert full
    record_property("writes", full)


class Strike:
    """Makes the disk refuse writes from the writer's statement with the number `at` on."""

    def __init__(self, store: SqliteStore, at: int, fault: str) -> None:
        self._store = store
        self._at = at
        self._fault = fault
        self._count = 0

    @property
    def has_struck(self) -> bool:
        return self._count >= self._at

    def __call__(self, _sql: str) -> None:
        if not threading.current_thread().name.startswith("sqlite-writer"):
            return
        self._count += 1
        if self._fault == "read-only" and self._count == self._at:
            self._store._raw_connection().execute("PRAGMA query_only = ON")
        elif self._fault == "broken" and self.has_struck:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise error

    def end(self) -> None:
        """Let the disk take writes again."""
        self._store.statements.observers.remove(self)
        raw = self._store._raw_connection
        self._store._writers.submit(lambda: raw().execute("PRAGMA query_only = OFF")).result()


@pytest.mark.parametrize("fault", ["read-only", "broken"])
@pytest.mark.parametrize("step", short_and_long(5, 1))
async def test_a_disk_that_refuses_writes_from_any_statement_of_a_turn_loses_nothing_acknowledged(
    step: int, fault: str, tmp_path: Path, record_property: RecordProperty
) -> None:
    path = tmp_path / "ricordo.db"
    struck = 0
    async with stage_on(path) as stage:
        store = stage.store
        assert isinstance(store, SqliteStore)
        for number in itertools.count():
            agent = await stage.agent(("human", "Ada."))
            strike = Strike(store, number * step + 1, fault)
            store.statements.observers.append(strike)
            failure = await failure_of(stage, agent, number, nullcontext())
            strike.end()
            assert strike.has_struck == bool(failure)
            stage.lines.clear()
            stage.lines.append("Still here.")
            await stage.say(agent, "Are you there?")
            await stage.require_sound(agent)
            if not strike.has_struck:
                assert await said(stage, agent) == await facts(stage, agent) == [number]
                break
            struck += 1
            assert len(await said(stage, agent)) <= 1
    assert struck
    record_property("writes", struck)
