"""The cost of a PostgreSQL that a bench started.

The processes of PostgreSQL are children of the process that started it.
"""

import psutil


def database_cpu(process: psutil.Process | None) -> float:
    """Return the CPU seconds so far of the PostgreSQL that a process started, or 0."""
    times = [child.cpu_times() for child in _postgres(process)]
    return float(sum(one.user + one.system for one in times))


def database_memory(process: psutil.Process) -> float:
    """Return the megabytes of the PostgreSQL that a process started.

    Memory that its processes share is counted once.
    """
    return sum(float(child.memory_full_info().pss) for child in _postgres(process)) / 1e6


def _postgres(process: psutil.Process | None) -> list[psutil.Process]:
    children = process.children(recursive=True) if process else []
    return [child for child in children if child.name() == "postgres"]
