"""Response models of jobs, for clients of the retired Letta V1 server, and of the queue."""

from typing import Annotated, Any, Literal

from ricordo.api.models.base import From, ResponseModel, Timestamp
from ricordo.domain.clock import SECOND, stamp
from ricordo.domain.job import Job, JobStatus
from ricordo.domain.text import Json

WireStatus = Literal["created", "running", "completed", "failed", "pending", "cancelled", "expired"]
# The stored status for each status of clients; "expired" never occurs.
STATUSES: dict[WireStatus, tuple[JobStatus, ...]] = {
    "pending": ("waiting",),
    "created": ("waiting",),
    "running": ("running",),
    "completed": ("done",),
    "failed": ("failed",),
    "cancelled": ("cancelled",),
    "expired": (),
}
_SHOWN: dict[JobStatus, WireStatus] = {
    stored[0]: status for status, stored in STATUSES.items() if stored
}


class JobResponse(ResponseModel):
    """A job: work without a request.

    `metadata` has its kind, its number of attempts, its progress and its error.
    """

    id: str
    user_id: str | None
    created_by_id: str | None = None
    last_updated_by_id: str | None = None
    created_at: Timestamp
    updated_at: Timestamp
    status: WireStatus
    completed_at: Annotated[Timestamp | None, From("ended_at")]
    stop_reason: str | None = None
    metadata: Json
    job_type: Literal["job"] = "job"
    background: bool = True
    agent_id: str | None
    callback_url: str | None = None
    callback_sent_at: Timestamp | None = None
    callback_status_code: int | None = None
    callback_error: str | None = None
    ttft_ns: int | None = None
    total_duration_ns: int | None

    @classmethod
    def of(cls, job: Any, /, **_fields: Any) -> Json:
        """Return the job.

        Args:
            job: The stored job (a `Job`).
            **_fields: Ignored; all fields come from the job.
        """
        if job.ended_at and job.started_at:
            duration = job.ended_at - job.started_at
        else:
            duration = None
        return super().of(
            job,
            updated_at=max(
                job.created_at, job.heartbeat_at or 0, job.started_at or 0, job.ended_at or 0
            ),
            status=_status(job),
            metadata=_metadata(job),
            agent_id=job.payload.get("agent_id"),
            total_duration_ns=None if duration is None else duration * 1000,
        )


class JobErrorResponse(ResponseModel):
    """The last failure of one job."""

    job_id: Annotated[str, From("id")]
    kind: str
    status: WireStatus
    attempts: int
    most_attempts: int
    type: str
    message: str


class QueueResponse(ResponseModel):
    """The queue: jobs by kind and status, the wait of the oldest due job, and the last errors.

    Errors are newest first.
    """

    waiting: int
    running: int
    failed: int
    oldest_wait_seconds: float
    depth: dict[str, dict[str, int]]
    errors: list[JobErrorResponse]

    @classmethod
    def of(cls, queue: Any, /, **_fields: Any) -> Json:
        """Return the queue.

        Args:
            queue: The state of the queue, as `read_queue` returns it.
            **_fields: Ignored; all fields come from the queue.
        """
        return super().of(
            queue,
            waiting=queue.count("waiting"),
            running=queue.count("running"),
            failed=queue.count("failed"),
            oldest_wait_seconds=round(queue.waits / SECOND, 3),
            errors=[
                JobErrorResponse.of(job, status=_status(job), **(job.error or {}))
                for job in queue.errors
            ],
        )


def _status(job: Job) -> WireStatus:
    if job.status == "waiting" and job.attempts:
        return "pending"
    return _SHOWN[job.status]


def _metadata(job: Job) -> Json:
    return {
        "kind": job.kind,
        "key": job.key,
        "payload": job.payload,
        "progress": job.progress or None,
        "attempts": job.attempts,
        "most_attempts": job.most_attempts,
        "not_before": stamp(job.not_before),
        **({"error": job.error} if job.error else {}),
    }
