"""Work folders: a sweep removes folders without an owner, and nothing else."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from ricordo.errors import Unavailable
from ricordo.storage.engine.work_folders import (
    COPY,
    FOLDER,
    PACKAGES,
    SANDBOX,
    file_for,
    open_work_folder,
    remove_tree,
    sweep,
)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Let another process hold the lock within the block."""
    with subprocess.Popen(
        ["flock", path, "-c", "echo on; read line"], stdin=-1, stdout=-1
    ) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == b"on\n"
        yield
        holder.communicate(b"\n")


def left(data: Path, kind: str, place: Path | None = None) -> Path:
    """Make the folder of a killed process: its lock is free."""
    folder = open_work_folder(data, kind, location=place)
    (folder.path / "ricordo.db-wal").write_text("something")
    folder._lock.release()
    return folder.path


def test_folders_of_killed_processes_are_removed_and_those_of_running_ones_stay(
    tmp_path: Path,
) -> None:
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    elsewhere.mkdir()
    data.mkdir()
    for place in (None, elsewhere):
        for kind in (COPY, SANDBOX, PACKAGES):
            dead, alive = left(data, kind, place), left(data, kind, place)
            with locked(alive / ".lock"):
                found = sweep(data)
                assert (dead.exists(), alive.exists(), found.removed) == (False, True, [dead])
                assert found.copies_in_use == [alive] * (kind == COPY)
            assert sweep(data).removed == [alive]
    assert [path.name for path in (data / FOLDER).iterdir()] == [".door"]
    assert list(elsewhere.iterdir()) == []


def test_a_folder_on_a_missing_disk_is_removed_when_the_disk_returns(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    (tmp_path / "data").mkdir()
    path = left(tmp_path / "data", COPY, disk)
    disk.rename(tmp_path / "away")
    assert sweep(tmp_path / "data").removed == []
    (tmp_path / "away").rename(disk)
    assert sweep(tmp_path / "data").removed == [path]


def test_unknown_files_and_folders_stay(tmp_path: Path) -> None:
    own = tmp_path / "data" / FOLDER
    own.mkdir(parents=True)
    others = [
        tmp_path / "data" / "notes",
        own / "letters",
        own / "copy-of-mine",
        tmp_path / "data" / "new.db-wal",
    ]
    for path in others:
        path.mkdir()
    kept = [
        tmp_path / "data" / name
        for name in ("ricordo.db", "ricordo.db-wal", "ricordo.lock", "unfinished.txt")
    ]
    for path in kept:
        path.touch()
    (own / "note.elsewhere").write_text(str(tmp_path / "data" / "notes"))
    assert sweep(tmp_path / "data").removed == []
    assert all(path.exists() for path in (*others, *kept))


OLDER = (
    *(
        "{}.unfinished",
        "{}.unfinished-wal",
        "{}.unfinished-shm",
        "{}.unfinished-journal",
        "{}.lock",
    ),
)


@pytest.mark.parametrize("folder", ["", "backups"])
@pytest.mark.parametrize(
    "name", ["ricordo.db", "ricordo-20261126T101010-ab12.db", "mine.db", "über uns.db"]
)
def test_files_left_by_older_versions_are_removed_unless_in_use(
    name: str, folder: str, tmp_path: Path
) -> None:
    place = tmp_path / "data" / folder
    place.mkdir(parents=True)
    files = [place / pattern.format(name) for pattern in OLDER]
    for path in files:
        path.write_text("x")
    with locked(files[-1]):
        found = sweep(tmp_path / "data")
        assert (found.removed, found.copies_in_use) == ([], files[:-1])
    assert set(sweep(tmp_path / "data").removed) >= set(files[:-1])
    assert list(place.iterdir()) == []


def test_leftover_logs_builds_and_sandboxes_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temp"))
    gone = [
        "backups/a.db-wal",
        "backups/a.db-shm",
        "environments/1-x.building/.lock",
        "temp/ricordo-sandbox-_x7mno4k/.lock",
    ]
    kept = [
        "backups/b.db",
        "backups/b.db-wal",
        "environments/1/.lock",
        "temp/ricordo-pg-x/.lock",
        "temp/pip-x/.lock",
    ]
    for name in (*gone, *kept):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert len(sweep(tmp_path).removed) == len(gone)
    assert [name for name in (*gone, *kept) if (tmp_path / name).exists()] == kept


def test_a_file_appears_at_its_place_complete_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "target.db"
    with file_for(tmp_path / "data", target) as part:
        part.write_text("whole")
        assert not target.exists()
    with suppress(Unavailable), file_for(tmp_path / "data", target) as part:
        part.write_text("half")
        raise Unavailable("No.")
    assert target.read_text() == "whole"
    assert [path.name for path in (tmp_path / "data" / FOLDER).iterdir()] == [".door"]
    assert {path.name for path in tmp_path.iterdir()} == {"data", "target.db"}


def test_a_file_for_another_disk_is_written_there_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "disk" / "target.db"
    target.parent.mkdir()
    monkeypatch.setattr("ricordo.storage.engine.work_folders._is_one_step", lambda *_: False)
    with file_for(tmp_path / "data", target) as part:
        part.write_text("whole")
        assert part.parent.parent == target.parent
        (note,) = (tmp_path / "data" / FOLDER).glob("*.elsewhere")
        assert note.read_text() == str(part.parent)
    assert [path.name for path in target.parent.iterdir()] == ["target.db"]
    assert not note.exists()


@pytest.mark.parametrize("depth", [1, 1_100])
def test_a_folder_of_any_depth_is_removed_and_links_are_not_followed(
    depth: int, tmp_path: Path
) -> None:
    top = tmp_path / "top"
    program = (
        "import os, sys\nfor _ in range(int(sys.argv[1])):\n    os.mkdir('d'); open('f', 'w'); "
        "os.chdir('d')\n"
    )
    top.mkdir()
    subprocess.run(["python3", "-c", program, str(depth)], cwd=top, check=True)
    (tmp_path / "others").mkdir()
    (top / "link").symlink_to(tmp_path / "others")
    remove_tree(top)
    assert [path.name for path in tmp_path.iterdir()] == ["others"]


def test_a_sandbox_creates_no_data_folder(tmp_path: Path) -> None:
    folder = open_work_folder(tmp_path / "data", SANDBOX, location=tmp_path, mode=0o711)
    assert folder.path.stat().st_mode & 0o777 == 0o711
    folder.close()
    assert list(tmp_path.iterdir()) == []
