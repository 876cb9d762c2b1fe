"""Measuring the workspace of a running program."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ricordo.sandbox import watch
from ricordo.storage.engine.work_folders import remove_tree


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "workspace"
    folder.mkdir()
    yield folder
    remove_tree(folder)


def _make_folders(top: Path, depth: int, content: bytes) -> None:
    """Make nested folders, and a file in the innermost."""
    parent = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=parent)
        child = os.open("d", os.O_RDONLY, dir_fd=parent)
        os.close(parent)
        parent = child
    file = os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=parent)
    os.write(file, content)
    os.close(file)
    os.close(parent)


@pytest.mark.parametrize(
    ("depth", "limit", "is_full"),
    [
        (0, 1 << 20, False),
        (0, 1 << 10, True),
        (10, 1 << 10, True),
        (1_500, 1 << 20, False),
        (1_500, 1 << 10, True),
        # The paths are longer than the system allows, so the content cannot be measured.
        (3_000, 1 << 20, True),
    ],
)
def test_files_are_counted_at_any_depth(
    workspace: Path, depth: int, limit: int, *, is_full: bool
) -> None:
    _make_folders(workspace, depth, b"x" * 5_000)
    assert watch.is_workspace_full(workspace, [], limit) == is_full


def test_folders_count_like_files(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_MOST_FILES", 50)
    for number in range(50):
        (workspace / str(number)).mkdir()
    assert not watch.is_workspace_full(workspace, [], 1 << 20)
    (workspace / "50").mkdir()
    assert watch.is_workspace_full(workspace, [], 1 << 20)


def test_links_out_of_the_workspace_are_not_followed(workspace: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"x" * 5_000)
    (workspace / "folder").symlink_to(outside)
    (workspace / "file").symlink_to(outside / "file")
    assert not watch.is_workspace_full(workspace, [], 1 << 10)


def test_a_deleted_file_counts_once_however_often_it_is_open(workspace: Path) -> None:
    path = workspace / "file"
    with path.open("wb") as file:
        file.write(b"x" * 5_000)
        file.flush()
        path.unlink()
        copies = [os.dup(file.fileno()) for _ in range(9)]
        program = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL, pass_fds=copies)
        try:
            assert watch.is_workspace_full(workspace, [program.pid], 1 << 10)
            assert not watch.is_workspace_full(workspace, [program.pid] * 2, 1 << 14)
        finally:
            program.kill()
            program.wait()
            for copy in copies:
                os.close(copy)
