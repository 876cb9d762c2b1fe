"""Erasure of files outside the database.

The user's repositories, remotes and backups are deleted, and others' stay. A signed receipt lists
the deleted files.
"""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from filelock import FileLock

from ricordo.domain.clock import SECOND
from ricordo.errors import Invalid, Unavailable
from ricordo.features.memory_care.erasure import receipts
from ricordo.features.memory_care.erasure.files import erase_files
from ricordo.features.memory_care.erasure.receipts import Erasure
from ricordo.secret import Secret
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


def database(path: Path, user_id: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    with closing(sqlite3.connect(path)) as file:
        file.execute("CREATE TABLE messages (text TEXT, user_id TEXT)")
        file.execute("INSERT INTO messages VALUES ('Tea.', ?)", [user_id])
        file.commit()
    return path


def test_only_the_users_repositories_and_backups_are_deleted(tmp_path: Path) -> None:
    current = database(tmp_path / "ricordo.db", "user-ada")
    theirs = database(tmp_path / "backups" / "a.db", "user-ada")
    others = database(tmp_path / "backups" / "b.db", "user-bob")
    # Leftovers of kills, which came while a repository was created, while one was replaced, and
    # while objects were pushed from one.
    own = [f"chain-ada.{kind}" for kind in ("git", "new", "old", "remote-1.aside")]
    for name in (*own, "chain-bob.git", "chain-ada2.remote-2.aside"):
        (tmp_path / "repositories" / name / "objects").mkdir(parents=True)
    (tmp_path / "repositories" / "chain-ada.lock").touch()

    done = erase_files(tmp_path, current, ADA)

    (named,) = [
        line for line in erase_files(tmp_path, None, ADA).elsewhere if "another database" in line
    ]
    assert named.startswith("ricordo.db")
    assert (theirs.exists(), others.exists(), current.exists()) == (False, True, True)
    left = {path.name for path in (tmp_path / "repositories").iterdir()}
    assert left == {"chain-bob.git", "chain-ada2.remote-2.aside"}
    assert set(done.files) == {"backups/a.db", *(f"repositories/{name}" for name in own)}


def test_erasure_waits_for_a_locked_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "repositories" / "chain-ada.git"
    path.parent.mkdir()
    monkeypatch.setattr(chain_files, "PATIENCE", 0.01)
    with (
        FileLock(chain_files.lock_path(tmp_path, "chain-ada")),
        pytest.raises(Unavailable, match="is being read"),
    ):
        erase_files(tmp_path, None, ADA)
    path.mkdir()
    assert erase_files(tmp_path, None, ADA).files == {"repositories/chain-ada.git": "removed"}


def test_repositories_of_removed_remotes_are_deleted_by_their_owner_file(tmp_path: Path) -> None:
    own = tmp_path / "data" / "remotes"
    for name, chain in (
        ("ada.git", "chain-ada"),
        ("deep/ada.git", "chain-ada"),
        ("bob.git", "chain-bob"),
    ):
        (own / name / "objects").mkdir(parents=True)
        (own / name / chain_files.OWNER_FILE).write_text(f"{chain}\n")
    done = erase_files(tmp_path / "data", None, ADA, [str(own / "bob.git")])
    assert done.files == {"remotes/ada.git": "removed", "remotes/deep/ada.git": "removed"}
    assert [path.name for path in own.iterdir() if any(path.iterdir())] == ["bob.git"]


def test_remotes_in_the_data_folder_are_deleted_and_others_reported(tmp_path: Path) -> None:
    own = tmp_path / "data" / "remotes"
    for folder in (own / "ada.git" / "objects", own / "bob.git" / "objects", tmp_path / "ada.git"):
        folder.mkdir(parents=True)
    for name in ("of ada.db", ".of ada.db-lock", "of ada.db2"):
        (own / name).touch()
    (own / "link").symlink_to(tmp_path / "ada.git")
    theirs = [
        str(own / "ada.git"),
        f"doltlite://{own}/of%20ada.db",
        str(own / "link"),
        "https://git.example.org/ada.git",
    ]
    others = [
        str(own / "bob.git"),
        f"doltlite://{own}/of%20ada.db2",
        "https://git.example.org/bob.git",
    ]
    erasure = ADA.model_copy(update={"remotes": dict.fromkeys(theirs, "some")})

    done = erase_files(tmp_path / "data", None, erasure, others)

    assert {path.name for path in own.iterdir()} == {"bob.git", "of ada.db2", "link"}
    assert (tmp_path / "ada.git").is_dir()
    assert set(done.files) == {"remotes/ada.git", "remotes/of ada.db", "remotes/.of ada.db-lock"}
    assert [line for line in done.elsewhere if "keeps a copy" in line] == [
        f"The memory's some remote at {own / 'link'} keeps a copy.",
        "The memory's some remote at https://git.example.org/ada.git keeps a copy.",
    ]


def test_a_remote_shared_with_others_is_reported_and_kept(tmp_path: Path) -> None:
    place = tmp_path / "remotes" / "team" / "all"
    place.mkdir(parents=True)
    erasure = ADA.model_copy(update={"remotes": {str(place): "git"}})
    for other in ("", "/inner", "/.."):
        done = erase_files(tmp_path, None, erasure, [f"{place}{other}"])
        assert place.is_dir(), other
        assert any("belongs to others too" in line for line in done.elsewhere), other


def test_unused_files_in_the_remotes_folder_are_counted(
    tmp_path: Path,
) -> None:
    """The folder of a remote that was removed earlier stays, since no row names its owner."""
    for name in ("was-hers.git", "bob.git", "team/carol.git", "empty"):
        (tmp_path / "remotes" / name).mkdir(parents=True)
    (tmp_path / "remotes" / "was-hers.git" / "HEAD").write_text("ref: refs/heads/main")
    (tmp_path / "remotes" / ".gone.db-lock").touch()
    others = [str(tmp_path / "remotes" / name) for name in ("bob.git", "team/carol.git")]
    done = erase_files(tmp_path, None, ADA, others)
    assert any("no longer the remote of a memory: 1." in line for line in done.elsewhere)
    assert done.files == {}


def test_dumps_made_since_the_user_came_are_deleted(tmp_path: Path) -> None:
    (tmp_path / "backups").mkdir()
    for name, moment in (("old.dump", 999), ("new.dump", 1_001), ("broken.db", 1_001)):
        (tmp_path / "backups" / name).write_text("PGDMP, or what was left of a database.")
        os.utime(tmp_path / "backups" / name, (moment, moment))
    erase_files(tmp_path, tmp_path / "ricordo.db", ADA)
    assert [path.name for path in (tmp_path / "backups").iterdir()] == ["old.dump"]
    # If no row of a user has a time, the user's first day is unknown. Then perhaps only a block
    # names the user.
    erase_files(tmp_path, None, ADA.model_copy(update={"began_at": None}))
    assert list((tmp_path / "backups").iterdir()) == []


def test_a_file_that_cannot_be_deleted_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database(tmp_path / "backups" / "a.db", "user-ada")

    def refuse(_path: Path, **_: bool) -> None:
        raise PermissionError(13, "Permission denied", "a.db")

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(Unavailable, match=r"a\.db cannot be removed: Permission denied"):
        erase_files(tmp_path, None, ADA)


@pytest.mark.parametrize("folder", ["backups", "backups/old", "remotes/team"])
def test_a_folder_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    unread = tmp_path / folder
    unread.mkdir(parents=True)
    theirs = database(tmp_path / "backups" / "a.db", "user-ada")
    scan = os.scandir

    def refuse(path: str | Path) -> object:
        if Path(path) == unread:
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    done = erase_files(tmp_path, None, ADA)
    (named,) = [line for line in done.elsewhere if "cannot be read" in line]
    assert named.startswith(f"The folder {folder} cannot be read (Permission denied)")
    assert theirs.exists() == (folder == "backups")


def erasure(secret: Secret, name: str = "ada") -> Erasure:
    return Erasure(
        id="receipt-00000000-0000-4000-8000-000000000001",
        user_id="",
        organization_id="org-1",
        subject=receipts.subject_of("user-1"),
        names=[receipts.hash_of_name(secret, "org-1", name)],
        asked_at="1970-01-01T00:00:00.000001+00:00",
        finished_at="1970-01-01T00:00:02+00:00",
        removed={"messages": 3},
        chains={"chain-1": {"head": "ab", "versions": 2}},
        agents={"agent-1": 0},
        shown_in={"conv-1"},
    )


def test_a_receipt_is_found_by_name_without_containing_the_name(tmp_path: Path) -> None:
    secret = Secret(tmp_path)
    receipt = receipts.receipt_of(secret, erasure(secret, "ada lovelace"))
    receipts.write(tmp_path, receipt)
    path = receipts.path_of(tmp_path, receipt["id"])
    assert path.stat().st_mode & 0o077 == 0
    assert "lovelace" not in path.read_text()
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert receipts.find(tmp_path, receipt["id"]) == receipt
    assert receipts.find(tmp_path, "../secret.key") is None
    assert (
        receipts.find_by_name(tmp_path, receipts.hash_of_name(secret, "org-1", "ada lovelace"))
        == receipt
    )
    # The key of another installation gives other hashes, so names cannot be guessed from a receipt
    # alone.
    for other, organization in ((secret, "org-2"), (Secret(tmp_path / "b"), "org-1")):
        assert (
            receipts.find_by_name(
                tmp_path, receipts.hash_of_name(other, organization, "ada lovelace")
            )
            is None
        )


def test_a_folder_of_receipts_that_cannot_be_read_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise an import would bring back users who were forgotten."""
    secret = Secret(tmp_path)
    receipts.write(tmp_path, receipts.receipt_of(secret, erasure(secret, "ada lovelace")))

    def refuse(path: str | Path = ".") -> object:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refuse)
    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(Invalid, match=r"cannot be read: Permission denied"):
        receipts.names_of_all(tmp_path)
    with pytest.raises(Invalid, match=r"cannot be read: Permission denied"):
        receipts.find_by_name(tmp_path, "hash")


def test_changed_receipts_and_receipts_of_other_installations_fail_verification(
    tmp_path: Path,
) -> None:
    secret, other = Secret(tmp_path / "a"), Secret(tmp_path / "b")
    receipt = receipts.receipt_of(secret, erasure(secret))
    assert receipts.verify(receipt, secret)
    assert receipts.verify(receipt)
    assert not receipts.verify(receipt, other)
    for name in (*(receipt.keys() - {"signature"}), "more"):
        assert not receipts.verify({**receipt, name: "another"}), name


def test_files_that_are_no_receipts_are_refused(tmp_path: Path) -> None:
    for signature in (
        None,
        {"algorithm": "none"},
        {"algorithm": "ed25519", "public_key": "?", "value": "?"},
    ):
        with pytest.raises(Invalid, match="not a receipt"):
            receipts.verify({"id": "receipt-1", "signature": signature})
    file = tmp_path / "file.json"
    for text in ("", "[]", "{"):
        file.write_text(text)
        with pytest.raises(Invalid, match="not a receipt"):
            receipts.read(file)
    assert receipts.read(tmp_path / "missing.json") is None
