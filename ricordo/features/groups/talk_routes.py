"""Talks with groups over HTTP: send, stream, list and reset."""

from types import NoneType
from typing import Annotated

from fastapi import Depends, Response
from fastapi.responses import StreamingResponse

from ricordo.agents.recording import Begin
from ricordo.agents.request import (
    TurnRequest,
)
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
from ricordo.api.models.messages import AnyMessage, message_responses
from ricordo.api.models.runs import RunResponse
from ricordo.api.models.turns import AsyncSendRequest, SendRequest, TurnResponse
from ricordo.api.routing import Routes, needs
from ricordo.api.sse import STREAM
from ricordo.domain.message import Message
from ricordo.domain.run import Run
from ricordo.domain.text import Json
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
    """Send messages to the group, and wait until its agents have talked.

    With `streaming`, the answer is sent while it is created.
    """
    if body.streaming:
        return await stream(context, group_id, body)
    body.require_streaming()
    leader_id, conversation_id = await _leader_and_conversation(context, group_id, body)
    request = await turn_request(context, leader_id, body, conversation_id)
    answer = await collect(await run_talk(context.runtime, group_id, request))
    if answer.failure and answer.failure.kind == INVALID_REQUEST:
        # For example, a member waits for an approval in a turn outside of the group.
        raise Conflict(answer.failure.message)
    return turn_response(answer, body)


@router.post("/messages/stream", response_class=StreamingResponse, responses=STREAM)
async def stream(context: RequestContext, group_id: str, body: SendRequest) -> Response:
    """Send messages to the group, and read its agents' answers as server-sent events."""
    leader_id, conversation_id = await _leader_and_conversation(context, group_id, body)
    return await stream_turn(context, leader_id, body, conversation_id, _begin(group_id))


@router.post("/messages/async", response_model=RunResponse)
async def send_async(context: RequestContext, group_id: str, body: AsyncSendRequest) -> Run:
    """Send messages to the group and return the run at once.

    When the run has ended, `callback_url` is called.
    """
    leader_id, conversation_id = await _leader_and_conversation(context, group_id, body)
    return await begin_async(context, leader_id, body, conversation_id, _begin(group_id))


@router.get("/messages", response_model=list[AnyMessage])
def list_messages(
    tx: Transaction,
    context: RequestContext,
    group_id: str,
    paging: Paged,
    view_query: Annotated[MessageViewQuery, Depends()],
) -> list[Json]:
    """List the messages of the group without copies, by default newest first."""
    queries.get(tx, context.scope, group_id)
    view = view_query.view()

    def read(reading: Page) -> list[Message]:
        return page_of_group_messages(tx, context.scope, reading, group_id)

    rows = messages.page_of_kept(read, paging.page(default=10), keeps_some(view))
    return message_responses(rows, view)


@router.patch("/messages/{message_id}", response_model=dict[str, str])
@needs("messages:write")
def modify_message(
    tx: Transaction, context: RequestContext, group_id: str, message_id: str
) -> Response:
    """Refuse to change a message."""
    queries.get(tx, context.scope, group_id)
    if messages.get(tx, context.scope, message_id).group_id != group_id:
        raise NotFound(f"Message with ID {message_id} not found in this group")
    return refuse(
        405, "A message cannot be changed. Send another one to the group, or reset its messages."
    )


@router.patch("/reset-messages", response_model=NoneType)
async def reset(context: RequestContext, group_id: str) -> None:
    """Delete the caller's messages in the group.

    Memory stays as it is.
    """
    await reset_talks(context.runtime, context.scope, group_id)


def _begin(group_id: str) -> Begin:
    async def begin(runtime: Runtime, request: TurnRequest) -> LiveTurn:
        return await run_talk(runtime, group_id, request)

    return begin


async def _leader_and_conversation(
    context: RequestContext, group_id: str, body: SendRequest
) -> tuple[str, str]:
    """Return the ids of the leader and of the conversation of talks.

    Raises NotFound, Invalid, Unsupported.
    """
    if body.override_system is not None:
        raise Unsupported(
            "override_system is not supported in a group, because each of its agents has a "
            "different prompt. Leave it out."
        )
    group = await context.store.read(lambda tx: queries.get(tx, context.scope, group_id))
    return require_leader(group), talk_conversation(context.scope, group)
