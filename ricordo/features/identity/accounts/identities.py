"""Identities: the users, in the form of older clients.

`identity-<uuid>` is the user `user-<uuid>`; its key is the user's identifier. If identities are
attached to an agent, only these users, administrators and developers may use it. Blocks that are
attached to an identity are stored and returned, but have no effect.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from fastapi import Query
from pydantic import BeforeValidator, Field

from ricordo.api.call import Paged, RequestContext, agent_json, note, whole_agent
from ricordo.api.models.agents import AgentResponse
from ricordo.api.models.base import IN_ONE_PROJECT, NoteResponse, RequestModel, ResponseModel
from ricordo.api.models.memory import BlockResponse
from ricordo.api.routing import Routes, needs
from ricordo.domain.scope import User
from ricordo.domain.text import Json, normal_json
from ricordo.errors import Forbidden, Invalid
from ricordo.features.identity.accounts.keys import forget_cached
from ricordo.features.memory_care.erasure.service import forget
from ricordo.storage import agent_access, agents, blocks, identity_blocks, users
from ricordo.storage.engine.store import Transaction
from ricordo.storage.users import UserDraft, user_id_of

router = Routes(prefix="/v1", tags=["identities"], scope="users")
Kind = Literal["org", "user", "other"]
_MOST_PROPERTIES = 100
Ids = Annotated[list[str] | None, Field(default=None, max_length=1000)]


class IdentityProperty(RequestModel):
    """A property of an identity."""

    key: str = Field(max_length=255)
    value: str | float | bool | dict[str, Any]
    type: Literal["string", "number", "boolean", "json"]


# A list as body is not brought into normal form by `RequestModel`, so do it here.
Properties = Annotated[
    list[IdentityProperty], Field(max_length=_MOST_PROPERTIES), BeforeValidator(normal_json)
]


class IdentityUpdate(RequestModel):
    """Changes of an identity; an omitted field keeps its value.

    A list of ids replaces the attached agents or blocks.
    """

    ignored: ClassVar = IN_ONE_PROJECT

    identifier_key: str | None = Field(None, max_length=255)
    name: str | None = Field(None, max_length=255)
    identity_type: Kind | None = None
    agent_ids: Ids
    block_ids: Ids
    properties: Properties | None = None


class IdentityRequest(IdentityUpdate):
    """A new identity."""

    identifier_key: str = Field(max_length=255)
    name: str = Field(max_length=255)
    identity_type: Kind


class IdentityResponse(ResponseModel):
    """A user, in the form of older clients."""

    id: str
    identifier_key: str
    name: str
    identity_type: Kind
    project_id: str | None = None
    organization_id: str
    agent_ids: list[str]
    block_ids: list[str]
    properties: list[Json]


IdentityUpdate.take_back(IdentityResponse)


@router.get("/identities/", response_model=list[IdentityResponse])
def list_identities(
    tx: Transaction,
    context: RequestContext,
    paging: Paged,
    name: str | None = None,
    identifier_key: str | None = None,
    identity_type: Annotated[Kind | None, Query()] = None,
) -> list[Json]:
    """Return the users as identities, by default the newest first."""
    requested = paging.page()
    # The cursors are ids of identities.
    before, after = (
        cursor and user_id_of(cursor) for cursor in (requested.before, requested.after)
    )
    page = users.page(
        tx,
        context.scope,
        replace(requested, before=before, after=after),
        name=name,
        identifier=identifier_key,
        identity_type=identity_type,
    )
    return _responses(tx, page)


@router.get("/identities/count", response_model=int)
def count_identities(tx: Transaction, context: RequestContext) -> int:
    """Return the number of users."""
    return users.count(tx, context.scope)


@router.post("/identities/", response_model=IdentityResponse)
def create_identity(tx: Transaction, context: RequestContext, body: IdentityRequest) -> Json:
    """Make a user."""
    draft = UserDraft(
        body.name, body.identifier_key, None, body.identity_type, _properties(body.properties or ())
    )
    user = users.create(tx, context.scope, draft)
    _attach(tx, context, user, body)
    return _response(tx, user)


@router.put("/identities/", response_model=IdentityResponse)
def upsert_identity(tx: Transaction, context: RequestContext, body: IdentityRequest) -> Json:
    """Make a user, or change the user with this key."""
    if user := users.named(tx, context.scope.organization_id, body.identifier_key):
        return _changed(tx, context, user, body)
    return create_identity(tx, context, body)


@router.get("/identities/{identity_id}", response_model=IdentityResponse)
def retrieve_identity(tx: Transaction, context: RequestContext, identity_id: str) -> Json:
    """Return one identity."""
    return _response(tx, _user(tx, context, identity_id))


@router.patch("/identities/{identity_id}", response_model=IdentityResponse)
def modify_identity(
    tx: Transaction, context: RequestContext, identity_id: str, body: IdentityUpdate
) -> Json:
    """Change an identity."""
    return _changed(tx, context, _user(tx, context, identity_id), body)


@router.put("/identities/{identity_id}/properties", response_model=IdentityResponse)
def upsert_properties(
    tx: Transaction, context: RequestContext, identity_id: str, body: Properties
) -> Json:
    """Set these properties of an identity; other properties are kept."""

    def with_properties(stored: User) -> User:
        properties = {field["key"]: field for field in (*stored.properties, *_properties(body))}
        if len(properties) > _MOST_PROPERTIES:
            raise Invalid(
                f"An identity has at most {_MOST_PROPERTIES} properties, and this one would have "
                f"{len(properties)}."
            )
        return replace(stored, properties=tuple(properties.values()))

    user = _user(tx, context, identity_id)
    return _response(tx, users.change(tx, context.scope, user.id, with_properties))


@router.delete("/identities/{identity_id}", response_model=NoteResponse)
async def delete_identity(context: RequestContext, identity_id: str) -> Json:
    """Forget a user with all of the user's data, as `DELETE /users/{user}` does."""
    users.require_all_users(context.scope)
    user = await context.store.read(lambda tx: _user(tx, context, identity_id))
    receipt = await forget(context.runtime, context.scope, user.id)
    forget_cached(context)
    return note(f"The user is forgotten. The receipt: /v1/receipts/{receipt['id']}")


@router.get("/identities/{identity_id}/agents", response_model=list[AgentResponse])
def list_agents(
    tx: Transaction, context: RequestContext, identity_id: str, paging: Paged
) -> list[Json]:
    """Return the agents that are limited to an identity."""
    user = _user(tx, context, identity_id)
    states = agents.page(tx, context.scope, paging.page(), agents.is_kept_to([user.id]))
    return [agent_json(context, state) for state in context.runtime.complete(tx, states)]


@router.get("/identities/{identity_id}/blocks", response_model=list[BlockResponse])
def list_blocks(
    tx: Transaction, context: RequestContext, identity_id: str, paging: Paged
) -> list[Any]:
    """Return the blocks attached to an identity.

    Blocks that are being deleted or belong to another user are left out.
    """
    attached = tuple(identity_blocks.blocks_of(tx, _user(tx, context, identity_id).id))
    return blocks.listed(tx, context.scope, paging.page(), blocks.BlockFilter(ids=attached))


@router.patch("/agents/{agent_id}/identities/attach/{identity_id}", response_model=AgentResponse)
@needs("agents:write")
def attach_agent(tx: Transaction, context: RequestContext, agent_id: str, identity_id: str) -> Json:
    """Restrict an agent to a user and to the users that are already attached.

    Administrators and developers may always use it.
    """
    users.require_all_users(context.scope)
    agents.require(tx, context.scope, agent_id)
    agent_access.attach_user(tx, agent_id, _user(tx, context, identity_id).id)
    return whole_agent(tx, context, agent_id)


@router.patch("/agents/{agent_id}/identities/detach/{identity_id}", response_model=AgentResponse)
@needs("agents:write")
def detach_agent(tx: Transaction, context: RequestContext, agent_id: str, identity_id: str) -> Json:
    """Detach a user from an agent.

    If no user is left, everybody in the organization may use the agent.
    """
    users.require_all_users(context.scope)
    agents.require(tx, context.scope, agent_id)
    agent_access.detach_user(tx, agent_id, _user(tx, context, identity_id).id)
    return whole_agent(tx, context, agent_id)


@router.patch("/blocks/{block_id}/identities/attach/{identity_id}", response_model=BlockResponse)
@needs("agents:write")
def attach_block(tx: Transaction, context: RequestContext, block_id: str, identity_id: str) -> Any:
    """Attach a block to an identity."""
    users.require_all_users(context.scope)
    block = blocks.get(tx, context.scope, block_id)
    identity_blocks.attach_block(tx, block_id, _user(tx, context, identity_id).id)
    return block


@router.patch("/blocks/{block_id}/identities/detach/{identity_id}", response_model=BlockResponse)
@needs("agents:write")
def detach_block(tx: Transaction, context: RequestContext, block_id: str, identity_id: str) -> Any:
    """Detach a block from an identity."""
    users.require_all_users(context.scope)
    block = blocks.get(tx, context.scope, block_id)
    identity_blocks.detach_block(tx, block_id, _user(tx, context, identity_id).id)
    return block


def _user(tx: Transaction, context: RequestContext, identity_id: str) -> User:
    return users.require(tx, context.scope, user_id_of(identity_id))


def _changed(tx: Transaction, context: RequestContext, user: User, body: IdentityUpdate) -> Json:
    changes: dict[str, Any] = {
        "identifier": body.identifier_key,
        "name": body.name,
        "identity_type": body.identity_type,
        "properties": None if body.properties is None else _properties(body.properties),
    }
    changes = {name: field for name, field in changes.items() if field is not None}
    changed = users.change(tx, context.scope, user.id, lambda stored: replace(stored, **changes))
    _attach(tx, context, changed, body)
    return _response(tx, changed)


def _attach(tx: Transaction, context: RequestContext, user: User, body: IdentityUpdate) -> None:
    """Attach these agents and blocks, and detach others."""
    if (body.agent_ids or body.block_ids) and not context.scope.may("agents:write"):
        raise Forbidden(
            "Your key lacks the scope agents:write, so it cannot attach agents and blocks. Leave "
            "agent_ids and block_ids out."
        )
    if body.agent_ids is not None:
        for id in set(agent_access.agents_of(tx, user.id)) - {*body.agent_ids}:
            agent_access.detach_user(tx, id, user.id)
        for id in body.agent_ids:
            agents.require(tx, context.scope, id)
            agent_access.attach_user(tx, id, user.id)
    if body.block_ids is not None:
        for id in set(identity_blocks.blocks_of(tx, user.id)) - {*body.block_ids}:
            identity_blocks.detach_block(tx, id, user.id)
        for id in body.block_ids:
            blocks.get(tx, context.scope, id)
            identity_blocks.attach_block(tx, id, user.id)


def _properties(properties: Sequence[IdentityProperty]) -> tuple[Json, ...]:
    return tuple(field.model_dump() for field in properties)


def _response(tx: Transaction, user: User) -> Json:
    return _responses(tx, [user])[0]


def _responses(tx: Transaction, page: Sequence[User]) -> list[Json]:
    ids = [user.id for user in page]
    agent_ids = agent_access.agents_of_users(tx, ids)
    block_ids = identity_blocks.blocks_of_users(tx, ids)
    return [
        IdentityResponse.of(
            user,
            id=f"identity-{user.id.removeprefix('user-')}",
            identifier_key=user.identifier or user.name,
            identity_type=user.identity_type or "user",
            agent_ids=agent_ids.get(user.id, []),
            block_ids=block_ids.get(user.id, []),
            properties=list(user.properties),
        )
        for user in page
    ]
