"""Sync of a git remote.

Whatever happens on either side, and wherever a sync is killed, both end with the same ids.
"""

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ricordo.domain.remote import Access
from ricordo.domain.scope import Actor, Scope
from ricordo.errors import Conflict, Invalid, NotFound
from ricordo.features.sync.git import sync as following
from ricordo.features.sync.git import transport
from ricordo.features.sync.git.sync import GitRemotes
from ricordo.features.sync.remotes.service import sync
from ricordo.memory import user_memory
from ricordo.memory.user_memory import open_memory
from ricordo.settings import Settings
from ricordo.storage import blocks, proposals, remotes
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.engine.store import Store
from tests.support.git import fsck, git, ids, run_git
from tests.support.synced import ADA, NINA, Killed, SyncedMemory, set_email


class World(SyncedMemory):
    """A user's memory, a remote of it in a folder, and a clone of the remote."""

    def __init__(self, store: Store, folder: Path) -> None:
        access = Access(str(folder / "data" / "remotes" / "ada.git"))
        super().__init__(store, Settings(data_dir=folder / "data"), GitRemotes(), access)
        self.clone = folder / "clone"

    async def start(self) -> None:
        await self.put("human", "Name: Ada\nLikes tea\nLives in Rome")
        await self.put("goals", "", policy="direct")
        await self.sync()
        git(self.clone.parent, "clone", "-q", self.access.address, "clone")

    async def ids(self) -> list[str]:
        return list(dict.fromkeys(version.id.hex() for version in await self.versions()))

    def commit(
        self, *, pulls: bool = True, author: str = "Ada <ada@home.example>", **files: str | None
    ) -> str:
        if pulls:
            git(self.clone, "pull", "-q", "--no-edit")
        for name, text in files.items():
            path = self.clone / f"{name}.md"
            path.unlink() if text is None else path.write_text(text)
        git(self.clone, "add", "-A")
        git(self.clone, "commit", "-q", "--allow-empty", "--author", author, "-m", "By hand")
        git(self.clone, "push", "-q", "origin", "HEAD:main")
        return git(self.clone, "rev-parse", "HEAD")

    @property
    def bare(self) -> Path:
        return Path(self.access.address)

    def branches(self) -> set[str]:
        return set(git(self.bare, "for-each-ref", "--format=%(refname:short)").split())


@pytest.fixture
async def world(store: SqliteStore, tmp_path: Path) -> World:
    made = World(store, tmp_path)
    await made.start()
    return made


async def test_changes_of_different_lines_on_both_sides_are_merged(world: World) -> None:
    theirs = world.commit(human="Name: Ada\nLikes tea\nLives in Milan", garden="Roses")
    await world.put("human", "Name: Ada Lovelace\nLikes tea\nLives in Rome")

    await world.sync()

    assert await world.texts() == {
        "human": "Name: Ada Lovelace\nLikes tea\nLives in Milan",
        "garden": "Roses",
        "goals": "",
    }
    assert ids(world.bare) == await world.ids()
    assert git(world.bare, "rev-parse", "main^2") == theirs
    merge = (await world.versions())[-1]
    assert merge.author == Actor("remote", "Ada", "Ada")
    assert git(world.bare, "log", "-1", "--format=%an <%ae>", "main") == "Ada <remote+Ada@ricordo>"
    assert fsck(world.bare) == ""


async def test_a_line_changed_on_both_sides_waits_for_a_merge_by_the_owner(world: World) -> None:
    world.commit(human="Name: Ada\nLikes wine\nLives in Rome")
    await world.put("human", "Name: Ada\nLikes milk\nLives in Rome")
    with pytest.raises(Conflict, match=r"both changed the same lines of human\.md"):
        await world.sync()
    noted = await world.noted()
    assert "from-ricordo" in (noted.last_error or "")
    assert "from-ricordo" in world.branches()

    git(world.clone, "fetch", "-q")
    run_git(world.clone, "merge", "-q", "origin/from-ricordo", check=False)
    world.commit(pulls=False, human="Name: Ada\nLikes wine and milk\nLives in Rome")
    await world.sync()

    assert (await world.texts())["human"] == "Name: Ada\nLikes wine and milk\nLives in Rome"
    assert world.branches() == {"main"}
    assert git(world.bare, "rev-parse", "main", "main^2").split() == (await world.ids())[:-3:-1]


# A block at the last common commit, in the memory, and at the remote; None: there is none.
CONFLICTS = {
    "both changed": (
        ("tea", "milk", "wine"),
        "The memory and its remote both changed the same lines of diary.md.",
    ),
    "both created": (
        (None, "milk", "wine"),
        "The memory and its remote both created diary.md with different texts.",
    ),
    "the memory deleted": (
        ("tea", None, "wine"),
        "The memory deleted or renamed diary.md, and its remote changed the text",
    ),
    "the remote deleted": (
        ("tea", "milk", None),
        "The remote deleted or renamed diary.md, and the memory changed the text",
    ),
}


@pytest.mark.parametrize("kept", ["milk", "wine", None])
@pytest.mark.parametrize("kind", CONFLICTS)
async def test_a_conflict_says_what_each_side_did_and_a_merge_ends_it(
    world: World, kind: str, kept: str | None
) -> None:
    (common, ours, others), sentence = CONFLICTS[kind]
    if common is not None:
        await world.put("diary", common)
        await world.sync()
    world.commit(diary=others)
    if ours is None:
        await world.do(lambda tx, owned: user_memory.delete(tx, owned, "diary", ADA))
    else:
        await world.put("diary", ours)
    with pytest.raises(Conflict) as refusal:
        await world.sync()
    assert str(refusal.value).startswith(sentence)
    assert str(refusal.value).endswith("Merge the branch from-ricordo into main there.")
    assert ("same lines" in str(refusal.value)) == (kind == "both changed")

    git(world.clone, "fetch", "-q")
    run_git(world.clone, "merge", "-q", "origin/from-ricordo", check=False)
    if kept is None:
        git(world.clone, "rm", "-q", "-f", "diary.md")
        world.commit(pulls=False)
    else:
        world.commit(pulls=False, diary=kept)
    await world.sync()

    assert (await world.texts()).get("diary") == kept
    assert world.branches() == {"main"}


async def test_remote_texts_that_memory_refuses_are_not_pulled_and_reported(world: World) -> None:
    before = await world.ids()
    world.commit(human="password: hunter22")
    with pytest.raises(Invalid, match=r"human\.md, line 1: this looks like a password"):
        await world.sync()
    noted = await world.noted()
    assert "human.md, line 1" in (noted.last_error or "")
    assert await world.ids() == before


async def test_open_proposals_are_branches_until_they_are_decided(world: World) -> None:
    for text in ("coffee", "milk"):
        by = Actor("agent", f"agent-{text}", "Nina")
        await world.propose("human", "tea", text, by)
    first, second = await world.waiting()

    await world.sync()

    assert world.branches() == {"main", f"agent/human/{first.id}", f"agent/human/{second.id}"}
    assert (
        git(world.bare, "show", f"agent/human/{second.id}:human.md")
        == "Name: Ada\nLikes milk\nLives in Rome"
    )
    assert fsck(world.bare) == ""
    await world.approve(first.id)
    await world.reject(second.id)
    await world.sync()
    assert world.branches() == {"main"}


async def test_each_proposal_has_its_own_branch_and_is_decided_separately(
    world: World,
) -> None:
    tea = await world.propose("human", "tea", "coffee")
    rome = await world.propose("human", "Rome", "Rome\nHas a cat")
    turin = await world.propose("human", "Rome", "Rome\nReads")
    await world.sync()
    own = {one.id: f"agent/human/{one.id}" for one in (tea, rome, turin)}
    assert world.branches() == {"main", *own.values()}
    assert (
        git(world.bare, "show", f"{own[turin.id]}:human.md")
        == "Name: Ada\nLikes tea\nLives in Rome\nReads"
    )
    # One branch is merged in the clone, the others on the server.
    git(world.clone, "pull", "-q")
    git(world.clone, "merge", "-q", "--no-edit", f"origin/{own[tea.id]}")
    git(world.clone, "push", "-q", "origin", "main")
    await world.sync()
    assert world.branches() == {"main", own[rome.id], own[turin.id]}
    for one in (turin, rome):
        await world.approve(one.id)
    await world.sync()
    assert world.branches() == {"main"}
    text = "Name: Ada\nLikes coffee\nLives in Rome\nReads\nHas a cat"
    assert (await world.texts())["human"] == git(world.bare, "show", "main:human.md") == text
    assert fsck(world.bare) == ""


async def test_merging_a_proposal_branch_in_git_approves_it(world: World) -> None:
    made = await world.propose("human", "tea", "coffee")
    await world.put("goals", "Rest")
    await world.sync()
    git(world.clone, "pull", "-q")
    git(world.clone, "merge", "-q", "--no-edit", f"origin/agent/human/{made.id}")
    git(world.clone, "push", "-q", "origin", "main")

    await world.sync()

    assert (await world.texts())["human"] == "Name: Ada\nLikes coffee\nLives in Rome"
    decided = await world.store.read(lambda tx: proposals.get(tx, Scope(), made.id))
    assert (decided.status, decided.result and decided.result.hex()) == (
        "approved",
        (await world.ids())[-1],
    )
    assert world.branches() == {"main"}


async def test_authors_of_pulled_commits_are_known_users_or_remote_authors(
    world: World,
) -> None:
    ada = await world.do(set_email("ada@home.example"))
    bob = await world.do(set_email("Bob@school.example"), "bob")
    await world.do(
        lambda tx, owned: user_memory.change_settings(
            tx, owned, "human", {"policy": "read_only"}, ADA
        )
    )
    for number, author in enumerate(
        [
            "Ada L. <ADA@home.example>",
            "Robert <bob@school.example>",
            f"R <{bob.id}@ricordo>",
            f"Nobody <{bob.id}@elsewhere.example>",
            "Eve <agent-1@ricordo>",
            f"Eve <administrator+{bob.id}@ricordo>",
        ]
    ):
        world.commit(author=author, human=f"Line {number}")

    await world.sync()

    made = (await world.versions())[-6:]
    assert [(one.author.kind, one.author.id) for one in made] == [
        ("user", ada.id),
        ("user", bob.id),
        ("user", bob.id),
        ("remote", "Nobody"),
        ("remote", "Eve"),
        ("user", bob.id),
    ]
    # A commit from the owner's remote has the owner's rights, whoever its author is.
    assert [one.approved_by for one in made] == [None, *[ada.id] * 5]
    assert await world.ids() == ids(world.bare)
    assert git(world.bare, "log", "-1", "--format=%an", "main~4") == "Robert"


async def test_a_fast_forwarded_proposal_keeps_its_agent_as_author(world: World) -> None:
    made = await world.propose("goals", "", "Rest", reasoning="So.")
    await world.sync()
    git(world.clone, "pull", "-q")
    git(world.clone, "merge", "-q", "--ff-only", f"origin/agent/goals/{made.id}")
    git(world.clone, "push", "-q", "origin", "main")

    await world.sync()

    newest = (await world.versions())[-1]
    assert (newest.author, newest.proposal_id, newest.reason) == (NINA, made.id, "So.")
    assert newest.approved_by == (await world.do(lambda _tx, owned: owned.user.id))
    decided = await world.store.read(lambda tx: proposals.get(tx, Scope(), made.id))
    assert (decided.status, decided.result) == ("approved", newest.id)


async def test_an_emptied_or_reset_remote_is_filled_again(world: World) -> None:
    await world.put("goals", "Rest")
    await world.sync()
    git(world.bare, "update-ref", "refs/heads/main", "main~1")
    await world.sync()
    assert ids(world.bare) == await world.ids()
    git(world.bare, "update-ref", "-d", "refs/heads/main")
    await world.sync()
    assert ids(world.bare) == await world.ids()


async def test_a_remote_is_added_once_and_only_at_a_valid_address(world: World) -> None:
    """If two memories had one remote, their blocks would be joined, unless they have equal labels.

    An empty memory would take over the blocks of the other memory.
    """
    for way in ("{}", "{}/", "{}/../ada.git"):
        with pytest.raises(Conflict, match="another memory"):
            await world.add(Access(way.format(world.access.address)), "eve")
    with pytest.raises(NotFound):
        await world.store.read(lambda tx: open_memory(tx, Scope(), "eve"))
    with pytest.raises(Conflict, match="is a remote of this memory already"):
        await world.add(world.access)
    for address in (
        "relative/path",
        "http://127.0.0.1/x.git",
        "https://me:secret@example.org/x.git",
        "ssh://x/y",
    ):
        with pytest.raises(Invalid):
            await world.add(Access(address))
    with pytest.raises(Invalid, match="only takes the option shows_toml"):
        await world.add(Access("https://example.org/x.git", options={"shows_yaml": True}))


async def test_a_folder_belongs_to_one_memory_by_any_path(world: World) -> None:
    link, same = world.bare.with_name("link.git"), world.bare.with_name("same.git")
    link.symlink_to(world.bare)
    same.mkdir()
    # A folder that is mounted twice has one file under two paths, as this hard link does.
    (same / "HEAD").hardlink_to(world.bare / "HEAD")
    for address in (link, same):
        with pytest.raises(Conflict, match="another memory"):
            await world.add(Access(str(address)), "eve")
    inside = rf"{world.bare}/objects/eve\.git is inside a git repository"
    with pytest.raises(Invalid, match=inside):
        await world.add(Access(f"{link}/objects/eve.git"), "eve")
    for address in (
        f"/proc/self/root{world.bare}",
        f"/proc/../proc/self/root{world.bare}",
        f"/dev/fd/../..{world.bare}",
    ):
        with pytest.raises((Conflict, Invalid)):
            await world.add(Access(address), "eve")
    with pytest.raises(NotFound):
        await world.store.read(lambda tx: open_memory(tx, Scope(), "eve"))


async def test_a_folder_belongs_to_its_memory_after_the_remote_was_removed(world: World) -> None:
    await world.put("human", "Name: Ada")
    await world.sync()
    await world.store.write(lambda tx: remotes.remove(tx, world.remote))
    with pytest.raises(Conflict, match="holds another memory, a user's or an organization's"):
        await world.add(world.access, "eve")
    again = await world.add(world.access)
    await world.store.write(lambda tx: remotes.remove(tx, again))
    shutil.rmtree(world.bare)
    taken = await world.add(world.access, "eve")
    await world.put("human", "Name: Eve", user="eve")
    await sync(world.store, world.settings, world.kind, taken)
    assert await world.text() == "Name: Ada"
    assert git(world.bare, "show", "main:human.md") == "Name: Eve"


async def test_a_remote_with_an_alias_address_pulls_no_other_users_memory(world: World) -> None:
    """In an earlier version users could add such a remote."""
    await world.put("human", "Name: Ada")
    await world.sync()
    elsewhere = await world.add(Access(str(world.bare.with_name("eve.git"))), "eve")
    alias = replace(
        elsewhere, address=f"{world.bare.parent}/../{world.bare.parent.name}/{world.bare.name}"
    )
    with pytest.raises(Conflict, match="holds another memory, a user's or an organization's"):
        await sync(world.store, world.settings, world.kind, alias)
    assert await world.do(lambda tx, owned: blocks.of_user(tx, Scope(), owned.user.id), "eve") == ()


async def test_remotes_with_unsynced_changes_are_due(world: World) -> None:
    def due() -> Any:
        return world.store.read(
            lambda tx: [one.id for one in remotes.due(tx, ["git"], tx.clock.now() - 1_000_000)]
        )

    noted = await world.sync()
    assert await due() == []
    await world.propose("human", "tea", "coffee")
    assert await due() == [noted.id]
    await world.sync()
    assert await due() == []
    await world.put("goals", "Rest")
    assert await due() == [noted.id]
    await world.store.write(lambda tx: remotes.remove(tx, noted))
    assert await due() == []
    with pytest.raises(NotFound):
        await world.store.read(lambda tx: remotes.get(tx, Scope(), noted.id))


async def test_a_memory_is_pushed_as_toml_and_equal_content_gives_the_same_commit(
    store: SqliteStore, tmp_path: Path
) -> None:
    """The files have the layout of YouLab's first storage."""
    settings, bare = Settings(data_dir=tmp_path), tmp_path / "remotes" / "there.git"
    (tmp_path / "block_schemas").mkdir()
    schema = '[fields.name]\nkind = "string"\n[fields.strengths]\nkind = "list"\n'
    (tmp_path / "block_schemas" / "student.toml").write_text(schema)
    world = SyncedMemory(
        store, settings, GitRemotes(), Access(str(bare), options={"shows_toml": True})
    )
    await world.put("student", "## Name\nAlice\n\n## Strengths\n- Tea", schema_ref="student")
    await world.put("courses/maths", "Free\n\n text ")
    await world.propose("student", "Alice", "Alice B.")
    await world.sync()
    shown = git(bare, "rev-parse", "toml")
    await world.sync()
    assert (git(bare, "rev-parse", "toml"), fsck(bare)) == (shown, "")
    assert 'name = "Alice"' in git(bare, "show", "toml:blocks/student.toml")
    assert "Free\n\n text " in git(bare, "show", "toml:blocks/courses/maths.toml")
    (name,) = git(bare, "ls-tree", "--name-only", "toml", "pending_diffs/").split()
    diff = json.loads(git(bare, "show", f"toml:{name}"))
    assert (diff["block_label"], diff["agent_id"], "Alice B." in diff["proposed_value"]) == (
        "student",
        "agent-1",
        True,
    )


def deadly(real: Callable[..., Any], chance: random.Random) -> Callable[..., Any]:
    """Return a function that is sometimes killed before or after its work."""

    def call(*arguments: Any, **options: Any) -> Any:
        moment = chance.random()
        if moment < 0.12:
            raise Killed
        result = real(*arguments, **options)
        if moment > 0.88:
            raise Killed
        return result

    return call


async def happen(world: World, chance: random.Random) -> None:
    if chance.random() < 0.2:
        world.commit(**{f"by hand {chance.randrange(3)}": f"{chance.random()}"})
    else:
        await world.act(chance, ["human", "goals", "Übung", "courses/maths"])


async def follow_random_history(world: World, seed: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Check that both sides agree in the end, despite random edits and kills; return the kills."""
    chance = random.Random(seed)  # noqa: S311
    from dulwich.object_store import PackBasedObjectStore
    from dulwich.refs import DiskRefsContainer

    places = [
        *((transport, name) for name in ("branches", "fetch", "push")),
        *((following, name) for name in ("approve_merged", "open_branches", "read_pack", "merged")),
        *((remotes, "note"), (PackBasedObjectStore, "add_pack_data")),
        *((DiskRefsContainer, name) for name in ("set_if_equals", "remove_if_equals")),
    ]
    kills = 0
    for _ in range(14):
        await happen(world, chance)
        if chance.random() < 0.4:
            continue
        with monkeypatch.context() as dying:
            for owner, name in places:
                dying.setattr(owner, name, deadly(getattr(owner, name), chance))
            try:
                await world.sync()
            except Killed:
                kills += 1
    await world.sync()

    assert ids(world.bare)[-1] == (await world.ids())[-1] == git(world.bare, "rev-parse", "main")
    assert set(await world.ids()) <= set(git(world.bare, "rev-list", "main").split())
    assert fsck(world.bare) == ""
    tree = git(
        world.bare, "-c", "core.quotepath=off", "ls-tree", "-r", "--name-only", "main"
    ).split("\n")
    assert sorted(tree) == sorted(f"{label}.md" for label in await world.texts())
    open_now = {f"agent/{one.label}/{one.id}" for one in await world.waiting()}
    assert world.branches() == {"main"} | open_now
    assert [
        path.name
        for path in (world.settings.data_dir / "repositories").iterdir()
        if path.suffix == ".aside"
    ] == []
    return kills


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
async def test_random_edits_and_kills_leave_memory_and_remote_equal(
    world: World, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await follow_random_history(world, seed, monkeypatch) >= 2
