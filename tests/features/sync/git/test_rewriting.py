"""Forgetting one thing in a memory that has a git remote.

All versions are rewritten, the remote is updated, and old clones are refused.
"""

import random
from contextlib import closing

import pytest

from ricordo.domain.scope import Scope
from ricordo.errors import Conflict
from ricordo.features.memory_care.forgetting.needle import MARK, Needle, blank, remove
from ricordo.features.sync.git import history
from ricordo.features.sync.git.repository import open_repository, refreshed
from ricordo.storage import history as stored_history
from ricordo.storage import history_size, rewriting, versions
from ricordo.storage.engine.store import Transaction
from ricordo.storage.rewriting import RewrittenChain, TextChanges
from tests.features.sync.git.test_sync import World, world
from tests.support.git import fsck, git
from tests.support.synced import NINA

__all__ = ["world"]
SECRET = "Has diabetes"


async def forget(world: World) -> RewrittenChain:
    needle = Needle(SECRET)

    def work(tx: Transaction) -> RewrittenChain:
        made = rewriting.rewrite(
            tx,
            world.remote.chain_id,
            TextChanges(
                lambda _place, text: remove(text, needle),
                lambda _place, text: blank(text, needle),
                lambda _place, value: value,
            ),
        )
        assert made is not None
        return made

    return await world.store.write(work)


async def whole_history(world: World) -> str:
    """Return all texts and messages in a clone of the memory, after `git fsck`."""
    path = await refreshed(world.store, world.settings.data_dir, world.remote.chain_id)
    fsck(path)
    return git(path, "log", "-p", "--format=%B", "main")


async def test_rewriting_removes_a_text_from_all_versions_and_the_remote(world: World) -> None:
    await world.put("human", f"Name: Ada\n{SECRET}\nLikes tea", message=f"She said: {SECRET}.")
    await world.put("human", f"Name: Ada\n{SECRET}\nLikes coffee")
    world.commit(human=f"Name: Ada\n{SECRET}\nLikes coffee", garden=f"Roses\n- {SECRET.lower()}")
    await world.sync()
    # Two merged branches, so that some commits are not on the main line.
    world.commit(human=f"Name: Ada\n{SECRET}\nLikes cocoa", pulls=True)
    await world.put("goals", f"Rest\n{SECRET}")
    await world.sync()
    await world.put("human", "Name: Ada\nLikes cocoa")
    proposal = await world.propose("human", "Likes cocoa", f"Likes cocoa\n{SECRET}")
    await world.propose("human", "Likes cocoa", "Likes milk")
    await world.sync()
    before = await world.versions()
    old_head = git(world.bare, "rev-parse", "main")
    assert SECRET in await whole_history(world)

    rewritten = await forget(world)

    assert rewritten.dropped_proposals == (proposal.id,)
    assert await world.texts() == {
        "human": "Name: Ada\nLikes cocoa",
        "goals": "Rest",
        "garden": "Roses",
    }
    after = await world.versions()
    assert [version.number for version in after] == [version.number for version in before]
    assert [version.author for version in after] == [version.author for version in before]
    text = await whole_history(world)
    assert "diabetes" not in text.lower()
    assert MARK in text  # the reason of a version
    await world.sync()
    assert git(world.bare, "rev-parse", "main") == (rewritten.head or b"").hex()
    fsck(world.bare)
    with closing(open_repository(world.bare)) as repository:
        store = repository.object_store
        bodies = b"".join(store.get_raw(id)[1] for id in store)
        assert b"diabetes" not in bodies.lower()
        assert old_head.encode() not in store
    assert await world.store.read(history_size.wrong_ids) == []
    # An old id leads to the new version.
    chain_id = world.remote.chain_id
    current = await world.store.read(lambda tx: stored_history.get(tx, chain_id, old_head))
    assert current.id == rewritten.head


async def test_an_old_clone_cannot_push_a_forgotten_text(world: World) -> None:
    await world.put("human", f"Name: Ada\n{SECRET}")
    await world.sync()
    git(world.clone, "pull", "-q", "--no-edit")
    await forget(world)
    await world.sync()
    tip = await world.store.read(lambda tx: history.tip(tx, world.remote.chain_id))
    (world.clone / "human.md").write_text(f"Name: Ada\n{SECRET}\nLikes tea")
    git(world.clone, "commit", "-qam", "From before")
    git(world.clone, "push", "-qf", "origin", "HEAD:main")

    with pytest.raises(Conflict, match="from before"):
        await world.sync()

    assert await world.store.read(lambda tx: history.tip(tx, world.remote.chain_id)) == tip
    assert await world.text() == "Name: Ada"


async def test_random_histories_stay_consistent_after_rewriting(world: World) -> None:
    chance = random.Random(7)  # noqa: S311 - a history
    for number in range(30):
        label = chance.choice(["human", "goals", "plans/week"])
        lines = [f"Line {n}" for n in range(chance.randrange(4))]
        if chance.random() < 0.4:
            lines.insert(chance.randrange(len(lines) + 1), f"- {SECRET}, since {number}.")
        await world.put(label, "\n".join(lines))
        if chance.random() < 0.2:
            await world.propose(label, lines[0] if lines else "", f"Other {number}", by=NINA)
    before = await world.versions()
    await forget(world)
    after = await world.versions()

    assert "diabetes" not in (await whole_history(world)).lower()
    chain_id = world.remote.chain_id
    for old, new in zip(before, after, strict=True):
        found = await world.store.read(
            lambda tx, old=old: stored_history.get(tx, chain_id, old.id.hex())
        )
        assert found.id == new.id
    chain = await world.store.read(
        lambda tx: versions.of_owner(tx, Scope(), "user", before[0].author.id)
    )
    assert chain is None or chain.head == after[-1].id
    assert await forget(world) == RewrittenChain(head=after[-1].id)
