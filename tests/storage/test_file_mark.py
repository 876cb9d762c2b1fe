"""A database is refused without its `-wal` file, or with the file of another database.

No other database is refused. If the files are removed, writes stop.
"""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from ricordo.errors import Unavailable
from ricordo.storage.engine.sqlite import SqliteStore, open_sqlite
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import organizations
from tests.seams import make

MISSING = "The last writes are missing"
ANOTHERS = "belongs to another database, or is damaged"
ORPHAN = "There is ricordo.db-wal in"
REFUSED = (MISSING, ANOTHERS, ORPHAN)
ALONE = "was copied while a server had it open"
GONE = "is missing, so a new one is created"
OLDER = "is older than the one that a server last used here"


def count(tx: Transaction) -> int:
    return len(tx.all(organizations.select()))


async def say(store: SqliteStore, text: str = "Jasmine tea.") -> None:
    state = await make.stored_agent(store)
    await make.stored_messages(store, make.message(state.agent, text))
    store._mark_later()
    await store.read(count)
    store._writers.submit(int).result()


@dataclass(frozen=True)
class Place:
    """A data folder of a killed server, and files of other servers to put into it."""

    data: Path
    others: Path

    @property
    def database(self) -> Path:
        return self.data / "ricordo.db"

    @property
    def log(self) -> Path:
        return self.data / "ricordo.db-wal"

    def take(self, name: str) -> None:
        shutil.copy(self.others / name, self.data / name.partition(".")[2])


async def lay_out(folder: Path) -> Place:
    """Return the folder of a killed server.

    The folder also has files of earlier moments (`early.…`) and of another server (`other.…`).
    """
    place = Place(folder / "data", folder / "others")
    other = await run_and_kill(folder / "another", place, "other")
    shutil.rmtree(other)
    store = open_sqlite(place.database)
    await say(store)
    await store.close()
    shutil.copy(place.database, place.others / "closed.ricordo.db")
    await run_and_kill(place.data, place, "early")
    return place


async def run_and_kill(data: Path, place: Place, name: str) -> Path:
    """Run a server, copy its files at one moment, and leave the folder as a later kill does."""
    store = open_sqlite(data / "ricordo.db")
    await say(store)
    for path in data.glob("ricordo.*"):  # noqa: ASYNC240 - of one moment
        shutil.copy(path, place.others / f"{name}.{path.name}")
    await say(store)
    shutil.copytree(data, data.with_name("killed"))
    await store.close()
    shutil.rmtree(data)
    data.with_name("killed").rename(data)
    return data


def delete_log(place: Place) -> None:
    place.log.unlink()


def empty_log(place: Place) -> None:
    place.log.write_bytes(b"")


def cut_log(place: Place) -> None:
    place.log.write_bytes(place.log.read_bytes()[: -4096 * 3])


def spoil_log(place: Place) -> None:
    place.log.write_bytes(b"x" * 100_000)


def copy_into_another_folder(place: Place, *names: str) -> None:
    """Replace the folder's files by these copies, which were elsewhere before."""
    kept = {name: (place.data / name).read_bytes() for name in names}
    mark = place.data / "ricordo.mark"
    moved = mark.read_bytes().replace(str(place.data).encode(), b"/another/folder")
    shutil.rmtree(place.data)
    place.data.mkdir()
    for name, content in kept.items():
        (place.data / name).write_bytes(moved if name == mark.name else content)


def open_with_a_tool(place: Place) -> None:
    with closing(sqlite3.connect(place.database)) as connection:
        connection.execute("SELECT count(*) FROM agents").fetchone()
    assert not place.log.exists()


def use_an_older_version(place: Place) -> None:
    with closing(sqlite3.connect(place.database)) as connection, connection:
        connection.execute("UPDATE agents SET name = 'Older'")


def put_back_a_restored_one(place: Place) -> None:
    place.log.unlink(missing_ok=True)
    with closing(sqlite3.connect(place.others / "closed.ricordo.db")) as connection:
        connection.execute("PRAGMA application_id = 0")
        connection.execute("PRAGMA user_version = 0")
        connection.execute("PRAGMA journal_mode = DELETE")
    place.take("closed.ricordo.db")


def delete_database(place: Place) -> None:
    place.database.unlink()


def empty_database(place: Place) -> None:
    place.database.write_bytes(b"")


def stop_well(place: Place) -> None:
    """Start the next server on the folder, and stop it normally."""
    open_sqlite(place.database)._close()


def both(*changes: Callable[[Place], None]) -> Callable[[Place], None]:
    def change(place: Place) -> None:
        for each in changes:
            each(place)

    return change


CASES: dict[str, tuple[Callable[[Place], None], str]] = {
    "killed, and all is there": (lambda _: None, ""),
    "killed, log deleted": (delete_log, MISSING),
    "killed, log emptied": (empty_log, MISSING),
    "killed, log cut": (cut_log, MISSING),
    "killed, log spoilt": (spoil_log, MISSING),
    "killed, log of an earlier moment": (lambda place: place.take("early.ricordo.db-wal"), MISSING),
    "killed, log of another server": (lambda place: place.take("other.ricordo.db-wal"), ANOTHERS),
    "killed, database of an earlier moment, log deleted": (
        both(lambda place: place.take("early.ricordo.db"), delete_log),
        MISSING,
    ),
    "killed, database of another server, own log": (
        lambda place: place.take("other.ricordo.db"),
        ANOTHERS,
    ),
    "killed, database deleted": (delete_database, ORPHAN),
    "killed, database emptied": (empty_database, ORPHAN),
    "killed, database and log deleted": (both(delete_database, delete_log), GONE),
    "killed, opened by a tool": (open_with_a_tool, ""),
    "killed, used by an older version": (use_an_older_version, ""),
    "killed, a restored database": (put_back_a_restored_one, ""),
    "killed, all but the log deleted, and the mark": (
        both(delete_log, lambda place: (place.data / "ricordo.mark").unlink()),
        ALONE,
    ),
    "killed, copied alone": (lambda place: copy_into_another_folder(place, "ricordo.db"), ALONE),
    "killed, copied with its log": (
        lambda place: copy_into_another_folder(place, "ricordo.db", "ricordo.db-wal"),
        "",
    ),
    "killed, copied with its mark, without its log": (
        lambda place: copy_into_another_folder(place, "ricordo.db", "ricordo.mark"),
        ALONE,
    ),
    "killed, the whole folder moved": (
        lambda place: copy_into_another_folder(
            place, "ricordo.db", "ricordo.db-wal", "ricordo.mark"
        ),
        "",
    ),
    "stopped": (stop_well, ""),
    "stopped, copied alone": (
        both(stop_well, lambda place: copy_into_another_folder(place, "ricordo.db")),
        "",
    ),
    "stopped, folder moved": (
        both(
            stop_well, lambda place: copy_into_another_folder(place, "ricordo.db", "ricordo.mark")
        ),
        "",
    ),
    "stopped, an older copy": (
        both(stop_well, lambda place: place.take("closed.ricordo.db")),
        OLDER,
    ),
    "stopped, a copy of a running moment": (
        both(stop_well, lambda place: place.take("early.ricordo.db")),
        OLDER,
    ),
    "stopped, database deleted": (both(stop_well, delete_database), GONE),
    "stopped, database of another": (
        both(stop_well, lambda place: place.take("closed.ricordo.db"), put_back_a_restored_one),
        "",
    ),
}


async def test_only_missing_writes_are_reported_at_a_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "first" / "others").mkdir(parents=True)
    laid_out = await lay_out(tmp_path / "first")
    for name, (change, says) in CASES.items():
        place = Place(tmp_path / "first" / "data", tmp_path / "others")
        shutil.copytree(laid_out.data, tmp_path / "kept", dirs_exist_ok=True)
        shutil.copytree(laid_out.others, place.others, dirs_exist_ok=True)
        caplog.clear()
        change(place)
        files = {
            path.name: path.read_bytes()
            for path in place.data.iterdir()
            if path.name in ("ricordo.db", "ricordo.db-wal")
        }
        try:
            store = open_sqlite(place.database)
        except Unavailable as error:
            said = f"!{error}"
            assert {path: (place.data / path).read_bytes() for path in files} == files, name
        else:
            await say(store, "Rum.")
            await store.close()
            said = " ".join(
                record.message for record in caplog.records if record.levelname == "ERROR"
            )
        assert says in said, (name, said)
        assert (bool(says), says in REFUSED) == (bool(said), said.startswith("!")), (name, said)
        shutil.rmtree(place.data)
        (tmp_path / "kept").rename(place.data)


@pytest.mark.parametrize("mark", ["as it was", "missing", "another's"])
async def test_a_kill_while_another_program_reads_the_database_is_not_reported(
    tmp_path: Path, mark: str
) -> None:
    """A reader prevents SQLite from writing the log back, so the file keeps its old identity."""
    database, seen = tmp_path / "ricordo.db", 0
    store = open_sqlite(database)
    await say(store)
    await store.close()
    if mark == "missing":
        (tmp_path / "ricordo.mark").unlink()
    elif mark == "another's":
        other = open_sqlite(tmp_path / "other" / "ricordo.db")
        await other.close()
        shutil.copy(tmp_path / "other" / "ricordo.mark", tmp_path / "ricordo.mark")
    with closing(
        sqlite3.connect(f"file:{database}?mode=ro", uri=True, isolation_level=None)
    ) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM messages").fetchone()
        for number in range(3):
            store = open_sqlite(database)
            await say(store, f"Tea {number}.")
            seen = await store.read(count)
            killed = tmp_path / f"killed-{number}"
            killed.mkdir()
            for name in ("ricordo.db", "ricordo.db-wal", "ricordo.mark", "secret.key"):
                if (tmp_path / name).exists():
                    shutil.copy(tmp_path / name, killed / name)
            await store.close()
    for number in range(3):
        again = open_sqlite(tmp_path / f"killed-{number}" / "ricordo.db")
        assert await again.read(count) == seen
        await again.close()
