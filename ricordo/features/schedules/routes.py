"""Scheduled messages over HTTP."""

from typing import Annotated

from fastapi import Query

from ricordo.api.call import Here
from ricordo.api.models.base import Json
from ricordo.api.routing import Routes
from ricordo.domain.clock import to_datetime
from ricordo.features.schedules import queries, service
from ricordo.features.schedules.models import (
    NewScheduleResponse,
    ScheduleListResponse,
    ScheduleRequest,
    ScheduleResponse,
)
from ricordo.features.schedules.queries import ScheduledMessage
from ricordo.storage import agents
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/v1/agents/{agent_id}/schedule", tags=["schedules"], scope="messages")
_USUAL, _MOST = 50, 100


@router.post("", response_model=NewScheduleResponse)
def create(tx: Transaction, here: Here, agent_id: str, body: ScheduleRequest) -> Json:
    """ScheduledMessage messages to the agent: for one time, or by a cron expression on the clock of the agent's timezone."""
    made = service.create(tx, here.runtime, here.scope, agent_id, body)
    return NewScheduleResponse.of(made, next_scheduled_at=_time(made))


@router.get("", response_model=ScheduleListResponse)
def list_schedules(
    tx: Transaction,
    here: Here,
    agent_id: str,
    limit: Annotated[int, Query(ge=1, le=_MOST, description="How many at most.")] = _USUAL,
    after: Annotated[str | None, Query(description="Only those behind this one.")] = None,
) -> Json:
    """The agent's scheduled messages, the newest first."""
    agents.require(tx, here.scope, agent_id)
    found = queries.page(tx, here.scope, agent_id, Page(limit + 1, after=after))
    shown = [_response(one) for one in found[:limit]]
    return ScheduleListResponse.of(None, has_next_page=len(found) > limit, scheduled_messages=shown)


@router.get("/{scheduled_message_id}", response_model=ScheduleResponse)
def retrieve(tx: Transaction, here: Here, agent_id: str, scheduled_message_id: str) -> Json:
    """One scheduled message."""
    agents.require(tx, here.scope, agent_id)
    return _response(queries.get(tx, here.scope, agent_id, scheduled_message_id))


@router.delete("/{scheduled_message_id}", response_model=dict[str, bool])
def delete(tx: Transaction, here: Here, agent_id: str, scheduled_message_id: str) -> Json:
    """Delete a scheduled message: what is not sent yet is not sent."""
    one = queries.get(tx, here.scope, agent_id, scheduled_message_id)
    here.scope.require_owns(one.user_id)
    queries.remove(tx, one.id)
    return {"success": True}


def _response(one: ScheduledMessage) -> Json:
    once = {"type": "one-time", "scheduled_at": one.due_at / service.MILLISECOND}
    schedule = {"type": "recurring", "cron_expression": one.cron} if one.cron else once
    return ScheduleResponse.of(one, next_scheduled_time=_time(one), schedule=schedule)


def _time(one: ScheduledMessage) -> str | None:
    return to_datetime(one.due_at).isoformat().replace("+00:00", "Z") if one.due_at else None
