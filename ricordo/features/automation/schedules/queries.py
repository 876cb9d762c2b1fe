"""The table of schedules, and its SQL.

`next_at` is the next time of the message; `due_at` is the time for which it is being sent now. A
row belongs to the user `user_id`, or is shared if that is None. It stores the key that created it,
and the key's scopes, which limit its turns.
"""

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Index, delete, func, select

from ricordo.agents.deferred import Sender
from ricordo.domain.scope import Scope
from ricordo.errors import NotFound
from ricordo.storage import jobs as stored_jobs
from ricordo.storage.engine.repository import Page, Repository, equal
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.columns import json_value, reference, root, strings, table, timestamps

schedules = table(
    "schedules",
    *root(),
    reference("agent_id", "agents"),
    json_value("message"),
    json_value("schedule"),
    *strings("user_id"),
    *strings("created_by", erasure="blank"),
    *strings("key_id", "caller", erasure="keep"),
    json_value("scopes", "'[]'", erasure="keep"),
    *timestamps("created_at"),
    *timestamps("next_at", "due_at", null=True),
    *strings("problem"),
    Index("schedules_by_time", "agent_id", "created_at", "seq"),
    Index("schedules_by_user", "user_id"),
    erasure="delete",
)


@dataclass(frozen=True, slots=True)
class ScheduledMessage:
    """A message that is sent later, once or repeatedly. Times are microseconds."""

    id: str
    organization_id: str
    agent_id: str
    message: dict[str, Any] = field(default_factory=dict)
    schedule: dict[str, Any] = field(default_factory=dict)
    user_id: str | None = None
    created_by: str | None = None
    key_id: str | None = None
    caller: str | None = None
    scopes: tuple[str, ...] = ()
    created_at: int = 0
    next_at: int | None = None
    due_at: int | None = None
    problem: str | None = None

    @property
    def sender(self) -> Sender:
        return Sender(
            organization_id=self.organization_id,
            user_id=self.user_id,
            key_id=self.key_id,
            caller=self.caller,
            scopes=list(self.scopes),
        )

    @property
    def is_recurring(self) -> bool:
        return bool(self.schedule["type"] == "recurring")


_ROWS = Repository(ScheduledMessage, schedules, name="Schedule")
_LOCK = _ROWS.select.where(equal(schedules, "id")).with_for_update()
_COUNT = select(func.count().label("schedules")).where(equal(schedules, "agent_id"))
_DELETE = delete(schedules).where(equal(schedules, "id"))
_IS_AT_WORK = stored_jobs.is_open_for(schedules.c.id)
insert_one = _ROWS.insert
save = _ROWS.updates("next_at", "due_at", "problem")


def get(tx: Transaction, scope: Scope, agent_id: str, schedule_id: str) -> ScheduledMessage:
    """Return the schedule of this agent.

    Args:
        tx: The transaction, or a read.
        scope: The caller.
        agent_id: The agent.
        schedule_id: The schedule.

    Raises:
        NotFound: The caller may not see such a schedule of this agent.
    """
    row = _ROWS.get(tx, scope, schedule_id)
    if row.agent_id != agent_id:
        raise NotFound(f"Schedule with ID {schedule_id} not found")
    return row


def page(tx: Transaction, scope: Scope, page: Page, agent_id: str) -> list[ScheduledMessage]:
    """Return one page of the agent's schedules.

    Args:
        tx: The transaction, or a read.
        scope: The caller; schedules of other users are left out.
        page: The part of the list, by creation.
        agent_id: The agent. This function does not check that the caller may use it.
    """
    return _ROWS.page(tx, scope, page, agent_id=agent_id)


def lock(tx: Transaction, schedule_id: str) -> ScheduledMessage | None:
    """Lock the schedule until the transaction ends; return None if it was deleted.

    Args:
        tx: The transaction.
        schedule_id: A schedule of any user.
    """
    return _ROWS.first_locked(tx, _LOCK, {"id": schedule_id})


def count(tx: Transaction, agent_id: str) -> int:
    """Return the number of the agent's schedules, of all users together.

    Args:
        tx: The transaction, or a read.
        agent_id: The agent.
    """
    return int(tx.all(_COUNT, {"agent_id": agent_id})[0].schedules)


def delete_one(tx: Transaction, schedule_id: str) -> None:
    """Delete the schedule with its waiting jobs.

    Args:
        tx: The transaction.
        schedule_id: A schedule of any user; the caller has checked the rights.
    """
    tx.run(_DELETE, {"id": schedule_id})
    stored_jobs.delete_waiting(tx, schedule_id)


def planned_after(tx: Transaction, time: int) -> list[ScheduledMessage]:
    """Return the schedules of all organizations whose next time is after this one.

    Args:
        tx: The transaction, or a read.
        time: A time in microseconds.
    """
    return _ROWS.all(tx, _ROWS.select.where(schedules.c.next_at > time))


def left_behind(tx: Transaction, before: int) -> list[ScheduledMessage]:
    """Return schedules that have no open job and whose next time is before this one.

    Args:
        tx: The transaction, or a read.
        before: A time in microseconds. Schedules of all organizations are searched.
    """
    return _ROWS.all(tx, _ROWS.select.where(schedules.c.next_at < before, ~_IS_AT_WORK))
