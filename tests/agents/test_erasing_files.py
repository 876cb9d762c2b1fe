"""What lies beside the database: her repositories and backups go, others' stay, and what is left is named."""

import os
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock

from ricordo.agents.erasing_files import remove_files
from ricordo.domain.clock import SECOND
from ricordo.domain.erasure import Erasure
from ricordo.errors import Unavailable
from ricordo.memory import repository

ADA = Erasure("receipt-1", "user-ada", "org-1", "", (), 0, began_at=1_000 * SECOND, chains={"chain-ada": {}})


def copy(path: Path, user_id: str) -> Path:
    """A database with a row about somebody."""
    path.parent.mkdir(exist_ok=True)
    with closing(sqlite3.connect(path)) as file:
        file.execute("CREATE TABLE messages (text TEXT, user_id TEXT)")
        file.execute("INSERT INTO messages VALUES ('Tea.', ?)", [user_id])
        file.commit()
    return path


def test_her_repositories_and_backups_go_and_others_stay(tmp_path: Path) -> None:
    current = copy(tmp_path / "ricordo.db", "user-ada")
    hers, others = copy(tmp_path / "backups" / "a.db", "user-ada"), copy(tmp_path / "backups" / "b.db", "user-bob")
    # What a kill leaves: a repository that was being made, one that was being replaced, one that was pushed to a remote from.
    hidden = [f"chain-ada.{kind}" for kind in ("git", "new", "old", "remote-1.aside")]
    for name in (*hidden, "chain-bob.git"):
        (tmp_path / "repositories" / name / "objects").mkdir(parents=True)
    (tmp_path / "repositories" / "chain-ada.lock").touch()

    done = remove_files(tmp_path, current, ADA)

    assert not hers.exists()
    assert others.exists()
    assert current.exists()
    assert [path.name for path in (tmp_path / "repositories").iterdir()] == ["chain-bob.git"]
    assert set(done.files) == {"backups/a.db", *(f"repositories/{name}" for name in hidden)}


def test_a_repository_that_is_just_being_made_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = repository.repository_path(tmp_path, "chain-ada")
    path.parent.mkdir()
    monkeypatch.setattr(repository, "_PATIENCE", 0.01)
    with FileLock(repository._lock_path(path)), pytest.raises(Unavailable, match="is being read"):
        remove_files(tmp_path, None, ADA)
    path.mkdir()
    assert remove_files(tmp_path, None, ADA).files == {"repositories/chain-ada.git": "removed"}


def test_a_dump_goes_unless_it_is_from_before_she_came(tmp_path: Path) -> None:
    (tmp_path / "backups").mkdir()
    old, new, broken = (tmp_path / "backups" / name for name in ("old.dump", "new.dump", "broken.db"))
    for path, moment in ((old, 999), (new, 1_001), (broken, 1_001)):
        path.write_text("PGDMP, or what was left of a database.")
        os.utime(path, (moment, moment))
    remove_files(tmp_path, tmp_path / "ricordo.db", ADA)
    assert [path.name for path in (tmp_path / "backups").iterdir()] == ["old.dump"]
    # Who was never heard of in any row may be in a block alone, and nobody knows since when.
    remove_files(tmp_path, None, replace(ADA, began_at=None))
    assert list((tmp_path / "backups").iterdir()) == []


def test_another_database_in_the_folder_is_named_and_left(tmp_path: Path) -> None:
    copy(tmp_path / "ricordo.db", "user-ada")
    copy(tmp_path / "bob.db", "user-bob")
    done = remove_files(tmp_path, None, ADA)
    named = [sentence for sentence in done.elsewhere if "another database" in sentence]
    assert len(named) == 1
    assert named[0].startswith("ricordo.db")
    assert (tmp_path / "ricordo.db").exists()


def test_a_file_that_cannot_be_removed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy(tmp_path / "backups" / "a.db", "user-ada")

    def refuse(_path: Path) -> None:
        raise PermissionError(13, "Permission denied", "a.db")

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(Unavailable, match=r"a\.db cannot be removed: Permission denied"):
        remove_files(tmp_path, None, ADA)
