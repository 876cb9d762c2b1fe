"""Talking with an agent: send and get the whole answer, or stream it; list, cancel, begin anew."""

from base64 import b64decode
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Response
from fastapi.responses import StreamingResponse

from ricordo.agents.lifecycle import cancel_runs, reset_messages
from ricordo.agents.request import NewMessage, TurnRequest
from ricordo.agents.turn import Answer, collect, run_turn
from ricordo.api.bodies import ApprovalBody, Image, NewMessageBody, SendBody, Text, refuse_unsupported
from ricordo.api.call import Call, Here, Paged, agent_view, answer
from ricordo.api.errors import model_failure
from ricordo.api.wire.message_schemas import AnyMessage, TurnShape
from ricordo.api.wire.messages import MessageView, message_to_wire, messages_to_wire
from ricordo.api.wire.runs import stop_reason_to_wire, usage_to_wire
from ricordo.api.wire.schemas import AgentShape
from ricordo.api.wire.stream import EventStream
from ricordo.domain.message import ImagePart, Message, Part, TextPart
from ricordo.errors import Conflict, Invalid, NotFound, Unsupported
from ricordo.runtime import LiveTurn
from ricordo.storage import agents, conversations, messages
from ricordo.storage.store import Transaction

router = APIRouter(prefix="/v1/agents/{agent_id}", tags=["messages"])
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"description": "Server-sent events", "content": {"text/event-stream": {"schema": {"type": "string"}}}}
}


@router.post("/messages", response_model=TurnShape)
async def send(here: Here, agent_id: str, body: SendBody) -> Response:
    """Send messages to the agent and wait for its whole answer; with `streaming` it comes as it is made."""
    if body.streaming:
        return await stream(here, agent_id, body)
    if body.stream_tokens:
        raise Unsupported("Streaming options set without streaming enabled. Set streaming to true, or leave them out.")
    turn = await _begin(here, agent_id, body)
    return _whole_answer(await collect(turn), _view(body))


@router.post("/messages/stream", response_class=StreamingResponse, responses=_STREAM)
async def stream(here: Here, agent_id: str, body: SendBody) -> Response:
    """Send messages to the agent and read its answer as server-sent events."""
    turn = await _begin(here, agent_id, body)
    events = EventStream(
        _view(body),
        here.store.clock,
        has_tokens=body.stream_tokens,
        has_pings=body.include_pings,
        keepalive=here.runtime.settings.keepalive,
    )
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(events.read(turn.events()), media_type="text/event-stream", headers=headers)


@router.get("/messages", response_model=list[AnyMessage])
async def list_messages(
    here: Here,
    agent_id: str,
    paging: Paged,
    conversation_id: str | None = None,
    use_assistant_message: bool = True,
    assistant_message_tool_name: str = "send_message",
    assistant_message_tool_kwarg: str = "message",
    include_return_message_types: Annotated[list[str] | None, Query()] = None,
) -> Response:
    """The messages of the agent's own thread, or of another; newest first unless told otherwise."""
    types = frozenset(include_return_message_types) if include_return_message_types is not None else None
    view = MessageView(use_assistant_message, assistant_message_tool_name, assistant_message_tool_kwarg, types)
    page = paging.page(default=100)

    def read(tx: Transaction) -> list[Message]:
        agents.require(tx, here.scope, agent_id)
        thread = conversations.default_id(agent_id) if conversation_id in (None, "default") else str(conversation_id)
        conversation = conversations.get(tx, thread)
        if conversation is None or conversation.agent_id != agent_id:
            raise NotFound(f"Conversation with ID {conversation_id} not found")
        keeps = _keeps_some(view)
        return messages.page_of_kept(tx, here.scope, page, keeps, conversation_id=thread)

    return answer(messages_to_wire(await here.store.read(read), view, newest_first=page.order == "desc"))


@router.post("/messages/cancel", response_model=dict[str, str])
async def cancel(here: Here, agent_id: str, run_ids: Annotated[list[str] | None, Body(embed=True)] = None) -> Response:
    """Cancel the agent's running turns, or those that are named."""
    outcome = await cancel_runs(here.runtime, here.scope, agent_id, run_ids)
    if not outcome:
        raise Conflict("There are no active runs to cancel.")
    return answer({run_id: "cancelled" if done else "failed" for run_id, done in outcome.items()})


@router.patch("/reset-messages", response_model=AgentShape)
async def reset(here: Here, agent_id: str) -> Response:
    """Delete all messages of the agent's own thread and begin it anew. Memory stays as it is."""
    state = await reset_messages(here.runtime, here.scope, agent_id)
    return answer(agent_view(here, state))


def _keeps_some(view: MessageView) -> Callable[[Message], bool]:
    """Whether a stored message has any piece that the view wants; one that has none would make a page look like the last."""
    return lambda message: bool(message_to_wire(message, view))


async def _begin(here: Call, agent_id: str, body: SendBody) -> LiveTurn:
    refuse_unsupported(body)
    headers = here.request.headers
    request = TurnRequest(
        scope=here.scope,
        agent_id=agent_id,
        messages=_new_messages(body),
        max_steps=body.max_steps,
        streams_tokens=body.stream_tokens,
        # Clients try again by themselves after a time-out; an equal body then is the same turn (design, invariant 8).
        body_hash=blake2b(await here.request.body(), digest_size=16).hexdigest(),
        is_retry=headers.get("x-stainless-retry-count", "0") not in ("", "0"),
        request_config=_view(body).to_json(),
    )
    return await run_turn(here.runtime, request)


def _new_messages(body: SendBody) -> tuple[NewMessage, ...]:
    if (body.messages is None) == (body.input is None):
        raise Unsupported("Must specify either 'input' or 'messages'.")
    if body.input is not None:
        return (NewMessage("user", _parts(body.input)),)
    return tuple(_new_message(message) for message in body.messages or ())


def _new_message(message: NewMessageBody | ApprovalBody) -> NewMessage:
    if isinstance(message, ApprovalBody):
        raise Invalid("No tool call is currently awaiting approval")
    return NewMessage(
        message.role, _parts(message.content), message.otid, message.name, message.sender_id, message.group_id
    )


def _parts(content: str | Sequence[Text | Image]) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (TextPart(content),)
    return tuple(_part(item) for item in content)


def _part(item: Text | Image) -> Part:
    if isinstance(item, Text):
        return TextPart(item.text)
    source = item.source
    if not (source.data or source.url):
        raise Invalid("A picture needs data in base64, or the url where it lies.")
    if source.data:
        try:
            b64decode(source.data, validate=True)
        except ValueError as error:
            raise Invalid(f"The data of the picture is not base64 ({error}). Encode the file's bytes.") from error
    return ImagePart(source.media_type, source.data, source.url, source.detail)


def _view(body: SendBody) -> MessageView:
    types = frozenset(body.include_return_message_types) if body.include_return_message_types is not None else None
    return MessageView(
        body.use_assistant_message, body.assistant_message_tool_name, body.assistant_message_tool_kwarg, types
    )


def _whole_answer(result: Answer, view: MessageView) -> Response:
    if result.failure:
        return model_failure(result.failure.kind, result.failure.message, result.failure.detail)
    run = result.run
    return answer(
        {
            "messages": messages_to_wire(result.messages, view),
            "stop_reason": stop_reason_to_wire(run.stop_reason),
            "usage": usage_to_wire(run.usage, run.step_count, [run.id]),
            "logprobs": None,
            "turns": None,
        }
    )
