"""One thing is forgotten: a Dolt database that holds only this user's memory gets a new history."""

from pathlib import Path
from random import Random
from typing import Any

import pytest

from ricordo.features.memory_care.forgetting.needle import Needle, blank, remove
from ricordo.features.sync.dolt.database import Database
from ricordo.storage import rewriting
from ricordo.storage.engine.store import Transaction
from ricordo.storage.rewriting import TextChanges
from tests.features.sync.dolt.test_sync import (
    Memory,
    change,
    commit,
    follow_mortally,
    memory,
    place,
    require_same,
)
from tests.seams.http import ok
from tests.seams.server import serving
from tests.seams.waiting import wait_for
from tests.support import dolt
from tests.support.dolt import at

__all__ = ["memory", "place"]
SECRET = "Has diabetes"


async def forget(memory: Memory) -> None:
    needle = Needle(SECRET)

    def work(tx: Transaction) -> None:
        rewriting.rewrite(
            tx,
            memory.remote.chain_id,
            TextChanges(
                lambda _place, text: remove(text, needle),
                lambda _place, text: blank(text, needle),
                lambda _place, value: value,
            ),
        )

    await memory.store.write(work)


async def fill(memory: Memory) -> None:
    await memory.put("human", f"Name: Ada\n{SECRET}", message=f"She said: {SECRET}.")
    await memory.sync()
    await memory.put("human", f"Name: Ada\n{SECRET}\nLikes tea")
    proposal = await memory.propose("human", "Likes tea", "Likes cocoa")
    await memory.sync()
    await memory.approve(proposal.id)
    await memory.put("goals", "Rest")
    await memory.propose("human", "Likes cocoa", "Likes milk")
    await memory.sync()


def said_there(memory: Memory) -> str:
    """Return all texts in the history of all branches, and the bytes of the file."""
    with at(memory.place) as engine:
        rows = engine.run("SELECT to_body, from_body FROM dolt_diff_memory_blocks")
        log = engine.run("SELECT message FROM dolt_log")
        branches = engine.run("SELECT latest_commit_message FROM dolt_branches")
    text = str([rows, log, branches])
    if not dolt.URL and memory.place.path:
        text += memory.place.path.read_bytes().decode("latin-1")
    return text


async def keeps_forgotten(memory: Memory) -> bool:
    return await memory.kind.keeps_forgotten(  # type: ignore[attr-defined, no-any-return]
        memory.store, memory.settings, await memory.noted()
    )


async def test_a_rewritten_history_is_created_again_in_dolt(memory: Memory) -> None:
    await fill(memory)
    assert SECRET in said_there(memory)
    await forget(memory)
    assert await keeps_forgotten(memory)
    await memory.sync()
    assert "diabetes" not in said_there(memory)
    assert not await keeps_forgotten(memory)
    assert await memory.text() == "Name: Ada\nLikes cocoa"
    await require_same(memory)
    # Later changes are synced as usual.
    await memory.put("human", "Name: Ada\nLikes cocoa and tea")
    await memory.sync()
    await require_same(memory)


async def test_a_dolt_history_with_rows_of_others_is_not_rewritten(memory: Memory) -> None:
    await fill(memory)
    statement = "INSERT INTO memory_blocks (user_id, label, body) VALUES ('bob', 'human', 'Bob')"
    change(memory, "Bob is here", statement)
    await memory.sync()
    await forget(memory)
    await memory.sync()
    assert await keeps_forgotten(memory)
    with at(memory.place) as engine:
        rows = engine.run("SELECT user_id, label, body FROM memory_blocks ORDER BY 1, 2")
        log = [str(row[0]) for row in engine.run("SELECT message FROM dolt_log")]
    assert rows == [
        ["ada", "goals", "Rest"],
        ["ada", "human", "Name: Ada\nLikes cocoa"],
        ["bob", "human", "Bob"],
    ]
    assert "Bob is here" in log


@pytest.mark.parametrize("target", ["main", "proposal", "new branch"])
@pytest.mark.parametrize("moment", ["is_only_of", "begin_again"])
async def test_a_commit_that_comes_meanwhile_is_kept(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, moment: str, target: str
) -> None:
    await fill(memory)
    await forget(memory)
    branches: list[str] = []

    def commit_elsewhere() -> None:
        with at(memory.place) as engine:
            names = [str(row[0]) for row in engine.run("SELECT name FROM dolt_branches")]
            branch = next(name for name in names if (name == "main") == (target == "main"))
            if target == "new branch":
                branch = "mine"
                engine.call("dolt_branch", branch, "main")
            branches.append(branch)
            engine.call("dolt_checkout", branch)
            engine.run("UPDATE memory_blocks SET body = 'Mine' WHERE label = 'goals'")
            commit(engine, "My commit")
            engine.call("dolt_checkout", "main")

    original = getattr(Database, moment)

    def work_then_or_before(database: Database, *args: Any) -> Any:
        """Let somebody commit after the check, or right before the removal."""
        if moment == "begin_again":
            commit_elsewhere()
        result = original(database, *args)
        if moment == "is_only_of" and not branches:
            commit_elsewhere()
        return result

    monkeypatch.setattr(Database, moment, work_then_or_before)
    await memory.sync()
    with at(memory.place) as engine:
        engine.call("dolt_checkout", branches[0])
        log = [str(row[0]) for row in engine.run("SELECT message FROM dolt_log")]
        engine.call("dolt_checkout", "main")
    assert "My commit" in log
    # The database now has a commit of somebody else, so it keeps its history.
    assert len(branches) == 1
    assert SECRET in said_there(memory)


@pytest.mark.parametrize("seed", range(2))
async def test_recreating_a_dolt_history_survives_kills(
    memory: Memory, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(memory)
    await forget(memory)
    chance = Random(seed)  # noqa: S311 - replayed by its seed
    while await follow_mortally(memory, chance, monkeypatch):
        pass
    await memory.sync()
    assert "diabetes" not in said_there(memory)
    await require_same(memory)


@pytest.mark.skipif(bool(dolt.URL), reason="the remote is a file here")
def test_the_receipt_reports_the_recreated_dolt_history(tmp_path: Path) -> None:
    with dolt.forked_children(), serving(tmp_path) as server, server.http() as http:
        folder = server.runtime.settings.data_dir / "remotes"
        folder.mkdir(exist_ok=True)
        ok(http.put("/users/ada/blocks/human", json={"body": f"Name: Ada\n{SECRET}"}))
        remote = {"kind": "dolt", "address": f"doltlite://{folder / 'ada.db'}"}
        id = ok(http.put("/users/ada/remotes", json=remote))["id"]
        ok(http.post(f"/users/ada/remotes/{id}/follow"))
        wait_for(lambda: ok(http.get("/users/ada/remotes"))[0]["last_at"])
        assert b"diabetes" in (folder / "ada.db").read_bytes()
        path = http.post("/users/ada/forget", json={"text": SECRET, "all": True}).json()["receipt"]
        wait_for(lambda: http.get(path).json()["status"] == "done")
        (sentence,) = [one for one in ok(http.get(path))["elsewhere"] if "dolt remote" in one]
        assert "was created again" in sentence
        assert b"diabetes" not in (folder / "ada.db").read_bytes()
