"""What an owner commits in her Dolt database becomes versions of her memory, once, and nothing of either side is lost."""

from random import Random

import pytest

from ricordo.errors import Conflict, Invalid
from ricordo.features.dolt import sync as following
from ricordo.memory import user_memory
from ricordo.storage import history
from tests.features.dolt.test_sync import Memory, follow_mortally, memory, place, require_same
from tests.support import dolt
from tests.support.dolt import at, commit
from tests.support.synced import TUTORS, Killed

__all__ = ["memory", "place"]  # fixtures
_SET = "UPDATE memory_blocks SET body = ? WHERE label = ?"


def change(memory: Memory, message: str, sql: str, *values: object) -> None:
    """Commit a change there."""
    with at(memory.place) as engine:
        engine.run(sql, *values)
        commit(engine, message)


async def versions_of(memory: Memory) -> list[tuple[str, str, str]]:
    """Label, kind of author and reason of each version, the oldest first."""
    return [(one.label, one.author.kind, one.reason) for one in await memory.versions()]


async def test_a_commit_of_the_owner_becomes_her_version_once(memory: Memory) -> None:
    await memory.put("human", "Name: Ada\nLikes: tea", title="About you")
    await memory.sync()
    change(memory, "Coffee, please", _SET, "Name: Ada\nLikes: coffee", "human")
    change(
        memory,
        "Add goals",
        "INSERT INTO memory_blocks (user_id, label, title, body) VALUES ('ada', 'goals', 'Goals', 'Rest.')",
    )
    for _ in range(2):
        assert (await memory.sync()).last_error is None
    assert (await versions_of(memory))[1:] == [("human", "user", "Coffee, please"), ("goals", "user", "Add goals")]
    assert await memory.text("human") == "Name: Ada\nLikes: coffee"
    await require_same(memory, is_pulled=True)


async def test_changes_of_both_sides_in_different_lines_both_stay(memory: Memory) -> None:
    await memory.put("human", "a\nb\nc\nd\ne")
    await memory.sync()
    change(memory, "Above", _SET, "A\nb\nc\nd\ne", "human")
    await memory.put("human", "a\nb\nc\nd\nE")
    assert (await memory.sync()).last_error is None
    assert await memory.text("human") == "A\nb\nc\nd\nE"
    await require_same(memory, is_pulled=True)


async def test_a_conflict_is_told_and_what_the_remote_held_waits_as_a_proposal(memory: Memory) -> None:
    await memory.put("human", "Likes tea")
    await memory.sync()
    change(memory, "Coffee", _SET, "Likes coffee", "human")
    await memory.put("human", "Likes cocoa")
    told = (await memory.sync()).last_error
    (waiting,) = await memory.waiting()
    assert told is not None
    assert waiting.id in told
    assert (await memory.text("human"), waiting.value) == ("Likes cocoa", "Likes coffee")
    # It is told for as long as it waits.
    assert (await memory.sync()).last_error == told
    await require_same(memory, is_pulled=True)
    await memory.approve(waiting.id)
    assert (await memory.sync()).last_error is None
    assert await memory.text("human") == "Likes coffee"
    await require_same(memory, is_pulled=True)


async def test_a_branch_that_the_owner_merges_there_is_an_approval(memory: Memory) -> None:
    await memory.put("human", "Likes tea\nb\nc")
    taken = await memory.propose("human", "tea", "coffee", TUTORS[0], reasoning="She said so.")
    left = await memory.propose("human", "c", "d", TUTORS[1])
    await memory.sync()
    with at(memory.place) as engine:
        (name,) = [row[0] for row in engine.run("SELECT name FROM dolt_branches") if row[0].endswith(taken.id)]
        engine.call("dolt_merge", name)
    assert (await memory.sync()).last_error is None
    assert await memory.text("human") == "Likes coffee\nb\nc"
    assert (await versions_of(memory))[1:] == [("human", "agent", "She said so.")]
    assert [proposal.id for proposal in await memory.waiting()] == [left.id]
    await require_same(memory, is_pulled=True)


async def test_an_approval_here_is_a_merge_there(memory: Memory) -> None:
    await memory.put("human", "a\nb\nc\nd")
    id = (await memory.propose("human", "a", "A", reasoning="Larger.")).id
    await memory.sync()
    await memory.put("human", "a\nb\nc\nD")
    await memory.approve(id)
    await memory.sync()
    with at(memory.place) as engine:
        (head,) = engine.run("SELECT dolt_hashof('main')")[0]
        parents = engine.run("SELECT parent_hash FROM dolt_commit_ancestors WHERE commit_hash = ?", head)
    assert len(parents) == 2
    await require_same(memory)


async def test_a_rename_and_a_deletion_there_keep_the_history(memory: Memory) -> None:
    await memory.put("human", "Ada")
    await memory.put("goals", "Rest")
    await memory.sync()
    change(memory, "Rename", "UPDATE memory_blocks SET label = 'person' WHERE label = 'human'")
    change(memory, "No goals", "DELETE FROM memory_blocks WHERE label = 'goals'")
    await memory.sync()
    assert [await memory.text(label) for label in ("human", "person", "goals")] == [None, "Ada", None]
    found = await memory.do(lambda tx, owned: history.page(tx, owned.chain.id, label="person"))
    assert [one.old_label for one in found] == ["human", None]
    await require_same(memory, is_pulled=True)


async def test_a_title_is_brought_over_both_ways(memory: Memory) -> None:
    await memory.put("human", "Ada", title="One")
    await memory.sync()
    await memory.put("human", "Ada", title="Two")
    await memory.sync()
    await require_same(memory, is_pulled=True)
    change(memory, "Retitle", "UPDATE memory_blocks SET title = 'Three'")
    await memory.sync()
    assert await memory.do(lambda tx, owned: [block.title for block in user_memory.listed(tx, owned)]) == ["Three"]


async def test_a_row_that_cannot_be_a_block_stops_the_remote_until_it_is_mended_there(memory: Memory) -> None:
    await memory.put("human", "Ada")
    await memory.sync()
    change(memory, "Add", "INSERT INTO memory_blocks (user_id, label, body) VALUES ('ada', 'a/history', 'x')")
    with pytest.raises(Invalid, match="history"):
        await memory.sync()
    assert "history" in ((await memory.noted()).last_error or "")
    with at(memory.place) as engine:
        assert engine.run("SELECT body FROM memory_blocks WHERE label = 'a/history'")
        engine.run("DELETE FROM memory_blocks WHERE label = 'a/history'")
        commit(engine, "Take it back")
    assert (await memory.sync()).last_error is None
    await require_same(memory, is_pulled=True)


async def test_changes_that_nobody_committed_there_are_not_touched(memory: Memory) -> None:
    await memory.put("human", "Ada")
    await memory.sync()
    with at(memory.place) as engine:
        engine.run(_SET, "Half a thou", "human")
    await memory.put("human", "Ada Lovelace")
    with pytest.raises(Conflict, match="nobody committed"):
        await memory.sync()
    with at(memory.place) as engine:
        assert engine.run("SELECT body FROM memory_blocks") == [["Half a thou"]]
        commit(engine, "A thought")
    assert "same lines" in ((await memory.sync()).last_error or "")


async def test_a_database_that_was_made_anew_is_filled_again_and_takes_nothing_away(memory: Memory) -> None:
    await memory.put("human", "Ada")
    await memory.put("human", "Ada Lovelace")
    await memory.sync()
    if dolt.URL:
        pytest.skip("a server's database cannot be deleted like a file")
    memory.place.path.unlink()
    await memory.sync()
    assert await memory.text("human") == "Ada Lovelace"
    await require_same(memory)


async def test_rows_of_others_in_the_same_database_are_left_alone(memory: Memory) -> None:
    await memory.put("human", "Ada")
    await memory.sync()
    change(memory, "Bob is here", "INSERT INTO memory_blocks (user_id, label, body) VALUES ('bob', 'human', 'Bob')")
    await memory.put("human", "Ada L.")
    await memory.sync()
    with at(memory.place) as engine:
        assert engine.run("SELECT user_id, body FROM memory_blocks ORDER BY 1") == [["ada", "Ada L."], ["bob", "Bob"]]
    assert len(await versions_of(memory)) == 2


async def test_a_branch_with_commits_of_the_owner_is_not_deleted(memory: Memory) -> None:
    await memory.put("human", "a\nb")
    id = (await memory.propose("human", "a", "A")).id
    await memory.sync()
    with at(memory.place) as engine:
        (name,) = [row[0] for row in engine.run("SELECT name FROM dolt_branches") if row[0].endswith(id)]
        engine.call("dolt_checkout", name)
        engine.run(_SET, "AA\nb", "human")
        commit(engine, "Rather so")
        engine.call("dolt_checkout", "main")
    await memory.reject(id)
    await memory.sync()
    with at(memory.place) as engine:
        assert name in [row[0] for row in engine.run("SELECT name FROM dolt_branches")]


async def test_an_owners_commits_are_pulled_once_whatever_is_killed(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, names = Random(7), ("one", "two", "three", "four")  # noqa: S311 - replayed by its seed
    await memory.put("human", "\n".join("1234-5678"))
    await memory.sync()
    for round in range(4):
        with at(memory.place) as engine:
            ((body,),) = engine.run("SELECT body FROM memory_blocks")
            engine.run(_SET, body.replace("1234"[round], f"remote {names[round]}"), "human")
            commit(engine, f"Remote {round}")
        text = await memory.text("human") or ""
        await memory.put("human", text.replace("5678"[round], f"local {names[round]}"), message=f"Local {round}")
        await follow_mortally(memory, chance, monkeypatch)
    assert (await memory.sync()).last_error is None
    lines = [*(f"remote {name}" for name in names), "-", *(f"local {name}" for name in names)]
    assert await memory.text("human") == "\n".join(lines)
    reasons = [reason for *_, reason in await versions_of(memory)]
    assert sorted(reasons[1:]) == sorted(f"{side} {round}" for side in ("Remote", "Local") for round in range(4))
    await require_same(memory, is_pulled=True)


async def test_a_commit_that_was_not_noted_is_found_again(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    await memory.put("human", "Ada")
    await memory.add()

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(following._DoltSync, "_note", die)
        with pytest.raises(Killed):
            await memory.sync()
    assert (await memory.noted()).followed == 0
    await memory.sync()
    assert (await memory.noted()).followed == 1
    await require_same(memory)
