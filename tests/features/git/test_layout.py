"""YouLab's layout of a memory: written to a branch of its own, and read back from a folder."""

from pathlib import Path

import pytest

from ricordo.domain.remote import Access
from ricordo.domain.scope import Actor, Scope
from ricordo.errors import Invalid
from ricordo.features.git.layout import import_folder
from ricordo.features.git.sync import GitRemotes
from ricordo.features.remotes import service as remotes
from ricordo.memory.user_memory import PutOptions, open_memory, propose_edit, put
from ricordo.settings import Settings
from ricordo.storage import blocks, proposals
from ricordo.storage.sqlite import SqliteStore
from tests.support.git import fsck, git

ADA = Actor("user", "user-1", "Ada")
SCHEMA = """
title = "Student"
[fields.name]
kind = "string"
[fields.strengths]
kind = "list"
"""


async def test_a_memory_goes_out_as_toml_and_comes_back(store: SqliteStore, tmp_path: Path) -> None:
    (tmp_path / "block_schemas").mkdir()
    (tmp_path / "block_schemas" / "student.toml").write_text(SCHEMA)
    texts = {
        "student": "## Name\nAlice\n\n## Strengths\n- Creativity\n- Communication",
        "courses/maths": "Free\n\n text ",
    }

    def begin(tx: object) -> None:
        owned = open_memory(tx, Scope(), "alice", makes=True)  # type: ignore[arg-type]
        put(tx, owned, "student", texts["student"], ADA, PutOptions(schema_ref="student"))  # type: ignore[arg-type]
        put(tx, owned, "courses/maths", texts["courses/maths"], ADA)  # type: ignore[arg-type]
        propose_edit(tx, owned, "student", "Alice", "Alice B.", Actor("agent", "tutor", "Tutor"))  # type: ignore[arg-type]

    await store.write(begin)
    settings = Settings(data_dir=tmp_path)
    place = Access(str(tmp_path / "remotes" / "there.git"), options={"shows_toml": True})
    remote = await remotes.add(store, settings, Scope(), "alice", GitRemotes(), place)
    await remotes.sync(store, settings, GitRemotes(), remote)
    shown = git(Path(place.address), "rev-parse", "toml")
    await remotes.sync(store, settings, GitRemotes(), remote)
    assert git(Path(place.address), "rev-parse", "toml") == shown
    assert fsck(Path(place.address)) == ""
    assert 'name = "Alice"' in git(Path(place.address), "show", "toml:blocks/student.toml")
    git(tmp_path, "clone", "-q", "-b", "toml", place.address, "out")

    done = await import_folder(store, Scope(), "bob", tmp_path / "out", ADA, tmp_path / "block_schemas")

    assert (done.blocks, len(done.proposals), done.faults) == (("courses/maths", "student"), 1, {})
    bob = await store.read(lambda tx: open_memory(tx, Scope(), "bob"))
    there = await store.read(lambda tx: blocks.of_user(tx, Scope(), bob.user.id))
    assert {one.label: one.value.strip() for one in there}["courses/maths"] == texts["courses/maths"].strip()
    assert "Alice" in there[1].value
    (waiting,) = await store.read(lambda tx: proposals.waiting(tx, bob.chain.id))
    assert (waiting.label, waiting.author.id) == ("student", "tutor")
    assert "Alice B." in (waiting.value or "")


async def test_files_that_cannot_be_read_are_told_and_the_others_taken(store: SqliteStore, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="holds neither"):
        await import_folder(store, Scope(), "bob", tmp_path, ADA, tmp_path)
    for name, text in {
        "blocks/good.toml": 'body = "Text"\n',
        "blocks/bad.toml": "body = ",
        "blocks/history.toml": 'body = "x"\n',
        "pending_diffs/old.json": '{"status": "approved"}',
        "pending_diffs/odd.json": '{"block_label": 1}',
        "pending_diffs/broken.json": "{",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    done = await import_folder(store, Scope(), "bob", tmp_path, ADA, tmp_path)
    assert (done.blocks, done.proposals) == (("good",), ())
    assert sorted(done.faults) == [
        *("blocks/bad.toml", "blocks/history.toml", "pending_diffs/broken.json", "pending_diffs/odd.json"),
    ]
