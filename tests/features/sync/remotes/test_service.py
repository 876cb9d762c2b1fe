"""Remotes of any kind at allowed addresses, and their jobs.

A change of memory adds a job, a lease protects it, and a sweep finds missed changes.
"""

import asyncio
import errno
import os
import threading
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from ricordo.background.worker import by_kind
from ricordo.domain.job import Job
from ricordo.domain.remote import SYNC, Access, Remote
from ricordo.domain.scope import Scope
from ricordo.errors import Conflict, Invalid, LeaseLost, NotFound, Unavailable
from ricordo.features.sync.dolt.database import Database
from ricordo.features.sync.dolt.engines import open_engine, read_address
from ricordo.features.sync.dolt.sync import DoltRemotes
from ricordo.features.sync.git import transport
from ricordo.features.sync.git.sync import GitRemotes
from ricordo.features.sync.remotes.service import (
    HANDLERS,
    SWEEP,
    FolderMarker,
    access_of,
    add,
    require_folder,
)
from ricordo.memory import user_memory
from ricordo.memory.user_memory import UserMemory
from ricordo.plugins import Feature, Plugins
from ricordo.runtime import Runtime
from ricordo.secret import Secret
from ricordo.settings import Settings
from ricordo.storage import jobs, remotes, versions
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Store, Transaction
from ricordo.storage.schema.core_tables import organizations
from tests.conftest import BOTH
from tests.seams.jobs import runtime_on
from tests.seams.stores import ManualClock, count_statements
from tests.support.git import git
from tests.support.notebook import Notebooks
from tests.support.synced import ADA, SyncedMemory

DATABASES = BOTH
LIMIT = 60
GIT = ("git", Feature(memory_remotes=(GitRemotes(),)))
BUILT_IN = (GIT, ("dolt", Feature(memory_remotes=(DoltRemotes(),))))


class World(SyncedMemory):
    """Two servers on one database, with a user's memory and a remote of it."""

    def __init__(self, store: Store, folder: Path, clock: ManualClock) -> None:
        self.folder, self.clock, self.notebooks = folder, clock, Notebooks()
        super().__init__(store, runtime_on(store, folder).settings, self.notebooks, Access(""))

    def server(self) -> Runtime:
        runtime = runtime_on(self.store, self.folder)
        runtime.remotes = Plugins([*BUILT_IN, ("notebooks", self.notebooks)]).memory_remotes()
        return runtime

    async def add_of(self, kind: str, address: str) -> None:
        self.kind = self.server().remotes[kind]
        await self.add(Access(address))

    async def jobs(self) -> list[Job]:
        return await self.store.read(
            lambda tx: jobs.page(tx, Scope(), Page(), statuses=["waiting"])
        )

    async def claim(self, worker: str) -> Job:
        self.clock.advance(60)
        (job,) = await self.jobs()
        claimed = await self.store.write(lambda tx: jobs.claim_one(tx, worker, job.id))
        assert claimed
        return claimed

    async def run(self, job: Job) -> None:
        handler = by_kind(HANDLERS)[job.kind]
        await handler.run(self.server(), job, lambda _done, _total: None)
        await self.store.write(lambda tx: jobs.finish(tx, job))

    async def work(self) -> None:
        await self.run(await self.claim("a server"))


@pytest.fixture
def world(store: Store, tmp_path: Path, clock: ManualClock) -> World:
    return World(store, tmp_path, clock)


async def noted_in_a_notebook(world: World) -> Path:
    """Make a memory with one block that a notebook has too; return the notebook."""
    await world.put("human", "Likes tea")
    file = world.folder / "remotes" / "ada.json"
    await world.add_of("notebook", str(file))
    await world.work()
    return file


async def test_every_change_of_a_memory_queues_a_sync_of_its_own_remote(world: World) -> None:
    file = await noted_in_a_notebook(world)
    await world.put("human", "Likes tea", "eve")
    assert await world.jobs() == []

    async def rejected() -> None:
        made = await world.propose("human", "tea", "milk")
        await world.work()
        await world.reject(made.id)

    changes: list[Callable[[], Awaitable[Any]]] = [
        lambda: world.put("human", "Likes coffee, and tea"),
        lambda: world.propose("human", "tea", "water"),
        rejected,
        lambda: world.do(lambda tx, owned: user_memory.rename(tx, owned, "human", "me", ADA)),
        lambda: world.do(lambda tx, owned: user_memory.delete(tx, owned, "me", ADA)),
    ]
    for change in changes:
        await change()
        (job,) = await world.jobs()
        assert (job.kind, job.payload) == (SYNC, {"remote_id": world.remote.id})
        assert job.not_before > job.created_at  # A change a moment later is part of the same sync.
        await world.work()
        assert await world.jobs() == []
    assert file.read_text() == '{"blocks": {}}'


async def test_a_rolled_back_change_queues_no_sync(world: World) -> None:
    await noted_in_a_notebook(world)

    def fail(tx: Transaction, owned: UserMemory) -> None:
        user_memory.put(tx, owned, "human", "Likes coffee", ADA)
        raise NotFound("no")

    with pytest.raises(NotFound):
        await world.do(fail)
    assert await world.jobs() == []
    for number in range(3):
        await world.put("human", f"{number}")
    assert len(await world.jobs()) == 1
    other = (await world.do(lambda _, owned: owned, "eve")).chain.id
    with count_statements(world.store) as counted:  # type: ignore[arg-type]
        await world.store.write(lambda tx: versions.lock(tx, other))
    assert len(counted.statements) == 1  # a memory without remotes costs nothing more


async def test_a_remote_of_an_unavailable_kind_reports_the_missing_plugin(world: World) -> None:
    await world.add_of("notebook", str(world.folder / "remotes" / "ada.json"))
    job = await world.claim("a server")
    runtime = world.server()
    runtime.remotes = {}
    handler = by_kind(HANDLERS)[job.kind]
    with pytest.raises(Invalid, match=r"kind \"notebook\" here\. Install its plugin"):
        await handler.run(runtime, job, lambda _done, _total: None)
    # The list shows the error, and a waiting caller stops waiting.
    noted = await world.noted()
    assert "Install its plugin" in (noted.last_error or "")
    assert noted.last_at is not None


async def test_a_removed_remote_is_not_synced(world: World) -> None:
    await world.add_of("notebook", str(world.folder / "remotes" / "ada.json"))
    await world.store.write(lambda tx: remotes.remove(tx, world.remote))
    await world.work()
    assert not (world.folder / "remotes").exists()


async def test_the_sweep_queues_syncs_that_were_missed(world: World) -> None:
    await noted_in_a_notebook(world)
    sweep = Job(SWEEP, Scope().organization_id)
    for seconds, found in ((60, 0), (600, 1)):
        world.clock.advance(seconds)
        await world.run(sweep)
        assert len(await world.jobs()) == found


class Git:
    """A git remote, read as its owner reads it."""

    name = "git"

    def __init__(self, folder: Path) -> None:
        self.address = str(folder / "remotes" / "ada.git")
        self.writes = ((transport, "push"),)

    def text(self) -> str:
        return git(Path(self.address), "show", "main:human.md")

    def proposals(self) -> int:
        return len(
            git(
                Path(self.address), "for-each-ref", "--format=%(refname)", "refs/heads/agent"
            ).split()
        )


class Dolt:
    """A Dolt remote, read as its owner reads it."""

    name = "dolt"

    def __init__(self, folder: Path) -> None:
        self.address = f"doltlite://{folder}/remotes/ada.db"
        self.writes = ((Database, "commit"), (Database, "open_branch"))
        self._folder = folder

    def text(self) -> str:
        return str(self._ask("SELECT body FROM memory_blocks")[0][0])

    def proposals(self) -> int:
        return len(self._ask("SELECT name FROM dolt_branches WHERE name LIKE 'agent/%'"))

    def _ask(self, sql: str) -> list[Any]:
        with closing(
            open_engine(read_address(self.address, folders=(self._folder / "remotes",)))
        ) as engine:
            return engine.run(sql)


class Frozen:
    """A server that stops during its first write to a remote until it is woken."""

    def __init__(self, remote: Git | Dolt, patch: pytest.MonkeyPatch) -> None:
        self.stands, self.woken = threading.Event(), threading.Event()
        for owner, name in remote.writes:
            patch.setattr(owner, name, self._slow(getattr(owner, name)))

    def _slow(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def write(*arguments: Any, **options: Any) -> Any:
            if not self.stands.is_set():
                self.stands.set()
                assert self.woken.wait(LIMIT)
            return real(*arguments, **options)

        return write


@pytest.fixture(params=[Git, Dolt])
def there(request: pytest.FixtureRequest, tmp_path: Path) -> Git | Dolt:
    made: Git | Dolt = request.param(tmp_path)
    return made


async def followed_there(world: World, there: Git | Dolt) -> None:
    await world.put("human", "one")
    await world.add_of(there.name, there.address)
    await world.work()


async def overtake(
    world: World,
    there: Git | Dolt,
    patch: pytest.MonkeyPatch,
    meanwhile: Callable[[], Awaitable[Any]],
) -> None:
    """Let a server freeze while it writes to the remote, and resume after another took over."""
    job = await world.claim("frozen")
    frozen = Frozen(there, patch)
    first = asyncio.create_task(world.run(job))
    assert await asyncio.to_thread(frozen.stands.wait, LIMIT)
    world.clock.advance(60)
    await world.store.write(lambda tx: jobs.take_over(tx, silent_for=30_000_000))
    await meanwhile()
    await world.work()
    frozen.woken.set()
    await asyncio.wait([first], timeout=LIMIT)
    assert isinstance(first.exception(), LeaseLost)


async def test_a_frozen_server_does_not_overwrite_newer_text_after_it_resumes(
    world: World, there: Git | Dolt, monkeypatch: pytest.MonkeyPatch
) -> None:
    await followed_there(world, there)
    await world.put("human", "two")

    await overtake(world, there, monkeypatch, lambda: world.put("human", "three"))

    assert there.text() == "three"
    noted = await world.noted()
    assert (noted.followed, noted.last_error) == (3, None)
    await world.work()  # the job checks the remote once more
    assert (there.text(), await world.jobs()) == ("three", [])
    assert (await world.noted()).followed == 3


async def test_a_frozen_server_reopens_no_decided_proposal_after_it_resumes(
    world: World, there: Git | Dolt, monkeypatch: pytest.MonkeyPatch
) -> None:
    await followed_there(world, there)
    made = await world.propose("human", "one", "two")

    await overtake(world, there, monkeypatch, lambda: world.reject(made.id))

    await world.work()  # This removes what the frozen server wrote.
    assert (there.proposals(), there.text(), await world.jobs()) == (0, "one", [])


async def test_a_server_that_lost_its_job_does_not_write_to_the_remote(
    world: World, there: Git | Dolt
) -> None:
    await followed_there(world, there)
    await world.put("human", "two")
    job = await world.claim("frozen")
    world.clock.advance(60)
    await world.store.write(lambda tx: jobs.take_over(tx, silent_for=30_000_000))
    with pytest.raises(LeaseLost):
        await world.run(job)
    assert there.text() == "one"


@pytest.fixture
def noted(store: Store, tmp_path: Path) -> SyncedMemory:
    access = Access(str(tmp_path / "remotes" / "ada.json"), "ada", "s3cret", {"title": "Ada"})
    return SyncedMemory(store, Settings(data_dir=tmp_path), Notebooks(), access)


async def test_a_remote_is_stored_once_with_encrypted_password_and_sync_job(
    noted: SyncedMemory,
) -> None:
    remote = await noted.add()
    assert "s3cret" not in repr(await noted.noted())
    assert access_of(remote, Secret(noted.settings.data_dir)) == noted.access
    (waiting,) = await noted.store.read(lambda tx: jobs.page(tx, Scope(), Page()))
    assert (waiting.kind, waiting.key, waiting.is_single) == (SYNC, f"remote:{remote.id}", True)
    assert waiting.payload == {"remote_id": remote.id}
    with pytest.raises(Conflict, match="is a remote of this memory already"):
        await noted.add()


async def test_only_kinds_that_separate_memories_may_share_an_address(
    noted: SyncedMemory,
) -> None:
    await noted.add()
    other = {"id": "org-other", "name": "Other", "created_at": 1}
    await noted.store.write(lambda tx: tx.run(organizations.insert(), other))

    async def add_for_eve(organization_id: str) -> Remote:
        scope = Scope(organization_id=organization_id)
        return await add(noted.store, noted.settings, scope, "eve", noted.kind, noted.access)

    local = Scope().organization_id
    with pytest.raises(Conflict, match="another memory"):
        await add_for_eve(local)
    noted.kind.is_shared = True  # type: ignore[attr-defined]
    with pytest.raises(Conflict, match="another memory"):
        await add_for_eve("org-other")
    await add_for_eve(local)


async def test_the_outcome_of_a_sync_is_stored(noted: SyncedMemory, tmp_path: Path) -> None:
    await noted.put("human", "Likes tea")
    await noted.add()
    before = noted.store.clock.now()
    done = await noted.sync()
    # The sweep finds changes that were made meanwhile.
    assert before < (done.last_at or 0) < noted.store.clock.now()
    assert (
        tmp_path / "remotes" / "ada.json"
    ).read_text() == '{"title": "Ada", "blocks": {"human": "Likes tea"}}'
    assert (done.followed, done.last_error, noted.kind.passwords) == (1, None, ["s3cret"])
    assert await noted.noted() == done
    for error, said in (
        (Unavailable("The notebook is lost."), "The notebook is lost."),
        (KeyError("s3cret"), "The sync failed (KeyError). The server's log has the details."),
    ):
        noted.kind.fails = error
        with pytest.raises(type(error)):
            await noted.sync()
        failed = await noted.noted()
        assert (failed.last_error, failed.followed) == (said, 1)
        assert (failed.last_at or 0) > (done.last_at or 0)


def test_paths_outside_the_allowed_folders_are_refused_also_by_links(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (inside / "link").symlink_to(outside)
    (inside / "nowhere").symlink_to(outside / "not there yet")
    (inside / "circle").symlink_to(inside / "circle")
    (inside / "own").symlink_to(inside / "real")
    for path in (inside / "a.git", inside / "deep" / "a.git", inside / "own" / "a.git"):
        require_folder(path, (outside, inside))
        require_folder(path, (inside,))
    for path in (
        *(
            inside,
            outside / "a.git",
            inside / ".." / "outside" / "a.git",
            tmp_path / "inside-too" / "a.git",
        ),
        *(
            inside / "link",
            inside / "link" / "a.git",
            inside / "nowhere",
            inside / "circle" / "a.git",
        ),
    ):
        with pytest.raises(Invalid, match="RICORDO_REMOTE_FOLDERS"):
            require_folder(path, (inside,))
    with pytest.raises(Invalid, match=r"\(none\)"):
        require_folder(inside / "a.git", ())
    require_folder(inside / "link" / "a.git", (inside / "link",))
    (inside / "file").touch()
    for name in ("a\0b", "a" * 300, "file/a.git"):
        with pytest.raises(Invalid, match="cannot be used"):
            require_folder(inside / name, (inside,))


def test_duplicate_and_invalid_remote_kinds_of_plugins_are_refused() -> None:
    class Odd:
        def memory_remotes(self) -> list[object]:
            return [object()]

    assert list(Plugins([*BUILT_IN, ("notes", Notebooks())]).memory_remotes()) == [
        "git",
        "dolt",
        "notebook",
    ]
    with pytest.raises(Invalid, match='Two plugins offer remotes of the kind "git"'):
        Plugins([GIT, ("more git", Feature(memory_remotes=(GitRemotes(),)))]).memory_remotes()
    with pytest.raises(
        Invalid, match="object is not a kind of remote: it needs kind, read and sync"
    ):
        Plugins([("odd", Odd())]).memory_remotes()


@pytest.mark.parametrize("has_links", [True, False])
def test_a_folder_is_claimed_by_one_owner(
    tmp_path: Path, has_links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_links:

        def refuse(*_: object) -> None:
            raise OSError(errno.EPERM, "This file system has no links.")

        monkeypatch.setattr(os, "link", refuse)
    content = tmp_path / "content"
    content.mkdir()
    marker = FolderMarker(tmp_path / "owner", content)
    start, claimed = threading.Barrier(8), []

    def claim(owner: str) -> None:
        start.wait()
        with suppress(Conflict):
            marker.claim(owner)
            claimed.append(owner)

    threads = [threading.Thread(target=claim, args=(f"chain-{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert claimed == [marker.owner()]


def test_a_folder_with_an_empty_mark_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "content").mkdir()
    marker = FolderMarker(tmp_path / "owner", tmp_path / "content")
    marker.path.write_text("")
    with pytest.raises(Unavailable, match=r"is empty.*delete this file"):
        marker.claim("chain-ada")
    marker.path.unlink()
    marker.claim("chain-ada")
    with pytest.raises(Conflict):
        marker.claim("chain-eve")
