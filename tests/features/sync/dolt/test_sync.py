"""Sync of a Dolt database and a memory.

Each gets the other's changes once, even if the server is killed anywhere.
"""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ricordo.background.worker import by_kind
from ricordo.domain.authors import signature
from ricordo.domain.ids import new_id
from ricordo.domain.job import Job
from ricordo.domain.remote import SYNC, Access
from ricordo.domain.scope import LOCAL_ORGANIZATION, Scope
from ricordo.errors import Conflict, Invalid, TooLong
from ricordo.features.memory_care.erasure import receipts
from ricordo.features.memory_care.erasure.receipts import hash_of_name
from ricordo.features.sync.dolt import database, engines
from ricordo.features.sync.dolt import sync as following
from ricordo.features.sync.dolt.database import (
    Database,
    branch_of,
    date_of,
    proposal_in,
    trailer_of,
)
from ricordo.features.sync.dolt.engines import DoltAddress, open_engine
from ricordo.features.sync.dolt.sync import ALL_USERS, DoltRemotes, database_of_all
from ricordo.features.sync.remotes.service import HANDLERS, add
from ricordo.memory import user_memory
from ricordo.secret import Secret
from ricordo.settings import Settings
from ricordo.storage import deletion, history, jobs, remotes
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.engine.store import Store
from ricordo.storage.schema.core_tables import organizations
from tests.campaigns.sizes import short_and_long
from tests.seams.jobs import runtime_on
from tests.support import dolt
from tests.support.dolt import at, commit
from tests.support.synced import TUTORS, Killed, SyncedMemory, set_email

USER = "ada"
LABELS = ("human", "goals/near", "notes, of a kind")
ROUNDS = 6


@pytest.fixture
def place(tmp_path: Path) -> Iterator[DoltAddress]:
    print(f"against {dolt.ENGINE}")
    with dolt.new_place(tmp_path) as made:
        yield made


class Memory(SyncedMemory):
    def __init__(self, store: Store, folder: Path, place: DoltAddress) -> None:
        settings = Settings(data_dir=folder, remote_folders=str(folder), allow_private_remotes=True)
        super().__init__(
            store, settings, DoltRemotes(), Access(place.address, None, place.password)
        )
        self.place = place


@pytest.fixture
def memory(store: SqliteStore, tmp_path: Path, place: DoltAddress) -> Memory:
    return Memory(store, tmp_path, place)


async def require_same(memory: Memory, *, is_pulled: bool = False) -> None:
    """Check that the remote has the rows, the versions with authors and times, and the branches."""
    versions, waiting = await memory.versions(), await memory.waiting()
    blocks = await memory.do(user_memory.listed)
    with closing(open_engine(memory.place)) as engine:
        database = Database(engine, USER)
        rows = engine.run(
            "SELECT label, title, body, schema_ref, updated_at FROM memory_blocks ORDER BY label"
        )
        log = {
            row[0]: row
            for row in engine.run(
                "SELECT commit_hash, committer, email, date, message FROM dolt_log"
            )
        }
        commits = [log[hash] for hash in database.steps(database.log()[-1].hash, database.head())]
        branches = database.branches()
        names = [row[0] for row in engine.run("SELECT name FROM dolt_branches")]
    there = {label: (title, body, schema_ref) for label, title, body, schema_ref, _ in rows}
    assert there == {block.label: (block.title, block.value, block.schema_ref) for block in blocks}
    found = [(trailer.version, f"{who} <{mail}>", str(date)) for _, who, mail, date, said in commits
             if (trailer := trailer_of(said)) and not said.startswith("Bring ")]  # fmt: skip
    wanted = [
        (one.id.hex(), signature(one.author), date_of(one.created_at).replace("T", " "))
        for one in versions
    ]
    if is_pulled:
        assert [each for each in wanted if each in found] == found
    else:
        assert found == wanted
        newest = {
            version.label: date_of(version.created_at).replace("T", " ") for version in versions
        }
        assert {label: str(at) for label, *_, at in rows} == {
            block.label: newest[block.label] for block in blocks
        }
    assert {branch.branch for branch in branches} == {
        branch_of(USER, proposal) for proposal in waiting
    }
    assert {proposal_in(branch.message) for branch in branches} == {
        proposal.id for proposal in waiting
    }
    assert set(names) == {"main", *(branch.branch for branch in branches)}


class ForgetfulStore:
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
    """Sync with a kill at a random point; return the number of kills: 0 or 1.

    The kill is in a statement, or between Dolt's commit and the record of it here.
    """
    with monkeypatch.context() as patched:
        patched.setattr(following, "open_engine", lambda place: dolt.mortal(place, chance))
        try:
            await memory.sync(ForgetfulStore(memory.store, chance))
        except Killed:
            return 1
    return 0


async def follow_random_history(
    memory: Memory, seed: int, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> int:
    """Repeat some changes and a sync that is killed; at the end sync without a kill.

    Returns the number of kills.
    """
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


@pytest.mark.parametrize(("seed", "rounds"), short_and_long((1, 3), (2, ROUNDS)))
async def test_random_edits_and_kills_leave_memory_and_remote_equal(
    memory: Memory, seed: int, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For manual runs, with more seeds and rounds than the suite has time for."""
    await follow_random_history(memory, seed, rounds, monkeypatch)


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


_SET = "UPDATE memory_blocks SET body = ? WHERE label = ?"


def change(memory: Memory, message: str, sql: str, *values: object) -> None:
    with at(memory.place) as engine:
        engine.run(sql, *values)
        commit(engine, message)


async def versions_of(memory: Memory) -> list[tuple[str, str, str]]:
    return [(one.label, one.author.kind, one.reason) for one in await memory.versions()]


async def test_a_commit_of_the_owner_becomes_one_version(memory: Memory) -> None:
    await memory.put("human", "Name: Ada\nLikes: tea", title="About you")
    await memory.do(set_email("Ada@home"))
    await memory.sync()
    change(memory, "Coffee, please", _SET, "Name: Ada\nLikes: coffee", "human")
    change(
        memory,
        "Add goals",
        "INSERT INTO memory_blocks (user_id, label, title, body) VALUES ('ada', 'goals', 'Goals', "
        "'Rest.')",
    )
    for _ in range(2):
        assert (await memory.sync()).last_error is None
    assert (await versions_of(memory))[1:] == [
        ("human", "user", "Coffee, please"),
        ("goals", "user", "Add goals"),
    ]
    assert await memory.text("human") == "Name: Ada\nLikes: coffee"
    await require_same(memory, is_pulled=True)


async def test_a_conflict_is_reported_and_the_remote_text_is_proposed(
    memory: Memory,
) -> None:
    await memory.put("human", "Likes tea")
    await memory.sync()
    change(memory, "Coffee", _SET, "Likes coffee", "human")
    await memory.put("human", "Likes cocoa")
    told = (await memory.sync()).last_error
    (waiting,) = await memory.waiting()
    assert told is not None
    assert waiting.id in told
    assert (await memory.text("human"), waiting.value) == ("Likes cocoa", "Likes coffee")
    # The error stays as long as the proposal waits.
    assert (await memory.sync()).last_error == told
    await require_same(memory, is_pulled=True)
    await memory.approve(waiting.id)
    assert (await memory.sync()).last_error is None
    assert await memory.text("human") == "Likes coffee"
    await require_same(memory, is_pulled=True)


async def test_a_conflict_says_which_side_deleted_the_block(memory: Memory) -> None:
    for label in ("here", "there"):
        await memory.put(label, "Likes tea")
    await memory.sync()
    change(memory, "Coffee", _SET, "Likes coffee", "here")
    change(memory, "Clean up", "DELETE FROM memory_blocks WHERE label = ?", "there")
    await memory.do(lambda tx, owned: user_memory.delete(tx, owned, "here", owned.owner))
    await memory.put("there", "Likes cocoa")
    error = (await memory.sync()).last_error or ""
    assert '"here" was deleted here and changed at the remote. The text' in error
    assert '"there" was changed here and deleted at the remote. The deletion waits' in error


async def test_merging_a_proposal_branch_in_dolt_approves_it(memory: Memory) -> None:
    await memory.put("human", "Likes tea\nb\nc")
    taken = await memory.propose("human", "tea", "coffee", TUTORS[0], reasoning="She said so.")
    # This proposal waits at the same time as the other, and has a separate branch.
    left = await memory.propose("human", "c", "d", TUTORS[0])
    await memory.sync()
    with at(memory.place) as engine:
        (name,) = [
            row[0]
            for row in engine.run("SELECT name FROM dolt_branches")
            if row[0].endswith(taken.id)
        ]
        engine.call("dolt_merge", name)
    assert (await memory.sync()).last_error is None
    assert await memory.text("human") == "Likes coffee\nb\nc"
    assert (await versions_of(memory))[1:] == [("human", "agent", "She said so.")]
    assert [proposal.id for proposal in await memory.waiting()] == [left.id]
    await require_same(memory, is_pulled=True)


async def test_approving_a_proposal_merges_its_branch_in_dolt(memory: Memory) -> None:
    await memory.put("human", "a\nb\nc\nd")
    id = (await memory.propose("human", "a", "A", reasoning="Larger.")).id
    await memory.sync()
    await memory.put("human", "a\nb\nc\nD")
    await memory.approve(id)
    await memory.sync()
    with at(memory.place) as engine:
        (head,) = engine.run("SELECT dolt_hashof('main')")[0]
        parents = engine.run(
            "SELECT parent_hash FROM dolt_commit_ancestors WHERE commit_hash = ?", head
        )
    assert len(parents) == 2
    await require_same(memory)


async def test_an_amended_approval_and_later_edits_are_separate_commits(
    memory: Memory,
) -> None:
    """A merge once put the proposal's text into the first commit.

    The later versions then changed nothing and had no commit.
    """
    await memory.add()
    await memory.put("human", "a\nb\nc")
    proposed = await memory.propose("human", "b", "proposed", TUTORS[0])
    await memory.sync()
    await memory.approve(proposed.id, "settled\nb\nc")
    await memory.put("human", "settled\nagain\nc")
    await memory.put("human", "line\nagain\nc")
    assert (await memory.sync()).last_error is None
    await require_same(memory)


async def test_renames_and_deletions_in_dolt_keep_the_history(memory: Memory) -> None:
    await memory.put("human", "Ada")
    await memory.put("goals", "Rest")
    await memory.sync()
    change(memory, "Rename", "UPDATE memory_blocks SET label = 'person' WHERE label = 'human'")
    change(memory, "No goals", "DELETE FROM memory_blocks WHERE label = 'goals'")
    await memory.sync()
    assert [await memory.text(label) for label in ("human", "person", "goals")] == [
        None,
        "Ada",
        None,
    ]
    found = await memory.do(lambda tx, owned: history.page(tx, owned.chain.id, label="person"))
    assert [one.old_label for one in found] == ["human", None]
    await require_same(memory, is_pulled=True)


async def test_titles_are_synced_both_ways(memory: Memory) -> None:
    await memory.put("human", "Ada", title="One")
    await memory.sync()
    await memory.put("human", "Ada", title="Two")
    await memory.sync()
    await require_same(memory, is_pulled=True)
    change(memory, "Retitle", "UPDATE memory_blocks SET title = 'Three'")
    await memory.sync()
    assert await memory.do(
        lambda tx, owned: [block.title for block in user_memory.listed(tx, owned)]
    ) == ["Three"]


async def test_an_invalid_row_stops_the_sync_until_it_is_corrected(
    memory: Memory,
) -> None:
    await memory.put("human", "Ada")
    await memory.sync()
    change(
        memory,
        "Add",
        "INSERT INTO memory_blocks (user_id, label, body) VALUES ('ada', 'a/history', 'x')",
    )
    with pytest.raises(Invalid, match="history"):
        await memory.sync()
    assert "history" in ((await memory.noted()).last_error or "")
    with at(memory.place) as engine:
        assert engine.run("SELECT body FROM memory_blocks WHERE label = 'a/history'")
        engine.run("DELETE FROM memory_blocks WHERE label = 'a/history'")
        commit(engine, "Take it back")
    assert (await memory.sync()).last_error is None
    await require_same(memory, is_pulled=True)


async def test_an_oversized_remote_is_refused_before_reading(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    await memory.put("human", "Ada")
    await memory.sync()
    change(
        memory,
        "Add",
        "INSERT INTO memory_blocks (user_id, label, body) VALUES ('ada', 'notes', '"
        + "x" * 5000
        + "')",
    )
    for bound, most, told in (
        ("MOST_ROWS", 1, "holds 2 rows"),
        ("MOST_BYTES", 4000, "and 10000 and 4000 are allowed"),
        ("MOST_COMMITS", 1, "and 1 and"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(engines if bound == "MOST_BYTES" else database, bound, most)
            with pytest.raises(TooLong, match=told):
                await memory.sync()
        assert await memory.texts() == {"human": "Ada"}
    await memory.sync()
    await require_same(memory, is_pulled=True)


async def test_uncommitted_changes_in_dolt_are_not_overwritten(memory: Memory) -> None:
    await memory.put("human", "Ada")
    await memory.sync()
    with at(memory.place) as engine:
        engine.run(_SET, "Half a thou", "human")
    await memory.put("human", "Ada Lovelace")
    with pytest.raises(Conflict, match="uncommitted changes"):
        await memory.sync()
    with at(memory.place) as engine:
        assert engine.run("SELECT body FROM memory_blocks") == [["Half a thou"]]
        commit(engine, "A thought")
    assert "same lines" in ((await memory.sync()).last_error or "")


async def test_a_recreated_database_is_filled_again_and_deletes_nothing(
    memory: Memory,
) -> None:
    await memory.put("human", "Ada")
    await memory.put("human", "Ada Lovelace")
    await memory.sync()
    if dolt.URL:
        pytest.skip("a server's database cannot be deleted like a file")
    memory.place.path.unlink()
    await memory.sync()
    assert await memory.text("human") == "Ada Lovelace"
    await require_same(memory)


async def test_rows_of_other_users_in_the_same_database_are_unchanged(memory: Memory) -> None:
    await memory.put("human", "Ada")
    await memory.sync()
    change(
        memory,
        "Bob is here",
        "INSERT INTO memory_blocks (user_id, label, body) VALUES ('bob', 'human', 'Bob')",
    )
    await memory.put("human", "Ada L.")
    await memory.sync()
    with at(memory.place) as engine:
        assert engine.run("SELECT user_id, body FROM memory_blocks ORDER BY 1") == [
            ["ada", "Ada L."],
            ["bob", "Bob"],
        ]
    assert len(await versions_of(memory)) == 2


async def test_a_branch_with_commits_of_the_owner_is_not_deleted(memory: Memory) -> None:
    await memory.put("human", "a\nb")
    id = (await memory.propose("human", "a", "A")).id
    await memory.sync()
    with at(memory.place) as engine:
        (name,) = [
            row[0] for row in engine.run("SELECT name FROM dolt_branches") if row[0].endswith(id)
        ]
        engine.call("dolt_checkout", name)
        engine.run(_SET, "AA\nb", "human")
        commit(engine, "Rather so")
        engine.call("dolt_checkout", "main")
    await memory.reject(id)
    await memory.sync()
    with at(memory.place) as engine:
        assert name in [row[0] for row in engine.run("SELECT name FROM dolt_branches")]


@pytest.mark.parametrize("rounds", short_and_long(2, 4))
async def test_an_owners_commits_are_pulled_once_despite_kills(
    memory: Memory, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, names = Random(7), ("one", "two", "three", "four")  # noqa: S311 - replayed by its seed
    await memory.put("human", "\n".join("1234-5678"))
    await memory.sync()
    for round in range(rounds):
        with at(memory.place) as engine:
            ((body,),) = engine.run("SELECT body FROM memory_blocks")
            engine.run(_SET, body.replace("1234"[round], f"remote {names[round]}"), "human")
            commit(engine, f"Remote {round}")
        text = await memory.text("human") or ""
        await memory.put(
            "human", text.replace("5678"[round], f"local {names[round]}"), message=f"Local {round}"
        )
        await follow_mortally(memory, chance, monkeypatch)
    assert (await memory.sync()).last_error is None
    lines = [
        *(f"remote {name}" for name in names[:rounds]),
        *"1234"[rounds:],
        "-",
        *(f"local {name}" for name in names[:rounds]),
        *"5678"[rounds:],
    ]
    assert await memory.text("human") == "\n".join(lines)
    reasons = [reason for *_, reason in await versions_of(memory)]
    assert sorted(reasons[1:]) == sorted(
        f"{side} {round}" for side in ("Remote", "Local") for round in range(rounds)
    )
    await require_same(memory, is_pulled=True)


YOULAB = """CREATE TABLE memory_blocks (user_id VARCHAR(255) NOT NULL, label VARCHAR(100) NOT NULL, title VARCHAR(255), body TEXT, \
schema_ref VARCHAR(255), updated_at TIMESTAMP, PRIMARY KEY (user_id, label))"""
_INSERT = (
    "INSERT INTO memory_blocks (user_id, label, title, body, schema_ref) VALUES (?, ?, ?, ?, ?)"
)
STUDENT, TUTOR = "Ada <ada@school.example>", "college-essay-tutor <agent@youlab>"


def fill_like_youlab(place: DoltAddress, edits: int = 3) -> None:
    """Fill a database as YouLab does.

    Every user's rows are in one table, each edit is a commit, and proposals are merged.
    """
    with closing(open_engine(place)) as engine:
        number = iter(range(1, 1000))

        def commit(message: str, author: str = STUDENT) -> None:
            date = f"2025-03-{next(number):02d}T08:00:00"
            engine.call("dolt_commit", "-A", "-m", message, "--author", author, "--date", date)

        engine.run("CREATE TABLE background_tasks (name VARCHAR(255) PRIMARY KEY)")
        commit("Tasks", "YouLab <system@youlab>")
        engine.run(YOULAB)
        commit("Blocks", "YouLab <system@youlab>")
        engine.run(_INSERT, "ada", "student", "Student", "Name: Ada", "college/student")
        commit("Create student")
        engine.run(_INSERT, "bob", "student", "Student", "Name: Bob", "college/student")
        commit("Create student", "Bob <bob@school.example>")
        engine.run(_INSERT, "ada", "journey", "Journey", "Begun", None)
        commit("Create journey", TUTOR)
        for edit in range(edits):
            engine.run(_SET + " AND user_id = 'ada'", f"Name: Ada\nEdit {edit}", "student")
            commit(f"Edit {edit}")
        engine.call("dolt_branch", "agent/ada/student", "main")
        engine.call("dolt_checkout", "agent/ada/student")
        engine.run(_SET + " AND user_id = 'ada'", "Name: Ada\nLikes proofs", "student")
        commit('{"reasoning": "She said so.", "confidence": 0.8}', TUTOR)
        engine.call("dolt_checkout", "main")
        engine.run(_SET + " AND user_id = 'ada'", "Begun\nAt home", "journey")
        commit("At home")
        engine.call("dolt_merge", "agent/ada/student", "--no-ff", "--no-commit")
        commit("Approve the tutor's edit")
        engine.run("DELETE FROM memory_blocks WHERE user_id = 'ada' AND label = 'journey'")
        commit("Done with the journey")


async def test_a_youlab_database_is_imported_with_its_whole_history(
    memory: Memory,
) -> None:
    fill_like_youlab(memory.place)
    ada = await memory.do(set_email("ada@school.example"))

    assert (await memory.sync()).last_error is None
    versions = await memory.versions()
    shown = [
        (one.label, one.author.kind, one.author.name, one.reason, date_of(one.created_at)[5:10])
        for one in versions
    ]

    mine = ("user", ada.name)
    assert shown[:6] == [
        ("student", *mine, "Create student", "03-03"),
        ("journey", "remote", "college-essay-tutor", "Create journey", "03-05"),
        *(("student", *mine, f"Edit {edit}", f"03-0{6 + edit}") for edit in range(3)),
        ("journey", *mine, "At home", "03-10"),
    ]
    assert shown[6:] == [
        ("student", "remote", "college-essay-tutor", "Approve the tutor's edit", "03-11"),
        ("journey", *mine, "Done with the journey", "03-12"),
    ]
    assert [one.approved_by for one in versions if one.author.kind == "remote"] == [ada.id] * 2
    assert await memory.texts() == {"student": "Name: Ada\nLikes proofs"}
    (block,) = await memory.do(user_memory.listed)
    assert (block.title, block.schema_ref, block.policy) == (
        "Student",
        "college/student",
        "propose",
    )
    with at(memory.place) as engine:
        log = engine.run("SELECT message FROM dolt_log ORDER BY date")
    for _ in range(2):
        await memory.sync()
    assert await memory.versions() == versions
    with at(memory.place) as engine:
        # Nothing is written back to the Dolt database.
        assert engine.run("SELECT message FROM dolt_log ORDER BY date") == log


async def test_a_long_history_is_imported_completely_despite_kills(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_like_youlab(memory.place, 6)
    monkeypatch.setattr(database, "_MOST_STEPS", 2)
    chance, kills = Random(3), 0  # noqa: S311 - replayed by its seed
    for _ in range(6):
        kills += await follow_mortally(memory, chance, monkeypatch)
    await memory.sync()
    reasons = [one.reason for one in await memory.versions()]
    assert reasons[:9] == [
        "Create student",
        "Create journey",
        *(f"Edit {edit}" for edit in range(6)),
        "At home",
    ]
    assert kills
    assert await memory.texts() == {"student": "Name: Ada\nLikes proofs"}


async def test_a_remote_with_its_own_history_is_merged_as_one_change(memory: Memory) -> None:
    fill_like_youlab(memory.place)
    await memory.put("student", "Name: Ada Lovelace")
    assert "same lines" in ((await memory.sync()).last_error or "")
    assert await memory.text("student") == "Name: Ada Lovelace"
    (waiting,) = await memory.waiting()
    assert waiting.value == "Name: Ada\nLikes proofs"


async def test_a_database_file_belongs_to_one_organization_by_any_path(
    memory: Memory, store: SqliteStore
) -> None:
    if memory.place.path is None:
        pytest.skip("a server has no file")
    await memory.put("human", "Likes tea")
    await memory.sync()
    other = {"id": "org-other", "name": "Other", "created_at": 1}
    await store.write(lambda tx: tx.run(organizations.insert(), other))
    link = memory.place.path.with_name("link.db")
    link.symlink_to(memory.place.path)

    async def claim(address: str) -> None:
        await add(store, memory.settings, Scope("org-other"), USER, memory.kind, Access(address))

    for address in (
        memory.access.address,
        f"doltlite://{link}",
        memory.access.address.replace("a", "%61", 1),
    ):
        with pytest.raises(Conflict, match="another memory"):
            await claim(address)
    with pytest.raises(Invalid):
        await claim(f"doltlite:///proc/self/root{memory.place.path}")
    await store.write(lambda tx: remotes.remove(tx, memory.remote))
    with pytest.raises(Conflict, match="holds another memory, a user's or an organization's"):
        await claim(memory.access.address)
    await add(store, memory.settings, Scope(), "eve", memory.kind, memory.access)


async def test_one_setting_syncs_the_memory_of_all_current_and_new_users(
    store: SqliteStore, tmp_path: Path, place: DoltAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = place.address.replace("@", f":{place.password}@") if place.password else place.address
    runtime = runtime_on(store, tmp_path)
    monkeypatch.setenv("RICORDO_DOLT_REMOTE", named)
    runtime.settings = Settings(
        data_dir=tmp_path, remote_folders=str(tmp_path), allow_private_remotes=True
    )
    runtime.remotes = {"dolt": DoltRemotes()}
    handlers = by_kind(HANDLERS)

    async def work() -> list[list[str]]:
        await ALL_USERS.run(runtime, Job(ALL_USERS.kind, LOCAL_ORGANIZATION, {}), lambda *_: None)
        for job in await store.read(
            lambda tx: jobs.page(tx, Scope(), Page(), statuses=["waiting"])
        ):
            assert job.kind == SYNC
            claimed = await store.write(lambda tx, id=job.id: jobs.claim_one(tx, "here", id))
            if claimed:
                await handlers[SYNC].run(runtime, claimed, lambda *_: None)
                await store.write(lambda tx, claimed=claimed: jobs.finish(tx, claimed))
        with at(place) as engine:
            return [
                *map(list, engine.run("SELECT user_id, body FROM memory_blocks ORDER BY user_id"))
            ]

    memory = Memory(store, tmp_path, place)
    for user in ("ada", "bob"):
        await memory.put("human", f"I am {user}", user)
    await store.write(
        lambda tx: tx.run(organizations.insert(), {"id": "org-2", "name": "Other", "created_at": 0})
    )
    await store.write(deletion.prepare)
    assert await store.read(remotes.organization_ids) == [LOCAL_ORGANIZATION, "org-2"]
    eve = await store.write(
        lambda tx: user_memory.open_memory(tx, Scope("org-2"), "eve", makes=True)
    )
    await store.write(lambda tx: user_memory.put(tx, eve, "human", "I am eve", eve.owner))

    assert await work() == [["ada", "I am ada"], ["bob", "I am bob"]]
    await memory.put("human", "I am carl", "carl")
    for _ in range(2):
        assert await work() == [["ada", "I am ada"], ["bob", "I am bob"], ["carl", "I am carl"]]
    made = await store.read(lambda tx: remotes.at(tx, "dolt", place.address))
    assert [(one.organization_id, one.last_error, "password" in one.settings) for one in made] == [
        (LOCAL_ORGANIZATION, None, False)
    ] * 3

    # A user with the name of a forgotten user does not get the rows that the database still holds.
    names = [hash_of_name(Secret(tmp_path), LOCAL_ORGANIZATION, "dora")]
    receipts.write(tmp_path, {"id": new_id("receipt"), "names": names})
    change(
        memory,
        "Old",
        "INSERT INTO memory_blocks (user_id, label, body) VALUES ('dora', 'human', 'Forget me')",
    )
    await memory.put("goals", "Rest", "dora")
    await work()
    assert await memory.do(
        lambda tx, owned: [one.value for one in user_memory.listed(tx, owned)], "dora"
    ) == ["Rest"]


def test_a_placeholder_gives_each_organization_its_own_database(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def asked(address: str | None, organization: str) -> Access | None:
        monkeypatch.setenv("RICORDO_DOLT_REMOTE", address or "")
        return database_of_all(organization)

    assert asked(None, LOCAL_ORGANIZATION) is None
    assert asked("doltlite:///x/m.db", "org-2") is None
    assert asked("doltlite:///x/{organization}.db", "org-2") == Access("doltlite:///x/org-2.db")
    with pytest.raises(ValueError, match="must be mysql://"):
        asked("https://dolt.example.org", "org-2")


async def test_youlab_rows_belong_to_the_user_with_the_configured_prefix(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_like_youlab(memory.place)
    monkeypatch.setenv("RICORDO_DOLT_USER_PREFIX", "open-webui:")
    with pytest.raises(Invalid, match="does not begin with it"):
        await memory.sync()
    memory.user = "open-webui:ada"
    memory.remote = await memory.add(user=memory.user)
    assert (await memory.sync()).last_error is None
    assert await memory.texts() == {"student": "Name: Ada\nLikes proofs"}
    await memory.put("human", "At home here.", user=memory.user)
    await memory.sync()
    with at(memory.place) as engine:
        rows = engine.run("SELECT label FROM memory_blocks WHERE user_id = 'ada'")
    assert {str(label) for (label, *_) in rows} == {"student", "human"}
