"""Damaged backups are refused with an error.

Intact backups are accepted. A refusal does not change the database.
"""

import random
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ricordo.errors import Conflict, Invalid
from ricordo.features.operations.backups.service import back_up, restore
from ricordo.settings import Settings
from ricordo.storage.engine.seal import require_sound
from ricordo.storage.engine.sqlite import open_sqlite
from tests.features.operations.move.test_cli import fill

PAGE = 4096
SEAL = 121  # bytes of the last line
Damage = Callable[[bytes, bytes, random.Random], bytes]


def silent(*_: Any) -> None:
    """Ignore the progress."""


def flip_a_bit(data: bytes, _other: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << chance.randrange(8)]) + data[place + 1 :]


def change_a_word(data: bytes, _other: bytes, chance: random.Random) -> bytes:
    """Change a message, or another text of the rows."""
    places = [*re.finditer(rb"Jasmine|agent-|conv-|message-|local", data)]
    place = chance.choice(places)
    return data[: place.start()] + place[0].swapcase() + data[place.end() :]


def cut_the_end(data: bytes, _other: bytes, chance: random.Random) -> bytes:
    return data[
        : -chance.choice([1, 2, 64, SEAL, SEAL + 1, PAGE, PAGE + SEAL, chance.randrange(len(data))])
    ]


def cut_the_beginning(data: bytes, _other: bytes, chance: random.Random) -> bytes:
    return data[chance.choice([1, 16, 100, PAGE, chance.randrange(1, len(data))]) :]


def take_anothers_pages(data: bytes, other: bytes, chance: random.Random) -> bytes:
    """Replace the pages that differ from another backup by the pages of that backup."""
    count = min(len(data), len(other)) // PAGE
    differing = [
        at
        for at in range(count)
        if data[at * PAGE : (at + 1) * PAGE] != other[at * PAGE : (at + 1) * PAGE]
    ]
    first = chance.choice(differing)
    last = chance.choice([first + 1, count])
    return data[: first * PAGE] + other[first * PAGE : last * PAGE] + data[last * PAGE :]


def append(data: bytes, _other: bytes, chance: random.Random) -> bytes:
    return data + chance.randbytes(chance.choice([1, SEAL, PAGE]))


DAMAGES: tuple[Damage, ...] = (
    flip_a_bit,
    change_a_word,
    cut_the_end,
    cut_the_beginning,
    take_anothers_pages,
    append,
)


@pytest.fixture(scope="module")
def backups(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two backups of two databases."""
    folder = tmp_path_factory.mktemp("backups")
    paths = folder / "first.db", folder / "second.db"
    for path in paths:
        settings = Settings(data_dir=folder / path.stem)
        fill(settings.database_path)
        back_up(settings, path, silent)
    return paths


@pytest.mark.parametrize("rounds", [10, pytest.param(200, marks=pytest.mark.soak)])
def test_every_damage_is_refused_with_a_sentence(
    rounds: int, backups: tuple[Path, Path], tmp_path: Path
) -> None:
    data, other = (path.read_bytes() for path in backups)
    path = tmp_path / "damaged.db"
    for damage in DAMAGES:
        for number in range(rounds):
            chance = random.Random(number)  # noqa: S311 - a place
            path.write_bytes(damage(data, other, chance))
            with pytest.raises(
                Invalid,
                match=r"is not a sound backup: .+\. Copy it again .+, or take another one\.$",
            ):
                require_sound(path)


def test_restoring_a_damaged_backup_leaves_the_database_unchanged(
    backups: tuple[Path, Path], tmp_path: Path
) -> None:
    settings = Settings(data_dir=tmp_path / "data")
    fill(settings.database_path)
    before = settings.database_path.read_bytes()
    data, other = (path.read_bytes() for path in backups)
    bad = tmp_path / "bad.db"
    for damage in DAMAGES:
        bad.write_bytes(damage(data, other, random.Random(7)))  # noqa: S311 - a place
        with pytest.raises(Invalid, match="is not a sound backup"):
            restore(bad, settings, silent, replace=True)
        assert settings.database_path.read_bytes() == before


def test_a_truncated_backup_is_refused_with_the_missing_size(
    backups: tuple[Path, Path], tmp_path: Path
) -> None:
    cut = tmp_path / "cut.db"
    cut.write_bytes(backups[0].read_bytes()[: -SEAL - 3 * PAGE])
    with pytest.raises(Invalid, match="its end is cut off, at least 12,288 bytes"):
        require_sound(cut)


def test_a_complete_backup_can_be_restored_repeatedly_without_changes(
    backups: tuple[Path, Path], tmp_path: Path
) -> None:
    path = tmp_path / "copy #1?.db"
    shutil.copy(backups[0], path)
    path.chmod(0o400)
    for number in range(3):
        done = restore(path, Settings(data_dir=tmp_path / str(number)), silent)
        assert done.was_sealed
        assert path.read_bytes() == backups[0].read_bytes()
    again = tmp_path / "again.db"
    back_up(Settings(data_dir=tmp_path / "0"), again, silent)
    assert require_sound(again) == require_sound(path)


def test_a_backup_of_an_older_version_is_restored_as_unsealed(
    backups: tuple[Path, Path], tmp_path: Path
) -> None:
    older = tmp_path / "older.db"
    with closing(sqlite3.connect(backups[0])) as source, closing(sqlite3.connect(older)) as copy:
        source.backup(copy)
        copy.execute("DROP TABLE backup_hashes")
        copy.commit()
    assert require_sound(older) is None
    assert not restore(older, Settings(data_dir=tmp_path / "data"), silent).was_sealed


async def test_a_backup_that_was_used_as_a_database_can_be_restored(
    backups: tuple[Path, Path], tmp_path: Path
) -> None:
    """A copied backup that a server has used as its database can still be restored."""
    live = tmp_path / "data" / "ricordo.db"
    live.parent.mkdir()
    shutil.copy(backups[0], live)
    await open_sqlite(live).close()
    assert require_sound(live) is None
    assert not restore(live, Settings(data_dir=tmp_path / "other"), silent).was_sealed


def test_a_table_with_a_wrong_hash_stops_the_restore(
    backups: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes were correct when they were checked, and are read differently afterwards.

    A failing disk or memory does this.
    """
    hashes = {**(require_sound(backups[0]) or {}), "messages": "0" * 64}
    monkeypatch.setattr(
        "ricordo.features.operations.backups.service.require_sound", lambda _path: hashes
    )
    settings = Settings(data_dir=tmp_path / "data")
    with pytest.raises((Invalid, Conflict), match="differ from the backed up database: messages"):
        restore(backups[0], settings, silent)
    assert not settings.database_path.exists()
