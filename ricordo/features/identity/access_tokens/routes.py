"""Access tokens over HTTP: made, listed and deleted. A token is shown once, in the answer that made it."""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from fastapi import Depends, Query
from pydantic import Field

from ricordo.api.call import RequestContext
from ricordo.api.guard import origin_of
from ricordo.api.models.base import Json, RequestModel, RequestPart, ResponseModel, stamp
from ricordo.api.routing import Routes, needs
from ricordo.domain.clock import to_micros
from ricordo.domain.ids import pattern
from ricordo.domain.scope import ADMIN, APPROVE, IMPERSONATE
from ricordo.errors import Invalid, NotFound
from ricordo.features.identity.access_tokens import queries, service
from ricordo.storage.engine.store import Transaction
from ricordo.storage.keys import ApiKey, hash_of

router = Routes(prefix="/v1/client-side-access-tokens", tags=["access tokens"])
# Who may speak for a user, or for all: the program of a tool has none of these, and would outlive its call.
_makes = needs(ADMIN, IMPERSONATE, APPROVE)
_ADDRESS = re.compile(r"https?://[^/?#@]+/?", re.IGNORECASE)
Access = Literal["read_messages", "write_messages", "read_agent", "write_agent"]


class PolicyRequest(RequestPart):
    """An agent, and what may be done with it."""

    type: Literal["agent"]
    id: str = Field(pattern=pattern("agent"))
    access: list[Access] = Field(min_length=1, max_length=20)


class TokenRequest(RequestModel):
    """A token for the pages of one origin."""

    hostname: str = Field(
        max_length=300, description="The address of the pages, such as https://app.example.org."
    )
    policy: list[PolicyRequest] = Field(min_length=1, max_length=100)
    expires_at: datetime | None = Field(None, description="When it ends; by default in 5 minutes.")


class PolicyItemResponse(ResponseModel):
    """An agent, and what may be done with it."""

    id: str
    access: list[Access]
    type: Literal["agent"] = "agent"


class PolicyResponse(ResponseModel):
    """What a token may do."""

    data: list[PolicyItemResponse]
    version: Literal["1"] = "1"


class TokenResponse(ResponseModel):
    """A token. Once it was made, `token` is its id, by which it can be deleted, and not the token itself."""

    token: str
    expiresAt: str  # noqa: N815 - a wire fact
    hostname: str
    policy: PolicyResponse

    @classmethod
    def from_key(cls, key: ApiKey, token: str) -> Json:
        accesses: dict[str, list[str]] = {}
        for id, _, access in (one.partition(":") for one in key.scopes if one.startswith("agent-")):
            accesses.setdefault(id, []).append(access)
        data = [
            PolicyItemResponse.of(None, id=id, access=access) for id, access in accesses.items()
        ]
        until, policy = stamp(key.expires_at), PolicyResponse.of(None, data=data)
        return cls.of(None, token=token, expiresAt=until, hostname=key.name, policy=policy)


TokenRequest.take_back(TokenResponse)


class TokensResponse(ResponseModel):
    """One page of tokens."""

    tokens: list[TokenResponse]
    hasNextPage: bool  # noqa: N815 - a wire fact


@dataclass(frozen=True, slots=True)
class TokenQuery:
    """Which tokens are wanted."""

    agent_id: Annotated[
        str | None, Query(alias="agentId", description="Only those for this agent.")
    ] = None
    limit: Annotated[int, Query(ge=1, le=1000, description="How many items at most.")] = 10
    offset: Annotated[
        int, Query(ge=0, le=1_000_000, description="How many items to leave out first.")
    ] = 0


@router.post("", response_model=TokenResponse)
@_makes
def create(tx: Transaction, context: RequestContext, body: TokenRequest) -> Json:
    """Make a token that a page may hold: for these agents alone, and until it expires. It is shown once."""
    origin = origin_of(body.hostname)
    if not origin or not _ADDRESS.fullmatch(body.hostname):
        raise Invalid(
            "hostname is the address of the pages without a path, such as https://app.example.org."
        )
    secret = context.request.app.state.authentication.secret
    pairs = [(item.id, access) for item in body.policy for access in item.access]
    until = to_micros(body.expires_at) if body.expires_at else None
    return TokenResponse.from_key(*service.create(tx, context.scope, secret, origin, pairs, until))


@router.get("", response_model=TokensResponse)
@_makes
def list_tokens(
    tx: Transaction, context: RequestContext, which: Annotated[TokenQuery, Depends()]
) -> Json:
    """The tokens that your key made and that have not expired, the newest first; for administrators all."""
    found = queries.page(tx, context.scope, which.agent_id, which.limit + 1, which.offset)
    shown = [TokenResponse.from_key(key, key.id) for key in found[: which.limit]]
    return TokensResponse.of(None, tokens=shown, hasNextPage=len(found) > which.limit)


@router.delete("/{token}", response_model=dict[str, bool])
@_makes
async def delete(context: RequestContext, token: str) -> dict[str, bool]:
    """Delete a token, by itself or by its id. Every server refuses it within a second."""
    authentication = context.request.app.state.authentication
    hash = hash_of(authentication.secret, token)
    if not await context.store.write(lambda tx: queries.delete_one(tx, context.scope, token, hash)):
        raise NotFound("There is no such token, or another key made it. Read the list of tokens.")
    authentication.forget()
    return {"success": True}
