"""Routes of jobs: work without a request, its progress, and the queue."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Query

from ricordo.api.call import Paged, RequestContext
from ricordo.api.models.jobs import STATUSES, JobResponse, QueueResponse, WireStatus
from ricordo.api.routing import Routes
from ricordo.domain.job import Job
from ricordo.storage import jobs
from ricordo.storage.engine.store import Transaction
from ricordo.storage.jobs import Queue, read_queue

router = Routes(prefix="/v1/jobs", tags=["jobs"], scope="messages")
_OPEN: tuple[WireStatus, ...] = ("created", "running")


@dataclass(frozen=True, slots=True)
class JobQuery:
    """The selection of jobs."""

    active: bool = False
    statuses: Annotated[
        list[WireStatus] | None, Query(description="Only jobs with one of these statuses.")
    ] = None
    kind: Annotated[str | None, Query(description="Only jobs that do this kind of work.")] = None

    def stored_statuses(self) -> list[str] | None:
        """Return the stored statuses of the selection; None for all."""
        names = [*(self.statuses or ()), *(_OPEN if self.active else ())]
        if not names:
            return None
        return sorted({stored for name in names for stored in STATUSES[name]})


@router.get("/", response_model=list[JobResponse])
def list_jobs(
    tx: Transaction, context: RequestContext, paging: Paged, query: Annotated[JobQuery, Depends()]
) -> Sequence[Job]:
    """List jobs, by default newest first.

    Filters are status, kind and whether they are unfinished.
    """
    return jobs.page(
        tx, context.scope, paging.page(), statuses=query.stored_statuses(), kind=query.kind
    )


@router.get("/active", response_model=list[JobResponse])
def list_active_jobs(tx: Transaction, context: RequestContext, paging: Paged) -> Sequence[Job]:
    """List the jobs that have not ended."""
    return jobs.page(tx, context.scope, paging.page(), statuses=["running", "waiting"])


@router.get("/queue", response_model=QueueResponse)
def queue(tx: Transaction, context: RequestContext) -> Queue:
    """Return the state of the queue: its depth, its oldest wait and its last errors."""
    return read_queue(tx, context.scope)


@router.get("/{job_id}", response_model=JobResponse)
def retrieve(tx: Transaction, context: RequestContext, job_id: str) -> Job:
    """Return one job."""
    return jobs.get(tx, context.scope, job_id)


@router.patch("/{job_id}/cancel", response_model=JobResponse)
def cancel(tx: Transaction, context: RequestContext, job_id: str) -> Job:
    """End a job that has not ended; a running one stops within seconds."""
    return jobs.cancel(tx, context.scope, job_id)


@router.delete("/{job_id}", response_model=JobResponse)
def delete(tx: Transaction, context: RequestContext, job_id: str) -> Job:
    """Delete a job and its record; a running one stops within seconds."""
    return jobs.remove(tx, context.scope, job_id)
