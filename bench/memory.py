"""The long form of the campaigns of memory with an owner: 50 writers with 10,000 edits, followers that are killed in a hundred
histories each, and a user forgotten who said 20,000 things.

Each raises AssertionError with what it found; what it returns was without fault.
"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.report import Figure
from tests.support import long_erasure, memory_writers
from tests.support.followers import follow_dolt_histories, follow_git_histories

WRITERS, EDITS = 50, 200
HISTORIES = range(1, 101)
LONG = long_erasure.Size(messages=20_000, passages=20_000)


def measure_memory() -> list[Figure]:
    """The campaigns of memory with an owner: writers at once, followers that are killed, and a user with much to forget."""
    with TemporaryDirectory(prefix="ricordo-bench-") as folder:
        written = asyncio.run(memory_writers.run_campaign(Path(folder), writers=WRITERS, edits=EDITS))
    with TemporaryDirectory(prefix="ricordo-bench-") as folder:
        git = asyncio.run(follow_git_histories(Path(folder), HISTORIES))
    with TemporaryDirectory(prefix="ricordo-bench-") as folder:
        dolt = asyncio.run(follow_dolt_histories(Path(folder), HISTORIES))
    with TemporaryDirectory(prefix="ricordo-bench-") as folder:
        forgotten = asyncio.run(long_erasure.erase(Path(folder), LONG))
    expected = WRITERS * EDITS + len(memory_writers.SHARED) + 1
    return [
        Figure("writers of one memory in two processes: versions", written.versions, "", expected, more_is_better=True),
        Figure("  lost updates", expected - written.versions, "", 0),
        Figure("  how often they met where they had to", written.collisions, ""),
        Figure("  seconds in all", written.seconds, "s"),
        Figure("kills of a git follower, after which both had the same", git, ""),
        Figure("kills of a Dolt follower, after which both had the same", dolt, ""),
        Figure("forgetting 20,000 messages and passages: slowest write, cpu", forgotten.slowest()[0].cpu, "ms", 50),
        Figure("  most rows in one write", max(one.rows for one in forgotten.writes), "", 500),
        Figure("  rows of the index that were left", forgotten.left, "", 0),
    ]
