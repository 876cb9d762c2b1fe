"""Jobs on the wire: the shape that clients of the retired Letta V1 server know, and the queue as a whole."""

from datetime import datetime
from typing import Any, Literal

from ricordo.api.wire.schemas import Json, Shape
from ricordo.api.wire.times import stamp
from ricordo.domain.clock import SECOND
from ricordo.domain.job import Job, JobStatus
from ricordo.storage.job_queue import Queue

Wire = dict[str, Any]
WireStatus = Literal["created", "running", "completed", "failed", "pending", "cancelled", "expired"]
# What a client names, as we keep it; "expired" is never so here.
STATUSES: dict[WireStatus, tuple[JobStatus, ...]] = {
    "created": ("waiting",),
    "pending": ("waiting",),
    "running": ("running",),
    "completed": ("done",),
    "failed": ("failed",),
    "cancelled": ("cancelled",),
    "expired": (),
}
_ENDED: dict[JobStatus, WireStatus] = {"done": "completed", "failed": "failed", "cancelled": "cancelled"}


class JobShape(Shape):
    """A job: work without a request. `metadata` says what it is, how often it was tried, how far it is and what failed."""

    id: str
    user_id: str | None
    created_by_id: str | None
    last_updated_by_id: str | None
    created_at: datetime
    updated_at: datetime
    status: WireStatus
    completed_at: datetime | None
    stop_reason: str | None
    metadata: Json
    job_type: Literal["job"]
    background: bool
    agent_id: str | None
    callback_url: str | None
    callback_sent_at: datetime | None
    callback_status_code: int | None
    callback_error: str | None
    ttft_ns: int | None
    total_duration_ns: int | None


class JobErrorShape(Shape):
    """The last failure of one job."""

    job_id: str
    kind: str
    status: WireStatus
    attempts: int
    most_attempts: int
    type: str
    message: str


class QueueShape(Shape):
    """How the queue stands: jobs by kind and status, how long the oldest due one waits, the last errors, newest first."""

    waiting: int
    running: int
    failed: int
    oldest_wait_seconds: float
    depth: dict[str, dict[str, int]]
    errors: list[JobErrorShape]


def job_to_wire(job: Job) -> Wire:
    """A job."""
    lasted = job.ended_at - job.started_at if job.ended_at and job.started_at else None
    return {
        "id": job.id,
        "user_id": job.user_id,
        "created_by_id": None,
        "last_updated_by_id": None,
        "created_at": stamp(job.created_at),
        "updated_at": stamp(max(job.created_at, job.heartbeat_at or 0, job.started_at or 0, job.ended_at or 0)),
        "status": _status(job),
        "completed_at": stamp(job.ended_at),
        "stop_reason": None,
        "metadata": _about(job),
        "job_type": "job",
        "background": True,
        "agent_id": job.payload.get("agent_id"),
        "callback_url": None,
        "callback_sent_at": None,
        "callback_status_code": None,
        "callback_error": None,
        "ttft_ns": None,
        "total_duration_ns": None if lasted is None else lasted * 1000,
    }


def queue_to_wire(queue: Queue) -> Wire:
    """The queue as a whole."""
    return {
        "waiting": queue.count("waiting"),
        "running": queue.count("running"),
        "failed": queue.count("failed"),
        "oldest_wait_seconds": round(queue.waits / SECOND, 3),
        "depth": {kind: dict(by_status) for kind, by_status in queue.depth.items()},
        "errors": [
            {
                "job_id": job.id,
                "kind": job.kind,
                "status": _status(job),
                "attempts": job.attempts,
                "most_attempts": job.most_attempts,
                **(job.error or {}),
            }
            for job in queue.errors
        ],
    }


def _status(job: Job) -> WireStatus:
    if job.status == "running":
        return "running"
    if job.status == "waiting":
        return "pending" if job.attempts else "created"
    return _ENDED[job.status]


def _about(job: Job) -> Wire:
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
