"""Schedules over HTTP: made, listed, read and deleted."""

from dataclasses import replace

from ricordo.api.call import Paged, RequestContext
from ricordo.api.messages import new_message
from ricordo.api.routing import Routes
from ricordo.domain.clock import stamp
from ricordo.domain.text import Json
from ricordo.errors import Invalid
from ricordo.features.automation.schedules import queries, service
from ricordo.features.automation.schedules.models import (
    ScheduleMadeResponse,
    ScheduleRequest,
    ScheduleResponse,
    SchedulesResponse,
)
from ricordo.llm.addresses import require_callable
from ricordo.storage import agents
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/v1/agents/{agent_id}/schedule", tags=["schedules"], scope="messages")


@router.post("", response_model=ScheduleMadeResponse)
def create(tx: Transaction, context: RequestContext, agent_id: str, body: ScheduleRequest) -> Json:
    """Send messages to the agent later, once or repeatedly."""
    if not all(new_message(message).parts for message in body.messages):
        raise Invalid("There is no message to answer. Give every message some content.")
    if body.callback_url:
        require_callable(
            body.callback_url, allow_private=context.runtime.settings.allow_private_callbacks
        )
    row = service.create(tx, context.scope, agent_id, body)
    return ScheduleMadeResponse.of(row, next_scheduled_at=stamp(row.next_at))


@router.get("", response_model=SchedulesResponse)
def list_schedules(tx: Transaction, context: RequestContext, agent_id: str, paging: Paged) -> Json:
    """List the agent's schedules, by default the newest first."""
    agents.require(tx, context.scope, agent_id)
    page = paging.page()
    rows = queries.page(tx, context.scope, replace(page, limit=page.limit + 1), agent_id)
    schedules = [ScheduleResponse.from_row(row) for row in rows[: page.limit]]
    return SchedulesResponse.of(
        None, has_next_page=len(rows) > page.limit, scheduled_messages=schedules
    )


@router.get("/{scheduled_message_id}", response_model=ScheduleResponse)
def retrieve(
    tx: Transaction, context: RequestContext, agent_id: str, scheduled_message_id: str
) -> Json:
    """Return a schedule of the agent."""
    agents.require(tx, context.scope, agent_id)
    return ScheduleResponse.from_row(queries.get(tx, context.scope, agent_id, scheduled_message_id))


@router.delete("/{scheduled_message_id}", response_model=dict[str, bool])
def delete(
    tx: Transaction, context: RequestContext, agent_id: str, scheduled_message_id: str
) -> dict[str, bool]:
    """Delete a schedule and its unsent message. A running turn continues."""
    service.delete(tx, context.scope, agent_id, scheduled_message_id)
    return {"success": True}
