"""PostgreSQL's way to hand out jobs: a procrastinate worker in each server, woken by the database, whose one task claims a job.

procrastinate decides who gets a ticket next, and serves one of a key at a time; our row decides whether it may be claimed, and how
it ended. So whatever a ticket meets (a lost race, a cut connection, a server that froze) costs a moment and never a job.
"""

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from ricordo.background.worker import Worker
from ricordo.errors import Unavailable
from ricordo.storage import tickets
from ricordo.storage.store import Store

log = logging.getLogger(__name__)
# Two for claiming tickets; one more listens.
_CONNECTIONS = 2
_RACES = 5
_STOP_LIMIT = 10.0


class TicketWorker:
    """Runs the jobs of one server on PostgreSQL: `start` and `stop` as those of a Worker. `address` is a libpq address."""

    def __init__(self, worker: Worker, store: Store, address: str) -> None:
        self._worker = worker
        self._store = store
        self._address = address
        self._tasks: list[asyncio.Task[None]] = []
        self._suspects: set[int] = set()
        self._is_stopping = False
        self._app: Any = None

    async def start(self) -> None:
        """Free what dead servers left, then take and run jobs until `stop`. Raises Unavailable without the extra `postgres`."""
        self._app = self._make_app()
        try:
            await self._app.open_async()
        except Exception as error:
            reason = (
                "The connections of the job queue could not be opened. See that PostgreSQL takes some more of them."
            )
            raise Unavailable(reason) from error
        await self._worker.open()
        self._tasks = [
            asyncio.create_task(self._serve(), name="jobs: tickets"),
            asyncio.create_task(self._issue(), name="jobs: missing tickets"),
        ]

    async def stop(self) -> None:
        """Take no more jobs, and put back those that run, without spending an attempt."""
        await self._worker.stop()
        self._is_stopping = True
        for task in self._tasks:
            task.cancel()
        _, late = await asyncio.wait(self._tasks, timeout=_STOP_LIMIT)
        if late:
            log.warning("the queue's worker does not stop, and is left")
        await self._app.close_async()

    def _make_app(self) -> Any:
        try:
            import procrastinate
        except ImportError as error:
            reason = "PostgreSQL needs the extra `postgres`. Install it: pip install 'ricordo[postgres]'"
            raise Unavailable(reason) from error
        logging.getLogger("procrastinate").setLevel(logging.WARNING)  # it has two lines to say about every ticket
        connector = procrastinate.PsycopgConnector(conninfo=self._address, min_size=1, max_size=_CONNECTIONS)
        app = procrastinate.App(connector=connector)
        app.job_manager = _Steady(app.job_manager, self._store)  # type: ignore[assignment]

        @app.task(name=tickets.TASK, queue=tickets.QUEUE)
        async def claim(id: str) -> None:
            await self._worker.run_one(id)

        return app

    async def _serve(self) -> None:
        """Let procrastinate work; where it gives up, as on a lost connection, let it begin again."""
        pace = self._worker.pace
        # Whoever is cancelled while procrastinate closes may get its error instead: ask, and do not trust the cancel alone.
        while not self._is_stopping:
            try:
                await self._app.run_worker_async(
                    queues=[tickets.QUEUE],
                    concurrency=pace.concurrency,
                    fetch_job_polling_interval=pace.poll,
                    # A job runs on when its ticket is dropped: the row holds it, and its key.
                    shutdown_graceful_timeout=0,
                    delete_jobs="always",
                    install_signal_handlers=False,
                    update_heartbeat_interval=pace.silence / 3,
                    stalled_worker_timeout=pace.silence,
                )
            except Exception as error:
                log.warning("the queue's worker stopped; it starts again", extra={"error": type(error).__name__})
            await asyncio.sleep(pace.poll)

    async def _issue(self) -> None:
        """Issue tickets for jobs whose time has come, and drop those that hold a key for nobody."""
        pace, swept = self._worker.pace, 0.0
        while True:
            try:
                if await self._store.read(tickets.are_missing):
                    await self._store.write(tickets.issue_missing)
                if (now := asyncio.get_running_loop().time()) - swept >= pace.sweep:
                    swept = now
                    self._suspects = await self._store.write(lambda tx: tickets.drop_idle(tx, self._suspects))
            except Exception as error:
                log.warning("tickets could not be issued; it is tried again", extra={"error": type(error).__name__})
            await asyncio.sleep(pace.poll)


class _Steady:
    """procrastinate's manager of its rows, with the errors answered that would end its worker."""

    def __init__(self, manager: Any, store: Store) -> None:
        self._manager = manager
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    async def fetch_job(self, queues: Iterable[str] | None, worker_id: int) -> Any:
        """The next ticket, or None."""
        from procrastinate.exceptions import UniqueViolation

        for _ in range(_RACES):
            try:
                return await self._manager.fetch_job(queues=queues, worker_id=worker_id)
            except UniqueViolation:
                continue  # two workers took two tickets of one key at once, and the other one was quicker
            except Exception as error:
                log.warning("no ticket could be fetched; it is tried again", extra={"error": type(error).__name__})
                # A worker that seemed dead was forgotten by another server; it takes its place again.
                with suppress(Exception):
                    await self.update_heartbeat(worker_id)
                await asyncio.sleep(0.5)
                return None
        return None

    async def finish_job(self, job: Any, status: Any, delete_job: bool) -> None:  # noqa: ARG002 - procrastinate's signature
        """Drop the ticket, whatever came of it."""
        try:
            await self._store.write(lambda tx: tickets.finish(tx, [job.id]))
        except Exception as error:
            log.warning("a ticket stays until it is swept", extra={"error": type(error).__name__})

    async def update_heartbeat(self, worker_id: int) -> None:
        """Say that this worker lives."""
        try:
            await self._store.write(lambda tx: tickets.keep_worker(tx, worker_id))
        except Exception as error:
            log.warning("the queue's worker gave no sign; it is tried again", extra={"error": type(error).__name__})
