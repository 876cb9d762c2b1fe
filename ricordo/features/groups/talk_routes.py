"""Talks with groups over HTTP: send and wait, stream, or send in the background; list what was said, and begin again."""

from types import NoneType
from typing import Annotated

from fastapi import Depends, Response
from fastapi.responses import StreamingResponse

from ricordo.agents.request import TurnRequest
from ricordo.agents.turn import INVALID_REQUEST, collect
from ricordo.api.call import Paged, RequestContext
from ricordo.api.guard import refuse
from ricordo.api.messages import (
    MessageViewQuery,
    begin_async,
    keeps_some,
    stream_turn,
    turn_request,
    turn_response,
)
from ricordo.api.models.base import Json
from ricordo.api.models.messages import AnyMessage, messages_response
from ricordo.api.models.runs import RunResponse
from ricordo.api.models.turns import AsyncSendRequest, SendRequest, TurnResponse
from ricordo.api.routing import Routes, needs
from ricordo.api.sse import STREAM
from ricordo.api.stored_streams import Begin
from ricordo.domain.message import Message
from ricordo.domain.run import Run
from ricordo.errors import Conflict, NotFound, Unsupported
from ricordo.features.groups import queries
from ricordo.features.groups.talk import run_talk
from ricordo.features.groups.talk_queries import page_of_group_messages
from ricordo.features.groups.talk_reset import reset_talks
from ricordo.features.groups.talk_start import require_leader, talk_conversation
from ricordo.runtime import LiveTurn, Runtime
from ricordo.storage import messages
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/v1/groups/{group_id}", tags=["groups"], scope="messages")


@router.post("/messages", response_model=TurnResponse)
async def send(context: RequestContext, group_id: str, body: SendRequest) -> Response:
    """Send messages to the group and wait until its agents have talked; with `streaming` it comes as it is made."""
    if body.streaming:
        return await stream(context, group_id, body)
    body.require_streaming()
    leader_id, conversation_id = await _place(context, group_id, body)
    request = await turn_request(context, leader_id, body, conversation_id)
    result = await collect(await run_talk(context.runtime, group_id, request))
    if result.failure and result.failure.kind == INVALID_REQUEST:
        raise Conflict(
            result.failure.message
        )  # such as a member that waits for an approval in a talk of its own
    return turn_response(result, body)


@router.post("/messages/stream", response_class=StreamingResponse, responses=STREAM)
async def stream(context: RequestContext, group_id: str, body: SendRequest) -> Response:
    """Send messages to the group and read what its agents say as server-sent events."""
    leader_id, conversation_id = await _place(context, group_id, body)
    return await stream_turn(context, leader_id, body, conversation_id, _begin(group_id))


@router.post("/messages/async", response_model=RunResponse)
async def send_async(context: RequestContext, group_id: str, body: AsyncSendRequest) -> Run:
    """Send messages to the group and return the run at once; `callback_url` is called when it has ended."""
    leader_id, conversation_id = await _place(context, group_id, body)
    return await begin_async(context, leader_id, body, conversation_id, _begin(group_id))


@router.get("/messages", response_model=list[AnyMessage])
def list_messages(
    tx: Transaction,
    context: RequestContext,
    group_id: str,
    paging: Paged,
    which: Annotated[MessageViewQuery, Depends()],
) -> list[Json]:
    """What was said in the group, each utterance once: users' messages, and what each agent said; by default newest first."""
    queries.get(tx, context.scope, group_id)
    view = which.view()

    def read(reading: Page) -> list[Message]:
        return page_of_group_messages(tx, context.scope, reading, group_id)

    kept = messages.page_of_kept(read, paging.page(default=10), keeps_some(view))
    return messages_response(kept, view)


@router.patch("/messages/{message_id}", response_model=dict[str, str])
@needs("messages:write")
def modify_message(
    tx: Transaction, context: RequestContext, group_id: str, message_id: str
) -> Response:
    """Refused: what was said stays as it was said."""
    queries.get(tx, context.scope, group_id)
    if messages.get(tx, context.scope, message_id).group_id != group_id:
        raise NotFound(f"Message with ID {message_id} not found in this group")
    return refuse(
        405, "A message cannot be changed. Send another one to the group, or reset its messages."
    )


@router.patch("/reset-messages", response_model=NoneType)
async def reset(context: RequestContext, group_id: str) -> None:
    """Delete the group's messages of all its agents, as far as they are the caller's. Memory stays as it is."""
    await reset_talks(context.runtime, context.scope, group_id)


def _begin(group_id: str) -> Begin:
    async def begin(runtime: Runtime, request: TurnRequest) -> LiveTurn:
        return await run_talk(runtime, group_id, request)

    return begin


async def _place(context: RequestContext, group_id: str, body: SendRequest) -> tuple[str, str]:
    """Return the agent and the conversation that talks with the group are kept in. Raises NotFound, Invalid, Unsupported."""
    if body.override_system is not None:
        raise Unsupported(
            "override_system is not supported in a group: each of its agents has a prompt of its own."
        )
    group = await context.store.read(lambda tx: queries.get(tx, context.scope, group_id))
    return require_leader(group), talk_conversation(context.scope, group)
