"""Jobs: work without a request, its progress, and the queue."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Query, Response

from ricordo.api.call import Here, Paged, answer
from ricordo.api.models.jobs import STATUSES, JobResponse, QueueResponse, WireStatus
from ricordo.api.routing import Routes
from ricordo.errors import Unsupported
from ricordo.storage import jobs
from ricordo.storage.jobs import read_queue

router = Routes(prefix="/v1/jobs", tags=["jobs"])
_OPEN: tuple[WireStatus, ...] = ("created", "running")


@dataclass(frozen=True, slots=True)
class JobQuery:
    """Which jobs are wanted."""

    active: bool = False
    statuses: Annotated[list[WireStatus] | None, Query(description="Only jobs with one of these statuses.")] = None
    kind: Annotated[str | None, Query(description="Only jobs that do this kind of work.")] = None
    source_id: Annotated[str | None, Query(description="Not supported: jobs are not filtered by folder.")] = None

    def wanted(self) -> list[str] | None:
        """The statuses that are asked for, as they are kept; None for all."""
        if self.source_id is not None:
            raise Unsupported("Filtering by source_id is not supported by this version of Ricordo. Leave it out.")
        named = [*(self.statuses or ()), *(_OPEN if self.active else ())]
        return sorted({kept for status in named for kept in STATUSES[status]}) if named else None


Which = Annotated[JobQuery, Depends()]


@router.get("/", response_model=list[JobResponse])
async def list_jobs(here: Here, paging: Paged, which: Which) -> Response:
    """Jobs, by default newest first; all, those not ended, by status or by kind."""
    return await _page(here, paging, which.wanted(), which.kind)


@router.get("/active", response_model=list[JobResponse])
async def list_active_jobs(here: Here, paging: Paged) -> Response:
    """The jobs that have not ended."""
    return await _page(here, paging, ["running", "waiting"], None)


@router.get("/queue", response_model=QueueResponse)
async def queue(here: Here) -> Response:
    """The state of the queue: its depth, its oldest wait, and what failed last."""
    return answer(QueueResponse.from_queue(await here.store.read(lambda tx: read_queue(tx, here.scope))))


@router.get("/{job_id}", response_model=JobResponse)
async def retrieve(here: Here, job_id: str) -> Response:
    """One job."""
    return answer(JobResponse.from_job(await here.store.read(lambda tx: jobs.get(tx, here.scope, job_id))))


@router.patch("/{job_id}/cancel", response_model=JobResponse)
async def cancel(here: Here, job_id: str) -> Response:
    """End a job that has not ended; where it runs, it is stopped within seconds."""
    return answer(JobResponse.from_job(await here.store.write(lambda tx: jobs.cancel(tx, here.scope, job_id))))


@router.delete("/{job_id}", response_model=JobResponse)
async def delete(here: Here, job_id: str) -> Response:
    """Delete a job and its record; where it runs, it is stopped within seconds."""
    return answer(JobResponse.from_job(await here.store.write(lambda tx: jobs.remove(tx, here.scope, job_id))))


async def _page(here: Here, paging: Paged, statuses: list[str] | None, kind: str | None) -> Response:
    page = paging.page()
    found = await here.store.read(lambda tx: jobs.page(tx, here.scope, page, statuses=statuses, kind=kind))
    return answer([JobResponse.from_job(job) for job in found])
