"""Notifications over HTTP: a user's choice, an organization's, and links to decisions."""

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from ricordo.api.call import RequestContext
from ricordo.api.models.base import RequestModel, ResponseModel, Timestamp
from ricordo.api.routing import Routes, needs
from ricordo.domain.scope import Scope
from ricordo.domain.text import Json
from ricordo.errors import NotFound
from ricordo.features.memory_care.notifications import one_time_links, queries, service
from ricordo.features.memory_care.notifications.options import NotificationSettings
from ricordo.features.memory_care.notifications.queries import Preferences, When
from ricordo.llm.addresses import require_callable
from ricordo.memory import user_memory
from ricordo.storage import proposals
from ricordo.storage.engine.store import Transaction

router = Routes(tags=["users' memory"], scope="memory")
_LONGEST_URL = 2_000
Choice = Annotated[
    When | None,
    Field(description="Null uses the organization's choice, else the server's setting."),
]


class NotificationsRequest(RequestModel):
    """A choice of times and channels for notifications. Omitted fields keep their values."""

    email: Choice = None
    webhook: Choice = None
    webhook_url: str | None = Field(None, max_length=_LONGEST_URL)
    hour: int | None = Field(None, ge=0, le=23, description="Hour of daily digests, UTC.")


class NotificationsResponse(ResponseModel):
    """The stored choice, the delivery that results, and the number of waiting proposals.

    `problem` is the reason for the last failure.
    """

    email: When | None
    webhook: When | None
    webhook_url: str | None
    hour: int | None
    email_in_effect: When
    webhook_in_effect: When
    waiting: int
    problem: str | None
    retry_at: Timestamp | None


NotificationsRequest.take_back(NotificationsResponse)


class LinkRequest(RequestModel):
    """The proposal for which a one-time link is made."""

    proposal_id: str


class LinkResponse(ResponseModel):
    """A one-time link to a decision; only its path if the server has no public address."""

    url: str | None
    path: str
    expires_at: Timestamp


class DecisionFiguresResponse(ResponseModel):
    """Figures of the last 30 days: the median time to a decision, and numbers of proposals.

    `waiting` counts all proposals that wait now.
    """

    median_seconds: float
    decided: int
    never_seen: int
    waiting: int


@router.get("/users/{user_id}/notifications", response_model=NotificationsResponse)
def retrieve(tx: Transaction, context: RequestContext, user_id: str) -> Json:
    """Return the user's choices for notifications, and the number of waiting proposals."""
    memory = user_memory.open_memory(tx, context.scope, user_id)
    return _shown(tx, context.scope, memory.user.id)


@router.patch("/users/{user_id}/notifications", response_model=NotificationsResponse)
@needs("memory:approve", "memory:override")
def modify(
    tx: Transaction, context: RequestContext, user_id: str, body: NotificationsRequest
) -> Json:
    """Choose the times at which the user is notified by e-mail or by a signed webhook."""
    memory = user_memory.open_memory(tx, context.scope, user_id)
    _change(tx, context, memory.user.id, body)
    return _shown(tx, context.scope, memory.user.id)


@router.get("/v1/notifications", response_model=NotificationsResponse)
@needs("admin")
def retrieve_default(tx: Transaction, context: RequestContext) -> Json:
    """Return the choices that apply to users of the organization without their own."""
    return _shown(tx, context.scope, None)


@router.patch("/v1/notifications", response_model=NotificationsResponse)
@needs("admin")
def modify_default(tx: Transaction, context: RequestContext, body: NotificationsRequest) -> Json:
    """Set the choices that apply to users of the organization without their own."""
    _change(tx, context, None, body)
    return _shown(tx, context.scope, None)


@router.get("/v1/notifications/decisions", response_model=DecisionFiguresResponse)
@needs("admin")
def retrieve_decisions(tx: Transaction, context: RequestContext) -> queries.DecisionFigures:
    """Return the median time to a decision, and the number of proposals that no owner has seen."""
    return queries.figures(tx, context.scope.organization_id)


@router.post("/users/{user_id}/decision-links", response_model=LinkResponse)
@needs("memory:approve", "memory:override")
def make_link(tx: Transaction, context: RequestContext, user_id: str, body: LinkRequest) -> Json:
    """Make a one-time link that opens exactly this decision, for a week."""
    memory = user_memory.open_memory(tx, context.scope, user_id)
    proposal = proposals.get(tx, context.scope, body.proposal_id)
    if proposal.chain_id != memory.chain.id:
        raise NotFound(f"Proposal with ID {body.proposal_id[:80]} not found")
    proposal.require_waiting()
    token = one_time_links.new_token()
    url = service.add_link(tx, memory.user, proposal.id, token, NotificationSettings.current())
    expires_at = tx.clock.now() + service.LINK_LIFETIME
    return LinkResponse.of(
        None,
        url=url,
        path=one_time_links.path_of(service.DECISION_PAGE, token),
        expires_at=expires_at,
    )


def _change(
    tx: Transaction, context: RequestContext, user_id: str | None, body: NotificationsRequest
) -> None:
    changes = body.model_dump(include=body.model_fields_set)
    if url := changes.get("webhook_url"):
        require_callable(url, allow_private=context.runtime.settings.allow_private_callbacks)
    preferences = queries.get_for_change(tx, context.scope, user_id)
    changed = replace(
        preferences, **changes, problem=None, retry_at=None, updated_at=tx.clock.now()
    )
    queries.save(tx, changed)


def _shown(tx: Transaction, scope: Scope, user_id: str | None) -> Json:
    preferences, *wider = queries.inherited(tx, scope, user_id)
    settings = NotificationSettings.current()
    if user_id:
        waiting = proposals.count_waiting_for(tx, user_id)
    else:
        waiting = proposals.count_waiting(tx, Scope(scope.organization_id))
    rows: list[Preferences] = [preferences, *wider]
    email = next((row.email for row in rows if row.email), settings.notify_email)
    webhook: When = next((row.webhook for row in rows if row.webhook), "off")
    return NotificationsResponse.of(
        preferences, email_in_effect=email, webhook_in_effect=webhook, waiting=waiting
    )
