"""Repair of timestamps in the future, from a clock that jumped ahead and was set back.

Timestamps in the future are set to now. Otherwise they would block other work for years: a lease or
a heartbeat would seem valid, a job would not be due, and a conversation would never seem idle.
Times that a user chose, such as those of passages and schedules, stay.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Table, case, func, or_, select, update

from ricordo.domain.clock import DAY, SECOND
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import (
    agents,
    api_keys,
    conversations,
    expenses,
    jobs,
    messages,
    providers,
    run_events,
    runs,
    steps,
    traces,
    users,
)
from ricordo.storage.schema.memory_tables import blocks, proposals

log = logging.getLogger(__name__)
# The clocks of several servers differ by seconds. Times that are further ahead come from a wrong
# clock.
TOLERANCE = DAY
_LEASE = 30 * SECOND
# Only the newest rows of long tables are checked: the wrong clock did not stamp older rows.
_NEWEST = 10_000
_STAMPS: Mapping[Table, Sequence[str]] = {
    agents: ("created_at", "updated_at"),
    api_keys: ("created_at", "last_used_at"),
    blocks: ("created_at", "updated_at"),
    conversations: ("last_message_at", "last_run_ended_at", "created_at", "updated_at"),
    jobs: ("heartbeat_at", "created_at", "started_at", "ended_at"),
    messages: ("created_at",),  # an index finds future times among all rows
    proposals: ("created_at", "resolved_at"),
    providers: ("created_at", "updated_at"),
    users: ("created_at",),
}
_STAMPS_OF_NEWEST: Mapping[Table, Sequence[str]] = {
    expenses: ("created_at",),
    run_events: ("created_at",),
    runs: ("created_at", "ended_at"),
    steps: ("created_at", "started_at"),
    traces: ("created_at",),
}


def mend_future_times(tx: Transaction) -> int:
    """Set timestamps that are more than a day ahead to now; return their number.

    Planned times, such as a lease's end, move too.
    """
    now = tx.clock.now()
    limit = now + TOLERANCE
    count = _replan_jobs(tx, now, limit) + _replan_ends(tx, now, limit)
    for table, columns in _STAMPS.items():
        count += sum(_set_to_now(tx, table, column, now, limit) for column in columns)
    for table, columns in _STAMPS_OF_NEWEST.items():
        last = select(func.coalesce(func.max(table.c.seq), 0)).scalar_subquery()
        are_newest = table.c.seq > last - _NEWEST
        count += sum(_set_to_now(tx, table, column, now, limit, are_newest) for column in columns)
    if count:
        log.warning(
            "times in the future were set to the current time: was the clock wrong?",
            extra={"times": count},
        )
    return count


def _set_to_now(
    tx: Transaction, table: Table, column: str, now: int, limit: int, *where: Any
) -> int:
    return tx.run(update(table).where(table.c[column] > limit, *where).values({column: now}))


def _replan_jobs(tx: Transaction, now: int, limit: int) -> int:
    """Move the start of waiting jobs that a wrong clock added or postponed.

    A job that was added under a wrong clock keeps the length of its wait, counted from now. A
    postponed job runs now, since no retry waits for a day.
    """
    by_wrong_clock = or_(jobs.c.created_at > limit, jobs.c.started_at.is_not(None))
    delay = case((jobs.c.created_at > limit, jobs.c.not_before - jobs.c.created_at), else_=0)
    statement = update(jobs).where(
        jobs.c.status == "waiting", jobs.c.not_before > limit, by_wrong_clock
    )
    return tx.run(statement.values(not_before=now + delay))


def _replan_ends(tx: Transaction, now: int, limit: int) -> int:
    """Renew the leases of turns, and let proposals keep their duration, counted from now."""
    leases = update(runs).where(runs.c.ended_at.is_(None), runs.c.lease_expires_at > limit)
    waiting = update(proposals).where(
        proposals.c.created_at > limit, proposals.c.expires_at.is_not(None)
    )
    duration = proposals.c.expires_at - proposals.c.created_at
    return tx.run(leases.values(lease_expires_at=now + _LEASE)) + tx.run(
        waiting.values(expires_at=now + duration)
    )
