"""The requests of batches: a row for each, beside the job that the batch is."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Index, UniqueConstraint, func, insert, select, update

from ricordo.domain.job import Job
from ricordo.domain.message import Message
from ricordo.domain.scope import Scope
from ricordo.storage import messages
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.columns import json_value, numbers, reference, seq, strings, table
from ricordo.storage.schema.core_tables import jobs
from ricordo.storage.schema.core_tables import messages as message_rows

# `status` is "waiting", "completed" or "failed". What was asked is kept until it is answered: then the agent's history has it.
batch_items = table(
    "batch_items",
    seq(),
    reference("job_id", "jobs"),
    reference("agent_id", "agents"),
    *numbers("number"),
    json_value("request"),
    *strings("status", null=False, erasure="keep"),
    *strings("run_id", erasure="keep"),
    *strings("problem", "user_id"),
    UniqueConstraint("job_id", "number"),
    Index("batch_items_by_agent", "agent_id"),
    erasure="delete",
)
_c = batch_items.c
_MOST_PROBLEMS = 100


def insert_all(tx: Transaction, job: Job, requests: Sequence[dict[str, Any]]) -> None:
    of_all = {"job_id": job.id, "user_id": job.user_id, "status": "waiting"}
    rows = [
        of_all | {"agent_id": one["agent_id"], "number": n, "request": one}
        for n, one in enumerate(requests)
    ]
    tx.run(insert(batch_items), rows)


def waiting(tx: Transaction, job_id: str) -> dict[str, list[int]]:
    """Return the numbers of the requests that have no answer yet, by agent, in their order."""
    found: dict[str, list[int]] = {}
    wanted = select(_c.agent_id, _c.number).where(_c.job_id == job_id, _c.status == "waiting")
    for row in tx.all(wanted.order_by(_c.number)):
        found.setdefault(row.agent_id, []).append(row.number)
    return found


def request(tx: Transaction, job_id: str, number: int) -> dict[str, Any] | None:
    """Return what is asked; None where the agent is gone, and the request with it."""
    row = tx.first(select(_c.request).where(_c.job_id == job_id, _c.number == number))
    return None if row is None else dict(row.request)


def save(
    tx: Transaction, job_id: str, number: int, run_id: str | None, problem: str | None
) -> None:
    """Store how a request ended: with a run, or why without an answer."""
    values: dict[str, Any] = {
        "status": "failed" if problem else "completed",
        "run_id": run_id,
        "problem": problem,
        "request": {},
    }
    tx.run(update(batch_items).where(_c.job_id == job_id, _c.number == number).values(values))


def counts(tx: Transaction, job_ids: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return how many requests of each batch have each status."""
    found: dict[str, dict[str, int]] = {id: {} for id in job_ids}
    counted = select(_c.job_id, _c.status, func.count().label("requests")).where(
        _c.job_id.in_(job_ids)
    )
    for row in tx.all(counted.group_by(_c.job_id, _c.status)):
        found[row.job_id][row.status] = row.requests
    return found


def problems(tx: Transaction, job_id: str) -> list[dict[str, Any]]:
    """Return the first requests that failed, and why."""
    wanted = select(_c.number, _c.agent_id, _c.run_id, _c.problem).where(
        _c.job_id == job_id, _c.status == "failed"
    )
    return [
        {str(name): value for name, value in row._mapping.items()}
        for row in tx.all(wanted.order_by(_c.number).limit(_MOST_PROBLEMS))
    ]


def page_of_messages(
    tx: Transaction, scope: Scope, wanted: Page, job_id: str, agent_id: str | None
) -> list[Message]:
    """Return one page of what agents answered in a batch: their words, calls and results."""
    of_batch = message_rows.c.run_id.in_(
        select(_c.run_id).where(_c.job_id == job_id, _c.run_id.is_not(None))
    )
    return messages.page(
        tx, scope, wanted, of_batch, message_rows.c.step_id.is_not(None), agent_id=agent_id
    )


def note_callback(tx: Transaction, job: Job, changes: dict[str, Any]) -> None:
    payload = {**job.payload, "callback": {**job.payload["callback"], **changes}}
    tx.run(update(jobs).where(jobs.c.id == job.id).values(payload=payload))
