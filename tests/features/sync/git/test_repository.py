"""The repository that is made from a chain.

The repository has the ids of the database, and is valid for git. Later versions are added in
portions.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from sqlalchemy import select

from ricordo.domain.block import Chain
from ricordo.domain.git_objects import blob_id
from ricordo.domain.scope import Scope
from ricordo.features.sync.git import history, repository
from ricordo.features.sync.git.objects import git_object
from ricordo.features.sync.git.receiver import PushCommand, PushReceiver
from ricordo.features.sync.git.repository import (
    BRANCH,
    is_damaged,
    read_repository,
    refreshed,
    repository_path,
)
from ricordo.settings import Settings
from ricordo.storage import blocks, versions
from ricordo.storage.chain_files import delete_chain_files
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.memory_tables import commits, is_in_chain
from tests.features.sync.git.test_packs import entry, pack
from tests.seams import make
from tests.support.git import fsck, git, ids
from tests.support.synced import Killed

LABELS = (
    "human",
    "persona",
    "courses",
    "courses/maths",
    "courses/week 1/notes",
    "Übung",
    "courses-old",
)


def seeded_random(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311


async def a_chain(store: SqliteStore) -> Chain:
    chain = make.chain("user", "user-1")
    await store.write(lambda tx: versions.insert_chain(tx, chain))
    return chain


def edit(tx: Transaction, chain: Chain, chance: random.Random) -> None:
    """Make one random change of the chain: create, write, rename or delete."""
    there = {block.label: block for block in blocks.of_user(tx, Scope(), chain.owner_id)}
    label = chance.choice(LABELS)
    text = "\n".join(
        f"line {number}: {chance.choice('äß日x')}{chance.random()}"
        for number in range(chance.randrange(12))
    )
    metadata = make.change_metadata(
        chance.choice(["user-1", "agent-2"]), reason=chance.choice(["", "Why\nnot", "Größe <x>\n"])
    )
    if label not in there:
        new = make.block(label, text, chain_id=chain.id)
        blocks.insert_all(tx, [new], [], metadata)
    elif (what := chance.random()) < 0.15:
        blocks.remove(tx, there[label], metadata)
    elif what < 0.3 and (free := [one for one in LABELS if one not in there]):
        blocks.update(tx, there[label], replace(there[label], label=chance.choice(free)), metadata)
    else:
        blocks.write(tx, there[label], text, metadata)


async def stored_ids(store: SqliteStore, chain: Chain) -> list[str]:
    rows = select(commits.c.id).where(is_in_chain(commits)).order_by(commits.c.number)
    found = await store.read(
        lambda tx: [row.id.hex() for row in tx.all(rows, {"chain_id": chain.id})]
    )
    return list(dict.fromkeys(found))


async def edit_randomly(
    store: SqliteStore, chain: Chain, times: int, chance: random.Random
) -> None:

    def work(tx: Transaction) -> None:
        for _ in range(times):
            edit(tx, chain, chance)

    await store.write(work)


async def test_a_repository_has_the_databases_ids_and_passes_git_fsck(
    store: SqliteStore, tmp_path: Path
) -> None:
    chain, chance = await a_chain(store), seeded_random(5)
    # The first round creates the repository, and the others add to it.
    for _ in range(3):
        await edit_randomly(store, chain, 40, chance)
        path = await refreshed(store, tmp_path, chain.id)
        assert ids(path) == await stored_ids(store, chain)
    assert path == repository_path(tmp_path, chain.id)
    assert fsck(path) == ""
    assert git(path, "symbolic-ref", "HEAD") == "refs/heads/main"
    for block in await store.read(lambda tx: blocks.of_user(tx, Scope(), chain.owner_id)):
        assert git(path, "rev-parse", f"main:{block.label}.md") == blob_id(block.value).hex()


async def test_portions_of_any_size_give_the_same_objects(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = await a_chain(store)
    await edit_randomly(store, chain, 50, seeded_random(6))

    def in_portions(tx: Transaction, rows: int, size: int) -> tuple[list[bytes], int]:
        portion, found, portions = history.begin(tx, chain.id, 0), list[bytes](), 0
        while not portion.is_last:
            monkeypatch.setattr(history, "MOST_ROWS", rows)
            monkeypatch.setattr(history, "MOST_BYTES", size)
            portion = history.following(tx, chain.id, portion, set(found))
            assert len(portion.objects) < 400
            found += [made.id for made in portion.objects]
            portions += 1
        return found, portions

    whole, one = await store.read(lambda tx: in_portions(tx, 500, 10**9))
    by_rows, many = await store.read(lambda tx: in_portions(tx, 7, 10**9))
    by_size, more = await store.read(lambda tx: in_portions(tx, 500, 900))
    assert sorted(whole) == sorted(by_rows) == sorted(by_size)
    assert len(set(whole)) == len(whole)
    assert (one, many >= 7, more > 7) == (1, True, True)


async def test_a_kill_during_repository_creation_does_no_harm(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain, chance = await a_chain(store), seeded_random(10)
    await edit_randomly(store, chain, 30, chance)
    real = {name: getattr(repository, name) for name in ("add_portion", "_put_in_place", "_begin")}
    path = repository_path(tmp_path, chain.id)
    for name, is_new in [*((name, True) for name in real), ("add_portion", False)]:
        if is_new and path.exists():
            (path / "HEAD").unlink()

        def killed(*arguments: object, name: str = name) -> None:
            real[name](*arguments)
            raise Killed

        await edit_randomly(store, chain, 3, chance)
        with monkeypatch.context() as patched:
            patched.setattr(repository, name, killed)
            with pytest.raises(Killed):
                await refreshed(store, tmp_path, chain.id)
        assert ids(await refreshed(store, tmp_path, chain.id)) == await stored_ids(store, chain)
        assert fsck(repository_path(tmp_path, chain.id)) == ""


async def test_simultaneous_requests_create_one_repository(
    store: SqliteStore, tmp_path: Path
) -> None:
    chain = await a_chain(store)
    await edit_randomly(store, chain, 20, seeded_random(11))

    paths = await asyncio.gather(*(refreshed(store, tmp_path, chain.id) for _ in range(8)))

    assert set(paths) == {repository_path(tmp_path, chain.id)}
    assert len(list(paths[0].glob("objects/pack/*.pack"))) == 2
    assert ids(paths[0]) == await stored_ids(store, chain)


async def test_many_small_packs_are_merged(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = await a_chain(store)
    monkeypatch.setattr(repository, "_MOST_PACKS", 4)
    for seed in range(8):
        await edit_randomly(store, chain, 3, seeded_random(seed))
        path = await refreshed(store, tmp_path, chain.id)
        assert len(list(path.glob("objects/pack/*.pack"))) <= 4
    assert ids(path) == await stored_ids(store, chain)


@dataclass
class World:
    """A memory of three versions with a repository of three packs, and a count of its reads."""

    store: SqliteStore
    folder: Path
    chain: Chain
    path: Path
    tries: int = 0

    def packs(self) -> list[Path]:
        return sorted(
            self.path.glob("objects/pack/*.pack"), key=lambda each: each.stat().st_mtime_ns
        )

    def lose(self, pack: Path) -> None:
        for each in (pack, pack.with_suffix(".idx")):
            each.unlink()

    async def read(self, work: Callable[[Path], object]) -> object:
        def counted(path: Path) -> object:
            self.tries += 1
            return work(path)

        return await read_repository(self.store, self.folder, self.chain.id, counted)


@pytest.fixture
async def world(store: SqliteStore, tmp_path: Path) -> World:
    """Each version is in a separate pack."""
    chain = await a_chain(store)
    block = make.block("human", "", chain_id=chain.id)
    await store.write(lambda tx: blocks.insert_all(tx, [block], [], make.change_metadata()))
    for number in range(3):
        (there,) = await store.read(lambda tx: blocks.of_user(tx, Scope(), chain.owner_id))
        text = f"{number}\n" * 30
        await store.write(
            lambda tx, there=there, text=text: blocks.write(tx, there, text, make.change_metadata())
        )  # type: ignore[misc]
        path = await refreshed(store, tmp_path, chain.id)
    return World(store, tmp_path, chain, path)


def log_of(path: Path) -> str:
    try:
        return git(path, "log", "-p", "--format=%H", "main")
    except AssertionError as error:
        raise KeyError("gone") from error


async def test_a_repository_with_missing_history_is_rebuilt_with_a_warning(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    whole = await world.read(log_of)
    world.lose(world.packs()[1])
    assert is_damaged(world.path)
    caplog.set_level(logging.WARNING)
    assert await world.read(log_of) == whole
    assert [record.message for record in caplog.records] == [
        "a repository for git is damaged; it is rebuilt"
    ]
    assert (world.tries, fsck(world.path), is_damaged(world.path)) == (3, "", False)


@pytest.mark.parametrize("suffix", [".pack", ".idx"])
async def test_changed_and_truncated_pack_files_are_detected_as_damage(
    world: World, suffix: str
) -> None:
    file = world.packs()[2].with_suffix(suffix)
    whole = file.read_bytes()
    file.chmod(0o600)
    assert not is_damaged(world.path)
    for place in (5, 40, -30, -1):
        content = bytearray(whole)
        content[place] ^= 1
        for damaged in (content, content[:-20]):
            file.write_bytes(damaged)
            assert is_damaged(world.path, is_thorough=False), place


@pytest.mark.parametrize("place", ["index", "branch"])
@pytest.mark.parametrize("content", [b"", b"\xff" * 1_100])
async def test_a_repository_with_a_damaged_index_or_branch_is_rebuilt(
    world: World, place: str, content: bytes
) -> None:
    whole = await world.read(log_of)
    files = [world.path / "refs" / "heads" / "main"]
    if place == "index":
        files = [each.with_suffix(".idx") for each in world.packs()]
    for file in files:
        file.chmod(0o600)
        file.write_bytes(content)
    assert await world.read(log_of) == whole
    assert (fsck(world.path), is_damaged(world.path)) == ("", False)


async def test_an_error_in_our_code_does_not_rebuild_the_repository(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    before = world.path.stat().st_ino

    def fail(_path: Path) -> None:
        raise KeyError("ours")

    with pytest.raises(KeyError, match="ours"):
        await world.read(fail)
    assert (world.tries, world.path.stat().st_ino, caplog.records) == (2, before, [])

    def lose_all(_path: Path) -> None:
        for each in world.packs():
            each.unlink()
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        await world.read(lose_all)
    # The clone is rebuilt once.
    assert world.tries == 4


async def test_a_repository_deleted_while_reading_is_rebuilt_and_read_again(world: World) -> None:
    def read(path: Path) -> str:
        if world.tries == 1:
            delete_chain_files(world.folder, world.chain.id)
        return git(path, "rev-parse", "main") if path.exists() else (path / "HEAD").read_text()

    assert len(str(await world.read(read))) == 40


async def test_a_push_that_needs_lost_objects_repairs_the_repository(world: World) -> None:
    first = git(world.path, "rev-parse", "main~2:human.md")
    world.lose(world.packs()[1])
    text = git_object("blob", b"0\n" * 30 + b"more\n")
    delta = bytes([60, 65, 0b10010000, 60, 5]) + b"more\n"
    tree = git_object("tree", b"100644 human.md\0" + text.id)
    old = bytes.fromhex(git(world.path, "rev-parse", "main"))
    who = b"Ada <ada@home> 1767225600 +0000"
    ids = (tree.id.hex().encode(), old.hex().encode(), who, who)
    commit = git_object("commit", b"tree %s\nparent %s\nauthor %s\ncommitter %s\n\nMore\n" % ids)
    sent = pack(
        entry(1, commit.body), entry(2, tree.body), entry(7, delta, base=bytes.fromhex(first))
    )
    command = PushCommand(old, commit.id, BRANCH)
    receiver = PushReceiver(world.store, Settings(data_dir=world.folder), Scope(), world.chain)
    (outcome,) = await receiver.receive([command], sent)
    assert outcome.refusal is None
    (found,) = await world.store.read(lambda tx: blocks.of_user(tx, Scope(), world.chain.owner_id))
    assert found.value == text.body.decode()
