"""Routes to set egress policies, to preview a model's view, and to read a step's record."""

from typing import Annotated

from fastapi import Query
from pydantic import Field

from ricordo.api.call import RequestContext
from ricordo.api.models.base import RequestModel, ResponseModel
from ricordo.api.routing import Routes, needs
from ricordo.domain.egress import MOST_NAMES, allowed_names
from ricordo.domain.text import Json
from ricordo.features.egress import service
from ricordo.features.files.folders import queries as folder_queries
from ricordo.storage import agents, blocks, conversations, runs
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/v1", tags=["egress"], scope="agents")


class EgressPolicyRequest(RequestModel):
    """A policy to set."""

    allowed: list[Annotated[str, Field(max_length=100)]] | None = Field(
        max_length=MOST_NAMES,
        description='Providers that may receive it, such as "openai"; "local" for models on this '
        "machine or its network. An empty list allows none, and null removes the "
        "policy.",
    )


class EgressPolicyResponse(ResponseModel):
    """The policy of a block, a conversation or a folder. `allowed` is null if it has none."""

    id: str
    allowed: list[str] | None


class WithheldResponse(ResponseModel):
    """A part of the prompt that the model would not see."""

    source: str
    lines: int


class EgressPreviewResponse(ResponseModel):
    """The parts of the agent's prompt that a model's provider may see, and the withheld parts.

    `refused` says why no turn is possible with this model; null if turns are possible.
    """

    model: str
    provider: str
    is_local: bool
    shown: list[str]
    withheld: list[WithheldResponse]
    refused: str | None


class EgressRecordResponse(ResponseModel):
    """The labelled sources that a step sent, and the numbers of withheld lines by source."""

    destination: str | None
    is_local: bool | None
    shown: list[str]
    withheld: dict[str, int]


@router.get("/blocks/{block_id}/egress", response_model=EgressPolicyResponse)
def retrieve_block_policy(tx: Transaction, context: RequestContext, block_id: str) -> Json:
    """Return which destinations may see the block."""
    return _policy(block_id, blocks.get(tx, context.scope, block_id).egress)


@router.put("/blocks/{block_id}/egress", response_model=EgressPolicyResponse)
@needs("agents:write", "memory:write")
def set_block_policy(
    tx: Transaction, context: RequestContext, block_id: str, body: EgressPolicyRequest
) -> Json:
    """Set which destinations may see the block. Only its owner may allow more than before."""
    block = service.set_block_policy(tx, context.scope, block_id, body.allowed)
    return _policy(block_id, block.egress)


@router.get("/conversations/{conversation_id}/egress", response_model=EgressPolicyResponse)
@needs("messages:read")
def retrieve_conversation_policy(
    tx: Transaction, context: RequestContext, conversation_id: str
) -> Json:
    """Return which destinations may see the conversation."""
    conversation = conversations.require(tx, context.scope, conversation_id)
    return _policy(conversation_id, conversation.egress)


@router.put("/conversations/{conversation_id}/egress", response_model=EgressPolicyResponse)
@needs("messages:write")
def set_conversation_policy(
    tx: Transaction, context: RequestContext, conversation_id: str, body: EgressPolicyRequest
) -> Json:
    """Set which destinations may see the conversation, including its stored messages."""
    label = service.set_conversation_policy(tx, context.scope, conversation_id, body.allowed)
    return _policy(conversation_id, label)


@router.get("/folders/{folder_id}/egress", response_model=EgressPolicyResponse)
def retrieve_folder_policy(tx: Transaction, context: RequestContext, folder_id: str) -> Json:
    """Return which destinations may see the files of the folder."""
    return _policy(folder_id, folder_queries.get_folder(tx, context.scope, folder_id).egress)


@router.put("/folders/{folder_id}/egress", response_model=EgressPolicyResponse)
def set_folder_policy(
    tx: Transaction, context: RequestContext, folder_id: str, body: EgressPolicyRequest
) -> Json:
    """Set which destinations may see the files of the folder."""
    return _policy(
        folder_id, service.set_folder_policy(tx, context.scope, folder_id, body.allowed).egress
    )


@router.get("/steps/{step_id}/egress", response_model=EgressRecordResponse)
@needs("messages:read")
def retrieve_record(tx: Transaction, context: RequestContext, step_id: str) -> Json:
    """Return the destination of the step's prompt, and its shown and withheld sources.

    All fields are empty if no source had a policy.
    """
    record = runs.get_step(tx, context.scope, step_id).memory.get("egress", {})
    return EgressRecordResponse.of(
        None,
        destination=record.get("destination"),
        is_local=record.get("is_local"),
        shown=record.get("shown", []),
        withheld=record.get("withheld", {}),
    )


@router.get("/agents/{agent_id}/egress", response_model=EgressPreviewResponse)
async def preview(
    context: RequestContext,
    agent_id: str,
    model: Annotated[
        str | None, Query(max_length=500, description="A model's handle; by default the agent's.")
    ] = None,
) -> Json:
    """Return the parts of the agent's prompt that a model would see, and the withheld parts.

    Call it before you give the agent another model.
    """
    runtime = context.runtime
    handle = model
    if handle is None:
        agent = await context.store.read(lambda tx: agents.get(tx, context.scope, agent_id))
        handle = agent.model
    chat_model = (await runtime.organization_providers.of(context.scope.organization_id)).get(
        handle
    )
    destination = runtime.networks.of_model(chat_model.info)
    result = await context.store.read(
        lambda tx: service.preview(tx, runtime, context.scope, agent_id, handle, destination)
    )
    withheld = [WithheldResponse.of(part) for part in result.withheld]
    return EgressPreviewResponse.of(
        result,
        provider=destination.name,
        is_local=destination.is_local,
        shown=list(result.shown),
        withheld=withheld,
    )


def _policy(id: str, label: str | None) -> Json:
    return EgressPolicyResponse.of(None, id=id, allowed=allowed_names(label))
