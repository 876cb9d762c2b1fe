"""Routes for older clients: tags, environments, and calls of an agent's model."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from fastapi import Depends, Query, Response
from pydantic import Field

from ricordo.agents.loop import build_request
from ricordo.agents.step_decisions import offer_tools
from ricordo.agents.tracing import request_to_json
from ricordo.agents.turn_start import preview_turn
from ricordo.api.call import RequestContext
from ricordo.api.guard import refuse
from ricordo.api.messages import turn_request
from ricordo.api.models.base import RequestModel, ResponseModel, TextPiece
from ricordo.api.models.tools import ToolResponse
from ricordo.api.models.turns import SendRequest
from ricordo.api.routing import Routes, needs
from ricordo.domain.agent import AgentState
from ricordo.domain.ids import new_id
from ricordo.domain.message import Message, Role, TextPart
from ricordo.domain.model import ModelRequest
from ricordo.domain.text import Json
from ricordo.domain.tool import Tool
from ricordo.errors import NotFound
from ricordo.llm.egress import whole_reply
from ricordo.llm.exchange import EXCHANGE, Exchange, NotSent
from ricordo.storage import agents, tags, tools
from ricordo.storage.budgets import has_budget, require_budget
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction
from ricordo.storage.model_costs import ReplyAccount
from ricordo.tools.toolbox import sync_tools

router = Routes(prefix="/v1", tags=["older clients"], scope="agents")


@dataclass(frozen=True, slots=True)
class TagQuery:
    """A page of tags, in alphabetical order."""

    before: Annotated[
        str | None, Query(description="Only tags before this tag, in the requested order.")
    ] = None
    after: Annotated[
        str | None, Query(description="Only tags after this tag, in the requested order.")
    ] = None
    limit: Annotated[int, Query(ge=1, le=1000, description="The most tags to return.")] = 50
    order: Annotated[Literal["asc", "desc"], Query(description="From a to z, or from z to a.")] = (
        "asc"
    )
    order_by: Annotated[Literal["name"], Query(description="The field to sort by.")] = "name"
    name: TextPiece = None
    query_text: Annotated[TextPiece, Query(description="The older name of `name`.")] = None


@router.get("/tags/", response_model=list[str])
def list_tags(
    tx: Transaction, context: RequestContext, query: Annotated[TagQuery, Depends()]
) -> list[str]:
    """List the tags of agents and blocks, each once."""
    page = Page(query.limit, query.before, query.after, order=query.order)
    return tags.page_of_tags(tx, context.scope, page, query.name or query.query_text)


@dataclass(frozen=True, slots=True)
class EnvironmentQuery:
    """A query of remote machines that run an agent's tools; there are none."""

    after: str | None = None
    limit: Annotated[int | None, Query(ge=1, le=1000)] = None
    online_only: Annotated[bool | None, Query(alias="onlineOnly")] = None
    source: Literal["local", "remote"] | None = None
    user: Annotated[str | None, Query(alias="userId")] = None


@router.get("/environments", response_model=dict[str, Any])
async def list_environments(_which: Annotated[EnvironmentQuery, Depends()]) -> Json:
    """List no environments: tools run in this server's sandbox."""
    return {"connections": [], "hasNextPage": False}


@router.get("/environments/{device}", response_model=dict[str, Any])
async def retrieve_environment(device: str) -> Json:
    """Return 404, since no environment has this id."""
    raise _no_environment(device)


@router.post("/environments/{connection}/messages", response_model=dict[str, Any])
async def send_to_environment(connection: str) -> Json:
    """Return 404, since no environment has this id.

    Send the message to the agent itself.
    """
    raise _no_environment(connection)


def _no_environment(name: str) -> NotFound:
    return NotFound(
        f'There is no environment "{name[:80]}". Tools run in the sandbox of this server '
        "(docs/agents/sandbox.md)."
    )


@router.get("/agents/{agent_id}/groups", response_model=list[Json])
def list_groups(tx: Transaction, context: RequestContext, agent_id: str) -> list[Json]:
    """Return no groups.

    If the feature `groups` is loaded, it serves this path instead.
    """
    agents.require(tx, context.scope, agent_id)
    return []


@router.patch("/agents/{agent_id}/messages/{message_id}", response_model=dict[str, str])
@needs("messages:write")
def modify_message(
    tx: Transaction,
    context: RequestContext,
    agent_id: str,
    message_id: str,  # noqa: ARG001 - a part of the path
) -> Response:
    """Refuse the change, since stored messages are never changed."""
    agents.require(tx, context.scope, agent_id)
    return refuse(
        405,
        "A message cannot be changed. Fork the conversation at the message before it, and go on "
        "there.",
    )


@router.post("/agents/{agent_id}/messages/preview-raw-payload", response_model=dict[str, Any])
@needs("messages:write")
async def preview_raw_payload(context: RequestContext, agent_id: str, body: SendRequest) -> Json:
    """Return the JSON that the agent's model would receive for these messages.

    Nothing is sent, and nothing is stored.
    """
    turn = await preview_turn(context.runtime, await turn_request(context, agent_id, body))
    request = build_request(turn, offer_tools(turn), is_first=True)
    exchange = Exchange(is_preview=True)
    info = turn.model.info
    if info.endpoint and info.endpoint_type != "bedrock":  # requests to AWS are made by a library
        EXCHANGE.set(exchange)
        with suppress(NotSent):
            await whole_reply(turn.model, request, turn.clearance, payer=None)
    return exchange.request() or request_to_json(request, info)


@router.post("/tools/add-base-tools", response_model=list[ToolResponse])
@needs("tools:write")
def add_base_tools(tx: Transaction, context: RequestContext) -> Sequence[Tool]:
    """Update the stored built-in tools, and return them.

    Each start of the server does the same.
    """
    sync_tools(tx, context.scope, context.runtime.toolbox)
    names = [tool.name for tool in context.runtime.toolbox]
    return list(tools.by_names(tx, context.scope, names).values())


class GenerateRequest(RequestModel):
    """A question to an agent's model, without the agent's memory."""

    prompt: str = Field(
        min_length=1, pattern=r"\S", description="The question, which must not be blank."
    )
    system_prompt: str | None = None
    override_model: str | None = None
    response_schema: dict[str, Any] | None = Field(None, description="A JSON schema of the answer.")


class GenerateResponse(ResponseModel):
    """The model's reply, with its tokens."""

    content: str
    model: str
    usage: Json


@router.post("/agents/{agent_id}/generate", response_model=GenerateResponse)
@needs("messages:write")
async def generate(context: RequestContext, agent_id: str, body: GenerateRequest) -> Json:
    """Ask the agent's model once, without the agent's memory and tools.

    Only the number of tokens is stored.
    """

    def read(tx: Transaction) -> AgentState:
        state = agents.load(tx, context.scope, agent_id)
        if has_budget(context.runtime.settings, state.agent):
            require_budget(tx, context.runtime.settings, state.agent)
        return state

    agent = (await context.store.read(read)).agent
    models = await context.runtime.organization_providers.of(context.scope.organization_id)
    handle = body.override_model or agent.model
    await models.require(handle)
    model = models.get(handle)
    now = context.store.clock.now()

    def new_message(role: Role, text: str) -> Message:
        return Message(
            new_id("message"), agent_id, "", role, parts=(TextPart(text),), created_at=now
        )

    request_messages = [new_message("user", body.prompt)]
    if body.system_prompt:
        request_messages.insert(0, new_message("system", body.system_prompt))
    settings = replace(
        agent.model_settings,
        response_format=_format(body.response_schema),
        thinks_in_arguments=None,
    )
    request = ModelRequest(
        tuple(request_messages), settings=settings, user_id=context.scope.user_id
    )
    payer = ReplyAccount(
        context.store, agent.organization_id, agent_id=agent_id, user_id=context.scope.subject
    )
    reply = await whole_reply(model, request, context.runtime.new_clearance(), payer)
    text = "".join(part.text for part in reply.parts if isinstance(part, TextPart))
    usage = {
        name: getattr(reply.usage, name)
        for name in ("prompt_tokens", "completion_tokens", "total_tokens")
    }
    return GenerateResponse.of(None, content=text, model=model.info.handle, usage=usage)


def _format(schema: dict[str, Any] | None) -> dict[str, Any] | None:
    if not schema:
        return None
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
