"""Create, find and cancel batches: jobs with rows for their requests."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from hashlib import sha256
from typing import Any
from uuid import UUID

from ricordo.agents.deferred import sender_of
from ricordo.agents.repeats import REPEAT_WINDOW
from ricordo.domain.job import Job
from ricordo.domain.scope import Scope
from ricordo.errors import Conflict, NotFound
from ricordo.features.automation.batches import queries
from ricordo.features.automation.batches.models import BatchRequest
from ricordo.storage import agents, jobs
from ricordo.storage.engine.repository import Page, require_found
from ricordo.storage.engine.store import Transaction

RUN = "batches.run"
CALL_BACK = "batches.callback"
MAX_OPEN = 50  # of one organization
# Only the end of a server or a failed database uses up an attempt. A failed request does not. If
# all requests fail, the job fails without another attempt.
_ATTEMPTS = 100
_CALLBACK_ATTEMPTS = 6


def create(
    tx: Transaction, scope: Scope, request: BatchRequest, body_hash: str, *, is_retry: bool
) -> Job:
    """Store a new batch, or return the equal batch that the client sent before.

    Args:
        tx: The transaction.
        scope: The caller, in whose scope the requests run.
        request: The batch.
        body_hash: The hash of the request's body, which is stored to recognize a retry.
        is_retry: The client marked the request as a retry. A recent batch of the same caller with
            an equal body is then returned.

    Raises:
        Conflict: Too many batches have not ended.
        Forbidden: The caller is a browser's session, which expires by itself.
        NotFound: One of the agents does not exist.
    """
    maker = asdict(sender_of(tx, scope, "batch"))
    if is_retry:
        earlier = _sent_before(tx, scope, body_hash, maker)
        if earlier:
            return earlier
    agent_ids = {*agents.ids(tx, scope)}
    for item in request.requests:
        if item.agent_id not in agent_ids:
            raise NotFound(f"Agent with ID {item.agent_id[:80]} not found")
    organization = Scope(scope.organization_id)
    open_batches = jobs.page(
        tx, organization, Page(limit=MAX_OPEN), statuses=("waiting", "running"), kind=RUN
    )
    if len(open_batches) >= MAX_OPEN:
        raise Conflict(
            f"{MAX_OPEN} batches wait or run, and no more are allowed. Wait until one ends, or "
            "cancel one."
        )
    job = Job(
        RUN,
        scope.organization_id,
        {
            "requests": len(request.requests),
            "callback": {"url": request.callback_url} if request.callback_url else {},
            "hash": body_hash,
            "maker": maker,
            "author": scope.user_id,
        },
        # The batches of one organization run one after the other. Running at once, they could
        # occupy all workers, and other jobs would wait.
        key=f"{RUN}:{scope.organization_id}",
        most_attempts=_ATTEMPTS,
        user_id=scope.subject,
    )
    added = jobs.add(tx, job) or job
    items = [item.model_dump(mode="json", exclude_unset=True) for item in request.requests]
    queries.insert_all(tx, added, items)
    return added


def _sent_before(
    tx: Transaction, scope: Scope, body_hash: str, maker: dict[str, Any]
) -> Job | None:
    """Return the recent batch that the same caller created with the same body."""
    since = tx.clock.now() - REPEAT_WINDOW
    for job in jobs.page(tx, scope, Page(limit=MAX_OPEN), kind=RUN):
        is_same = job.payload["hash"] == body_hash and job.payload["maker"] == maker
        if is_same and job.created_at >= since:
            return job
    return None


def get(tx: Transaction, scope: Scope, batch_id: str) -> Job:
    """Return the batch.

    Args:
        tx: The transaction, or a read.
        scope: The caller.
        batch_id: The id of the batch, which is that of its job.

    Raises:
        NotFound: The caller may not see such a job, or it is no batch.
    """
    job = jobs.get(tx, scope, batch_id)
    return require_found(job if job.kind == RUN else None, "Batch", batch_id)


def cancel(tx: Transaction, scope: Scope, batch_id: str) -> None:
    """Cancel an open batch with its running turns, and add its callback.

    Args:
        tx: The transaction.
        scope: The caller.
        batch_id: The batch. One that is cancelled already stays as it is.

    Raises:
        NotFound: The caller may not see such a batch.
        Conflict: The batch is done or has failed.
    """
    get(tx, scope, batch_id)
    add_callback(tx, jobs.cancel(tx, scope, batch_id))


def is_cancelled(tx: Transaction, job: Job) -> bool:
    """Return True for a batch that was cancelled or deleted.

    Args:
        tx: The transaction, or a read.
        job: The batch as its worker took it; its present row is read.
    """
    row = jobs.ROWS.find(tx, Scope(job.organization_id), job.id)
    return row is None or row.status == "cancelled"


def add_callback(tx: Transaction, job: Job) -> None:
    """Add the job that sends the batch's callback, once.

    Args:
        tx: The transaction.
        job: The batch, which ends now or has been cancelled. Without a callback address no job is
            added.
    """
    if job.payload["callback"].get("url"):
        # The id is a hash of the batch's id, so the job is added only once.
        job_uuid = UUID(bytes=sha256(job.id.encode()).digest()[:16], version=4)
        callback = Job(
            CALL_BACK,
            job.organization_id,
            {"batch_id": job.id},
            most_attempts=_CALLBACK_ATTEMPTS,
            user_id=job.user_id,
            id=f"job-{job_uuid}",
        )
        jobs.add(tx, callback)


def note_callback(tx: Transaction, batch: Job, changes: Mapping[str, Any]) -> None:
    """Store the outcome of the batch's callback.

    Args:
        tx: The transaction.
        batch: The batch.
        changes: The result that `callbacks.deliver` returned.
    """
    callback = {**batch.payload["callback"], **changes}
    jobs.save_payload(tx, replace(batch, payload={**batch.payload, "callback": callback}))
