"""Runs that a dead server of a shared database left open are closed by the others, before anybody writes to those threads."""

import logging

from ricordo.agents.closing import close_expired
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.runtime import Runtime

log = logging.getLogger(__name__)
EVERY = 20.0  # seconds; a lease lasts thirty


async def sweep(runtime: Runtime) -> int:
    """Close the runs whose lease has expired; returns how many there were."""
    closed = await runtime.store.write(lambda tx: close_expired(tx, frozenset(runtime.live)))
    if closed:
        log.warning("closed runs that a server left open", extra={"runs": len(closed)})
    return len(closed)


async def _sweep(runtime: Runtime, _job: Job, _report: Report) -> None:
    await sweep(runtime)


HANDLER = JobHandler("expired_runs", _sweep, every_seconds=EVERY)
