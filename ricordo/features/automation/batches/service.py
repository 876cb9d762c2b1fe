"""Batches: made, cancelled and ended. A batch is a job; its requests are rows beside it."""

from dataclasses import asdict
from hashlib import sha256
from uuid import UUID

from ricordo.agents.repeats import REPEAT_WINDOW
from ricordo.domain.job import Job
from ricordo.domain.scope import Scope
from ricordo.errors import Conflict, NotFound
from ricordo.features.automation.batches import queries
from ricordo.features.automation.batches.models import BatchRequest
from ricordo.features.automation.schedules.service import maker_of
from ricordo.storage import agents, jobs
from ricordo.storage.engine.repository import Page, found
from ricordo.storage.engine.store import Transaction

RUN, CALL_BACK = "batches.run", "batches.callback"
MOST_OPEN = 50  # of one organization
# Requests that fail are no failure of the job: an attempt is spent where a server is killed, or the database is down.
_ATTEMPTS = 100
_CALLBACK_ATTEMPTS = 6


def create(
    tx: Transaction, scope: Scope, asked: BatchRequest, body_hash: str, *, is_retry: bool
) -> Job:
    """Store a new batch, or return the one that the client sent before. Raises Conflict, Forbidden, NotFound."""
    maker = asdict(maker_of(tx, scope, "batch"))
    if is_retry:
        since = tx.clock.now() - REPEAT_WINDOW
        recent = [
            one
            for one in jobs.page(tx, scope, Page(limit=MOST_OPEN), kind=RUN)
            if one.created_at >= since
        ]
        if same := next(
            (
                one
                for one in recent
                if one.payload["hash"] == body_hash and one.payload["maker"] == maker
            ),
            None,
        ):
            return same
    known = {*agents.ids(tx, scope)}
    if unknown := next((one.agent_id for one in asked.requests if one.agent_id not in known), None):
        raise NotFound(f"Agent with ID {unknown[:80]} not found")
    everybody = Scope(scope.organization_id)
    if (
        len(
            jobs.page(
                tx, everybody, Page(limit=MOST_OPEN), statuses=("waiting", "running"), kind=RUN
            )
        )
        >= MOST_OPEN
    ):
        raise Conflict(
            f"{MOST_OPEN} batches have not ended, and that is the most. Wait for one, or cancel it."
        )
    payload = {
        "requests": len(asked.requests),
        "callback": {"url": asked.callback_url} if asked.callback_url else {},
        "hash": body_hash,
        "maker": maker,
    }
    # Batches of one organization run one after the other: together they would take all workers from other jobs.
    key = f"{RUN}:{scope.organization_id}"
    job = Job(
        RUN, scope.organization_id, payload, key, most_attempts=_ATTEMPTS, user_id=scope.subject
    )
    added = jobs.add(tx, job) or job
    queries.insert_all(
        tx, added, [one.model_dump(mode="json", exclude_unset=True) for one in asked.requests]
    )
    return added


def get(tx: Transaction, scope: Scope, id: str) -> Job:
    """Return the batch. Raises NotFound."""
    job = jobs.get(tx, scope, id)
    return found(job if job.kind == RUN else None, "Batch", id)


def cancel(tx: Transaction, scope: Scope, id: str) -> None:
    """End a batch that has not ended, with the turns of it that run. Raises NotFound, Conflict."""
    get(tx, scope, id)
    add_callback(tx, jobs.cancel(tx, scope, id))


def is_cancelled(tx: Transaction, job: Job) -> bool:
    """Return whether the batch was cancelled or deleted."""
    row = jobs.ROWS.find(tx, Scope(job.organization_id), job.id)
    return row is None or row.status == "cancelled"


def add_callback(tx: Transaction, job: Job) -> None:
    """Add the job that tells of the batch's end, once, where that is wanted."""
    if job.payload["callback"].get("url"):
        id = UUID(bytes=sha256(job.id.encode()).digest()[:16], version=4)
        payload = {"batch_id": job.id}
        told = Job(
            CALL_BACK,
            job.organization_id,
            payload,
            most_attempts=_CALLBACK_ATTEMPTS,
            user_id=job.user_id,
            id=f"job-{id}",
        )
        jobs.add(tx, told)
