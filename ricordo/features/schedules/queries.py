"""Reads and writes the table of scheduled messages."""

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import bindparam, delete, func, select, update

from ricordo.domain.scope import Scope
from ricordo.features.schedules.tables import schedules
from ricordo.storage.engine.repository import Page, Repository
from ricordo.storage.engine.store import Transaction


@dataclass(frozen=True, slots=True)
class ScheduledMessage:
    """Messages that an agent gets at `due_at` (microseconds), and with a `cron` expression again and again."""

    id: str
    organization_id: str
    agent_id: str
    user_id: str | None
    runs_as: dict[str, Any] = field(default_factory=dict)
    message: dict[str, Any] = field(default_factory=dict)
    cron: str | None = None
    due_at: int = 0
    error: str | None = None
    created_by: str | None = None
    created_at: int = 0


_ROWS = Repository(ScheduledMessage, schedules)
_BY_ID = _ROWS.select.where(schedules.c.id == bindparam("schedule_id"))
_DELETE = delete(schedules).where(schedules.c.id == bindparam("schedule_id"))
_COUNT = select(func.count()).select_from(schedules).where(schedules.c.agent_id == bindparam("of_agent"))
_PUT_OFF = (
    update(schedules)
    .where(schedules.c.id == bindparam("schedule_id"))
    .values(due_at=bindparam("new_due_at"), error=bindparam("new_error"))
)

insert = _ROWS.insert
find = _ROWS.find


def by_id(tx: Transaction, id: str) -> ScheduledMessage | None:
    """Return the schedule of any organization."""
    return _ROWS.first(tx, _BY_ID, {"schedule_id": id})


def get(tx: Transaction, scope: Scope, agent_id: str, id: str) -> ScheduledMessage:
    """Return a schedule of the agent. Raises NotFound."""
    found = _ROWS.get(tx, scope, id)
    return found if found.agent_id == agent_id else _ROWS.get(tx, scope, "")


def page(tx: Transaction, scope: Scope, agent_id: str, wanted: Page) -> list[ScheduledMessage]:
    return _ROWS.page(tx, scope, wanted, agent_id=agent_id)


def count(tx: Transaction, agent_id: str) -> int:
    return int(tx.all(_COUNT, {"of_agent": agent_id})[0][0])


def remove(tx: Transaction, id: str) -> None:
    tx.run(_DELETE, {"schedule_id": id})


def put_off(tx: Transaction, id: str, due_at: int, error: str | None) -> None:
    """Set when it comes next, and why the last time failed."""
    tx.run(_PUT_OFF, {"schedule_id": id, "new_due_at": due_at, "new_error": error})
