"""The seal of a backup: hashes of its tables inside of it, and a hash of all its bytes as its last line.

SQLite itself notices only damage that breaks the structure of its pages; a changed letter in a text it takes as it is.
"""

import hashlib
import os
import re
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from ricordo.errors import Invalid, NotFound, Unavailable

# Also the sign that the file has to end with a seal. A server that is started on a backup deletes it.
TABLE = "backup_hashes"
UNSEALED = (
    "It has no hashes, as backups of older versions: its structure is sound, but a changed letter in a text would not be "
    "noticed. Make a new backup when you can."
)
_MAGIC = b"SQLite format 3\0"
_WORDS = b"\nRicordo backup. SHA-256 of all bytes before this line: "
_SEAL = re.compile(re.escape(_WORDS) + rb"([0-9a-f]{64})\n")
_LENGTH = len(_WORDS) + 65
_CHUNK = 1 << 20
_CREATE = (
    f"CREATE TABLE {TABLE} (name TEXT PRIMARY KEY, row_count INTEGER NOT NULL, hash TEXT NOT NULL)"
)


def write_hashes(path: Path, hashes: Mapping[str, str], rows: Mapping[str, int]) -> None:
    """Store the hashes of tables in a database that nobody else uses."""
    values = [(name, rows[name], value) for name, value in hashes.items()]
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"DROP TABLE IF EXISTS {TABLE}")
        connection.execute(_CREATE)
        connection.executemany(f"INSERT INTO {TABLE} VALUES (?, ?, ?)", values)  # noqa: S608 - our own name


def seal(path: Path) -> None:
    """Append the hash of a finished file, and have all of it on the disk. Raises Unavailable."""
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
    """Return the hashes of a whole backup's tables; None for one without a seal. Raises NotFound, Invalid."""
    if not path.is_file():
        raise NotFound(f"There is no file {path}.")
    try:
        digest = _sealed_digest(path)
        reason = _damage_with_seal(path, digest) if digest else _damage_without_seal(path)
        if digest and not reason:
            return _stored_hashes(path)
    except sqlite3.Error as error:
        reason = str(error)
    except OSError as error:
        reason = f"it cannot be read: {error.strerror}"
    if reason:
        advice = "Copy it again from where it was made, or take another one."
        raise Invalid(f"{path} is no sound backup: {reason[:300]}. {advice}")
    return None


def _sealed_digest(path: Path) -> str:
    """Return the hash in the last line; empty where there is no such line."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LENGTH))
        end = _SEAL.fullmatch(file.read())
    return end[1].decode() if end else ""


def _damage_with_seal(path: Path, digest: str) -> str:
    if _digest(path, path.stat().st_size - _LENGTH) == digest:
        return ""
    return (
        _damage_of_header(path)
        or "its bytes are not the ones that were written (its SHA-256 differs)"
    )


def _damage_without_seal(path: Path) -> str:
    if reason := _damage_of_header(path):
        return reason
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        if connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", [TABLE]).fetchone():
            return "its last line, which holds its hash, is cut off or changed, or something was added behind it"
        (found,) = connection.execute("PRAGMA integrity_check").fetchone()
    return "" if found == "ok" else str(found)


def _damage_of_header(path: Path) -> str:
    size = path.stat().st_size
    with path.open("rb") as file:
        header = file.read(100)
    if not size:
        return "the file is empty"
    if not header.startswith(_MAGIC):
        return "its beginning is cut off or changed, or it is a file of another kind"
    missing = _written_size(header) - size
    return f"its end is cut off, at least {missing:,} bytes" if missing > 0 else ""


def _stored_hashes(path: Path) -> dict[str, str]:
    # Immutable: nothing is written beside the file, or read from there.
    with closing(
        sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
    ) as connection:
        return dict(connection.execute(f"SELECT name, hash FROM {TABLE}"))  # noqa: S608 - our own name


def _written_size(header: bytes) -> int:
    """Return how many bytes the header says the pages take; 0 where it does not say it."""
    page = int.from_bytes(header[16:18], "big")
    is_valid = header[24:28] == header[92:96]
    return int.from_bytes(header[28:32], "big") * (65536 if page == 1 else page) if is_valid else 0


def _digest(path: Path, size: int) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while size > 0 and (chunk := file.read(min(size, _CHUNK))):
            digest.update(chunk)
            size -= len(chunk)
    return digest.hexdigest()
