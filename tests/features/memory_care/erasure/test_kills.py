"""Kills in the middle of backups, restores, moves and erasures.

No temporary file is left, and none holds data of the erased user.
"""

import random
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from ricordo.features.operations.backups.service import restore
from ricordo.settings import Settings
from ricordo.storage.engine.work_folders import FOLDER
from tests.cli.conftest import Shell, environment, remember
from tests.features.processes import KilledCommand, after
from tests.support.canaries import canary, in_files
from tests.support.ready import Helper
from tests.support.server_process import CAN_FORK

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="the helper forks")
COMMANDS: dict[str, Sequence[str]] = {
    "backup": ("backup", "{data}/backups/{number}.db"),
    "backup elsewhere": ("backup", "{folder}/other/{number}.db"),
    "restore": ("restore", "{folder}/whole.db", "--replace"),
    "move": ("db", "migrate-to", "sqlite:///{data}/{number}.db"),
    "erasure": ("memory", "forget", "ada", "--yes"),
}


def has_written(work: Path, size: int, seconds: float) -> Callable[[], bool]:
    """Return a condition: the work folders hold this much, or this time has passed."""
    is_late = after(seconds)

    def reached() -> bool:
        written = 0
        with suppress(FileNotFoundError):
            written = sum(path.stat().st_size for path in work.glob("copy-*/*"))
        return written >= size or bool(is_late())

    return reached


@pytest.mark.parametrize("rounds", [1, pytest.param(8, marks=pytest.mark.soak)])
def test_nothing_of_the_erased_is_left_by_killed_commands(
    rounds: int, shell: Shell, helper: Helper
) -> None:
    temporary, data = shell.folder / "temp", shell.data
    temporary.mkdir()
    (shell.folder / "other").mkdir()
    variables = environment(data, TMPDIR=str(temporary))
    remember(shell, "ada", "bob")
    assert shell.run("upgrade").returncode == 0  # makes the tables of features
    begin = time.monotonic()
    KilledCommand(
        helper, ("backup", f"{shell.folder}/whole.db"), shell.folder / "first", variables
    ).finish()
    duration = time.monotonic() - begin
    chance = random.Random(31)  # noqa: S311 - moments
    killed = 0
    for number in range(rounds):
        for name, pattern in COMMANDS.items():
            place = {"data": data, "folder": shell.folder, "number": f"{number}-{name[:3]}"}
            command = [part.format(**place) for part in pattern]
            size = chance.choice([1, 10_000, 200_000, 10**9])
            moment = has_written(data / FOLDER, size, chance.uniform(0.2, 1) * duration)
            folder = shell.folder / f"run-{number}-{name}"
            killed += KilledCommand(helper, command, folder, variables).kill_once(moment)
        for path in data.glob(
            "*-mov.db"
        ):  # A move that ended before the kill has made a complete database.
            path.unlink()
        if canary("ada").encode() not in (data / "ricordo.db").read_bytes():
            restore(
                shell.folder / "whole.db", Settings(data_dir=data), lambda *_: None, replace=True
            )
    assert killed >= rounds, "the commands ended before they could be killed"
    shutil.rmtree(shell.folder / "other")

    KilledCommand(helper, COMMANDS["erasure"], shell.folder / "last", variables).finish()

    assert in_files(data, canary("ada")) + in_files(temporary, canary("ada")) == []
    assert in_files(data, canary("bob")) != []
    assert [path.name for path in (data / FOLDER).iterdir()] == [".door"]
    left = [path.name for path in (*data.iterdir(), *temporary.iterdir())]
    assert [
        name for name in left if name.endswith(("-wal", "-shm", ".db.lock")) or "unfinished" in name
    ] == []
