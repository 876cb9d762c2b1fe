"""Stop turns of this server whose runs were ended elsewhere, on a database of several servers.

A cancel or a deletion at another server ends the run in the database. One statement a second looks
for that, for all turns of this server; without turns there is none.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ricordo.errors import RicordoError
from ricordo.runtime import Runtime
from ricordo.storage import runs

log = logging.getLogger(__name__)
_WATCH_SECONDS = 1.0


@asynccontextmanager
async def watched_runs(runtime: Runtime) -> AsyncIterator[None]:
    """Watch the runs of this server's turns until the `with` block ends."""
    watching = asyncio.create_task(_watch(runtime), name="runs: watch")
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait([watching])


async def _watch(runtime: Runtime) -> None:
    # A turn that stops slowly does not delay the others.
    async with asyncio.TaskGroup() as stopping:
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            if not (run_ids := list(runtime.live)):
                continue
            try:
                stopped_ids = await runtime.store.read(lambda tx: runs.stopped(tx, run_ids))
            except Exception as error:
                # If the database is down, the renewal of the leases reports it.
                if not isinstance(error, RicordoError):
                    log.exception("the running turns could not be watched; it is tried again")
                continue
            for run_id in stopped_ids:
                if turn := runtime.live.get(run_id):
                    log.info("a turn was ended elsewhere", extra={"run": run_id})
                    stopping.create_task(turn.cancel())
