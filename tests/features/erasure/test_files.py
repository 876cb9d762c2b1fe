"""What lies beside the database: her repositories and backups go, others' stay, and what is left is named."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from filelock import FileLock

from ricordo.domain.clock import SECOND
from ricordo.errors import Unavailable
from ricordo.features.erasure.files import erase_files
from ricordo.features.erasure.models import Erasure
from ricordo.storage import chain_files

ADA = Erasure(
    id="receipt-1",
    user_id="user-ada",
    organization_id="org-1",
    subject="",
    names=[],
    asked_at="",
    began_at=1_000 * SECOND,
    chains={"chain-ada": {}},
)


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

    done = erase_files(tmp_path, current, ADA)

    assert not hers.exists()
    assert others.exists()
    assert current.exists()
    assert [path.name for path in (tmp_path / "repositories").iterdir()] == ["chain-bob.git"]
    assert set(done.files) == {"backups/a.db", *(f"repositories/{name}" for name in hidden)}


def test_a_repository_that_is_just_being_made_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "repositories" / "chain-ada.git"
    path.parent.mkdir()
    monkeypatch.setattr(chain_files, "PATIENCE", 0.01)
    with FileLock(chain_files.lock_path(tmp_path, "chain-ada")), pytest.raises(Unavailable, match="is being read"):
        erase_files(tmp_path, None, ADA)
    path.mkdir()
    assert erase_files(tmp_path, None, ADA).files == {"repositories/chain-ada.git": "removed"}


def test_what_a_killed_push_to_a_remote_left_beside_her_repository_goes(tmp_path: Path) -> None:
    """A branch of each proposal was made there, with its text."""
    for name in ("chain-ada.remote-1.aside", "chain-ada2.remote-2.aside"):
        (tmp_path / "repositories" / name / "objects").mkdir(parents=True)

    done = erase_files(tmp_path, None, ADA)

    assert [path.name for path in (tmp_path / "repositories").iterdir()] == ["chain-ada2.remote-2.aside"]
    assert set(done.files) == {"repositories/chain-ada.remote-1.aside"}


def test_her_remotes_in_the_data_folder_go_and_those_elsewhere_are_named(tmp_path: Path) -> None:
    own = tmp_path / "data" / "remotes"
    for folder in (own / "ada.git" / "objects", own / "bob.git" / "objects", tmp_path / "ada.git"):
        folder.mkdir(parents=True)
    for name in ("of ada.db", ".of ada.db-lock", "of ada.db2"):
        (own / name).touch()
    (own / "link").symlink_to(tmp_path / "ada.git")
    hers = [str(own / "ada.git"), f"doltlite://{own}/of%20ada.db", str(own / "link"), "https://git.example.org/ada.git"]
    others = [str(own / "bob.git"), f"doltlite://{own}/of%20ada.db2", "https://git.example.org/bob.git"]

    done = erase_files(tmp_path / "data", None, ADA.model_copy(update={"remotes": dict.fromkeys(hers, "some")}), others)

    assert {path.name for path in own.iterdir()} == {"bob.git", "of ada.db2", "link"}
    assert (tmp_path / "ada.git").is_dir()
    assert set(done.files) == {"remotes/ada.git", "remotes/of ada.db", "remotes/.of ada.db-lock"}
    assert [line for line in done.elsewhere if "keeps a copy" in line] == [
        f"The memory's some remote at {own / 'link'} keeps a copy.",
        "The memory's some remote at https://git.example.org/ada.git keeps a copy.",
    ]


@pytest.mark.parametrize("other", ["", "/inner", "/.."])
def test_a_remote_that_others_use_too_is_named_and_left(tmp_path: Path, other: str) -> None:
    place = tmp_path / "remotes" / "team" / "all"
    place.mkdir(parents=True)

    done = erase_files(tmp_path, None, ADA.model_copy(update={"remotes": {str(place): "git"}}), [f"{place}{other}"])

    assert place.is_dir()
    assert any("is one of others too" in line for line in done.elsewhere)


def test_things_in_the_folder_of_remotes_that_nobody_uses_any_more_are_counted(tmp_path: Path) -> None:
    """A remote that was taken away before stays where it is, and no row tells whose it was."""
    for name in ("was-hers.git", "bob.git", "team/carol.git", "empty"):
        (tmp_path / "remotes" / name).mkdir(parents=True)
    (tmp_path / "remotes" / "was-hers.git" / "HEAD").write_text("ref: refs/heads/main")
    (tmp_path / "remotes" / ".gone.db-lock").touch()
    others = [str(tmp_path / "remotes" / name) for name in ("bob.git", "team/carol.git")]

    done = erase_files(tmp_path, None, ADA, others)

    assert any("no memory is followed any more: 1." in line for line in done.elsewhere)
    assert done.files == {}


def test_a_dump_goes_unless_it_is_from_before_she_came(tmp_path: Path) -> None:
    (tmp_path / "backups").mkdir()
    old, new, broken = (tmp_path / "backups" / name for name in ("old.dump", "new.dump", "broken.db"))
    for path, moment in ((old, 999), (new, 1_001), (broken, 1_001)):
        path.write_text("PGDMP, or what was left of a database.")
        os.utime(path, (moment, moment))
    erase_files(tmp_path, tmp_path / "ricordo.db", ADA)
    assert [path.name for path in (tmp_path / "backups").iterdir()] == ["old.dump"]
    # Who was never heard of in any row may be in a block alone, and nobody knows since when.
    erase_files(tmp_path, None, ADA.model_copy(update={"began_at": None}))
    assert list((tmp_path / "backups").iterdir()) == []


def test_another_database_in_the_folder_is_named_and_left(tmp_path: Path) -> None:
    copy(tmp_path / "ricordo.db", "user-ada")
    copy(tmp_path / "bob.db", "user-bob")
    done = erase_files(tmp_path, None, ADA)
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
        erase_files(tmp_path, None, ADA)
