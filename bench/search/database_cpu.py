"""What a PostgreSQL costs that was started for a bench: its processes are children of the one that started it."""

import psutil


def database_cpu(process: psutil.Process | None) -> float:
    """Processor seconds, so far, of the PostgreSQL that a process started; 0 where there is none."""
    children = process.children(recursive=True) if process else []
    times = [child.cpu_times() for child in children if child.name() == "postgres"]
    return float(sum(one.user + one.system for one in times))
