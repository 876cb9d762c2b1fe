"""Requests to forget something, which agents make and owners decide on."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Index, delete, select

from ricordo.domain.ids import new_id
from ricordo.domain.scope import Scope, User
from ricordo.errors import Conflict, NotFound
from ricordo.plugins import Waiting
from ricordo.storage.engine.repository import Repository, equal
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.columns import root, strings, table, texts, timestamps
from ricordo.storage.schema.core_tables import agents

MOST_WAITING = 20
LONGEST_REASON = 300  # characters

forget_requests = table(
    "forget_requests",
    *root(),
    *strings("user_id", null=False),
    *texts("text", null=False),
    *texts("reason"),
    *strings("agent_id", "conversation_id", "run_id", erasure="keep"),
    *timestamps("created_at"),
    Index("forget_requests_by_user", "user_id", "created_at", "seq"),
    erasure="delete",
)


@dataclass(frozen=True, slots=True)
class ForgetRequest:
    """An agent's request to remove something from its user's memory; the user decides."""

    id: str
    organization_id: str
    user_id: str
    text: str
    reason: str | None = None
    agent_id: str | None = None
    conversation_id: str | None = None
    run_id: str | None = None
    created_at: int = 0


_ROWS = Repository(ForgetRequest, forget_requests)
_OF_USER = _ROWS.select.where(equal(forget_requests, "organization_id", "user_id")).order_by(
    forget_requests.c.created_at, forget_requests.c.seq
)
_DELETE = delete(forget_requests).where(equal(forget_requests, "id"))


def of_user(tx: Transaction, organization_id: str, user_id: str) -> list[ForgetRequest]:
    """Return the user's waiting requests, oldest first.

    Args:
        tx: The transaction.
        organization_id: The user's organization.
        user_id: The user who decides.
    """
    return _ROWS.all(tx, _OF_USER, {"organization_id": organization_id, "user_id": user_id})


def listed(tx: Transaction, user: User) -> list[dict[str, Any]]:
    """Return the user's waiting requests for a page, with the names of their agents.

    Args:
        tx: The transaction.
        user: The owner of the requests.
    """
    rows = of_user(tx, user.organization_id, user.id)
    ids = {row.agent_id for row in rows if row.agent_id}
    named = select(agents.c.id, agents.c.name).where(agents.c.id.in_(sorted(ids)))
    names = {row.id: row.name for row in tx.all(named)} if ids else {}
    return [{"id": row.id, "text": row.text, "agent_name": names.get(row.agent_id)} for row in rows]


def waiting(tx: Transaction, organization_id: str, user_id: str) -> Waiting | None:
    """Return the number of agents' requests to forget something that wait for the user.

    Args:
        tx: The transaction.
        organization_id: The user's organization.
        user_id: The user who decides.

    Returns:
        The number with the page on which the user decides; None if no request waits.
    """
    number = len(of_user(tx, organization_id, user_id))
    if not number:
        return None
    noun = "request" if number == 1 else "requests"
    return Waiting(f"{number} {noun} to forget something", f"/ui/people/{user_id}#forget")


def add(tx: Transaction, request: ForgetRequest) -> ForgetRequest:
    """Store a request, unless an equal request is stored.

    Args:
        tx: The transaction.
        request: The request; its id and its time are chosen here.

    Returns:
        The stored request, perhaps the earlier one.

    Raises:
        Conflict: Too many requests of the user wait.
    """
    waiting = of_user(tx, request.organization_id, request.user_id)
    for other in waiting:
        if other.text == request.text:
            return other
    if len(waiting) >= MOST_WAITING:
        raise Conflict(
            f"{len(waiting)} requests to forget something already wait for this person's decision. "
            "Ask the person to decide first."
        )
    stored = ForgetRequest(
        new_id("forget"),
        request.organization_id,
        request.user_id,
        request.text,
        reason=request.reason,
        agent_id=request.agent_id,
        conversation_id=request.conversation_id,
        run_id=request.run_id,
        created_at=tx.clock.now(),
    )
    _ROWS.insert(tx, stored)
    return stored


def remove(tx: Transaction, scope: Scope, user_id: str, id: str) -> None:
    """Delete a request that was decided or declined.

    Args:
        tx: The transaction.
        scope: The caller; only its organization matters.
        user_id: The user who decided.
        id: The request.

    Raises:
        NotFound: if this user has no such request.
    """
    if not any(row.id == id for row in of_user(tx, scope.organization_id, user_id)):
        raise NotFound(f"Request with ID {id} not found")
    tx.run(_DELETE, {"id": id})
