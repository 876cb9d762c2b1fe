"""Users over HTTP: list, create, rename, disable, delete.

Deleting a user erases all of the user's data.
"""

from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import Response
from pydantic import Field

from ricordo.api.call import Paged, RequestContext
from ricordo.api.models.base import RequestModel, ResponseModel, Timestamp
from ricordo.api.routing import Routes
from ricordo.domain.scope import User
from ricordo.features.identity.accounts.keys import forget_cached
from ricordo.features.identity.sign_in_links import queries as sign_in_links
from ricordo.features.memory_care.erasure.routes import (
    ErasureResponse,
    ReceiptResponse,
    WithAgents,
    answer_erasure,
)
from ricordo.features.memory_care.erasure.service import forget
from ricordo.storage import keys, users
from ricordo.storage.engine.store import Transaction
from ricordo.storage.users import UserDraft

router = Routes(prefix="/v1/users", tags=["accounts"], scope="users")
_NAME = 255
_BOTH: dict[int | str, dict[str, Any]] = {
    202: {"model": ErasureResponse, "description": "The user is hidden; the rows are deleted later"}
}


class UserRequest(RequestModel):
    """A new user.

    The identifier is the user's name in the system from which the user comes. Paths, keys and
    headers may use it.
    """

    name: str = Field(max_length=_NAME)
    identifier: str | None = Field(None, max_length=_NAME, description="By default the name.")
    email: str | None = Field(
        None,
        max_length=_NAME,
        description="E-mail address of the user, by which commits are recognized.",
    )


class UserUpdate(RequestModel):
    """Changes of a user; an omitted field keeps its value."""

    name: str | None = Field(None, max_length=_NAME)
    identifier: str | None = Field(None, max_length=_NAME)
    email: str | None = Field(None, max_length=_NAME, description="An empty text removes it.")
    disabled: bool | None = Field(
        None, description="A disabled user's keys are refused, and no caller may act for the user."
    )


class UserResponse(ResponseModel):
    """A user of the organization; `disabled_at` is null unless the user is disabled."""

    id: str
    organization_id: str
    name: str
    identifier: str | None
    email: str | None
    created_at: Timestamp
    disabled_at: Timestamp | None


UserRequest.take_back(UserResponse)
UserUpdate.take_back(UserResponse)


@router.get("/", response_model=list[UserResponse])
def list_users(
    tx: Transaction, context: RequestContext, paging: Paged, name: str | None = None
) -> list[User]:
    """Return the users of the organization, by default the newest first."""
    return users.page(tx, context.scope, paging.page(), name=name)


@router.post("/", response_model=UserResponse)
def create_user(tx: Transaction, context: RequestContext, body: UserRequest) -> User:
    """Make a user."""
    return users.create(
        tx, context.scope, UserDraft(body.name, body.identifier or body.name, body.email or None)
    )


@router.get("/{user}", response_model=UserResponse)
def retrieve_user(tx: Transaction, context: RequestContext, user: str) -> User:
    """Return the user with this id or identifier."""
    return users.require(tx, context.scope, user)


@router.patch("/{user}", response_model=UserResponse)
async def modify_user(context: RequestContext, user: str, body: UserUpdate) -> User:
    """Rename a user, set the e-mail address, disable or enable the user.

    The memory stays with the user, whatever the name.
    """

    def change(tx: Transaction) -> User:
        before = users.require(tx, context.scope, user)
        changed = users.change(tx, context.scope, before.id, partial(_with_changes, tx, body))
        if changed.disabled_at != before.disabled_at:
            # Enabling the user restores neither sessions nor links, so a lost device stays logged
            # out.
            keys.end_sessions_of(tx, before.id)
            sign_in_links.revoke_all_of(tx, before.id)
        return changed

    changed = await context.store.write(change)
    forget_cached(context)
    return changed


def _with_changes(tx: Transaction, body: UserUpdate, stored: User) -> User:
    fields = body.model_dump(include={"name", "identifier", "email"}, exclude_none=True)
    changed = replace(stored, **fields)
    if body.disabled is not None and body.disabled != (stored.disabled_at is not None):
        changed = replace(changed, disabled_at=tx.clock.now() if body.disabled else None)
    return replace(changed, email=changed.email or None)


@router.delete("/{user}", response_model=ReceiptResponse, responses=_BOTH)
async def delete_user(
    context: RequestContext, user: str, with_agents: WithAgents = False
) -> Response:
    """Forget a user with all of the user's data, as `DELETE /users/{user}` does.

    The answer is the receipt, or the state of the erasure.
    """
    users.require_all_users(context.scope)
    receipt = await forget(context.runtime, context.scope, user, with_agents=with_agents)
    forget_cached(context)
    return answer_erasure(receipt)
