"""Jobs: rows that one worker at a time claims.

A job is added in the transaction of the change that causes it. On every database the row decides
which worker has the job. A worker keeps a job by its heartbeat. A worker's writes check its name
and the attempt. So a worker that returns after it was declared dead changes nothing. Clocks of
several servers should agree within seconds.
"""

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from sqlalchemy import (
    ColumnElement,
    and_,
    bindparam,
    delete,
    func,
    literal,
    null,
    or_,
    select,
    true,
    update,
)

from ricordo.domain.clock import SECOND
from ricordo.domain.job import ENDED, Job, JobStatus
from ricordo.domain.scope import Scope
from ricordo.errors import Conflict, Invalid, LeaseLost
from ricordo.storage.engine import wake_ups
from ricordo.storage.engine.repository import (
    Missing,
    Page,
    Repository,
    equal,
    new_values,
    one_of,
    require_found,
    setter,
)
from ricordo.storage.engine.store import Store, Transaction, name_of
from ricordo.storage.schema.core_tables import jobs

T = TypeVar("T")
KEPT_SECONDS = 7 * 24 * 3600
KEPT_ENDED = 10_000
# Successful periodic jobs stay only for an hour, since they recur all the time.
PERIODIC = "every:"
# A worker without a heartbeat for this long counts as dead.
SILENCE = 30 * SECOND
_KEPT_PERIODIC_SECONDS = 3600
_PRUNED_AT_ONCE = 500
_LAST_ERRORS = 5
_WAKE_UP = "jobs.wake_up"

ROWS = Repository(Job, jobs)
_INSERT = Missing(jobs)
_other = jobs.alias("other")
# A cancelled job keeps its key until its worker has stopped it or is declared dead.
_STOPS = (
    (_other.c.status == "cancelled")
    & _other.c.worker.is_not(None)
    & (_other.c.heartbeat_at > bindparam("alive"))
)
_KEY_IS_FREE = jobs.c.key.is_(None) | ~(
    select(literal(1))
    .where(_other.c.key == jobs.c.key, (_other.c.status == "running") | _STOPS)
    .exists()
)
_IS_WAITING = jobs.c.status == "waiting"
_IS_OPEN = jobs.c.status.in_(("waiting", "running"))
OPEN_IDS = select(jobs.c.id).where(_IS_OPEN)
_IS_DUE = _IS_WAITING & (jobs.c.not_before <= bindparam("now"))
_DUE = select(jobs.c.id).where(_IS_DUE).limit(1)
_FREE = ROWS.select.where(_IS_DUE, _KEY_IS_FREE).with_for_update(skip_locked=True)
_NEXT = _FREE.order_by(jobs.c.not_before, jobs.c.seq).limit(1)
_THIS = _FREE.where(equal(jobs, "id"))
_claim = ROWS.updates(
    "status", "attempts", "worker", "heartbeat_at", "started_at", where=_IS_WAITING
)
_IS_OWN = (
    (jobs.c.id == bindparam("this_id"))
    & (jobs.c.status == "running")
    & (jobs.c.worker == bindparam("by_worker"))
    & (jobs.c.attempts == bindparam("attempt"))
)
_LOCK = select(jobs.c.id).where(_IS_OWN).with_for_update()
_RENEW = setter(jobs, "heartbeat_at", "progress", where=_IS_OWN)
_LEFT = (
    "status",
    "attempts",
    "not_before",
    "worker",
    "heartbeat_at",
    "progress",
    "error",
    "ended_at",
)
_leave_own = ROWS.updates(*_LEFT, where=_IS_OWN)
_OWN = select(jobs.c.id).where(jobs.c.status == "running", equal(jobs, "worker"))
_RUNNING = (
    select(jobs.c.id).where(equal(jobs, "kind", "user_id"), jobs.c.status == "running").limit(1)
)
# A locked row is skipped, so that a server that froze during a write does not delay other jobs.
_IS_SILENT = (jobs.c.status == "running") & (jobs.c.heartbeat_at < bindparam("before"))
_SILENT = ROWS.select.where(_IS_SILENT).order_by(jobs.c.seq).with_for_update(skip_locked=True)
_DELETE_WAITING = delete(jobs).where(equal(jobs, "key"), _IS_WAITING)
_OPEN_OF_KINDS = ROWS.select.where(
    equal(jobs, "organization_id"), one_of(jobs.c.kind, "kinds"), _IS_OPEN
)
_DELETE_WAITING_IDS = delete(jobs).where(one_of(jobs.c.id, "ids"), _IS_WAITING)
# Only the job itself, or its one callback, writes its payload.
_save_payload = ROWS.updates("payload", locked=None)
_TWIN = select(jobs.c.id).where(equal(jobs, "kind", "key"), _IS_WAITING, jobs.c.is_single)


@dataclass(frozen=True, slots=True)
class Queue:
    """The queue's depth, its delay, and its last errors.

    Attributes:
        depth: The numbers of jobs by kind and status.
        waits: The time that the oldest due job has waited, in microseconds; 0: no job is due.
        errors: The jobs with the last errors, the newest first.
    """

    depth: Mapping[str, Mapping[JobStatus, int]]
    waits: int
    errors: tuple[Job, ...]

    def count(self, status: JobStatus) -> int:
        """Return the number of jobs of all kinds with this status.

        Args:
            status: The status.
        """
        return sum(of_kind.get(status, 0) for of_kind in self.depth.values())


def save_payload(tx: Transaction, job: Job) -> None:
    """Store the job's payload, whatever its status is.

    Args:
        tx: The transaction.
        job: The job with its new payload.
    """
    _save_payload(tx, job)


def is_running(tx: Transaction, kind: str, user_id: str) -> bool:
    """Return True if a job of this kind about the user runs.

    Args:
        tx: The transaction.
        kind: The kind of the job.
        user_id: The user for whom the job was added.
    """
    return tx.first(_RUNNING, {"kind": kind, "user_id": user_id}) is not None


def delete_waiting(tx: Transaction, key: str) -> None:
    """Delete the waiting jobs with this key.

    Args:
        tx: The transaction.
        key: The key of the jobs, of any kind.
    """
    tx.run(_DELETE_WAITING, {"key": key})


def open_of_kinds(tx: Transaction, organization_id: str, kinds: Sequence[str]) -> list[Job]:
    """Return the organization's jobs of these kinds that wait or run.

    Args:
        tx: The transaction.
        organization_id: The organization.
        kinds: The kinds of the jobs; without any, there is no result.
    """
    values = {"organization_id": organization_id, "kinds": list(kinds)}
    return ROWS.all(tx, _OPEN_OF_KINDS, values)


def delete_waiting_ids(tx: Transaction, ids: Sequence[str]) -> None:
    """Delete the jobs among these that still wait.

    Args:
        tx: The transaction.
        ids: The jobs; running and ended ones stay.
    """
    if ids:
        tx.run(_DELETE_WAITING_IDS, {"ids": list(ids)})


def on_wake_up(tx: Transaction, notify: Callable[[], None] | None) -> None:
    """Call `notify` after each committed transaction that added a job or made one due.

    It runs in the transaction's thread.

    Args:
        tx: Any transaction of the store, in whose cache the function is stored.
        notify: The function; None ends the calls. On PostgreSQL it is called only after `make_due`.
    """
    tx.cache[_WAKE_UP] = notify


def add(tx: Transaction, job: Job) -> Job | None:
    """Store a new job.

    Args:
        tx: The transaction of the change that causes the job.
        job: The job. Its `created_at` is set here, and a `not_before` in the past becomes now.

    Returns:
        The stored job; None if it is single and another one of its kind and key already waits.

    Raises:
        Invalid: A single job has no key, or the job has no attempt.
    """
    if job.is_single and job.key is None:
        raise Invalid(
            f"The single job {job.kind} has no key. Give it one: only one job of a kind and key "
            "may wait."
        )
    if job.most_attempts < 1:
        raise Invalid(f"The job {job.kind} would never run. Give it at least one attempt.")
    now = tx.clock.now()
    job = replace(job, created_at=now, not_before=max(job.not_before, now))
    if not tx.run(_INSERT, ROWS.values(job)):
        return None
    if not wake_ups.are_used(tx):
        _notify(tx)
    elif job.not_before <= now:
        wake_ups.send(tx, [job])
    return job


def is_open_for(key: ColumnElement[str]) -> ColumnElement[bool]:
    """Return the condition that a job with the key in this column waits or runs.

    Args:
        key: A column of another table.
    """
    return select(jobs.c.seq).where(jobs.c.key == key, _IS_OPEN).exists()


def get(tx: Transaction, scope: Scope, id: str) -> Job:
    """Return the job with this id.

    Args:
        tx: The transaction.
        scope: The caller.
        id: The job's id.

    Raises:
        NotFound: There is no such job, or the caller may not see it.
    """
    job = ROWS.find(tx, scope, id)
    return require_found(job if job and _is_seen(scope, job) else None, "Job", id)


def _is_seen(scope: Scope, job: Job) -> bool:
    """Return True if `page` lists the job for this caller."""
    if scope.subject_id is None or job.user_id == scope.subject_id:
        return True
    author = job.payload.get("author")
    author_id = author.get("id") if isinstance(author, dict) else author
    return job.user_id is None and author_id == scope.user_id


def _is_for(scope: Scope) -> ColumnElement[bool] | None:
    """Return the condition that the caller may see a job.

    A job without a user belongs to the server. Only callers who see all data see it, and the one
    who asked for it: the `author` in its payload, as an id or as an actor with an id.
    """
    if scope.subject_id is None:
        return None
    author = jobs.c.payload["author"].as_string()
    actor = jobs.c.payload[("author", "id")].as_string()
    is_own = or_(author == scope.user_id, actor == scope.user_id)
    return or_(jobs.c.user_id == scope.subject_id, and_(jobs.c.user_id.is_(None), is_own))


def failed_keys(tx: Transaction, kind: str, since: int) -> set[str]:
    """Return the keys of jobs of this kind that have failed.

    Args:
        tx: The transaction.
        kind: The kind of the jobs.
        since: The earliest failure in microseconds UTC.
    """
    has_failed = (jobs.c.kind == kind) & (jobs.c.status == "failed") & (jobs.c.ended_at >= since)
    return {row.key for row in tx.all(select(jobs.c.key).where(has_failed))}


def make_due(tx: Transaction, kind: str, key: str, at: int = 0) -> None:
    """Let the waiting single job run at this time at the latest.

    Args:
        tx: The transaction.
        kind: The kind of the job.
        key: The key of the job. If no such job waits, nothing happens.
        at: A time in microseconds UTC; a past time, such as 0, means now.
    """
    at = max(at, tx.clock.now())
    statement = update(jobs).where(
        jobs.c.kind == kind, jobs.c.key == key, _IS_WAITING, jobs.c.is_single
    )
    tx.run(statement.where(jobs.c.not_before > at).values(not_before=at))
    _notify(tx)  # on PostgreSQL, the sweep for jobs without a wake-up finds the job


def is_due(tx: Transaction) -> bool:
    """Return True if the time of a waiting job has come, even if another job with its key runs.

    Args:
        tx: The transaction.
    """
    return tx.first(_DUE, {"now": tx.clock.now()}) is not None


def claim(tx: Transaction, worker: str, limit: int) -> list[Job]:
    """Claim at most `limit` due jobs, the longest waiting first, at most one for each key.

    Args:
        tx: The transaction.
        worker: The name of the worker, unique among all servers of the database.
        limit: The most jobs.
    """
    claimed: list[Job] = []
    while len(claimed) < limit and (job := ROWS.first(tx, _NEXT, _times(tx))):
        claimed.append(_take(tx, job, worker))
    return claimed


def claim_one(tx: Transaction, worker: str, id: str) -> Job | None:
    """Claim this job.

    Args:
        tx: The transaction.
        worker: The name of the worker, unique among all servers of the database.
        id: The job.

    Returns:
        The claimed job; None if it is deleted, claimed or not due, or if its key is busy.
    """
    job = ROWS.first(tx, _THIS, {**_times(tx), "id": id})
    if job:
        return _take(tx, job, worker)
    return None


def renew(
    tx: Transaction, worker: str, running: Iterable[Job], progress: Mapping[str, dict[str, int]]
) -> set[str]:
    """Extend the claims on these jobs, and save their progress.

    Args:
        tx: The transaction.
        worker: The name of the worker.
        running: The jobs as the worker claimed them.
        progress: The numbers `done` and `total` of jobs by job id; other jobs keep theirs.

    Returns:
        The ids of the jobs that are still the worker's.
    """
    now = tx.clock.now()
    rows = [
        _fence(job)
        | new_values({"heartbeat_at": now, "progress": progress.get(job.id, job.progress)})
        for job in running
    ]
    tx.run(_RENEW, rows)
    return {row.id for row in tx.all(_OWN, {"worker": worker})}


def finish(tx: Transaction, job: Job) -> bool:
    """End the job as done; return False if the worker has lost it.

    Args:
        tx: The transaction.
        job: The job as the worker claimed it.
    """
    return _leave(tx, job, status="done", ended_at=tx.clock.now())


def fail(tx: Transaction, job: Job, error: dict[str, str], retry_after: int | None = None) -> bool:
    """Retry the job after a delay, or end it as failed if no attempts are left.

    A single job is cancelled instead of a retry if another one already waits.

    Args:
        tx: The transaction.
        job: The job as the worker claimed it.
        error: The `type` and the `message` of the failure.
        retry_after: The delay in microseconds; None ends the job as failed at once.

    Returns:
        False if the worker has lost the job; then nothing changes.
    """
    if retry_after is None or job.attempts >= job.most_attempts:
        return _leave(tx, job, status="failed", error=error, ended_at=tx.clock.now())
    return _wait_again(tx, job, retry_after, error=error)


def put_back(tx: Transaction, job: Job, after: int = 0) -> bool:
    """Let the job wait again, without counting the attempt.

    A single job is cancelled instead if another one already waits.

    Args:
        tx: The transaction.
        job: The job as the worker claimed it.
        after: The delay in microseconds.

    Returns:
        False if the worker has lost the job; then nothing changes.
    """
    return _wait_again(tx, job, after, attempts=job.attempts - 1, error=job.error)


def take_over(tx: Transaction, *, silent_for: int = 0, live: Collection[str] = ()) -> list[Job]:
    """Free the jobs of workers without a heartbeat, and return them.

    Jobs without attempts left fail instead, and are returned too.

    Args:
        tx: The transaction.
        silent_for: The time without a heartbeat in microseconds; 0 frees all running jobs.
        live: The ids of jobs that run in this process. They count as alive even if this process's
            clock jumped.
    """
    freed = []
    # If the clock was set back after a lone server was killed, its heartbeats lie in the future.
    if silent_for:
        before = tx.clock.now() - silent_for
    else:
        before = sys.maxsize
    for job in ROWS.all(tx, _SILENT, {"before": before}):
        if job.id in live:
            continue
        error = {
            "type": "Interrupted",
            "message": f"interrupted: its server was stopped in attempt {job.attempts}",
        }
        if fail(tx, job, error, retry_after=0):
            freed.append(job)
    if wake_ups.are_used(tx):
        wake_ups.delete_used(tx, [job.id for job in freed])
    return freed


def cancel(tx: Transaction, scope: Scope, id: str) -> Job:
    """End a job that has not ended; its worker stops within seconds.

    Args:
        tx: The transaction.
        scope: The caller.
        id: The job; one that is cancelled already stays as it is.

    Raises:
        NotFound: There is no such job, or the caller may not see it.
        Conflict: The job has ended.
    """
    job = get(tx, scope, id)
    if job.status in ("done", "failed"):
        raise Conflict(f"{id} has already ended ({job.status}), so it cannot be cancelled.")
    statement = update(jobs).where(jobs.c.id == id, jobs.c.ended_at.is_(None))
    tx.run(statement.values(status="cancelled", ended_at=tx.clock.now()))
    return get(tx, scope, id)


def release(tx: Transaction, job: Job) -> bool:
    """Note that the worker has stopped a cancelled job, so that its key is free.

    Args:
        tx: The transaction.
        job: The job as the worker claimed it.

    Returns:
        False if the job is not cancelled, or is not the worker's.
    """
    statement = update(jobs).where(
        jobs.c.id == job.id, jobs.c.worker == job.worker, jobs.c.status == "cancelled"
    )
    return tx.run(statement.values(worker=None)) > 0


def remove(tx: Transaction, scope: Scope, id: str) -> Job:
    """Delete a job.

    A running job is only cancelled: its row holds the key until its worker has stopped, and `prune`
    deletes it later. A cancelled job whose worker has not stopped yet stays for the same reason.

    Args:
        tx: The transaction.
        scope: The caller.
        id: The job.

    Raises:
        NotFound: There is no such job, or the caller may not see it.
    """
    job = get(tx, scope, id)
    if job.status == "running":
        return cancel(tx, scope, id)
    is_stopping = job.worker is not None and (job.heartbeat_at or 0) > _times(tx)["alive"]
    if not (job.status == "cancelled" and is_stopping):
        tx.run(delete(jobs).where(jobs.c.id == id))
    return job


def page(
    tx: Transaction,
    scope: Scope,
    page: Page,
    *,
    statuses: Sequence[str] | None = None,
    kind: str | None = None,
) -> list[Job]:
    """Return one page of the jobs that the caller may see.

    Args:
        tx: The transaction.
        scope: The caller.
        page: The part of the list.
        statuses: Only jobs with one of these statuses; None: any.
        kind: Only jobs of this kind; None: any.
    """
    if statuses is None:
        of_statuses = None
    else:
        of_statuses = jobs.c.status.in_(statuses)
    return ROWS.page(tx, scope, page, of_statuses, _is_for(scope), kind=kind)


def prune(tx: Transaction) -> int:
    """Delete some ended jobs that are old or too many, and return their number.

    Call it until it returns 0.

    Args:
        tx: The transaction.
    """
    now = tx.clock.now()
    ended_jobs = select(jobs.c.seq).where(jobs.c.status.in_(ENDED))
    newest_kept = (
        ended_jobs.order_by(jobs.c.seq.desc()).offset(KEPT_ENDED).limit(1).scalar_subquery()
    )
    is_old_periodic = (
        jobs.c.key.startswith(PERIODIC, autoescape=True)
        & (jobs.c.status == "done")
        & (jobs.c.ended_at < now - _KEPT_PERIODIC_SECONDS * SECOND)
    )
    is_over = (
        (jobs.c.ended_at < now - KEPT_SECONDS * SECOND)
        | is_old_periodic
        | (jobs.c.seq <= newest_kept)
    )
    rows = tx.all(ended_jobs.where(func.coalesce(is_over, False)).limit(_PRUNED_AT_ONCE))
    if rows:
        return tx.run(delete(jobs).where(jobs.c.seq.in_([row.seq for row in rows])))
    return 0


def read_queue(tx: Transaction, scope: Scope | None) -> Queue:
    """Return the queue of the scope's organization; None: of all organizations.

    Args:
        tx: The transaction.
        scope: The caller. One who is limited to a user sees only this user's jobs, and those
            without a user that the caller asked for. None: the server itself.
    """
    if scope:
        condition = jobs.c.organization_id == scope.organization_id
    else:
        condition = true()
    if scope and (narrowed := _is_for(scope)) is not None:
        condition &= narrowed
    depth: dict[str, dict[JobStatus, int]] = {}
    counted = select(jobs.c.kind, jobs.c.status, func.count().label("jobs")).where(condition)
    for row in tx.all(
        counted.group_by(jobs.c.kind, jobs.c.status).order_by(jobs.c.kind, jobs.c.status)
    ):
        depth.setdefault(row.kind, {})[row.status] = row.jobs
    oldest = select(func.min(jobs.c.not_before).label("since")).where(
        condition, jobs.c.status == "waiting"
    )
    since = tx.all(oldest)[0].since
    if since is None:
        waits = 0
    else:
        waits = max(tx.clock.now() - since, 0)
    last = func.coalesce(jobs.c.ended_at, jobs.c.started_at, 0).desc()
    troubled = ROWS.select.where(
        condition, jobs.c.status.in_(("failed", "waiting")), jobs.c.error.is_not(null())
    )
    return Queue(
        depth,
        waits,
        tuple(ROWS.all(tx, troubled.order_by(last, jobs.c.seq.desc()).limit(_LAST_ERRORS))),
    )


class FencedStore:
    """A job's store, whose writes raise LeaseLost after the job was lost.

    A job is lost if it was taken over, cancelled or ended, for example while its server was frozen.
    """

    def __init__(self, store: Store, job: Job) -> None:
        self.clock = store.clock
        self.read = store.read
        self._store = store
        self._job = job

    async def write(self, work: Callable[[Transaction], T]) -> T:
        """Write as the store does, while the worker has the job.

        No other worker can take the job over before the commit.

        Args:
            work: The unit of work. Its result is returned.

        Raises:
            LeaseLost: The worker has lost the job.
        """

        def fenced(tx: Transaction) -> T:
            if tx.first(_LOCK, _fence(self._job)) is None:
                raise LeaseLost(
                    f"{self._job.id} runs elsewhere, or was cancelled. This server has stopped it."
                )
            return work(tx)

        # Slow writes are logged by the name of this function.
        fenced.__qualname__ = name_of(work)
        return await self._store.write(fenced)

    def require_in_place(self) -> None:
        """Raise Unavailable if the store's files were moved."""
        self._store.require_in_place()

    def require_writes(self) -> None:
        """Raise DatabaseFailed if a write of the store failed a moment ago."""
        self._store.require_writes()

    async def close(self) -> None:
        """Do nothing, since the store's owner closes it."""


def _notify(tx: Transaction) -> None:
    if notify := tx.cache.get(_WAKE_UP):
        tx.after_commit.append(notify)


def _times(tx: Transaction) -> dict[str, int]:
    now = tx.clock.now()
    return {"now": now, "alive": now - SILENCE}


def _take(tx: Transaction, job: Job, worker: str) -> Job:
    now = tx.clock.now()
    claimed = replace(
        job,
        status="running",
        attempts=job.attempts + 1,
        worker=worker,
        heartbeat_at=now,
        started_at=now,
    )
    _claim(tx, claimed)
    return claimed


def _wait_again(tx: Transaction, job: Job, after: int, **changes: Any) -> bool:
    if job.is_single and tx.first(_TWIN, {"kind": job.kind, "key": job.key}):
        # Another single job with this key was added while this one ran. It will do the rest.
        return _leave(tx, job, status="cancelled", error=changes["error"], ended_at=tx.clock.now())
    return _leave(tx, job, status="waiting", not_before=tx.clock.now() + after, **changes)


def _leave(tx: Transaction, job: Job, **changes: Any) -> bool:
    changed = replace(job, **{"worker": None, "heartbeat_at": None, "error": None, **changes})
    return _leave_own(tx, changed, **_fence(job)) > 0


def _fence(job: Job) -> dict[str, Any]:
    return {"this_id": job.id, "by_worker": job.worker, "attempt": job.attempts}
