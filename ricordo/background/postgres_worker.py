"""The background work of a server, and on PostgreSQL the distribution of its jobs.

On PostgreSQL each server has a worker of the library procrastinate. Its queue holds wake-ups: rows
that name one of our due jobs. The library decides which worker gets the next wake-up, and handles
one wake-up of each key at a time. The job's row in our table says whether the job may be claimed,
and how it ended. A race, a cut connection or a frozen server
may lose a wake-up. Its job then runs later, but no job is lost.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from ricordo.background.worker import Worker
from ricordo.domain.job import JobHandler
from ricordo.errors import Unavailable
from ricordo.runtime import Runtime
from ricordo.storage.engine import wake_ups
from ricordo.storage.engine.store import Store, Transaction

log = logging.getLogger(__name__)
# Two connections take wake-ups; one more listens.
_CONNECTIONS = 2
_RACES = 5
_STOP_LIMIT = 10.0


@asynccontextmanager
async def background_work(
    runtime: Runtime, built_in: Sequence[JobHandler] = (), *, address: str | None = None
) -> AsyncIterator[Worker]:
    """Run the built-in handlers and those of plugins until the `with` block ends.

    Args:
        runtime: The server's parts.
        built_in: The handlers of the server itself.
        address: PostgreSQL's address, in the form of libpq. None means SQLite, whose file only this
            server uses.

    Raises:
        Invalid: Two handlers have the same kind, or a periodic one runs more than once a second.
        Unavailable: The connections of PostgreSQL's job queue cannot be opened.
    """
    worker = Worker(runtime, [*built_in, *runtime.plugins.jobs()], is_alone=address is None)
    served = worker if address is None else PostgresWorker(worker, runtime.store, address)
    await served.start()
    try:
        yield worker
    finally:
        await served.stop()


class PostgresWorker:
    """A worker that runs one server's jobs on PostgreSQL.

    It has `start` and `stop`, as a Worker does. `address` is a libpq address.
    """

    def __init__(self, worker: Worker, store: Store, address: str) -> None:
        self._worker = worker
        self._store = store
        self._address = address
        self._tasks: list[asyncio.Task[None]] = []
        self._suspects: set[int] = set()
        self._is_stopping = False
        self._app: Any = None

    async def start(self) -> None:
        """Free the jobs of dead servers, then run jobs until `stop`. Raises Unavailable."""
        self._app = self._make_app()
        try:
            await self._open()
        except BaseException:
            await self._app.close_async()
            raise
        self._tasks = [
            asyncio.create_task(self._serve(), name="jobs: wake-ups"),
            asyncio.create_task(self._send_missing(), name="jobs: missing wake-ups"),
        ]

    async def _open(self) -> None:
        try:
            await self._app.open_async()
        except Exception as error:
            reason = (
                "The connections of the job queue could not be opened. "
                "Let PostgreSQL accept a few more connections."
            )
            raise Unavailable(reason) from error
        await self._worker.open()

    async def stop(self) -> None:
        """Claim no more jobs, and put running ones back without counting the attempt."""
        await self._worker.stop()
        self._is_stopping = True
        for task in self._tasks:
            task.cancel()
        _, late = await asyncio.wait(self._tasks, timeout=_STOP_LIMIT)
        if late:
            log.warning("the queue's worker does not stop; not waiting for it")
        await self._app.close_async()

    def _make_app(self) -> Any:
        # The import is slow, and SQLite does not need it. The extra that installs psycopg installs
        # it too.
        import procrastinate

        # procrastinate logs two lines for every wake-up.
        logging.getLogger("procrastinate").setLevel(logging.WARNING)
        connector = procrastinate.PsycopgConnector(
            conninfo=self._address, min_size=1, max_size=_CONNECTIONS
        )
        app = procrastinate.App(connector=connector)
        app.job_manager = _SteadyManager(app.job_manager, self._store)  # type: ignore[assignment]

        @app.task(name=wake_ups.TASK, queue=wake_ups.QUEUE)
        async def claim(id: str) -> None:
            await self._worker.run_one(id)

        return app

    async def _serve(self) -> None:
        """Run procrastinate, and restart it when it fails, as on a lost connection."""
        pace = self._worker.pace
        # A task that is cancelled while procrastinate closes may get procrastinate's error instead
        # of the cancel.
        while not self._is_stopping:
            try:
                await self._app.run_worker_async(
                    queues=[wake_ups.QUEUE],
                    concurrency=pace.concurrency,
                    fetch_job_polling_interval=pace.poll,
                    # Deleting a wake-up does not stop its job, since our row keeps the job and its
                    # key.
                    shutdown_graceful_timeout=0,
                    delete_jobs="always",
                    install_signal_handlers=False,
                    update_heartbeat_interval=pace.silence / 3,
                    stalled_worker_timeout=pace.silence,
                )
            except Exception as error:
                log.warning(
                    "the queue's worker stopped; it starts again",
                    extra={"error": type(error).__name__},
                )
            await asyncio.sleep(pace.poll)

    async def _send_missing(self) -> None:
        """Send missing wake-ups of due jobs, and delete wake-ups that block a key."""
        pace = self._worker.pace
        swept_at = 0.0
        while True:
            try:
                if await self._store.read(wake_ups.are_missing):
                    await self._store.write(wake_ups.send_missing)
                now = asyncio.get_running_loop().time()
                if now - swept_at >= pace.sweep:
                    swept_at = now
                    self._suspects = await self._store.write(
                        lambda tx: wake_ups.delete_idle(tx, self._suspects)
                    )
            except Exception as error:
                log.warning(
                    "wake-ups could not be sent; it is tried again",
                    extra={"error": type(error).__name__},
                )
            await asyncio.sleep(pace.poll)


class _SteadyManager:
    """Wraps procrastinate's job manager, and handles errors that would end a worker."""

    def __init__(self, manager: Any, store: Store) -> None:
        self._manager = manager
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    async def fetch_job(self, queues: Iterable[str] | None, worker_id: int) -> Any:
        """Return the next wake-up, or None; a failure is logged and tried again later.

        Args:
            queues: The names of procrastinate's queues.
            worker_id: procrastinate's number of this worker.
        """
        from procrastinate.exceptions import UniqueViolation

        for _ in range(_RACES):
            try:
                return await self._manager.fetch_job(queues=queues, worker_id=worker_id)
            except UniqueViolation:
                # Two workers fetched two wake-ups of one key at the same time, and the other worker
                # was faster.
                continue
            except Exception as error:
                log.warning(
                    "no wake-up could be fetched; it is tried again",
                    extra={"error": type(error).__name__},
                )
                # Another server may have declared this worker dead and deleted its row, so it
                # registers again.
                await self.update_heartbeat(worker_id)
                await asyncio.sleep(0.5)
                return None
        return None

    async def finish_job(self, job: Any, status: Any, delete_job: bool) -> None:  # noqa: ARG002 - procrastinate's signature
        """Delete a handled wake-up; after a failure it stays until it is swept.

        Args:
            job: procrastinate's job: the wake-up.
            status: Ignored: the row of our job says how the job ended.
            delete_job: Ignored: wake-ups are always deleted.
        """
        await self._write(
            lambda tx: wake_ups.finish(tx, [job.id]), "a wake-up stays until it is swept"
        )

    async def update_heartbeat(self, worker_id: int) -> None:
        """Renew the row of this worker, or create it again if another server deleted it.

        Args:
            worker_id: procrastinate's number of this worker.
        """
        failed = "the heartbeat of the queue's worker could not be saved; it is tried again"
        await self._write(lambda tx: wake_ups.keep_worker(tx, worker_id), failed)

    async def _write(self, work: Callable[[Transaction], None], failed: str) -> None:
        try:
            await self._store.write(work)
        except Exception as error:
            log.warning(failed, extra={"error": type(error).__name__})
