"""A running server with its clients, and schedules whose time is now."""

from typing import Any

from sqlalchemy import update

from ricordo.domain.clock import SECOND
from ricordo.features.automation.schedules import queries, service
from ricordo.features.automation.schedules.queries import schedules
from ricordo.storage import jobs
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import jobs as job_rows
from tests.seams.jobs import quick_jobs
from tests.seams.server import ServerInThread

__all__ = ["quick_jobs"]


def make_due(server: ServerInThread, id: str, *, ago: float = 0) -> int:
    """Make the schedule due now, or `seconds` ago; return that time."""

    def work(tx: Transaction) -> int:
        due_at = tx.clock.now() - round(ago * SECOND)
        tx.run(
            update(job_rows)
            .where(job_rows.c.key == id, job_rows.c.status == "waiting")
            .values(status="cancelled")
        )
        tx.run(update(schedules).where(schedules.c.id == id).values(next_at=due_at))
        row = queries.lock(tx, id)
        assert row
        jobs.add(tx, service.job_of(row, due_at, not_before=due_at))
        return due_at

    return server.write(work)


def jobs_of(server: ServerInThread, id: str, *statuses: str) -> list[Any]:
    found = job_rows.select().where(job_rows.c.key == id)
    return server.read(
        lambda tx: [row for row in tx.all(found) if not statuses or row.status in statuses]
    )
