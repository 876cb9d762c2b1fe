"""The state of the job queue: what waits, what runs, what failed last. For `/v1/jobs/queue` and `ricordo doctor`."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import ColumnElement, func, select, true

from ricordo.domain.job import Job, JobStatus
from ricordo.domain.scope import Scope
from ricordo.storage.engine.store import Transaction
from ricordo.storage.jobs import job_of
from ricordo.storage.schema.core_tables import jobs

_LAST_ERRORS = 5


@dataclass(frozen=True, slots=True)
class Queue:
    """The depth by kind and status, how long the oldest due job waits (µs; 0: none), and the jobs with the last errors."""

    depth: Mapping[str, Mapping[JobStatus, int]]
    waits: int
    errors: tuple[Job, ...]

    def count(self, status: JobStatus) -> int:
        return sum(of_kind.get(status, 0) for of_kind in self.depth.values())


def read_queue(tx: Transaction, scope: Scope | None) -> Queue:
    """Return the queue of the scope's organization; None: of all of them, for the operator of the server."""
    theirs = jobs.c.organization_id == scope.organization_id if scope else true()
    depth: dict[str, dict[JobStatus, int]] = {}
    counted = select(jobs.c.kind, jobs.c.status, func.count().label("jobs")).where(theirs)
    for row in tx.all(counted.group_by(jobs.c.kind, jobs.c.status).order_by(jobs.c.kind, jobs.c.status)):
        depth.setdefault(row.kind, {})[row.status] = row.jobs
    oldest = select(func.min(jobs.c.not_before).label("since")).where(theirs, jobs.c.status == "waiting")
    since = tx.all(oldest)[0].since
    waits = 0 if since is None else max(tx.clock.now() - since, 0)
    found = [job for job in _troubled(tx, theirs) if job.error]
    errors = sorted(found, key=lambda job: job.ended_at or job.started_at or 0, reverse=True)[:_LAST_ERRORS]
    return Queue(depth, waits, tuple(errors))


def _troubled(tx: Transaction, theirs: ColumnElement[bool]) -> list[Job]:
    failed = select(jobs).where(theirs, jobs.c.status == "failed").order_by(jobs.c.ended_at.desc(), jobs.c.seq.desc())
    again = select(jobs).where(theirs, jobs.c.status == "waiting", jobs.c.attempts > 0).order_by(jobs.c.seq.desc())
    return [job_of(row) for statement in (failed, again) for row in tx.all(statement.limit(_LAST_ERRORS))]
