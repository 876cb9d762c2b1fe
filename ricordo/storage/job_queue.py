"""How the queue of jobs stands: what waits, what runs, what failed last. For `/v1/jobs/queue` and `ricordo doctor`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import func, inspect, select

from ricordo.domain.clock import SystemClock
from ricordo.domain.job import Job, JobStatus
from ricordo.storage.jobs import job_of
from ricordo.storage.prepared import Statements
from ricordo.storage.sqlite import first_connection, make_engine
from ricordo.storage.store import Transaction
from ricordo.storage.tables import jobs

_LAST_ERRORS = 5

_DEPTH = (
    select(jobs.c.kind, jobs.c.status, func.count().label("jobs"))
    .group_by(jobs.c.kind, jobs.c.status)
    .order_by(jobs.c.kind, jobs.c.status)
)
_OLDEST_DUE = select(func.min(jobs.c.not_before).label("since")).where(jobs.c.status == "waiting")
_FAILED = select(jobs).where(jobs.c.status == "failed").order_by(jobs.c.ended_at.desc(), jobs.c.seq.desc())
_TROUBLED = select(jobs).where(jobs.c.status == "waiting", jobs.c.attempts > 0).order_by(jobs.c.seq.desc())


@dataclass(frozen=True, slots=True)
class Queue:
    """The depth by kind and status, how long the oldest due job waits (µs; 0: none), and the jobs with the last errors."""

    depth: Mapping[str, Mapping[JobStatus, int]]
    waits: int
    errors: tuple[Job, ...]

    def count(self, status: JobStatus) -> int:
        """How many jobs have this status."""
        return sum(of_kind.get(status, 0) for of_kind in self.depth.values())


def read_queue(tx: Transaction) -> Queue:
    """The queue as it stands."""
    depth: dict[str, dict[JobStatus, int]] = {}
    for row in tx.all(_DEPTH):
        depth.setdefault(row.kind, {})[row.status] = row.jobs
    since = tx.all(_OLDEST_DUE)[0].since
    waits = 0 if since is None else max(tx.clock.now() - since, 0)
    found = [job_of(row) for statement in (_FAILED, _TROUBLED) for row in tx.all(statement.limit(_LAST_ERRORS))]
    found = [job for job in found if job.error]
    errors = sorted(found, key=lambda job: job.ended_at or job.started_at or 0, reverse=True)[:_LAST_ERRORS]
    return Queue(depth, waits, tuple(errors))


def queue_of_file(path: Path) -> Queue | None:
    """The queue in a database file that no server uses; None where its schema is older than jobs. Raises Unavailable."""
    engine = make_engine(path, "normal")
    try:
        with first_connection(engine, path) as connection:
            if not inspect(connection).has_table(jobs.name):
                return None
            return read_queue(Transaction(connection, SystemClock(), Statements(engine.dialect), {}))
    finally:
        engine.dispose()
