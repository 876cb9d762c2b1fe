"""API keys over HTTP, for administrators: create, list, revoke.

A key is shown once, in the answer to its creation.
"""

from dataclasses import replace
from datetime import datetime
from typing import Annotated

from fastapi import Query
from pydantic import Field

from ricordo.api.call import Paged, RequestContext
from ricordo.api.models.base import RequestModel, ResponseModel, Timestamp
from ricordo.api.routing import Routes, needs
from ricordo.domain.clock import SECOND, to_micros
from ricordo.domain.scope import (
    ADMIN,
    ALL_SCOPES,
    IMPERSONATE,
    OVERRIDE,
    ROLE_SCOPES,
    WATCH,
    Limits,
    Role,
    Scope,
)
from ricordo.domain.text import Json
from ricordo.errors import Forbidden, Invalid
from ricordo.storage import keys, organizations
from ricordo.storage.engine.store import Transaction
from ricordo.storage.keys import ApiKey, KeyDraft

router = Routes(prefix="/v1/keys", tags=["accounts"])
InOrganization = Annotated[
    str | None,
    Query(max_length=255, description="For the operator: another organization, by id or name."),
]
# Scopes that an administrator may give to a key without having them.
_BY_NAME = frozenset((OVERRIDE, IMPERSONATE, WATCH))
_LONGEST = 10 * 366 * 24 * 3600


class KeyRequest(RequestModel):
    """A new key of a user, or of a service, which has no user."""

    name: str = Field(
        "", max_length=255, description="Purpose of the key; by default the user's name."
    )
    role: Role = Field(
        "user", description="The role, which sets the key's scopes unless `scopes` does."
    )
    user: str | None = Field(
        None,
        max_length=255,
        description="The user of the key, by id or name. An unknown name creates a user.",
    )
    scopes: list[str] = Field(
        default_factory=list, max_length=50, description="By default the scopes of the role."
    )
    expires_at: datetime | None = Field(
        None, description="The time at which the key ends; by default it never ends."
    )
    expires_in: int | None = Field(
        None, gt=0, le=_LONGEST, description="The number of seconds after which the key ends."
    )
    requests_per_minute: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="Most requests a minute; by default RICORDO_KEY_REQUESTS_PER_MINUTE.",
    )
    max_body_bytes: int | None = Field(
        None,
        ge=1,
        le=2**40,
        description="Most bytes of a request; by default RICORDO_KEY_MAX_BODY_BYTES.",
    )


class KeyResponse(ResponseModel):
    """A key without its secret; `hint` is its beginning."""

    id: str
    organization_id: str
    name: str
    role: Role
    user_id: str | None
    scopes: list[str]
    hint: str
    created_by_id: str | None
    created_at: Timestamp
    expires_at: Timestamp | None
    last_used_at: Timestamp | None
    revoked_at: Timestamp | None
    requests_per_minute: int | None
    max_body_bytes: int | None


class NewKeyResponse(KeyResponse):
    """A new key, which cannot be read again.

    `is_first` means that every request needs a key from now on.
    """

    key: str
    is_first: bool


KeyRequest.take_back(NewKeyResponse)


@router.post("/", response_model=NewKeyResponse)
@needs(ADMIN)
async def create_key(
    context: RequestContext, body: KeyRequest, organization: InOrganization = None
) -> Json:
    """Make a key of a user or a service, and show it once."""
    secret = context.request.app.state.authentication.secret

    def create(tx: Transaction) -> Json:
        scope = scope_in(tx, context.scope, organization)
        is_first = not keys.are_any(tx)
        stored, key = keys.create(tx, scope, secret, draft_of(body, scope, tx.clock.now()))
        return _response(stored, NewKeyResponse, key=key, is_first=is_first)

    response = await context.store.write(create)
    forget_cached(context)
    return response


@router.get("/", response_model=list[KeyResponse])
@needs(ADMIN)
def list_keys(
    tx: Transaction, context: RequestContext, paging: Paged, organization: InOrganization = None
) -> list[Json]:
    """Return the organization's keys, including expired and revoked ones.

    By default, the newest are first. With `user_id`, only that user's keys are returned.
    """
    if paging.user_id:
        user_id = context.scope.subject
    else:
        user_id = None
    scope = scope_in(tx, context.scope, organization)
    return [_response(key) for key in keys.page(tx, scope, paging.page(), user_id)]


@router.get("/{key_id}", response_model=KeyResponse)
@needs(ADMIN)
def retrieve_key(
    tx: Transaction, context: RequestContext, key_id: str, organization: InOrganization = None
) -> Json:
    """Return a key without its secret."""
    return _response(keys.get(tx, scope_in(tx, context.scope, organization), key_id))


@router.delete("/{key_id}", response_model=KeyResponse)
@needs(ADMIN)
async def revoke_key(
    context: RequestContext, key_id: str, organization: InOrganization = None
) -> Json:
    """Revoke a key for good. Every server refuses it within a second."""
    revoked = await context.store.write(
        lambda tx: keys.revoke(tx, scope_in(tx, context.scope, organization), key_id)
    )
    forget_cached(context)
    return _response(revoked)


def require_administrator(scope: Scope) -> None:
    """Raise Forbidden for all but administrators, whatever the caller's scopes are.

    Args:
        scope: The caller.
    """
    if scope.role != "admin":
        raise Forbidden("Only administrators may do that. Use a key with the role admin.")


def forget_cached(context: RequestContext) -> None:
    """Drop cached credentials after keys or users changed.

    Args:
        context: The context of the request that changed them.
    """
    context.request.app.state.authentication.forget()


def require_operator(scope: Scope) -> None:
    """Raise Forbidden for all but the operator.

    The operator has RICORDO_API_KEY or the data folder, or runs a server without keys.

    Args:
        scope: The caller.
    """
    if not scope.is_operator:
        raise Forbidden(
            "Only the operator of this server may do that: with RICORDO_API_KEY, or `ricordo` on "
            "its machine."
        )


def scope_in(tx: Transaction, scope: Scope, organization: str | None) -> Scope:
    """Return the caller's scope in an organization.

    Args:
        tx: The transaction.
        scope: The caller.
        organization: The id or name of the organization; None for the caller's.

    Raises:
        Forbidden: unless the caller is an administrator; for a named organization, unless the
            caller is the operator.
        NotFound: if there is no such organization.
    """
    require_administrator(scope)
    if organization is None:
        return scope
    require_operator(scope)
    return replace(
        scope, organization_id=organizations.require(tx, organization).id, subject_id=None
    )


def draft_of(body: KeyRequest, caller: Scope, now: int) -> KeyDraft:
    """Return the requested key.

    Args:
        body: The request.
        caller: The scope of the administrator who creates the key, in the key's organization.
        now: The time in microseconds, from which `expires_in` counts.

    Raises:
        Invalid: if a scope is unknown, or the fields contradict each other.
        Forbidden: if the key could do more than the caller.
    """
    if unknown := sorted(set(body.scopes) - ALL_SCOPES):
        raise Invalid(
            f'There is no scope "{unknown[0][:80]}". Use: {", ".join(sorted(ALL_SCOPES))}.'
        )
    if ADMIN in body.scopes and body.role != "admin":
        raise Invalid(
            "Only keys with the role admin may have the scope admin. Choose that role, or leave "
            "the scope out."
        )
    new_scopes = frozenset(body.scopes) or ROLE_SCOPES[body.role]
    if caller.scopes >= ROLE_SCOPES["admin"]:
        may_give = caller.scopes | _BY_NAME
    else:
        may_give = caller.scopes
    if more := sorted(new_scopes - may_give):
        raise Forbidden(
            f"Your key lacks {', '.join(more)}, so keys that it creates cannot have it either. "
            "Leave it out."
        )
    if body.expires_at and body.expires_in:
        raise Invalid("expires_at and expires_in both set the key's end. Leave one out.")
    if body.expires_in is None:
        expires_at = None
    else:
        expires_at = now + body.expires_in * SECOND
    if body.expires_at:
        expires_at = to_micros(body.expires_at)
    name = body.name or body.user or ""
    limits = caller.limits or Limits("")
    requests_per_minute = _at_most(
        "requests_per_minute", limits.requests_per_minute, body.requests_per_minute
    )
    max_body_bytes = _at_most("max_body_bytes", limits.max_body_bytes, body.max_body_bytes)
    return KeyDraft(
        name,
        body.role,
        body.user,
        scopes=tuple(body.scopes),
        expires_at=expires_at,
        kind="key",
        requests_per_minute=requests_per_minute,
        max_body_bytes=max_body_bytes,
    )


def _at_most(name: str, limit: int | None, requested: int | None) -> int | None:
    """Return the requested limit; by default, the caller's. Raises Forbidden for more."""
    if limit and requested and requested > limit:
        raise Forbidden(
            f"Your key has {name} {limit:,}, so keys that it creates cannot have more. Choose "
            "a lower number."
        )
    return requested or limit


def _response(stored: ApiKey, model: type[KeyResponse] = KeyResponse, **more: str | bool) -> Json:
    scopes = sorted(stored.scopes or ROLE_SCOPES[stored.role])
    return model.of(stored, scopes=scopes, created_by_id=stored.created_by, **more)
