"""A damaged repository is made anew, once and told of; whatever else goes wrong is raised as it came."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from ricordo.domain.scope import Actor, Scope
from ricordo.features.git.objects import git_object
from ricordo.features.git.receiver import PushCommand, Pusher, receive
from ricordo.features.git.repository import BRANCH, is_damaged, read_repository, refreshed
from ricordo.memory.user_memory import open_memory, put
from ricordo.storage import blocks
from ricordo.storage.chain_files import delete_chain_files
from ricordo.storage.engine.store import Store
from tests.features.git.test_packs import entry, pack
from tests.support.git import fsck, git

DATABASES = ("sqlite",)
ADA = Actor("user", "user-1", "Ada")


class World:
    """A memory of three versions, and its repository in three packs."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store, self.folder = store, folder
        self.tries = 0

    async def fill(self) -> None:
        for number in range(3):
            await self.store.write(
                lambda tx, n=number: put(tx, open_memory(tx, Scope(), "ada", makes=True), "human", f"{n}\n" * 30, ADA)
            )
            owned = await self.store.read(lambda tx: open_memory(tx, Scope(), "ada"))
            self.path = await refreshed(self.store, self.folder, owned.chain.id)
        self.owned = owned

    def packs(self) -> list[Path]:
        return sorted(self.path.glob("objects/pack/*.pack"), key=lambda each: each.stat().st_mtime_ns)

    def read(self, path: Path) -> str:
        self.tries += 1
        try:
            return git(path, "log", "-p", "--format=%H", "main")
        except AssertionError as error:
            raise KeyError("gone") from error

    async def healing(self, work: Callable[[Path], object]) -> object:
        return await read_repository(self.store, self.folder, self.owned.chain.id, work)


@pytest.fixture
async def world(store: Store, tmp_path: Path) -> World:
    made = World(store, tmp_path)
    await made.fill()
    return made


async def test_a_repository_that_lost_some_of_its_history_is_made_anew_and_told_of(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    whole = await world.healing(world.read)
    for each in (world.packs()[1], world.packs()[1].with_suffix(".idx")):
        each.unlink()
    assert is_damaged(world.path)
    caplog.set_level(logging.WARNING)
    assert await world.healing(world.read) == whole
    assert [record.message for record in caplog.records] == ["a repository for git is damaged; it is rebuilt"]
    assert (world.tries, fsck(world.path), is_damaged(world.path)) == (3, "", False)


async def test_a_memory_without_versions_is_no_damage(store: Store, tmp_path: Path) -> None:
    owned = await store.write(lambda tx: open_memory(tx, Scope(), "ada", makes=True))
    assert not is_damaged(await refreshed(store, tmp_path, owned.chain.id))


@pytest.mark.parametrize("suffix", [".pack", ".idx"])
@pytest.mark.parametrize("place", [5, 40, -30, -1])
async def test_a_changed_byte_or_a_cut_file_is_damage(world: World, suffix: str, place: int) -> None:
    assert not is_damaged(world.path)
    file = world.packs()[2].with_suffix(suffix)
    content = bytearray(file.read_bytes())
    file.chmod(0o600)
    content[place] ^= 1
    file.write_bytes(content)
    assert is_damaged(world.path, is_thorough=False)
    file.write_bytes(content[:-20])
    assert is_damaged(world.path, is_thorough=False)


async def test_an_error_of_our_own_is_not_hidden_and_costs_no_repository(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    before = world.path.stat().st_ino

    def fail(_path: Path) -> None:
        world.tries += 1
        raise KeyError("ours")

    with pytest.raises(KeyError, match="ours"):
        await world.healing(fail)
    assert (world.tries, world.path.stat().st_ino, caplog.records) == (1, before, [])


async def test_it_is_made_anew_once(world: World) -> None:
    def fail(_path: Path) -> None:
        world.tries += 1
        for each in world.packs():
            each.unlink()
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        await world.healing(fail)
    assert world.tries == 2


async def test_what_was_made_anew_in_the_middle_of_reading_is_read_again(world: World) -> None:
    def read(path: Path) -> str:
        world.tries += 1
        if world.tries == 1:
            delete_chain_files(world.folder, world.owned.chain.id)
        return git(path, "rev-parse", "main") if path.exists() else (path / "HEAD").read_text()

    assert len(str(await world.healing(read))) == 40


async def test_a_push_that_counts_on_what_the_repository_lost_heals_it(world: World) -> None:
    first = git(world.path, "rev-parse", "main~2:human.md")
    for each in world.packs()[:1]:
        each.unlink()
        each.with_suffix(".idx").unlink()
    text = git_object("blob", b"0\n" * 30 + b"more\n")
    delta = bytes([60, 65, 0b10010000, 60, 5]) + b"more\n"
    tree = git_object("tree", b"100644 human.md\0" + text.id)
    old = bytes.fromhex(git(world.path, "rev-parse", "main"))
    who = b"Ada <ada@home> 1767225600 +0000"
    commit = git_object(
        "commit",
        b"tree %s\nparent %s\nauthor %s\ncommitter %s\n\nMore\n"
        % (tree.id.hex().encode(), old.hex().encode(), who, who),
    )
    sent = pack(entry(1, commit.body), entry(2, tree.body), entry(7, delta, base=bytes.fromhex(first)))
    command = PushCommand(old, commit.id, BRANCH)
    (outcome,) = await receive(world.store, world.folder, world.owned.chain, Pusher(Scope(), ADA), [command], sent)
    assert outcome.refusal is None
    found = await world.store.read(lambda tx: blocks.of_user(tx, Scope(), world.owned.user.id))
    assert found[0].value == text.body.decode()
