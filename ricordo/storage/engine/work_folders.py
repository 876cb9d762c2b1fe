"""Work folders, in which files are made before they get their place: whose they are, and which ones nobody owns any more.

Each holds a file `.lock`, which its owner keeps locked; the system frees the lock when the owner is killed. All lie in
`ricordo.tmp` of a data folder, but for those that need another place (another file system, programs of another user): a note
there names these. So one sweep of the data folder finds what killed processes left anywhere. The lock `.door` is held while a
folder is made or swept.
"""

import logging
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex

from filelock import FileLock, Timeout

from ricordo.errors import Unavailable

log = logging.getLogger(__name__)
FOLDER = "ricordo.tmp"
# Of backups, restores and moves: what is in them is all that the database holds.
COPY = "copy"
SANDBOX = "sandbox"
PACKAGES = "packages"
_LOCK, _DOOR, _NOTE = ".lock", ".door", ".elsewhere"
_PATIENCE = 30.0  # seconds for another process that makes or sweeps a folder
_NAME = re.compile(r"[a-z]+-[0-9a-f]{8}")
_LEFT_IN_TEMP = re.compile(r"ricordo-sandbox-(?![0-9a-f]{8}$)\w+")
_ENDINGS = ("", "-wal", "-shm", "-journal")
_UNFINISHED = ".unfinished"


@dataclass(slots=True)
class Sweep:
    """Paths that a sweep removed, that belong to running processes, and that could not be removed."""

    removed: list[Path] = field(default_factory=list)
    copies_in_use: list[Path] = field(default_factory=list)
    failed: list[Path] = field(default_factory=list)


@dataclass(slots=True)
class WorkFolder:
    """A folder that is this process's own until it is closed."""

    path: Path
    _lock: FileLock
    _note: Path | None

    def close(self) -> None:
        """Remove the folder. What cannot be removed is left to the next sweep."""
        with suppress(OSError):
            remove_tree(self.path)
        self._lock.release()
        if self._note and not self.path.exists():
            self._note.unlink(missing_ok=True)


def open_work_folder(
    data_dir: Path, kind: str, *, place: Path | None = None, mode: int = 0o700
) -> WorkFolder:
    """Make a folder of one's own, in `place` where that is given. Raises Unavailable."""
    own, name = data_dir / FOLDER, f"{kind}-{token_hex(4)}"
    path = place / f"ricordo-{name}" if place else own / name
    note = None
    try:
        # A command that only looks, such as `doctor`, makes no data folder, and may not write into another user's.
        if place and not os.access(data_dir, os.W_OK):
            return WorkFolder(path, _make(path, mode), None)
        make_private_folder(own)
        with _door(own):
            if place:
                note = own / f"{name}{_NOTE}"
                note.write_text(str(path.absolute()), "utf-8")
            return WorkFolder(path, _make(path, mode), note)
    except OSError as error:
        raise Unavailable(
            f"The folder {path} cannot be made: {error.strerror}. Free disk space, or see who may write there."
        ) from error


@contextmanager
def file_for(data_dir: Path, target: Path) -> Iterator[Path]:
    """Yield where to make a file; at the end of the block it gets its place, whole, in one step. Raises Unavailable."""
    folder = open_work_folder(data_dir, COPY)
    try:
        if not _is_one_step(folder.path, target.parent):
            folder.close()
            folder = open_work_folder(data_dir, COPY, place=target.parent)
        part = folder.path / target.name
        yield part
        part.replace(target)
    finally:
        folder.close()
    flush_folder(target.parent)


def sweep(*data_dirs: Path) -> Sweep:
    """Remove what processes that are gone left in these data folders, in their `backups`, and where their notes point."""
    found = Sweep()
    for data_dir in dict.fromkeys(path.absolute() for path in data_dirs):
        if (data_dir / FOLDER).is_dir():
            _sweep_own(data_dir / FOLDER, found)
        _sweep_older(data_dir, found)
    for path in _entries(Path(tempfile.gettempdir())):
        if _LEFT_IN_TEMP.fullmatch(path.name) and path.lstat().st_uid == os.geteuid():
            _sweep_folder(path, found)
    if found.removed:
        log.info("removed what killed processes left", extra={"paths": len(found.removed)})
    for path in found.failed:
        log.warning("what a killed process left cannot be removed", extra={"path": str(path)})
    return found


def remove_database(path: Path) -> None:
    """Remove a database that nobody uses, after everything that lies beside it."""
    for ending in reversed(_ENDINGS):
        path.with_name(path.name + ending).unlink(missing_ok=True)
    path.with_suffix(".lock").unlink(missing_ok=True)


def is_unused(path: Path) -> bool:
    """Return whether no process holds the lock of this database."""
    lock = _lock_of(path.with_suffix(".lock"))
    try:
        lock.acquire()
    except (Timeout, OSError, NotImplementedError):
        return False
    lock.release()
    return True


def remove_tree(top: Path) -> None:
    """Remove a folder of any depth: subfolders are brought to the top first. Raises OSError."""
    while entries := list(top.iterdir()):
        for entry in entries:
            if not _is_folder(entry):
                entry.unlink()
                continue
            entry.chmod(0o700)
            for inner in list(entry.iterdir()):
                if _is_folder(inner):
                    inner.chmod(0o700)
                    inner.rename(top / token_hex(16))
                else:
                    inner.unlink()
            entry.rmdir()
    top.rmdir()


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def make_private_folder(folder: Path) -> None:
    """Make the folder, for its owner alone, where there is none. Raises Unavailable."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(
            f"The folder {folder} cannot be made: {error.strerror}. Choose another RICORDO_DATA_DIR."
        ) from error


def flush_folder(folder: Path) -> None:
    """Have the names of a folder on the disk, where the system can."""
    with suppress(OSError):
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


@contextmanager
def _door(own: Path) -> Iterator[None]:
    try:
        with FileLock(own / _DOOR, timeout=_PATIENCE, mode=0o600):
            yield
    except Timeout:
        raise Unavailable(f"{own} is in use by another process. Try again in a minute.") from None


def _make(path: Path, mode: int) -> FileLock:
    path.mkdir(0o700)
    path.chmod(mode)
    lock = _lock_of(path / _LOCK)
    lock.acquire()
    return lock


def _lock_of(path: Path) -> FileLock:
    # Not the thread's own: whoever closes a folder may be another thread.
    return FileLock(path, timeout=0, mode=0o600, thread_local=False)


def _is_one_step(folder: Path, target: Path) -> bool:
    """Whether a file can be renamed from one folder into the other; mounts of one file system cannot be told otherwise."""
    probe, there = folder / "probe", target / ".ricordo-probe"
    probe.touch(0o600)
    try:
        probe.replace(there)
    except OSError:
        return False
    there.unlink(missing_ok=True)
    return True


def _sweep_own(own: Path, found: Sweep) -> None:
    try:
        with _door(own):
            for path in _entries(own):
                if _NAME.fullmatch(path.name):
                    _sweep_folder(path, found)
                elif path.suffix == _NOTE:
                    _sweep_noted(path, found)
    except (OSError, Unavailable):
        found.failed.append(own)


def _sweep_noted(note: Path, found: Sweep) -> None:
    path = Path(note.read_text("utf-8"))
    if path.is_dir() and _NAME.fullmatch(path.name.removeprefix("ricordo-")):
        _sweep_folder(path, found)
    # A disk that is not there now may come back.
    if path.parent.is_dir() and not path.exists():
        note.unlink(missing_ok=True)


def _sweep_folder(path: Path, found: Sweep) -> None:
    """Remove the folder where nobody holds its lock."""
    lock = _lock_of(path / _LOCK)
    try:
        lock.acquire()
    except Timeout:
        if path.name.removeprefix("ricordo-").startswith(COPY):
            found.copies_in_use.append(path)
        return
    except (OSError, NotImplementedError):
        found.failed.append(path)
        return
    try:
        remove_tree(path)
        found.removed.append(path)
    except OSError:
        found.failed.append(path)
    finally:
        lock.release()


def _sweep_older(data_dir: Path, found: Sweep) -> None:
    """Remove what older versions left beside databases and backups."""
    backups = data_dir / "backups"
    for folder in (data_dir, backups):
        names = {path.name for path in _entries(folder)}
        bases = {name.partition(_UNFINISHED)[0] for name in names if _UNFINISHED in name}
        bases |= {name.removesuffix(".lock") for name in names if name.endswith(".db.lock")}
        for base in sorted(bases):
            unfinished = [f"{base}{_UNFINISHED}{ending}" for ending in _ENDINGS]
            _sweep_files(folder, base, [name for name in unfinished if name in names], found)
    whole = {path.name for path in _entries(backups)}
    for name in sorted(whole):
        base, dash, ending = name.rpartition("-")
        if f"{dash}{ending}" in _ENDINGS[1:] and base not in whole:
            _remove_file(backups / name, found)
    for path in _entries(data_dir / "environments"):
        if path.suffix == ".building":
            _sweep_folder(path, found)


def _sweep_files(folder: Path, base: str, names: list[str], found: Sweep) -> None:
    """Remove files of an older version's copy where nobody holds the copy's lock, and that lock."""
    lock = _lock_of(folder / f"{base}.lock")
    try:
        lock.acquire()
    except Timeout:
        found.copies_in_use += [folder / name for name in names]
        return
    except (OSError, NotImplementedError):
        found.failed += [folder / name for name in names]
        return
    try:
        for name in names:
            _remove_file(folder / name, found)
        _remove_file(folder / f"{base}.lock", found)
    finally:
        lock.release()


def _remove_file(path: Path, found: Sweep) -> None:
    try:
        path.unlink()
        found.removed.append(path)
    except FileNotFoundError:
        return
    except OSError:
        found.failed.append(path)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
