"""Wake-ups: the jobs of procrastinate that wake workers on PostgreSQL.

A wake-up is a procrastinate job whose only argument is the id of one of our jobs. A worker on any
machine then claims that job's row at once. Only the row decides who runs the job: a superfluous
wake-up claims nothing, and a lost wake-up is sent again. Only due jobs have a wake-up.
procrastinate handles the wake-ups of one key in order, so one for tomorrow would delay all later
jobs of its key.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import text

from ricordo.storage.engine.store import Transaction, to_json

QUEUE = "ricordo"
TASK = "ricordo.job"
_SENT_AT_ONCE = 500
# Only one server at a time looks for jobs without a wake-up. The number must not be another lock's.
_SWEEP_LOCK = 7_420_931

_SEND = text(
    """SELECT procrastinate_defer_jobs_v1(array_agg(
        ROW('ricordo', 'ricordo.job', 0, item->>'lock', item->>'id', jsonb_build_object('id', item->>'id'), NULL)
        ::procrastinate_job_to_defer_v1))
    FROM jsonb_array_elements(CAST(:items AS jsonb)) AS item"""
)
_ALONE = text(f"SELECT pg_try_advisory_xact_lock({_SWEEP_LOCK}) AS is_alone")
_WITHOUT = text(
    """SELECT id, key FROM jobs WHERE status = 'waiting' AND not_before <= :now AND NOT EXISTS (
        SELECT 1 FROM procrastinate_jobs AS sent WHERE sent.queueing_lock = jobs.id AND sent.status = 'todo')
    AND id NOT IN (
        SELECT queueing_lock FROM procrastinate_jobs
        WHERE status = 'doing' AND worker_id IS NOT NULL AND queueing_lock IS NOT NULL)
    ORDER BY not_before, seq LIMIT :limit"""
)
_DELETE_USED = text(
    "DELETE FROM procrastinate_jobs WHERE status = 'doing' AND queueing_lock = ANY(:ids)"
)
_IDLE = text(
    """SELECT id FROM procrastinate_jobs AS sent WHERE status = 'doing' AND NOT EXISTS (
        SELECT 1 FROM jobs WHERE jobs.id = sent.queueing_lock AND jobs.status = 'running')"""
)
# procrastinate sends no notification when a lock becomes free. Without this statement the next
# wake-up of the key would wait until a worker polls.
_FINISH = text(
    """WITH used AS (DELETE FROM procrastinate_jobs WHERE id = ANY(:numbers) RETURNING lock)
    SELECT pg_notify('procrastinate_queue_v1#ricordo', '{"type": "job_inserted", "job_id": 0}') WHERE EXISTS (
        SELECT 1 FROM procrastinate_jobs AS next JOIN used ON next.lock = used.lock WHERE next.status = 'todo')"""
)
_KEEP_WORKER = text(
    """INSERT INTO procrastinate_workers (id, last_heartbeat) OVERRIDING SYSTEM VALUE VALUES (:id, now())
    ON CONFLICT (id) DO UPDATE SET last_heartbeat = excluded.last_heartbeat"""
)


def are_used(tx: Transaction) -> bool:
    """Return True if the workers are woken by procrastinate's jobs, which only PostgreSQL has.

    Args:
        tx: The transaction.
    """
    return tx.connection.dialect.name == "postgresql"


def are_missing(tx: Transaction) -> bool:
    """Return True if a due job has no wake-up.

    Args:
        tx: The transaction.
    """
    return bool(tx.all(_WITHOUT.bindparams(now=tx.clock.now(), limit=1)))


def send_missing(tx: Transaction) -> None:
    """Send wake-ups for due jobs that have none, at most 500.

    Does nothing while another server does this.

    Args:
        tx: The transaction.
    """
    if tx.all(_ALONE)[0].is_alone:
        send(tx, tx.all(_WITHOUT.bindparams(now=tx.clock.now(), limit=_SENT_AT_ONCE)))


def finish(tx: Transaction, numbers: Iterable[int]) -> None:
    """Delete used wake-ups, and notify the workers if another wake-up with the same key waits.

    Args:
        tx: The transaction.
        numbers: The ids of procrastinate's jobs.
    """
    tx.all(_FINISH.bindparams(numbers=list(numbers)))


def delete_used(tx: Transaction, ids: Sequence[str]) -> None:
    """Delete the running wake-ups of these jobs.

    Args:
        tx: The transaction.
        ids: The ids of jobs, not of procrastinate's jobs; without any, nothing happens.
    """
    if ids:
        tx.run(_DELETE_USED, {"ids": list(ids)})


def delete_idle(tx: Transaction, suspects: set[int]) -> set[int]:
    """Delete the suspects that are still idle; return the next suspects.

    A wake-up is idle if a worker handles it but its job does not run, as after a kill. It may be
    idle only for a moment. So it first becomes a suspect, and is deleted at the next call.

    Args:
        tx: The transaction.
        suspects: The result of the previous call: ids of procrastinate's jobs. The first call
            passes none.
    """
    idle = {row.id for row in tx.all(_IDLE)}
    if lasting := idle & suspects:
        finish(tx, lasting)
    return idle - suspects


def keep_worker(tx: Transaction, number: int) -> None:
    """Mark this procrastinate worker as alive, even if another server counted it dead.

    Args:
        tx: The transaction.
        number: The id of procrastinate's worker.
    """
    tx.run(_KEEP_WORKER, {"id": number})


def send(tx: Transaction, jobs: Iterable[Any]) -> None:
    """Send a wake-up for each of these due jobs.

    Args:
        tx: The transaction.
        jobs: Jobs or rows with `id` and `key`.
    """
    if wake_ups := [{"id": job.id, "lock": job.key} for job in jobs]:
        tx.all(_SEND.bindparams(items=to_json(wake_ups)))
