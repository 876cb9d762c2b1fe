"""The seal of a backup: hashes of its tables, and a hash of the file as its last line.

SQLite itself notices damage to the structure of its pages, but not a changed letter in a text.
A dump of PostgreSQL has only the last line; `pg_restore` reads by the dump's table of contents and
ignores the line.
"""

import hashlib
import os
import re
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from ricordo.errors import Invalid, NotFound, Unavailable

# The table also shows that the file must end with a seal. A server that starts on a backup deletes
# this table.
TABLE = "backup_hashes"
UNSEALED = (
    "It has no hashes, like all backups of older versions. Its structure is sound, but a changed "
    "letter in a text would not be noticed. Make a new backup when you can."
)
_MAGIC = b"SQLite format 3\0"
_WORDS = b"\nRicordo backup. SHA-256 of all bytes before this line: "
_SEAL = re.compile(re.escape(_WORDS) + rb"([0-9a-f]{64})\n")
_LENGTH = len(_WORDS) + 65
_CHUNK = 1 << 20
_ADVICE = "Copy it again from where it was made, or take another one."
_CREATE = (
    f"CREATE TABLE {TABLE} (name TEXT PRIMARY KEY, row_count INTEGER NOT NULL, hash TEXT NOT NULL)"
)


def write_hashes(path: Path, hashes: Mapping[str, str], rows: Mapping[str, int]) -> None:
    """Store the hashes of tables in a database that no other process uses.

    Args:
        path: The SQLite file of the backup, which is not sealed yet.
        hashes: The hash of each table by its name. Older hashes are replaced.
        rows: The number of rows of each of these tables.
    """
    records = [(name, rows[name], digest) for name, digest in hashes.items()]
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"DROP TABLE IF EXISTS {TABLE}")
        connection.execute(_CREATE)
        connection.executemany(f"INSERT INTO {TABLE} VALUES (?, ?, ?)", records)  # noqa: S608 - our own name


def seal(path: Path) -> None:
    """Append a finished file's hash, and flush all of it to the disk. Raises Unavailable."""
    try:
        digest = _digest(path, path.stat().st_size)
        with path.open("ab") as file:
            file.write(_WORDS + digest.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise Unavailable(
            f"{path} cannot be written: {error.strerror}. Free disk space, then repeat."
        ) from error


def require_sound(path: Path) -> Mapping[str, str] | None:
    """Return the hashes of a sound backup's tables; None for one without a seal.

    Raises NotFound, Invalid.
    """
    if not path.is_file():
        raise NotFound(f"There is no file {path}.")
    try:
        digest = _sealed_digest(path)
        if digest:
            reason = _damage_with_seal(path, digest)
        else:
            reason = _damage_without_seal(path)
        if digest and not reason:
            return _stored_hashes(path)
    except sqlite3.Error as error:
        reason = str(error)
    except OSError as error:
        reason = f"it cannot be read: {error.strerror}"
    if reason:
        raise Invalid(f"{path} is not a sound backup: {reason[:300]}. {_ADVICE}")
    return None


def require_sound_dump(path: Path) -> bool:
    """Return True if a dump of PostgreSQL has all its bytes; False for one without a seal.

    Raises:
        Invalid: Its bytes were changed.
        Unavailable: It cannot be read.
    """
    try:
        digest = _sealed_digest(path)
        has_all = digest == _digest(path, path.stat().st_size - _LENGTH) if digest else True
    except OSError as error:
        raise Unavailable(f"{path} cannot be read: {error.strerror}.") from error
    if not has_all:
        raise Invalid(
            f"{path} is not a sound backup: its bytes were changed (its SHA-256 differs). {_ADVICE}"
        )
    return bool(digest)


def _sealed_digest(path: Path) -> str:
    """Return the hash in the last line; "" if there is none."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LENGTH))
        end = _SEAL.fullmatch(file.read())
    return end[1].decode() if end else ""


def _damage_with_seal(path: Path, digest: str) -> str:
    if _digest(path, path.stat().st_size - _LENGTH) == digest:
        return ""
    return _damage_of_header(path) or "its bytes were changed (its SHA-256 differs)"


def _damage_without_seal(path: Path) -> str:
    if reason := _damage_of_header(path):
        return reason
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        if connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", [TABLE]).fetchone():
            return (
                "its last line, which holds its hash, is cut off or changed, or something was "
                "added after it"
            )
        (report,) = connection.execute("PRAGMA integrity_check").fetchone()
    return "" if report == "ok" else str(report)


def _damage_of_header(path: Path) -> str:
    size = path.stat().st_size
    with path.open("rb") as file:
        header = file.read(100)
    if not size:
        return "the file is empty"
    if not header.startswith(_MAGIC):
        return "its beginning is cut off or changed, or it is a file of another kind"
    missing = _written_size(header) - size
    if missing > 0:
        return f"its end is cut off, at least {missing:,} bytes"
    return ""


def _stored_hashes(path: Path) -> dict[str, str]:
    # Open the file as immutable, so that SQLite uses no other file for it.
    with closing(
        sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
    ) as connection:
        return dict(connection.execute(f"SELECT name, hash FROM {TABLE}"))  # noqa: S608 - our own name


def _written_size(header: bytes) -> int:
    """Return the bytes of all pages according to the header; 0 if it gives none."""
    if header[24:28] != header[92:96]:
        return 0
    page_size = int.from_bytes(header[16:18], "big")
    return int.from_bytes(header[28:32], "big") * (65536 if page_size == 1 else page_size)


def _digest(path: Path, size: int) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while size > 0 and (chunk := file.read(min(size, _CHUNK))):
            digest.update(chunk)
            size -= len(chunk)
    return digest.hexdigest()
