"""The requests of batches, a row for each. The batch itself is a job."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Index, UniqueConstraint, func, insert, select, update

from ricordo.domain.job import Job
from ricordo.domain.message import Message
from ricordo.domain.scope import Scope
from ricordo.storage import message_lookup, messages
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.columns import json_value, numbers, reference, seq, strings, table

# `status` is "waiting", "completed" or "failed". When a request has ended, its `request` is
# emptied; the agent's history has the content of an answered one.
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
_PROBLEM_LIMIT = 100


def insert_all(tx: Transaction, job: Job, requests: Sequence[dict[str, Any]]) -> None:
    """Store the requests of a new batch, numbered from 0.

    Args:
        tx: The transaction that adds the job.
        job: The job of the batch, as it was stored.
        requests: The requests as JSON, each with its `agent_id`.
    """
    rows = [
        {
            "job_id": job.id,
            "user_id": job.user_id,
            "status": "waiting",
            "agent_id": request["agent_id"],
            "number": number,
            "request": request,
        }
        for number, request in enumerate(requests)
    ]
    tx.run(insert(batch_items), rows)


def waiting(tx: Transaction, job_id: str) -> dict[str, list[int]]:
    """Return the numbers of unanswered requests, in order, by agent.

    Args:
        tx: The transaction, or a read.
        job_id: The batch.
    """
    numbers_by_agent: dict[str, list[int]] = {}
    unanswered = select(_c.agent_id, _c.number).where(_c.job_id == job_id, _c.status == "waiting")
    for row in tx.all(unanswered.order_by(_c.number)):
        numbers_by_agent.setdefault(row.agent_id, []).append(row.number)
    return numbers_by_agent


def request(tx: Transaction, job_id: str, number: int) -> dict[str, Any] | None:
    """Return a request; None if it was deleted together with its agent.

    Args:
        tx: The transaction, or a read.
        job_id: The batch.
        number: The position of the request in the batch, from 0.
    """
    row = tx.first(select(_c.request).where(_c.job_id == job_id, _c.number == number))
    return None if row is None else dict(row.request)


def save(
    tx: Transaction, job_id: str, number: int, *, run_id: str | None, problem: str | None
) -> None:
    """Store the end of a request: its run, or its problem.

    The stored content of the request is deleted.

    Args:
        tx: The transaction.
        job_id: The batch.
        number: The position of the request in the batch, from 0.
        run_id: The run that answered it; None if no run began.
        problem: The sentence that says why it failed; None if it was answered.
    """
    columns: dict[str, Any] = {
        "status": "failed" if problem else "completed",
        "run_id": run_id,
        "problem": problem,
        "request": {},
    }
    tx.run(update(batch_items).where(_c.job_id == job_id, _c.number == number).values(columns))


def counts(tx: Transaction, job_ids: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return the numbers of each batch's requests by status.

    A status without requests has no entry.

    Args:
        tx: The transaction, or a read.
        job_ids: The batches; each has an entry in the result, maybe an empty one.
    """
    counts_by_job: dict[str, dict[str, int]] = {job_id: {} for job_id in job_ids}
    request_count = func.count().label("requests")
    of_jobs = select(_c.job_id, _c.status, request_count).where(_c.job_id.in_(job_ids))
    for row in tx.all(of_jobs.group_by(_c.job_id, _c.status)):
        counts_by_job[row.job_id][row.status] = row.requests
    return counts_by_job


def problems(tx: Transaction, job_id: str) -> list[dict[str, Any]]:
    """Return the first 100 failed requests with their problems.

    Args:
        tx: The transaction, or a read.
        job_id: The batch.

    Returns:
        For each failed request its `number`, `agent_id`, `run_id` (None if no run began) and
        `problem`.
    """
    failed = select(_c.number, _c.agent_id, _c.run_id, _c.problem).where(
        _c.job_id == job_id, _c.status == "failed"
    )
    rows = tx.all(failed.order_by(_c.number).limit(_PROBLEM_LIMIT))
    return [{str(name): column for name, column in row._mapping.items()} for row in rows]


def page_of_messages(
    tx: Transaction, scope: Scope, page: Page, job_id: str, agent_id: str | None
) -> list[Message]:
    """Return one page of agents' messages in a batch: texts, calls and results.

    Args:
        tx: The transaction, or a read.
        scope: The caller.
        page: The page.
        job_id: The batch.
        agent_id: The only agent whose messages are returned; None for all agents.
    """
    run_ids = select(_c.run_id).where(_c.job_id == job_id, _c.run_id.is_not(None))
    conditions = (message_lookup.is_of_runs(run_ids), message_lookup.IS_OF_STEP)
    return messages.page(tx, scope, page, *conditions, agent_id=agent_id)
