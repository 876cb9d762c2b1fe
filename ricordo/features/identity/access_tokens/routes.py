"""Access tokens over HTTP: create, list and delete.

A token is shown once, in the answer to its creation.
"""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from fastapi import Depends, Query
from pydantic import Field

from ricordo.api.call import RequestContext
from ricordo.api.guard import origin_of
from ricordo.api.models.base import RequestModel, RequestPart, ResponseModel
from ricordo.api.routing import Routes, needs
from ricordo.domain.clock import stamp, to_micros
from ricordo.domain.ids import pattern
from ricordo.domain.scope import ADMIN, APPROVE, IMPERSONATE
from ricordo.domain.text import Json
from ricordo.errors import Invalid, NotFound
from ricordo.features.identity.access_tokens import service
from ricordo.storage import access_tokens
from ricordo.storage.engine.store import Transaction
from ricordo.storage.keys import ApiKey, hash_of

router = Routes(prefix="/v1/client-side-access-tokens", tags=["access tokens"])
# The scopes that may use these routes. A tool's program may not, since a token would outlive the
# program's call.
_makes = needs(ADMIN, IMPERSONATE, APPROVE)
_ADDRESS = re.compile(r"https?://[^/?#@]+/?", re.IGNORECASE)
Access = Literal["read_messages", "write_messages", "read_agent", "write_agent"]


class PolicyRequest(RequestPart):
    """An agent, and the allowed accesses to it."""

    type: Literal["agent"]
    id: str = Field(pattern=pattern("agent"))
    access: list[Access] = Field(min_length=1, max_length=20)


class TokenRequest(RequestModel):
    """A token for the pages of one origin."""

    hostname: str = Field(
        max_length=300, description="The address of the pages, such as https://app.example.org."
    )
    policy: list[PolicyRequest] = Field(min_length=1, max_length=100)
    expires_at: datetime | None = Field(
        None, description="The time at which the token ends; by default in 5 minutes."
    )


class PolicyItemResponse(ResponseModel):
    """An agent, and the allowed accesses to it."""

    id: str
    access: list[Access]
    type: Literal["agent"] = "agent"


class PolicyResponse(ResponseModel):
    """The allowed accesses of a token."""

    data: list[PolicyItemResponse]
    version: Literal["1"] = "1"


class TokenResponse(ResponseModel):
    """A token.

    `token` is the token itself only in the answer to its creation. Later it is the token's id, by
    which it can be deleted.
    """

    token: str
    expiresAt: str  # noqa: N815 - a wire fact
    hostname: str
    policy: PolicyResponse

    @classmethod
    def from_key(cls, key: ApiKey, token: str) -> Json:
        """Return the response for a token.

        Args:
            key: The stored token, which is a key with scopes for agents.
            token: The token itself for its creation, and its id for a list.
        """
        accesses: dict[str, list[str]] = {}
        for scope in key.scopes:
            if scope.startswith("agent-"):
                id, _, access = scope.partition(":")
                accesses.setdefault(id, []).append(access)
        policy_items = [
            PolicyItemResponse.of(None, id=id, access=access) for id, access in accesses.items()
        ]
        return cls.of(
            None,
            token=token,
            expiresAt=stamp(key.expires_at),
            hostname=key.name,
            policy=PolicyResponse.of(None, data=policy_items),
        )


TokenRequest.take_back(TokenResponse)


class TokensResponse(ResponseModel):
    """One page of tokens."""

    tokens: list[TokenResponse]
    hasNextPage: bool  # noqa: N815 - a wire fact


@dataclass(frozen=True, slots=True)
class TokenQuery:
    """The filter of a list of tokens."""

    agent_id: Annotated[
        str | None, Query(alias="agentId", description="Only tokens for this agent.")
    ] = None
    limit: Annotated[int, Query(ge=1, le=1000, description="The most items to return.")] = 10
    offset: Annotated[
        int, Query(ge=0, le=1_000_000, description="The number of items to skip.")
    ] = 0


@router.post("", response_model=TokenResponse)
@_makes
def create(tx: Transaction, context: RequestContext, body: TokenRequest) -> Json:
    """Create a token for a web page, limited to these agents. The token is shown once."""
    origin = origin_of(body.hostname)
    if not origin or not _ADDRESS.fullmatch(body.hostname):
        raise Invalid(
            "hostname must be the address of your pages without a path, such as "
            "https://app.example.org."
        )
    secret = context.request.app.state.authentication.secret
    pairs = [(policy.id, access) for policy in body.policy for access in policy.access]
    if body.expires_at:
        until = to_micros(body.expires_at)
    else:
        until = None
    key, token = service.create(
        tx, context.scope, secret, origin=origin, pairs=pairs, expires_at=until
    )
    return TokenResponse.from_key(key, token)


@router.get("", response_model=TokensResponse)
@_makes
def list_tokens(
    tx: Transaction, context: RequestContext, query: Annotated[TokenQuery, Depends()]
) -> Json:
    """Return the valid tokens that your key made, the newest first.

    Callers who see the whole organization get all its tokens.
    """
    keys = access_tokens.page(tx, context.scope, query.agent_id, query.limit + 1, query.offset)
    tokens = [TokenResponse.from_key(key, key.id) for key in keys[: query.limit]]
    return TokensResponse.of(None, tokens=tokens, hasNextPage=len(keys) > query.limit)


@router.delete("/{token}", response_model=dict[str, bool])
@_makes
async def delete(context: RequestContext, token: str) -> dict[str, bool]:
    """Delete a token; name it by the token itself or by its id.

    Every server refuses it within a second.
    """
    authentication = context.request.app.state.authentication
    hash = hash_of(authentication.secret, token)
    if not await context.store.write(
        lambda tx: access_tokens.delete_one(tx, context.scope, token, hash)
    ):
        raise NotFound("There is no such token, or another key made it. Read the list of tokens.")
    authentication.forget()
    return {"success": True}
