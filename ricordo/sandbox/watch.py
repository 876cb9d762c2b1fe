"""Watch the resources that a program and its child processes use together.

The kernel's limits apply to each process alone.
"""

import asyncio
import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ricordo.sandbox.process import SandboxProcess
    from ricordo.sandbox.service import SandboxLimits

_INTERVAL = 0.1  # seconds between two measurements
_MOST_FILES = 20_000  # most files and folders of a workspace
_TICKS = os.sysconf("SC_CLK_TCK")  # per second
_PAGE = os.sysconf("SC_PAGE_SIZE")  # bytes


async def watch(process: "SandboxProcess", limits: "SandboxLimits") -> Literal["memory", "cpu"]:
    """Return the name of a resource once the program has used too much of it.

    "memory" also means too many processes or files, or files that are too large.
    """
    while True:
        await asyncio.sleep(_INTERVAL)
        tree = list(descendants(process.process.pid))
        process.cpu_used = max(process.cpu_used, sum(map(_cpu_seconds, tree)))
        if limits.cpu_seconds and process.cpu_used > limits.cpu_seconds:
            return "cpu"
        # The launcher and bubblewrap's two processes are not counted.
        if len(tree) > limits.processes + 3:
            return "memory"
        max_memory = limits.memory_mb * 2**20
        # Resident memory is fast to read, but counts shared pages several times.
        if sum(map(_resident, tree)) > max_memory and sum(map(_proportional, tree)) > max_memory:
            return "memory"
        if process.workspace:
            is_full: bool = await asyncio.to_thread(
                is_workspace_full, process.workspace, tree, limits.file_mb * 2**20
            )
            if is_full:
                return "memory"
        if not process.workspace and tree and _has_too_many_files(tree[-1]):
            return "memory"


def descendants(pid: int) -> Iterator[int]:
    """Yield this process and all its descendants, depth first."""
    waiting = [pid]
    while waiting:
        process = waiting.pop()
        yield process
        children: list[int] = []
        with suppress(OSError):
            for task in os.listdir(f"/proc/{process}/task"):
                with suppress(OSError), open(f"/proc/{process}/task/{task}/children", "rb") as file:
                    children += map(int, file.read().split())
        waiting += reversed(children)


def processes_of_user() -> int:
    """Return the number of this user's processes and threads.

    The user's limit on processes counts all of them.
    """
    count = 0
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if entry.stat().st_uid == os.geteuid():
                count += len(os.listdir(entry / "task"))
    return count


def _cpu_seconds(pid: int) -> float:
    """Return the processor time of the process and of its ended children."""
    with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
        return sum(map(int, fields[11:15])) / _TICKS
    return 0


def _resident(pid: int) -> int:
    with suppress(OSError), open(f"/proc/{pid}/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE
    return 0


def _proportional(pid: int) -> int:
    """Return the process's memory in bytes; shared pages count partly."""
    with suppress(OSError), open(f"/proc/{pid}/smaps_rollup", "rb") as file:
        return next((int(line.split()[1]) * 1024 for line in file if line.startswith(b"Pss:")), 0)
    return _resident(pid)


def _has_too_many_files(pid: int) -> bool:
    """Return True if a workspace in memory contains too many files.

    Nothing else limits the memory that the kernel uses for them.
    """
    with suppress(OSError):
        for folder in ("sandbox", "tmp", "dev/shm"):
            file_system = os.statvfs(f"/proc/{pid}/root/{folder}")
            if file_system.f_files - file_system.f_ffree > _MOST_FILES:
                return True
    return False


def is_workspace_full(workspace: Path, tree: list[int], max_size: int) -> bool:
    """Return True if a workspace on disk has grown too large or has too many files.

    The sizes of deleted files that are still open count too. A folder whose path is too long for
    the system counts as too large, since its content cannot be measured.
    """
    size = count = 0
    folders = [str(workspace)]
    # os.walk calls itself for each level, and a program may make thousands of levels
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    count += 1
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        size += _size_on_disk(entry)
                    if size > max_size or count > _MOST_FILES:
                        return True
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return True
    deleted_files: set[tuple[int, int]] = set()
    for pid in tree:
        with suppress(OSError):
            for descriptor in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    status = os.stat(f"/proc/{pid}/fd/{descriptor}")
                    file_id = (status.st_dev, status.st_ino)
                    if not status.st_nlink and file_id not in deleted_files:
                        deleted_files.add(file_id)
                        size += status.st_blocks * 512
    return size > max_size


def _size_on_disk(entry: "os.DirEntry[str]") -> int:
    try:
        return entry.stat(follow_symlinks=False).st_blocks * 512
    except FileNotFoundError:  # the program has deleted it
        return 0
