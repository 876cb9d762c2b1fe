"""Detection of SQLite databases that lost their newest writes with their `-wal` file.

SQLite reports no error if it opens a database without its `-wal`, or with another database's. So a
server leaves two marks:

- In the database's header: an identity (`application_id`), and the number and phase of its session
  (`user_version`). The phase "opening" is written to the file itself. The first write to `-wal`
  sets the phase "live". So a file in the phase "opening" without a `-wal` has lost its `-wal`. When
  SQLite writes `-wal` back into the file, the file gets the phase "live" too.
- In a mark file next to the database: the highest row numbers assigned. It is at most a second
  older than the database. It can be newer only after a restart of the machine.
"""

import ctypes
import os
import secrets
import sqlite3
from collections.abc import Collection
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from ricordo.errors import DatabaseFailed, Unavailable
from ricordo.storage.engine.failures import has_no_space

CLOSED = 0
OPENING = 1
LIVE = 2
_PHASES = 4
_MAGIC = b"SQLite format 3\0"
_LOG_HEADER = 32  # bytes; a log that is not longer holds no writes
_SEQUENCES = "SELECT coalesce(sum(seq), 0) FROM sqlite_sequence"
_HOW = "Copy a database with `ricordo backup`, or stop the server first."


@dataclass(frozen=True, slots=True)
class DatabaseMark:
    """The content of the mark file, about the last server that used the database.

    Attributes:
        identity: The identity of the database (`application_id`).
        session: The number of the server's session.
        phase: The phase of the session.
        numbers: The sum of the highest row numbers that were assigned.
        path: The absolute path of the database.
        boot: An id of the machine's boot in which the mark was written.
        former: The previous identity after a change of identity, or 0. The file has it until `-wal`
            is written back.
    """

    identity: int
    session: int
    phase: int
    numbers: int
    path: str
    boot: str
    former: int = 0

    @property
    def identities(self) -> tuple[int, int]:
        """Both identities that the database may have."""
        return self.identity, self.former


@dataclass(frozen=True, slots=True)
class _Signs:
    """The values of a mark, as they are in the database."""

    identity: int
    session: int
    phase: int
    numbers: int


def mark_path(path: Path) -> Path:
    """Return the path of the mark file of a database.

    Args:
        path: The database's file.
    """
    return path.with_suffix(".mark")


def look_for_absent(path: Path) -> str:
    """Return a sentence if a database was here and is missing now, else "".

    Args:
        path: The database's file. Its `-wal` and its mark are looked for next to it.

    Raises:
        Unavailable: The database is missing, but its `-wal` is still here.
    """
    if path.exists() and path.stat().st_size:
        return ""
    if _has_log(path):
        raise Unavailable(
            f"There is {path.name}-wal in {path.parent}, with writes of a database, but "
            f"{path.name} is missing. Put the database back into the folder, or move the -wal file "
            "away if you want a new database."
        )
    if read_mark(path) is None:
        return ""
    return (
        f"The database {path} that was used here is missing, so a new one is created. If you did "
        "not remove it, stop the server and put it back with its -wal file."
    )


def _mark_of(identity: int, mark: DatabaseMark | None, path: Path) -> DatabaseMark | None:
    """Return the mark if it belongs to the database with this identity."""
    if mark is None or identity not in mark.identities:
        return None
    if mark.former and identity == mark.identity:
        # The log with the new identity was written back, so no log has the former identity any
        # more.
        mark = replace(mark, former=0)
        _save(mark, path)
    return mark


def find_missing_writes(path: Path) -> str:
    """Return a sentence if writes may be missing, else "".

    Neither this nor another process may use the database meanwhile: closing the file here would
    release its locks.

    Args:
        path: The database's file.

    Raises:
        Unavailable: Writes are missing, or `-wal` belongs to another database.
        DatabaseFailed: The disk is full, so the last writes cannot be read.
    """
    any_mark = read_mark(path)
    file_signs = _signs_in_file(path)
    if file_signs is None or not file_signs.identity:
        return ""
    has_log = _has_log(path)
    mark = _mark_of(file_signs.identity, any_mark, path)
    if has_log:
        signs = _signs_with_log(path, mark.identities if mark else (file_signs.identity,))
    else:
        signs = file_signs
    if mark is None:
        if not has_log and file_signs.phase != CLOSED:
            return _copied_alone(path)
        return ""
    if signs.session < mark.session:
        return (
            f"The database {path} is older than the one that a server last used here. If you did "
            "not put it there on purpose, look for the newer one and its -wal file."
        )
    is_behind = signs.numbers < mark.numbers or (signs.phase == OPENING and mark.phase == LIVE)
    if signs.session != mark.session or mark.boot != _boot() or not is_behind:
        return ""
    if mark.path != str(path.absolute()):
        return _copied_alone(path)
    raise Unavailable(
        f"The last writes are missing from the database {path}: its file {path.name}-wal is "
        "missing or too old. Put the right one back, or restore a backup. To continue without "
        f"these writes, delete {mark_path(path)}."
    )


def begin(connection: sqlite3.Connection, path: Path) -> None:
    """Note in the database that a session is opening.

    Args:
        connection: A connection to the database.
        path: The database's file. If it is a copy at another path, or has no identity or no mark
            yet, it gets a new identity.
    """
    (identity,) = connection.execute("PRAGMA application_id").fetchone()
    mark = read_mark(path)
    # A copy at another path becomes a separate database, with a new identity.
    if (
        not identity
        or mark is None
        or (mark.identity, mark.path) != (identity, str(path.absolute()))
    ):
        new_identity = secrets.randbelow(2**31 - 2) + 1
        # Write the mark first. It holds both identities, so a kill before the next write, or before
        # `-wal` is written back, is safe.
        write_mark(connection, path, identity=new_identity, former=identity)
        connection.execute(f"PRAGMA application_id = {new_identity}")
    session, _ = _session(connection)
    connection.execute(f"PRAGMA user_version = {(session + 1) * _PHASES + OPENING}")


def enter(connection: sqlite3.Connection, phase: int) -> None:
    """Note in the database the phase of its session.

    Args:
        connection: A connection to the database.
        phase: `OPENING`, `LIVE` or `CLOSED`.
    """
    session, _ = _session(connection)
    connection.execute(f"PRAGMA user_version = {session * _PHASES + phase}")


def write_mark(
    connection: sqlite3.Connection, path: Path, *, identity: int | None = None, former: int = 0
) -> None:
    """Write the mark file from the database.

    On a full disk the old mark stays, which may be older than the database.

    Args:
        connection: A connection to the database.
        path: The database's file; the mark is next to it.
        identity: The identity that the database will get next; None: it keeps its identity.
        former: The identity that it has until then. It is only used with `identity`.
    """
    session, phase = _session(connection)
    if identity is None:
        (identity,) = connection.execute("PRAGMA application_id").fetchone()
        mark = read_mark(path)
        if mark and mark.identity == identity:
            former = mark.former
        else:
            former = 0
    (numbers,) = connection.execute(_SEQUENCES).fetchone()
    _save(
        DatabaseMark(identity, session, phase, numbers, str(path.absolute()), _boot(), former), path
    )


def _save(mark: DatabaseMark, path: Path) -> None:
    target = mark_path(path)
    draft = target.with_name(f"{target.name}.new")
    with suppress(OSError):
        draft.touch(mode=0o600)
        draft.write_bytes(orjson.dumps(asdict(mark)))
        draft.replace(target)


def read_mark(path: Path) -> DatabaseMark | None:
    """Return the content of the mark file; None if it is missing or unreadable.

    Args:
        path: The database's file; the mark is next to it.
    """
    try:
        return DatabaseMark(**orjson.loads(mark_path(path).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


class OpenFiles:
    """The files of an open database, to notice if they are moved or replaced."""

    def __init__(self, path: Path) -> None:
        self._path = path
        names = (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm"))
        # Keep them open until SQLite has closed its files, since closing one here releases SQLite's
        # locks.
        self._files = [(str(name), os.open(name, os.O_RDONLY)) for name in names if name.exists()]

    @property
    def are_in_place(self) -> bool:
        """True if the names still lead to the open files.

        It compares device and inode numbers.
        """
        try:
            return all(
                os.path.samestat(os.fstat(file), os.stat(name))  # noqa: PTH116
                for name, file in self._files
            )
        except OSError:
            return False

    def moved(self) -> Unavailable:
        """Return the error of a write that would be lost."""
        return Unavailable(
            f"{self._path.name}, its -wal or its -shm file was renamed, replaced or removed while "
            "this server was using it, so the server has stopped writing. Stop the server, put "
            "the files back, then start it."
        )

    def close(self) -> None:
        for _, file in self._files:
            os.close(file)
        self._files = []


def abandon(connection: Any) -> None:
    """Keep a connection from ever being closed.

    SQLite would delete the `-wal` file by name on closing, and that file may now be another
    database's.

    Args:
        connection: SQLite's connection, whose files were moved or replaced.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def _copied_alone(path: Path) -> str:
    return (
        f"The database {path} was copied while a server had it open. If its file {path.name}-wal "
        f"was not copied with it, the last writes are missing here. {_HOW}"
    )


def _has_log(path: Path) -> bool:
    try:
        return path.with_name(f"{path.name}-wal").stat().st_size > _LOG_HEADER
    except OSError:
        return False


def _signs_in_file(path: Path) -> _Signs | None:
    """Return the signs in the file itself, without its log; None if it cannot be read."""
    with path.open("rb") as file:
        if not file.read(len(_MAGIC)).startswith(_MAGIC):
            return None
    with suppress(sqlite3.Error):
        return _signs_at(f"{path.absolute().as_uri()}?mode=ro&immutable=1")
    return None


def _signs_with_log(path: Path, identities: Collection[int]) -> _Signs:
    """Return the signs of the database with its log.

    Raises:
        Unavailable: The log has none of these identities, so it belongs to another database; or it
            cannot be read.
        DatabaseFailed: The disk is full, so the log cannot be read.
    """
    signs = None
    with suppress(sqlite3.Error):
        signs = _signs_at(f"{path.absolute().as_uri()}?mode=ro")
    # SQLite builds an index to read the log, and a full disk has no room for it.
    if signs is None and has_no_space(path):
        raise DatabaseFailed(
            f"The disk is full, so the last writes of {path} cannot be read. Nothing was changed. "
            "Free some space, then start again.",
            "full",
        )
    if signs is None or signs.identity not in identities:
        raise Unavailable(
            f"{path.name}-wal in {path.parent} belongs to another database, or is damaged. It was "
            f"not used, because it would damage {path.name}. Replace it with the right one; or "
            "move it away and lose the last writes."
        )
    return signs


def _signs_at(uri: str) -> _Signs:
    with closing(sqlite3.connect(uri, uri=True)) as connection:
        (identity,) = connection.execute("PRAGMA application_id").fetchone()
        (numbers,) = connection.execute(_SEQUENCES).fetchone()
        return _Signs(identity, *_session(connection), numbers)


def _session(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return the number of the session and its phase."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    session, phase = divmod(int(version), _PHASES)
    return session, phase


@cache
def _boot() -> str:
    """Return an id of the current boot of the machine, or a random one for this process."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return secrets.token_hex(8)
