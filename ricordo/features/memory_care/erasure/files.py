"""A user's files in the data folder: clones, remotes, backups and other databases."""

import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ricordo.domain.clock import SECOND
from ricordo.errors import Unavailable
from ricordo.features.memory_care.erasure.receipts import Erasure
from ricordo.storage.chain_files import OWNER_FILE, delete_chain_files
from ricordo.storage.engine.work_folders import Sweep, is_unused, remove_database
from ricordo.storage.scrub import holds, is_half_copied

BACKUPS = "backups"
REMOTES = "remotes"
# Files next to a database: doltlite's lock, the mark of its owner, and SQLite's files.
_BESIDE = (".{}-lock", ".{}-owner", "{}-journal", "{}-wal", "{}-shm")
_ALWAYS = (
    "Clones, agent files, exports and backups outside of this data folder. Ricordo cannot delete "
    "them.",
    "Data that model providers store from the requests that they received.",
    "Statements of other people about the user, and the agents' own blocks, because removing a "
    "version would change the ids of all later ones. `agents` counts the versions in those "
    "blocks that came from the user's turns.",
)


def erase_files(
    data_dir: Path, database: Path | None, erasure: Erasure, others: Sequence[str] = ()
) -> Erasure:
    """Remove repositories, remotes and backups that contain the user's data.

    Args:
        data_dir: The data folder.
        database: The path of the SQLite database in use; None with PostgreSQL.
        erasure: The state, with the user's chains and remotes. It is not changed.
        others: The addresses of remotes that still belong to other memories.

    Returns:
        A copy of the erasure, with the results added.

    Raises:
        Unavailable: if a file cannot be removed.
    """
    updated = erasure.model_copy(deep=True)
    updated.note_elsewhere(_ALWAYS)
    try:
        for chain_id in erasure.chains:
            updated.files.update(
                {
                    _name(path, data_dir): "removed"
                    for path in delete_chain_files(data_dir, chain_id)
                }
            )
        _remove_remotes(data_dir, erasure, others, updated)
        backups, unread = find_backups(data_dir, database)
        updated.note_elsewhere(unread)
        for path in backups:
            # Files of other kinds, such as dumps, cannot be read, so only their age decides.
            is_theirs = None
            reason = "since it held the user's data"
            if path.suffix == ".db":
                is_theirs = holds(path, erasure.user_id)
            if is_theirs is None:
                reason = "since it may have held the user's data"
                is_theirs = (
                    erasure.began_at is None or path.stat().st_mtime * SECOND >= erasure.began_at
                )
            if is_theirs:
                remove_database(path)
                updated.files[_name(path, data_dir)] = f"removed, {reason}"
        for path in sorted(data_dir.glob("*.db")):
            if path == database or not holds(path, erasure.user_id):
                continue
            if is_half_copied(path) and is_unused(path):
                remove_database(path)
                updated.files[_name(path, data_dir)] = (
                    "removed, since it was an unfinished copy with the user's data"
                )
            else:
                updated.elsewhere.append(
                    f"{path.name} in the data folder is another database with the user's data. "
                    "Forget the user there too, with RICORDO_DATABASE_URL set to it, or remove "
                    "the file."
                )
    except OSError as error:
        raise Unavailable(
            f"{error.filename or data_dir} cannot be removed: {error.strerror}. Check the folder."
        ) from error
    return updated


def find_backups(data_dir: Path, database: Path | None) -> tuple[list[Path], list[str]]:
    """Return the backups of a server, and a sentence for each folder that cannot be read.

    Args:
        data_dir: The data folder. Unread folders in it are named without its path.
        database: The path of the SQLite database in use; None with PostgreSQL.
    """
    backups: list[Path] = []
    sentences: list[str] = []
    for folder in sorted({data_dir / BACKUPS, *([database.parent / BACKUPS] if database else [])}):
        files, unread = _files_below(folder, data_dir)
        backups += [
            path
            for path in files
            if path.is_file() and not path.name.endswith(("-wal", "-shm", "-journal", ".lock"))
        ]
        sentences += unread
    return backups, sentences


def note_sweep(erasure: Erasure, swept: Sweep, data_dir: Path) -> None:
    """Record the files that a sweep removed, and those that it could not remove.

    Args:
        erasure: The state, which is changed.
        swept: The result of the sweep for files of killed processes.
        data_dir: The data folder, which is cut from the names of files.
    """
    erasure.files.update(
        {
            _name(path, data_dir): "removed, since it remained from a killed process"
            for path in swept.removed
        }
    )
    erasure.note_elsewhere(
        f"{path} was left by a killed process and cannot be removed. It may hold the user's data: "
        "delete it."
        for path in swept.failed
    )


def without_password(address: str) -> str:
    """Return the address without the name and the password in it.

    Args:
        address: The address of a remote or of a database, or a path.
    """
    scheme, slashes, rest = address.partition("://")
    host, slash, path = rest.partition("/")
    if not slashes:
        return address
    return f"{scheme}{slashes}{host.rpartition('@')[2]}{slash}{path}"


def _is_used(path: Path, used_paths: Iterable[Path]) -> bool:
    """Return whether one of the paths is this path, is inside it, or contains it."""
    return any(other in (path, *path.parents) or path in other.parents for other in used_paths)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _count_unused(remotes_folder: Path, used_paths: Sequence[Path]) -> int:
    """Count the folder's entries that are not empty and belong to no memory."""
    if not remotes_folder.is_dir():
        return 0
    unused = [
        path
        for path in remotes_folder.iterdir()
        if not any(path in (other, *other.parents) for other in used_paths)
    ]
    files_of_each = (path.rglob("*") if path.is_dir() else [path] for path in unused)
    return sum(
        any(file.is_file() and file.stat().st_size for file in files) for files in files_of_each
    )


def _remove_remotes(
    data_dir: Path, erasure: Erasure, others: Sequence[str], updated: Erasure
) -> None:
    """Remove the user's remotes in the data folder's folder of remotes.

    The receipt names remotes outside of this folder, and remotes that others use too.
    """
    remotes_folder = (data_dir / REMOTES).resolve()
    used_paths = [path for path in map(_path_at, others) if path]
    for address, kind in sorted(erasure.remotes.items()):
        path = _path_at(address)
        if path is None or remotes_folder not in path.parents:
            updated.elsewhere.append(f"The memory's {kind} remote at {address} keeps a copy.")
        elif _is_used(path, used_paths):
            updated.elsewhere.append(
                f"The memory's {kind} remote at {address} belongs to others too, so it was not "
                "removed. It keeps a copy: remove it, or the user's part of it."
            )
        else:
            side_files = [path.with_name(pattern.format(path.name)) for pattern in _BESIDE]
            for file in filter(Path.exists, (path, *side_files)):
                _remove(file)
                updated.files[_name(file, remotes_folder.parent)] = "removed"
    # A repository still names its owner, even if the remote was removed earlier.
    files, unread = _files_below(remotes_folder, data_dir)
    updated.note_elsewhere(unread)
    for marker in [file for file in files if file.name == OWNER_FILE]:
        path = marker.parent
        owner = marker.read_text("utf-8", "replace").strip()
        if owner in erasure.chains and not _is_used(path, used_paths):
            shutil.rmtree(path)
            updated.files[_name(path, remotes_folder.parent)] = "removed"
    if count := _count_unused(remotes_folder, used_paths):
        updated.elsewhere.append(
            f"Entries of {REMOTES} in the data folder that are no longer the remote of a memory: "
            f"{count}. If one was a remote of the user's memory that was removed before, it still "
            "has a copy: delete it."
        )


def _path_at(address: str) -> Path | None:
    """Return the local path of an address, with links resolved; None for others."""
    try:
        parts = urlsplit(address)
        if parts.netloc or not parts.path.startswith("/"):
            return None
        # An address such as doltlite:///a%20b.db has encoded characters; a plain path has none.
        return Path(unquote(parts.path) if parts.scheme else address).resolve()
    except (OSError, RuntimeError, ValueError):
        return None


def _files_below(folder: Path, data_dir: Path) -> tuple[list[Path], list[str]]:
    """Return the sorted files below a folder, and sentences that name unreadable folders.

    `rglob` would leave these folders out without a word.
    """
    unread: list[str] = []

    def note(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            name = _name(Path(error.filename or folder), data_dir)
            unread.append(
                f"The folder {name} cannot be read ({error.strerror}), so it was not searched. "
                "It may hold what was to be removed: delete that."
            )

    files = sorted(
        Path(parent) / name for parent, _, names in os.walk(folder, onerror=note) for name in names
    )
    return files, unread


def _name(path: Path, data_dir: Path) -> str:
    if path.is_relative_to(data_dir):
        return str(path.relative_to(data_dir))
    return str(path)
