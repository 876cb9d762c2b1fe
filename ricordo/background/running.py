"""Background work of a server, from its start to its stop: one worker, fed in the way of its database."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from ricordo.background.handlers import Handlers
from ricordo.background.tickets import TicketWorker
from ricordo.background.worker import Worker
from ricordo.domain.job import JobHandler
from ricordo.runtime import Runtime


@asynccontextmanager
async def background_work(
    runtime: Runtime, built_in: Sequence[JobHandler] = (), *, address: str | None = None
) -> AsyncIterator[Worker]:
    """A worker with the built-in handlers and those of plugins, stopped on leaving.

    `address` is PostgreSQL's, as libpq reads it; None: this is the only server on its SQLite file.
    """
    handlers = Handlers([*built_in, *runtime.plugins.jobs()])
    worker = Worker(runtime, handlers, is_alone=address is None)
    served = worker if address is None else TicketWorker(worker, runtime.store, address)
    await served.start()
    try:
        yield worker
    finally:
        await served.stop()
