"""Looks at what a running program and all that it started use together: the kernel's limits count for each process alone."""

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

_EACH = 0.1  # seconds between two looks
_MOST_FILES = 20_000  # of a workspace
_TICKS, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


async def watch(process: "SandboxProcess", limits: "SandboxLimits") -> Literal["memory", "cpu"]:
    """Return what the program used too much of, once it did; "memory" is also said of processes and files."""
    while True:
        await asyncio.sleep(_EACH)
        tree = list(descendants(process.process.pid))
        process.cpu_used = max(process.cpu_used, sum(map(_cpu_seconds, tree)))
        if limits.cpu_seconds and process.cpu_used > limits.cpu_seconds:
            return "cpu"
        # The launcher, and bubblewrap's two, come on top.
        if len(tree) > limits.processes + 3:
            return "memory"
        most = limits.memory_mb * 2**20
        if sum(map(_resident, tree)) > most and sum(map(_proportional, tree)) > most:
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
    """The process, and the processes that it started, with theirs; depth first."""
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
    """How many processes and threads of this user there are, all of which its limit counts."""
    count = 0
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if entry.stat().st_uid == os.geteuid():
                count += len(os.listdir(entry / "task"))
    return count


def _cpu_seconds(pid: int) -> float:
    """Of the process, and of its children that have ended."""
    with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
        return sum(map(int, fields[11:15])) / _TICKS
    return 0


def _resident(pid: int) -> int:
    with suppress(OSError), open(f"/proc/{pid}/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE
    return 0


def _proportional(pid: int) -> int:
    """Its memory in bytes, in which what several processes share counts once."""
    with suppress(OSError), open(f"/proc/{pid}/smaps_rollup", "rb") as file:
        return next((int(line.split()[1]) * 1024 for line in file if line.startswith(b"Pss:")), 0)
    return _resident(pid)


def _has_too_many_files(pid: int) -> bool:
    """Whether a workspace in memory holds so many files that the kernel's own memory for them counts."""
    with suppress(OSError):
        for folder in ("sandbox", "tmp", "dev/shm"):
            found = os.statvfs(f"/proc/{pid}/root/{folder}")
            if found.f_files - found.f_ffree > _MOST_FILES:
                return True
    return False


def is_workspace_full(workspace: Path, tree: list[int], most: int) -> bool:
    """Whether a workspace on disk, with files that are open but deleted, has grown too large.

    One with paths too long to be read counts as too large: what lies below them cannot be counted.
    """
    size = count = 0
    folders = [os.fspath(workspace)]
    while folders:  # not os.walk, which calls itself for each level
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    count += 1
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    with suppress(FileNotFoundError):
                        size += entry.stat(follow_symlinks=False).st_blocks * 512
                    if size > most or count > _MOST_FILES:
                        return True
        except OSError as error:  # others: it is gone, or may not be read
            if error.errno == errno.ENAMETOOLONG:
                return True
    for pid in tree:
        with suppress(OSError):
            for descriptor in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    found = os.stat(f"/proc/{pid}/fd/{descriptor}")
                    size += 0 if found.st_nlink else found.st_blocks * 512
    return size > most
