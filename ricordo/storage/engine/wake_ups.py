"""Wake-ups: what procrastinate stores of jobs, on PostgreSQL alone.

A wake-up is a procrastinate job whose one argument is the id of a job of ours: it lets some worker, on whatever machine, claim
that row now. Our row decides, so a wake-up too many claims nothing, and one that was lost is sent again. Only jobs whose time has
come have one: procrastinate serves a lock in order, so one that waits for tomorrow would hold up its key.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import text

from ricordo.storage.engine.store import Transaction, to_json

QUEUE = "ricordo"
TASK = "ricordo.job"
_SENT_AT_ONCE = 500
# One server at a time looks for jobs without a wake-up; any number that no one else takes for a lock.
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
    ORDER BY not_before, seq LIMIT :most"""
)
_DELETE_USED = text(
    "DELETE FROM procrastinate_jobs WHERE status = 'doing' AND queueing_lock = ANY(:ids)"
)
_IDLE = text(
    """SELECT id FROM procrastinate_jobs AS sent WHERE status = 'doing' AND NOT EXISTS (
        SELECT 1 FROM jobs WHERE jobs.id = sent.queueing_lock AND jobs.status = 'running')"""
)
# procrastinate notifies nobody that a lock is free again: the next wake-up of the key would wait until someone polls.
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
    return tx.connection.dialect.name == "postgresql"


def are_missing(tx: Transaction) -> bool:
    return bool(tx.all(_WITHOUT.bindparams(now=tx.clock.now(), most=1)))


def send_missing(tx: Transaction) -> None:
    """Send wake-ups for jobs whose time has come and that have none."""
    if tx.all(_ALONE)[0].is_alone:
        send(tx, tx.all(_WITHOUT.bindparams(now=tx.clock.now(), most=_SENT_AT_ONCE)))


def finish(tx: Transaction, numbers: Iterable[int]) -> None:
    """Delete wake-ups that were used, and notify the workers where the next one of their keys waits."""
    tx.all(_FINISH.bindparams(numbers=list(numbers)))


def delete_used(tx: Transaction, ids: Sequence[str]) -> None:
    if ids:
        tx.run(_DELETE_USED, {"ids": list(ids)})


def delete_idle(tx: Transaction, suspects: set[int]) -> set[int]:
    """Delete suspects taken whose jobs do not run, as after a kill; returns the next ones, which may be used this moment."""
    idle = {row.id for row in tx.all(_IDLE)}
    if lasting := idle & suspects:
        finish(tx, lasting)
    return idle - suspects


def keep_worker(tx: Transaction, number: int) -> None:
    """Note that this worker of procrastinate's is alive, even where another server has counted it dead."""
    tx.run(_KEEP_WORKER, {"id": number})


def send(tx: Transaction, jobs: Iterable[Any]) -> None:
    if items := [{"id": job.id, "lock": job.key} for job in jobs]:
        tx.all(_SEND.bindparams(items=to_json(items)))
