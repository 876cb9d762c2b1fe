"""Work folders: files are made in them and then moved to their final path.

Each holds a file `.lock`, which its owner keeps locked; the system frees the lock if the owner is
killed. The folders are in `ricordo.tmp` of a data folder. Some need another location (another file
system, programs of another user); a note in `ricordo.tmp` names these. So one sweep of the data
folder finds the remains of killed processes everywhere. A process holds the lock `.door` while it
makes or sweeps a folder.
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
# The kind of folders in which backups, restores and moves hold the whole content of the database.
COPY = "copy"
SANDBOX = "sandbox"
PACKAGES = "packages"
_LOCK = ".lock"
_DOOR = ".door"
_NOTE = ".elsewhere"
_PATIENCE = 30.0  # seconds to wait for another process that makes or sweeps a folder
_NAME = re.compile(r"[a-z]+-[0-9a-f]{8}")
_IN_SYSTEM_TEMP = re.compile(r"ricordo-sandbox-(?![0-9a-f]{8}$)\w+")
_ENDINGS = ("", "-wal", "-shm", "-journal")
_UNFINISHED = ".unfinished"


@dataclass(slots=True)
class Sweep:
    """The paths that a sweep removed, found in use, or failed to remove.

    Locked folders belong to running processes.
    """

    removed: list[Path] = field(default_factory=list)
    copies_in_use: list[Path] = field(default_factory=list)
    failed: list[Path] = field(default_factory=list)


@dataclass(slots=True)
class WorkFolder:
    """A folder that belongs to this process until it is closed."""

    path: Path
    _lock: FileLock
    _note: Path | None

    def close(self) -> None:
        """Remove the folder. The next sweep removes the rest after a failure."""
        with suppress(OSError):
            remove_tree(self.path)
        self._lock.release()
        if self._note and not self.path.exists():
            self._note.unlink(missing_ok=True)


def open_work_folder(
    data_dir: Path, kind: str, *, location: Path | None = None, mode: int = 0o700
) -> WorkFolder:
    """Make a work folder.

    Args:
        data_dir: The data folder whose sweep finds the work folder after a kill.
        kind: The beginning of its name, such as `COPY`, in lower-case letters.
        location: The folder in which it is made, if another file system or user needs it. None: the
            folder `ricordo.tmp` of the data folder.
        mode: The permissions of the folder.

    Raises:
        Unavailable: The folder cannot be made, or another process holds the lock too long.
    """
    parent = data_dir / FOLDER
    name = f"{kind}-{token_hex(4)}"
    if location:
        path = location / f"ricordo-{name}"
    else:
        path = parent / name
    note = None
    try:
        # A command that only reads, such as `doctor`, makes no data folder. It may have no right to
        # write into another user's folder.
        if location and not os.access(data_dir, os.W_OK):
            return WorkFolder(path, _make(path, mode), None)
        make_private_folder(parent)
        with _door(parent):
            if location:
                note = parent / f"{name}{_NOTE}"
                note.write_text(str(path.absolute()), "utf-8")
            return WorkFolder(path, _make(path, mode), note)
    except OSError as error:
        raise Unavailable(
            f"The folder {path} cannot be made: {error.strerror}. Free disk space, or check the "
            "permissions of the folder above it."
        ) from error


@contextmanager
def file_for(data_dir: Path, target: Path) -> Iterator[Path]:
    """Yield a path for a new file, which is moved to its target at the end of the block.

    The file appears there whole, in one step. After an error in the block the target is unchanged.

    Args:
        data_dir: The data folder whose sweep finds the remains after a kill.
        target: The final path, in an existing folder.

    Raises:
        Unavailable: No work folder can be made.
    """
    folder = open_work_folder(data_dir, COPY)
    try:
        if not _is_one_step(folder.path, target.parent):
            folder.close()
            folder = open_work_folder(data_dir, COPY, location=target.parent)
        part = folder.path / target.name
        yield part
        part.replace(target)
    finally:
        folder.close()
    flush_folder(target.parent)


def sweep(*data_dirs: Path) -> Sweep:
    """Remove the remains of killed processes.

    They are in these data folders, in their `backups` and `environments`, in the folders that notes
    name, and in the system's folder of temporary files.
    """
    report = Sweep()
    for data_dir in dict.fromkeys(path.absolute() for path in data_dirs):
        if (data_dir / FOLDER).is_dir():
            _sweep_own(data_dir / FOLDER, report)
        _sweep_older(data_dir, report)
    for path in _entries(Path(tempfile.gettempdir())):
        if _IN_SYSTEM_TEMP.fullmatch(path.name) and path.lstat().st_uid == os.geteuid():
            _sweep_folder(path, report)
    if report.removed:
        log.info("removed the remains of killed processes", extra={"paths": len(report.removed)})
    for path in report.failed:
        log.warning("the remains of a killed process cannot be removed", extra={"path": str(path)})
    return report


def remove_database(path: Path) -> None:
    """Remove an unused database, its other files first.

    Args:
        path: The SQLite file. Its `-wal`, `-shm`, `-journal` and `.lock` are removed too; missing
            files are ignored.
    """
    for ending in reversed(_ENDINGS):
        path.with_name(path.name + ending).unlink(missing_ok=True)
    path.with_suffix(".lock").unlink(missing_ok=True)


def is_unused(path: Path) -> bool:
    """Return True if no process holds the lock of this database.

    The lock file is created if it is missing.

    Args:
        path: The SQLite file, next to which the lock is.
    """
    lock = _lock_of(path.with_suffix(".lock"))
    try:
        lock.acquire()
    except (Timeout, OSError, NotImplementedError):
        return False
    lock.release()
    return True


def remove_tree(top: Path) -> None:
    """Remove a folder of any depth.

    Subfolders are moved to the top first, so that no path gets too long.

    Args:
        top: The folder. Links in it are removed, and not followed.

    Raises:
        OSError: A file or folder in it cannot be removed.
    """
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
    """Make the folder for its owner alone, unless it exists.

    Missing folders above it are made too, with the usual permissions.

    Args:
        folder: The folder, usually the data folder or one in it.

    Raises:
        Unavailable: The folder cannot be made.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(
            f"The folder {folder} cannot be made: {error.strerror}. Choose another "
            "RICORDO_DATA_DIR."
        ) from error


def flush_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk, if the system can.

    Args:
        folder: The folder in which a file was just created or renamed.
    """
    with suppress(OSError):
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


@contextmanager
def _door(folder: Path) -> Iterator[None]:
    try:
        with FileLock(folder / _DOOR, timeout=_PATIENCE, mode=0o600):
            yield
    except Timeout:
        raise Unavailable(
            f"{folder} is in use by another process. Try again in a minute."
        ) from None


def _make(path: Path, mode: int) -> FileLock:
    path.mkdir(0o700)
    path.chmod(mode)
    lock = _lock_of(path / _LOCK)
    lock.acquire()
    return lock


def _lock_of(path: Path) -> FileLock:
    # Not bound to a thread: another thread may close the folder.
    return FileLock(path, timeout=0, mode=0o600, thread_local=False)


def _is_one_step(folder: Path, target: Path) -> bool:
    """Return True if a file can be renamed from one folder into the other.

    Only a trial can tell two mounts of one file system apart.
    """
    probe = folder / "probe"
    moved = target / ".ricordo-probe"
    probe.touch(0o600)
    try:
        probe.replace(moved)
    except OSError:
        return False
    moved.unlink(missing_ok=True)
    return True


def _sweep_own(folder: Path, report: Sweep) -> None:
    try:
        with _door(folder):
            for path in _entries(folder):
                if _NAME.fullmatch(path.name):
                    _sweep_folder(path, report)
                elif path.suffix == _NOTE:
                    _sweep_noted(path, report)
    except (OSError, Unavailable):
        report.failed.append(folder)


def _sweep_noted(note: Path, report: Sweep) -> None:
    path = Path(note.read_text("utf-8"))
    if path.is_dir() and _NAME.fullmatch(path.name.removeprefix("ricordo-")):
        _sweep_folder(path, report)
    # Keep the note if the folder above is missing, since its disk may only be unmounted for now.
    if path.parent.is_dir() and not path.exists():
        note.unlink(missing_ok=True)


def _sweep_folder(path: Path, report: Sweep) -> None:
    """Remove the folder unless a process holds its lock."""
    lock = _lock_of(path / _LOCK)
    try:
        lock.acquire()
    except Timeout:
        if path.name.removeprefix("ricordo-").startswith(COPY):
            report.copies_in_use.append(path)
        return
    except (OSError, NotImplementedError):
        report.failed.append(path)
        return
    try:
        remove_tree(path)
        report.removed.append(path)
    except OSError:
        report.failed.append(path)
    finally:
        lock.release()


def _sweep_unfinished(folder: Path, report: Sweep) -> None:
    """Remove databases that were never finished."""
    names = {path.name for path in _entries(folder)}
    bases = {name.partition(_UNFINISHED)[0] for name in names if _UNFINISHED in name}
    bases |= {name.removesuffix(".lock") for name in names if name.endswith(".db.lock")}
    for base in sorted(bases):
        unfinished = [f"{base}{_UNFINISHED}{ending}" for ending in _ENDINGS]
        _sweep_files(folder, base, [name for name in unfinished if name in names], report)


def _sweep_older(data_dir: Path, report: Sweep) -> None:
    """Remove the remains of older versions next to databases, backups and environments."""
    backups = data_dir / "backups"
    _sweep_unfinished(data_dir, report)
    _sweep_unfinished(backups, report)
    names_of_backups = {path.name for path in _entries(backups)}
    for name in sorted(names_of_backups):
        base, dash, ending = name.rpartition("-")
        if f"{dash}{ending}" in _ENDINGS[1:] and base not in names_of_backups:
            _remove_file(backups / name, report)
    for path in _entries(data_dir / "environments"):
        if path.suffix == ".building":
            _sweep_folder(path, report)


def _sweep_files(folder: Path, base: str, names: list[str], report: Sweep) -> None:
    """Remove files of an older version's copy, and then the copy's lock.

    Nothing is removed while a process holds the lock.
    """
    lock = _lock_of(folder / f"{base}.lock")
    try:
        lock.acquire()
    except Timeout:
        report.copies_in_use += [folder / name for name in names]
        return
    except (OSError, NotImplementedError):
        report.failed += [folder / name for name in names]
        return
    try:
        for name in names:
            _remove_file(folder / name, report)
        _remove_file(folder / f"{base}.lock", report)
    finally:
        lock.release()


def _remove_file(path: Path, report: Sweep) -> None:
    try:
        path.unlink()
        report.removed.append(path)
    except FileNotFoundError:
        return
    except OSError:
        report.failed.append(path)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
