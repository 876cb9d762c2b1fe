"""A Dolt database follows: rows, authors, order and open branches are the memory's, also where the follower is killed anywhere."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ricordo.domain.git_objects import signature
from ricordo.domain.remote import Access
from ricordo.features.dolt import sync as following
from ricordo.features.dolt.database import Database, branch_of, date_of, proposal_in, trailer_of
from ricordo.features.dolt.engines import DoltAddress, open_engine
from ricordo.features.dolt.sync import DoltRemotes
from ricordo.memory import user_memory
from ricordo.settings import Settings
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.engine.store import Store
from tests.support import dolt
from tests.support.synced import Killed, SyncedMemory

USER = "ada"
LABELS = ("human", "goals/near", "notes, of a kind")
SEEDS, ROUNDS = range(1, 3), 6


@pytest.fixture
def place(tmp_path: Path) -> Iterator[DoltAddress]:
    """A Dolt database where nothing is yet."""
    print(f"against {dolt.ENGINE}")
    with dolt.new_place(tmp_path) as made:
        yield made


class Memory(SyncedMemory):
    """A user's memory, and its remote in a Dolt database."""

    def __init__(self, store: Store, folder: Path, place: DoltAddress) -> None:
        settings = Settings(data_dir=folder, remote_folders=str(folder), allow_private_remotes=True)
        super().__init__(store, settings, DoltRemotes(), Access(place.address, None, place.password))
        self.place = place


@pytest.fixture
def memory(store: SqliteStore, tmp_path: Path, place: DoltAddress) -> Memory:
    """A memory in which nothing is yet, with a remote in which nothing is yet."""
    return Memory(store, tmp_path, place)


async def require_same(memory: Memory, *, is_pulled: bool = False) -> None:
    """The remote holds the rows, the versions in their order with authors and times, and the open branches."""
    versions, waiting = await memory.versions(), await memory.waiting()
    blocks = await memory.do(user_memory.listed)
    with closing(open_engine(memory.place)) as engine:
        database = Database(engine, USER)
        rows = engine.run("SELECT label, title, body, schema_ref, updated_at FROM memory_blocks ORDER BY label")
        log = {row[0]: row for row in engine.run("SELECT commit_hash, committer, email, date, message FROM dolt_log")}
        commits = [log[hash] for hash in database.steps(database.log()[-1].hash, database.head())]
        branches = database.branches()
        names = [row[0] for row in engine.run("SELECT name FROM dolt_branches")]
    there = {label: (title, body, schema_ref) for label, title, body, schema_ref, _ in rows}
    assert there == {block.label: (block.title, block.value, block.schema_ref) for block in blocks}
    found = [(trailer.version, f"{who} <{mail}>", str(date)) for _, who, mail, date, said in commits
             if (trailer := trailer_of(said)) and not said.startswith("Bring ")]  # fmt: skip
    wanted = [(one.id.hex(), signature(one.author), date_of(one.created_at).replace("T", " ")) for one in versions]
    if is_pulled:
        assert [each for each in wanted if each in found] == found
    else:
        assert found == wanted
        newest = {version.label: date_of(version.created_at).replace("T", " ") for version in versions}
        assert {label: str(at) for label, *_, at in rows} == {block.label: newest[block.label] for block in blocks}
    assert {branch.branch for branch in branches} == {branch_of(USER, proposal) for proposal in waiting}
    assert {proposal_in(branch.message) for branch in branches} == {proposal.id for proposal in waiting}
    assert set(names) == {"main", *(branch.branch for branch in branches)}


class ForgetfulStore:
    """A store whose server is killed before some writes."""

    def __init__(self, store: Store, chance: Random) -> None:
        self.clock = store.clock
        self._store = store
        self._chance = chance

    async def read(self, work: Any) -> Any:
        return await self._store.read(work)

    async def write(self, work: Any) -> Any:
        if self._chance.random() < 0.3:
            raise Killed
        return await self._store.write(work)

    async def close(self) -> None:
        await self._store.close()


async def follow_mortally(memory: Memory, chance: Random, monkeypatch: pytest.MonkeyPatch) -> int:
    """Follow, and be killed somewhere: in a statement, or between what is committed there and noted here. How often: 0 or 1."""
    with monkeypatch.context() as patched:
        patched.setattr(following, "open_engine", lambda place: dolt.mortal(place, chance))
        try:
            await memory.sync(ForgetfulStore(memory.store, chance))
        except Killed:
            return 1
    return 0


async def follow_random_history(memory: Memory, seed: int, rounds: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Some acts, a follower that is killed, and so on; at the end one that is not. Returns how often it was killed."""
    chance = Random(seed)  # noqa: S311 - replayed by its seed
    kills = 0
    for _ in range(rounds):
        for _ in range(chance.randint(1, 6)):
            await memory.act(chance, LABELS)
        kills += await follow_mortally(memory, chance, monkeypatch)
    noted = await memory.sync()
    assert noted.last_error is None
    await require_same(memory)
    assert await memory.sync() == await memory.noted()
    await require_same(memory)
    return kills


@pytest.mark.parametrize("seed", SEEDS)
async def test_after_any_acts_and_kills_both_have_the_same(
    memory: Memory, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By hand, with more seeds and rounds than the suite has time for."""
    await follow_random_history(memory, seed, ROUNDS, monkeypatch)


async def test_a_sync_cancelled_while_it_connects_leaves_no_connection(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    await memory.add()
    begun, goes_on, closed = threading.Event(), threading.Event(), threading.Event()

    def slow(place: DoltAddress) -> Any:
        engine = open_engine(place)
        begun.set()
        assert goes_on.wait(20)
        real = engine.close
        monkeypatch.setattr(engine, "close", lambda: (real(), closed.set()))
        return engine

    monkeypatch.setattr(following, "open_engine", slow)
    task = asyncio.create_task(memory.sync())
    assert await asyncio.to_thread(begun.wait, 20)
    task.cancel()
    await asyncio.sleep(0)
    goes_on.set()
    assert await asyncio.to_thread(closed.wait, 20)
    with pytest.raises(asyncio.CancelledError):
        await task
