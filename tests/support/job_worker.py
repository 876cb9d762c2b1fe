"""A worker in a process of its own, to be killed: `python -m tests.support.job_worker <database> <log>`.

Its handler writes a line when a job starts and one when it ends, with a time that all processes share, so that a test can prove
afterwards what ran when. The database is a SQLite file or an address of PostgreSQL.
"""

import asyncio
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from ricordo.background.worker import Pace
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.runtime import Runtime
from ricordo.storage.engine.postgres import open_postgres
from ricordo.storage.engine.sqlite import open_sqlite
from tests.seams.jobs import working

SILENCE = 1.0
PACE = Pace(poll=0.05, beat=0.1, sweep=0.2, silence=SILENCE)


@dataclass(frozen=True)
class Run:
    """One run of a job, in nanoseconds of the machine's clock; `ended` is None where it was cut off."""

    job: str
    key: str
    process: int
    started: int
    ended: int | None


async def _work(database: str, log: Path) -> None:
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(what: str, job: Job) -> None:
        os.write(file, f"{what} {job.id}/{job.attempts} {job.key} {os.getpid()} {time.monotonic_ns()}\n".encode())

    async def run(_runtime: Runtime, job: Job, _report: Report) -> None:
        note("start", job)
        await asyncio.sleep(job.payload["seconds"])
        note("end", job)

    folder = Path(tempfile.gettempdir())
    is_file = "://" not in database
    store = open_sqlite(Path(database)) if is_file else open_postgres(database, connections=3, backups=folder)
    async with working(store, folder, JobHandler("work", run), is_alone=is_file, pace=PACE):
        note("ready", Job("ready", ""))
        await asyncio.sleep(3600)


def read_runs(log: Path) -> list[Run]:
    """Every run that the log tells of, in the order of their starts."""
    lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    ends = {words[1]: int(words[4]) for words in lines if words[0] == "end"}
    return [
        Run(words[1].partition("/")[0], words[2], int(words[3]), int(words[4]), ends.get(words[1]))
        for words in lines
        if words[0] == "start"
    ]


def is_ready(log: Path, process: int) -> bool:
    """Whether the worker of this process has said that it works."""
    return log.exists() and any(
        line.startswith("ready ") and f" {process} " in line for line in log.read_text().splitlines()
    )


if __name__ == "__main__":
    asyncio.run(_work(sys.argv[1], Path(sys.argv[2])))
