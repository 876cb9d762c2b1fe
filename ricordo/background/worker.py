"""The worker of a server: it claims jobs, and runs their handlers concurrently.

It renews their heartbeats and saves the end of each. On SQLite it claims jobs by itself; on
PostgreSQL procrastinate passes them to it (`postgres_worker.py`). Everything else is the same.
"""

import asyncio
import hashlib
import logging
import os
import secrets
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from ricordo.domain.clock import SECOND, Backoff
from ricordo.domain.job import Job, JobHandler
from ricordo.domain.redaction import redact
from ricordo.domain.scope import LOCAL_ORGANIZATION
from ricordo.errors import Busy, Collision, Invalid, NotFound, RicordoError
from ricordo.runtime import Runtime
from ricordo.storage import jobs
from ricordo.storage.engine.store import Transaction
from ricordo.storage.future_times import mend_future_times

log = logging.getLogger(__name__)
# A job of an unknown kind may be meant for a newer server. It waits for such a server at most
# `_UNKNOWN_WAITS`, and is tried again every `_UNKNOWN_AGAIN`, both in microseconds.
_UNKNOWN_WAITS = 24 * 3600 * SECOND
_UNKNOWN_AGAIN = 60 * SECOND
# Seconds that a stop waits for claims, and then for jobs.
_STOP_LIMIT = 10.0
# Seconds before each attempt to save how a job ended.
_SAVE_DELAYS = (0.0, 0.1, 1.0, 3.0)
BACKOFF = Backoff(2, 4, 600, spread=(1, 1.2))
_PERIODIC_ATTEMPTS = 3
_LEAST_PAUSE = SECOND
_LONGEST_PAUSE = 30 * SECOND
_LONGEST_MESSAGE = 400


@dataclass(frozen=True, slots=True)
class Pace:
    """The number of concurrent jobs, and the worker's intervals in seconds."""

    concurrency: int = 4
    poll: float = 1.0
    beat: float = 2.0
    sweep: float = 10.0
    mend: float = 300.0
    prune: float = 600.0
    # A worker without a sign of life for this long counts as dead.
    silence: float = 30.0


@dataclass(slots=True)
class _RunningJob:
    """A running job.

    `work` is the task of its handler, which may be cancelled. `end` waits for it and saves the
    result.
    """

    job: Job
    work: asyncio.Task[None] | None = None
    end: asyncio.Task[None] | None = None
    progress: dict[str, int] = field(default_factory=dict)
    is_lost: bool = False

    async def run(self, handler: JobHandler, runtime: Runtime) -> None:
        """Run the handler, and remember the progress that it reports.

        Args:
            handler: The handler of this kind of job.
            runtime: The server's parts, for the handler.
        """

        def report(count: int, total: int) -> None:
            self.progress = {"done": count, "total": total}

        await handler.run(runtime, self.job, report)

    def cancel(self) -> None:
        if self.work:
            self.work.cancel()

    def current(self) -> Job:
        return replace(self.job, progress=self.progress or self.job.progress)


class Worker:
    """A worker that runs one server's jobs.

    Await `start()`, and `stop()` before the store is closed. With `is_alone` no other server uses
    the database, so at the start every running job belongs to a dead server.
    """

    def __init__(
        self,
        runtime: Runtime,
        handlers: Iterable[JobHandler],
        *,
        is_alone: bool,
        pace: Pace | None = None,
    ) -> None:
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self.pace = pace or Pace()
        self._runtime = runtime
        self._store = runtime.store
        self._handlers = by_kind(handlers)
        self._schedule = Schedule(self._handlers.values())
        self._is_alone = is_alone
        self._wake_up = asyncio.Event()
        self._running: dict[str, _RunningJob] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._claiming: set[asyncio.Task[asyncio.Task[None] | None]] = set()
        self._stopped = asyncio.Event()

    async def start(self) -> None:
        await self.open()
        self._tasks.append(asyncio.create_task(self._claim_all(), name="jobs: claim"))

    async def open(self) -> None:
        """Free the jobs of dead servers and renew running ones, but claim none.

        Jobs are then started by `run_one`.
        """
        loop = asyncio.get_running_loop()

        def notify() -> None:
            with suppress(RuntimeError):  # the loop has ended: the next server will find the job
                loop.call_soon_threadsafe(self._wake_up.set)

        await self._mend_times()
        await self._sweep(0 if self._is_alone else self.pace.silence)
        await self._store.read(lambda tx: jobs.on_wake_up(tx, notify))
        self._tasks.append(asyncio.create_task(self._maintain(), name="jobs: maintain"))

    async def stop(self) -> None:
        """Claim no more jobs, and put running ones back without counting the attempt."""
        self._stopped.set()
        self._wake_up.set()
        with suppress(RicordoError):  # the rest is stopped even if the database fails
            await self._store.read(lambda tx: jobs.on_wake_up(tx, None))
        # A job that is being claimed is first started, since only then can it be put back.
        if claiming := [*self._tasks, *self._claiming]:
            await asyncio.wait(claiming, timeout=_STOP_LIMIT)
        running = list(self._running.values())
        for running_job in running:
            running_job.cancel()
        if ending := [running_job.end for running_job in running if running_job.end]:
            _, late = await asyncio.wait(ending, timeout=_STOP_LIMIT)
            if late:
                log.warning(
                    "jobs do not stop; the next server will take them", extra={"jobs": len(late)}
                )

    async def run_one(self, id: str) -> None:
        """Claim this job and run it to its end, if it can be claimed.

        Args:
            id: The id of a job. If it ran already, or another server has it, nothing is done.
        """
        if self._stopped.is_set():
            return
        # If the caller is cancelled, both tasks continue, since only this worker decides when a job
        # stops.
        claiming = asyncio.create_task(self._claim_one(id), name="jobs: claim")
        self._claiming.add(claiming)
        claiming.add_done_callback(self._claiming.discard)
        await asyncio.wait([claiming])
        if end := claiming.result():
            await asyncio.wait([end])

    async def _claim_one(self, id: str) -> asyncio.Task[None] | None:
        try:
            job = await self._store.write(lambda tx: jobs.claim_one(tx, self.name, id))
        except Collision:
            # Another job with the same key was claimed at the same time. The worker finds this job
            # again later.
            return None
        except RicordoError as error:
            log.warning(
                "a job could not be claimed; it will be tried again",
                extra={"job": id, "error": type(error).__name__},
            )
            return None
        return self._spawn(job) if job else None

    async def _claim_all(self) -> None:
        while not self._stopped.is_set():
            self._wake_up.clear()
            free = self.pace.concurrency - len(self._running)
            claimed = await self._claim(free) if free > 0 else 0
            if (not claimed or claimed == free) and not self._stopped.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake_up.wait(), self.pace.poll)

    async def _claim(self, limit: int) -> int:
        try:
            # Read before claiming, since usually nothing is due and a read is cheap.
            if not await self._store.read(jobs.is_due):
                return 0
            claimed = await self._store.write(lambda tx: jobs.claim(tx, self.name, limit))
        except Exception:
            log.exception("jobs could not be claimed; it is tried again")
            return 0
        for job in claimed:
            self._spawn(job)
        return len(claimed)

    def _spawn(self, job: Job) -> asyncio.Task[None]:
        this = self._running[job.id] = _RunningJob(job)
        if handler := self._handlers.get(job.kind):
            this.work = asyncio.create_task(this.run(handler, self._runtime))
        this.end = asyncio.create_task(self._finish(this), name=f"job {job.kind}")

        def ended(_: object) -> None:
            # The job may run in this process twice, if another server took it over and then this
            # server claimed it again.
            if self._running.get(job.id) is this:
                del self._running[job.id]
            self._wake_up.set()

        this.end.add_done_callback(ended)
        if self._stopped.is_set():
            this.cancel()
        return this.end

    async def _finish(self, this: _RunningJob) -> None:
        """Wait for the handler, and save the job's end."""
        job = this.job
        work = this.work
        if work is None:
            await self._save(lambda tx: _leave_unknown(tx, job), job)
            return
        await asyncio.wait([work])
        if this.is_lost:
            await self._release(job)
        elif work.cancelled():
            await self._save(lambda tx: jobs.put_back(tx, this.current()), job)
        elif error := work.exception():
            await self._fail(this, error)
        else:
            await self._save(lambda tx: jobs.finish(tx, this.current()), job)

    async def _release(self, job: Job) -> None:
        try:
            await self._store.write(lambda tx: jobs.release(tx, job))
        except Exception as error:
            # The job's key becomes free anyway when this worker has been silent for a while.
            log.warning(
                "a cancelled job could not be released",
                extra={"job": job.id, "error": type(error).__name__},
            )

    async def _fail(self, this: _RunningJob, error: BaseException) -> None:
        job = this.job
        if isinstance(error, Busy):
            # A busy conversation is no failure, since its turn will end.
            pause = _pause_of_busy(job, self._store.clock.now())
            log.info("a job waits for a busy conversation", extra={"job": job.id})
            await self._save(lambda tx: jobs.put_back(tx, this.current(), pause), job)
            return
        wait = None if isinstance(error, Invalid | NotFound) else retry_after(job.attempts)
        facts = {"job": job.id, "kind": job.kind, "attempt": job.attempts, "of": job.most_attempts}
        unexpected = None if isinstance(error, RicordoError) else error
        log.warning(
            "a job failed", extra=facts | {"error": type(error).__name__}, exc_info=unexpected
        )
        await self._save(lambda tx: jobs.fail(tx, this.current(), describe(error), wait), job)

    async def _save(self, end: Callable[[Transaction], bool], job: Job) -> None:
        """Save the job's end.

        If the database fails for longer than the attempts take, the job counts as that of a dead
        worker, and runs again.
        """
        for delay in _SAVE_DELAYS:
            await asyncio.sleep(delay)
            try:
                if not await self._store.write(end):
                    log.warning(
                        "a job ended after this server had lost its lease",
                        extra={"job": job.id, "kind": job.kind},
                    )
                    await self._release(job)
            except Exception as error:
                log.warning(
                    "the end of a job could not be saved",
                    extra={"job": job.id, "error": type(error).__name__},
                )
            else:
                return

    async def _maintain(self) -> None:
        """Do the periodic duties until the worker stops.

        They add periodic jobs, renew running jobs, free jobs of dead workers, mend timestamps in
        the future, and delete old jobs.
        """
        time = asyncio.get_running_loop().time
        duties = {
            self._add_periodic: 0.0,
            self._renew: 0.0,
            self._sweep: self.pace.sweep,
            self._mend_times: self.pace.mend,
            self._prune: self.pace.prune,
        }
        last_runs = dict.fromkeys(duties, time())
        while not self._stopped.is_set():
            for duty, interval in duties.items():
                if (now := time()) - last_runs[duty] >= interval:
                    last_runs[duty] = now
                    try:
                        await duty()
                    except Exception:
                        log.exception("the jobs could not be maintained; it is tried again")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), self.pace.beat)

    async def _renew(self) -> None:
        if not (running := list(self._running.values())):
            return
        progress = {
            running_job.job.id: running_job.progress
            for running_job in running
            if running_job.progress
        }
        renewed_ids = await self._store.write(
            lambda tx: jobs.renew(
                tx, self.name, [running_job.job for running_job in running], progress
            )
        )
        for running_job in running:
            if (
                running_job.job.id not in renewed_ids
                and running_job.work
                and not running_job.work.done()
            ):
                # The job was cancelled or deleted, or taken over while this server was frozen.
                running_job.is_lost = True
                running_job.cancel()

    async def _add_periodic(self) -> None:
        if due_jobs := self._schedule.due(self._store.clock.now()):
            # A job is skipped if another server has added it or it already waits.
            await self._store.write(lambda tx: [jobs.add(tx, job) for job in due_jobs])
            self._schedule.added(due_jobs)

    async def _sweep(self, silence: float | None = None) -> None:
        silent_for = round((self.pace.silence if silence is None else silence) * SECOND)
        live = frozenset(self._running)
        if freed := await self._store.write(
            lambda tx: jobs.take_over(tx, silent_for=silent_for, live=live)
        ):
            log.warning("freed jobs that a stopped server left running", extra={"jobs": len(freed)})

    async def _mend_times(self) -> None:
        await self._store.write(mend_future_times)

    async def _prune(self) -> None:
        count = 1
        while count and not self._stopped.is_set():
            count = await self._store.write(jobs.prune)


def _leave_unknown(tx: Transaction, job: Job) -> bool:
    if tx.clock.now() - job.created_at < _UNKNOWN_WAITS:
        return jobs.put_back(tx, job, _UNKNOWN_AGAIN)
    reason = (
        f'No handler for jobs of kind "{job.kind}". '
        "Install the plugin that brings it, or delete the job."
    )
    return jobs.fail(tx, job, describe(NotFound(reason)))


def by_kind(handlers: Iterable[JobHandler]) -> dict[str, JobHandler]:
    """Return the handlers of a server by kind.

    Args:
        handlers: The handlers of the server and of its plugins.

    Raises:
        Invalid: A kind has two handlers, or would run more than once a second.
    """
    handlers_by_kind: dict[str, JobHandler] = {}
    for handler in handlers:
        if handler.kind in handlers_by_kind:
            raise Invalid(
                f'Jobs of kind "{handler.kind}" have two handlers. Remove the plugin that brings '
                "the second."
            )
        if handler.every_seconds is not None and handler.every_seconds < 1:
            raise Invalid(
                f'Jobs of kind "{handler.kind}" would run more than once a second. Give them a '
                "longer interval."
            )
        handlers_by_kind[handler.kind] = handler
    return handlers_by_kind


def describe(error: BaseException) -> dict[str, str]:
    """Return the error for the job's row: its type, and its message without secrets.

    Args:
        error: The error of a handler. The message of one that is no RicordoError is redacted
            strictly.

    Returns:
        `type`, and `message` of at most 400 characters.
    """
    message = " ".join(str(error).split())
    if not isinstance(error, RicordoError):
        message = redact(message, is_strict=True).text
    return {"type": type(error).__name__, "message": message[:_LONGEST_MESSAGE]}


def retry_after(attempt: int) -> int:
    """Return the microseconds to wait after this attempt.

    The wait is 2, 8, 32 … seconds, at most ten minutes, plus a random part of up to a fifth.

    Args:
        attempt: The number of the attempt that failed, from 1.
    """
    return round(BACKOFF.seconds(attempt) * SECOND)


def _pause_of_busy(job: Job, now: int) -> int:
    """Return the microseconds until a job retries a busy conversation.

    The pause is a tenth of the job's age, at least 1 second and at most 30 seconds.
    """
    return min(max(_LEAST_PAUSE, (now - job.created_at) // 10), _LONGEST_PAUSE)


class Schedule:
    """The schedule of periodic jobs: it says which jobs have to be added now.

    Each period has one job. It is due from the start of the period. A period that passed while no
    server ran is skipped.
    """

    def __init__(self, handlers: Iterable[JobHandler]) -> None:
        self._periods = {
            handler.kind: round(handler.every_seconds * SECOND)
            for handler in handlers
            if handler.every_seconds is not None
        }
        self._last: dict[str, int] = {}

    def due(self, now: int) -> list[Job]:
        """Return the jobs of the periods that have begun and are not added yet.

        Args:
            now: The time in microseconds UTC.
        """
        slots = {kind: now // period for kind, period in self._periods.items()}
        return [_job(kind, slot) for kind, slot in slots.items() if self._last.get(kind) != slot]

    def added(self, periodic_jobs: Iterable[Job]) -> None:
        """Remember that these jobs were added.

        Args:
            periodic_jobs: Jobs that `due` returned.
        """
        self._last |= {job.kind: job.payload["slot"] for job in periodic_jobs}


def _job(kind: str, slot: int) -> Job:
    # The id is derived from the period, so all servers add the same row, even if their clocks
    # differ.
    digits = hashlib.sha256(f"{kind}/{slot}".encode()).hexdigest()
    job_id = f"job-{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:32]}"
    key = f"{jobs.PERIODIC}{kind}"
    return Job(
        kind,
        LOCAL_ORGANIZATION,
        {"slot": slot},
        key=key,
        is_single=True,
        most_attempts=_PERIODIC_ATTEMPTS,
        id=job_id,
    )
