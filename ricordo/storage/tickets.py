"""What procrastinate must know of jobs, on PostgreSQL alone.

A ticket is a procrastinate job whose one argument is the id of a job of ours: it tells some worker, on whatever machine, to claim
that row now. Our row stays the truth, so a ticket too many claims nothing, and one that was lost is issued again. Only jobs whose
time has come have tickets: procrastinate serves a lock in order, so one that waits for tomorrow would hold up its key.
"""

from collections.abc import Iterable, Sequence

from sqlalchemy import text

from ricordo.domain.job import Job
from ricordo.storage.store import Transaction, to_json

QUEUE = "ricordo"
TASK = "ricordo.job"
ISSUED_AT_ONCE = 500
# One server at a time looks for jobs without a ticket; any number that no one else takes for a lock.
_SWEEP_LOCK = 7_420_931

_ISSUE = text(
    """SELECT procrastinate_defer_jobs_v1(array_agg(
        ROW('ricordo', 'ricordo.job', 0, item->>'lock', item->>'id', jsonb_build_object('id', item->>'id'), NULL)
        ::procrastinate_job_to_defer_v1))
    FROM jsonb_array_elements(CAST(:items AS jsonb)) AS item"""
)
_ALONE = text(f"SELECT pg_try_advisory_xact_lock({_SWEEP_LOCK}) AS is_alone")
_WITHOUT = text(
    """SELECT id, key FROM jobs WHERE status = 'waiting' AND not_before <= :now AND NOT EXISTS (
        SELECT 1 FROM procrastinate_jobs AS ticket WHERE ticket.queueing_lock = jobs.id AND ticket.status = 'todo')
    AND id NOT IN (
        SELECT queueing_lock FROM procrastinate_jobs
        WHERE status = 'doing' AND worker_id IS NOT NULL AND queueing_lock IS NOT NULL)
    ORDER BY not_before, seq LIMIT :most"""
)
_DROP = text("DELETE FROM procrastinate_jobs WHERE status = 'doing' AND queueing_lock = ANY(:ids)")
_IDLE = text(
    """SELECT id FROM procrastinate_jobs AS ticket WHERE status = 'doing' AND NOT EXISTS (
        SELECT 1 FROM jobs WHERE jobs.id = ticket.queueing_lock AND jobs.status = 'running')"""
)
# procrastinate tells nobody that a lock is free again: the next ticket of the key would wait until someone polls.
_FINISH = text(
    """WITH gone AS (DELETE FROM procrastinate_jobs WHERE id = ANY(:numbers) RETURNING lock)
    SELECT pg_notify('procrastinate_queue_v1#ricordo', '{"type": "job_inserted", "job_id": 0}') WHERE EXISTS (
        SELECT 1 FROM procrastinate_jobs AS next JOIN gone ON next.lock = gone.lock WHERE next.status = 'todo')"""
)
_KEEP_WORKER = text(
    """INSERT INTO procrastinate_workers (id, last_heartbeat) OVERRIDING SYSTEM VALUE VALUES (:id, now())
    ON CONFLICT (id) DO UPDATE SET last_heartbeat = excluded.last_heartbeat"""
)


def are_used(tx: Transaction) -> bool:
    """Whether this database's jobs are handed out by tickets."""
    return tx.connection.dialect.name == "postgresql"


def issue(tx: Transaction, jobs: Sequence[Job]) -> None:
    """Have a worker claim these jobs, once this transaction is committed."""
    _issue(tx, [(job.id, job.key) for job in jobs])


def are_missing(tx: Transaction) -> bool:
    """Whether a job whose time has come has no ticket."""
    return bool(tx.all(_WITHOUT.bindparams(now=tx.clock.now(), most=1)))


def issue_missing(tx: Transaction) -> int:
    """Issue tickets for jobs whose time has come and that have none; returns how many."""
    if not tx.all(_ALONE)[0].is_alone:
        return 0
    rows = tx.all(_WITHOUT.bindparams(now=tx.clock.now(), most=ISSUED_AT_ONCE))
    if rows:
        _issue(tx, [(row.id, row.key) for row in rows])
    return len(rows)


def finish(tx: Transaction, numbers: Iterable[int]) -> None:
    """Forget tickets that were used, and wake the workers where the next one of their keys waits."""
    tx.all(_FINISH.bindparams(numbers=list(numbers)))


def drop(tx: Transaction, ids: Sequence[str]) -> None:
    """Forget the tickets with which these jobs were claimed, so that their keys are free."""
    if ids:
        tx.run(_DROP, {"ids": list(ids)})


def drop_idle(tx: Transaction, suspects: set[int]) -> set[int]:
    """Forget those suspects that were taken and whose jobs still do not run, as a killed server leaves them.

    Returns the suspects for the next time: a ticket that was taken this moment is about to be used.
    """
    idle = {row.id for row in tx.all(_IDLE)}
    if lasting := idle & suspects:
        finish(tx, lasting)
    return idle - suspects


def keep_worker(tx: Transaction, number: int) -> None:
    """Say that this worker of procrastinate's lives, even where another server has counted it dead."""
    tx.run(_KEEP_WORKER, {"id": number})


def _issue(tx: Transaction, named: Sequence[tuple[str, str | None]]) -> None:
    items = [{"id": id, "lock": key} for id, key in named]
    tx.all(_ISSUE.bindparams(items=to_json(items)))
