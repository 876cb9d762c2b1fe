"""Remotes of any kind: added once and where they may be, with their passwords sealed, and noted whatever comes of following."""

from pathlib import Path

import pytest

from ricordo.domain.remote import SYNC, Access, Remote
from ricordo.domain.scope import Scope
from ricordo.errors import Conflict, Invalid, Unavailable
from ricordo.features.remotes.service import access_of, add, require_folder
from ricordo.plugins import Plugins, load_plugins
from ricordo.secret import Secret
from ricordo.settings import Settings
from ricordo.storage import jobs
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Store
from ricordo.storage.schema.core_tables import organizations
from tests.support.notebook import Notebooks
from tests.support.synced import SyncedMemory


class World(SyncedMemory):
    """A user's memory, and the one remote of it."""

    kind: Notebooks

    def __init__(self, store: Store, folder: Path) -> None:
        self.file = folder / "remotes" / "ada.json"
        access = Access(str(self.file), "ada", "s3cret", {"title": "Ada"})
        super().__init__(store, Settings(data_dir=folder), Notebooks(), access)


@pytest.fixture
def world(store: Store, tmp_path: Path) -> World:
    """Nothing yet."""
    return World(store, tmp_path)


async def test_a_remote_is_stored_once_with_its_password_sealed_and_its_job(world: World) -> None:
    remote = await world.add()
    assert "s3cret" not in repr(await world.noted())
    assert access_of(remote, Secret(world.settings.data_dir)) == world.access
    (waiting,) = await world.store.read(lambda tx: jobs.page(tx, Scope(), Page()))
    assert (waiting.kind, waiting.key, waiting.is_single) == (SYNC, f"remote:{remote.id}", True)
    assert waiting.payload == {"remote_id": remote.id}
    with pytest.raises(Conflict, match="is a remote of this memory already"):
        await world.add()


async def test_only_a_kind_that_tells_memories_apart_has_several_at_one_address(world: World) -> None:
    await world.add()
    other = {"id": "org-other", "name": "Other", "created_at": 1}
    await world.store.write(lambda tx: tx.run(organizations.insert(), other))

    async def add_for_eve(organization_id: str) -> Remote:
        scope = Scope(organization_id=organization_id)
        return await add(world.store, world.settings, scope, "eve", world.kind, world.access)

    local = Scope().organization_id
    with pytest.raises(Conflict, match="another memory"):
        await add_for_eve(local)
    world.kind.is_shared = True  # type: ignore[attr-defined]
    with pytest.raises(Conflict, match="another memory"):
        await add_for_eve("org-other")
    await add_for_eve(local)


async def test_how_following_went_is_noted(world: World) -> None:
    await world.put("human", "Likes tea")
    await world.add()
    before = world.store.clock.now()
    done = await world.sync()
    assert before < (done.last_at or 0) < world.store.clock.now()  # what is written meanwhile is found by the sweep
    assert world.file.read_text() == '{"title": "Ada", "blocks": {"human": "Likes tea"}}'
    assert (done.followed, done.last_error, world.kind.passwords) == (1, None, ["s3cret"])
    assert await world.noted() == done
    for error, said in (
        (Unavailable("The notebook is lost."), "The notebook is lost."),
        (KeyError("s3cret"), "It failed (KeyError). The server's log says more."),
    ):
        world.kind.fails = error
        with pytest.raises(type(error)):
            await world.sync()
        failed = await world.noted()
        assert (failed.last_error, failed.followed) == (said, 1)
        assert (failed.last_at or 0) > (done.last_at or 0)


def test_a_path_outside_of_the_folders_is_refused_also_by_a_link(tmp_path: Path) -> None:
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
        *(inside, outside / "a.git", inside / ".." / "outside" / "a.git", tmp_path / "inside-too" / "a.git"),
        *(inside / "link", inside / "link" / "a.git", inside / "nowhere", inside / "circle" / "a.git"),
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


def test_two_plugins_may_not_offer_one_kind_of_remote_and_each_must_be_one() -> None:
    class Odd:
        def memory_remotes(self) -> list[object]:
            return [object()]

    built_in = load_plugins(("git", "dolt"))._plugins
    assert list(Plugins([*built_in, ("notes", Notebooks())]).memory_remotes()) == ["git", "dolt", "notebook"]
    with pytest.raises(Invalid, match='Two plugins offer remotes of the kind "git"'):
        Plugins([*built_in, *built_in]).memory_remotes()
    with pytest.raises(Invalid, match="object is no kind of remote: it needs kind, read and sync"):
        Plugins([("odd", Odd())]).memory_remotes()
