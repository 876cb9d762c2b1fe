"""Messages over HTTP: send and wait for the whole answer, or stream it; list, cancel, start again.

A request body becomes a turn in `turn_request`, and a turn an answer in `turn_response` or `stream_turn`.
"""

from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Annotated, Any

from fastapi import Depends, Query, Response
from fastapi.responses import StreamingResponse

from ricordo.agents.conversations import DEFAULT, open_conversation
from ricordo.agents.lifecycle import cancel_runs, reset_messages
from ricordo.agents.request import Approval, NewMessage, TurnRequest
from ricordo.agents.turn import Answer, collect, run_turn
from ricordo.api.answers import answer
from ricordo.api.call import Paged, Paging, RequestContext, agent_json
from ricordo.api.errors import model_failure
from ricordo.api.models.agents import AgentResponse
from ricordo.api.models.base import Json, given
from ricordo.api.models.messages import (
    AnyMessage,
    MessageFormat,
    message_responses,
    messages_response,
)
from ricordo.api.models.runs import RunResponse, StopReasonResponse, UsageResponse
from ricordo.api.models.turns import (
    NO_LOGPROBS,
    ApprovalDecisionRequest,
    AsyncSendRequest,
    CallDecisionRequest,
    CancelRequest,
    ImageContent,
    MessageRequest,
    SendRequest,
    TextContent,
    TurnResponse,
)
from ricordo.api.routing import Routes
from ricordo.api.sse import STREAM, sse_response, sse_stream
from ricordo.api.stored_streams import Begin, Resumption, begin_recorded, stream_of
from ricordo.domain.message import ApprovalPart, ImagePart, Message, Part, TextPart, ToolReturnPart
from ricordo.domain.model import ToolSchema
from ricordo.domain.run import Run
from ricordo.domain.scope import Scope
from ricordo.domain.tool import ClientSkill
from ricordo.errors import Conflict, Invalid, Unsupported
from ricordo.llm.addresses import require_callable
from ricordo.offload import offload
from ricordo.storage import messages
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction

_NO_LOGPROBS = "There are none: the model gives none, or a secret was removed, or the answer was made for an earlier request."
Types = Annotated[list[str] | None, Query()]
router = Routes(prefix="/v1/agents/{agent_id}", tags=["messages"], scope="messages")


@router.post("/messages", response_model=TurnResponse)
async def send(context: RequestContext, agent_id: str, body: SendRequest) -> Response:
    """Send messages to the agent and wait for its whole answer; with `streaming` it comes as it is made."""
    if body.streaming:
        return await stream(context, agent_id, body)
    body.require_streaming()
    turn = await run_turn(context.runtime, await turn_request(context, agent_id, body))
    return turn_response(await collect(turn), body)


@router.post("/messages/stream", response_class=StreamingResponse, responses=STREAM)
async def stream(context: RequestContext, agent_id: str, body: SendRequest) -> Response:
    """Send messages to the agent and read its answer as server-sent events."""
    return await stream_turn(context, agent_id, body)


@router.post("/messages/async", response_model=RunResponse)
async def send_async(context: RequestContext, agent_id: str, body: AsyncSendRequest) -> Run:
    """Send messages to the agent and return the run at once; `callback_url` is called when it has ended."""
    return await begin_async(context, agent_id, body)


async def begin_async(
    context: RequestContext,
    agent_id: str,
    body: AsyncSendRequest,
    conversation_id: str | None = None,
    begin: Begin = run_turn,
) -> Run:
    """Begin what the body asks for in the background, and return its run. Raises Invalid for an address that is not called."""
    if body.callback_url:
        require_callable(
            body.callback_url, allow_private=context.runtime.settings.allow_private_callbacks
        )
    callback = {"url": body.callback_url} if body.callback_url else {}
    request = await turn_request(
        context, agent_id, body, conversation_id, is_background=True, callback=callback
    )
    return await begin_recorded(context.runtime, request, message_view(body), begin)


@dataclass(frozen=True, slots=True)
class MessageViewQuery:
    """How messages of a list are shown."""

    use_assistant_message: bool = True
    assistant_message_tool_name: str = "send_message"
    assistant_message_tool_kwarg: str = "message"
    include_return_message_types: Types = None

    def view(self) -> MessageFormat:
        types = types_of(self.include_return_message_types)
        names = self.assistant_message_tool_name, self.assistant_message_tool_kwarg
        return MessageFormat(self.use_assistant_message, *names, types)


@dataclass(frozen=True, slots=True)
class MessageQuery(MessageViewQuery):
    """Which messages are wanted, and how they are shown."""

    conversation_id: str | None = None
    group_id: str | None = None


@router.get("/messages", response_model=list[AnyMessage])
async def list_messages(
    context: RequestContext, agent_id: str, paging: Paged, which: Annotated[MessageQuery, Depends()]
) -> list[Json]:
    """The messages of the agent's own conversation, or of another, oldest first: by default the newest `limit`.

    `after` is for newer ones and `before` for older ones, whatever the order.
    """
    wanted = (
        await open_conversation(
            context.runtime, context.scope, which.conversation_id or DEFAULT, agent_id
        )
    ).id
    equal = given(conversation_id=wanted, group_id=which.group_id)
    return await context.store.read(lambda tx: by_time(tx, context, paging, which.view(), **equal))


@router.post("/messages/cancel", response_model=dict[str, str])
async def cancel(
    context: RequestContext, agent_id: str, body: CancelRequest | None = None
) -> dict[str, str]:
    """Cancel the agent's running turns, or those that are named."""
    return outcome_json(
        await cancel_runs(context.runtime, context.scope, agent_id, body.run_ids if body else None)
    )


@router.patch("/reset-messages", response_model=AgentResponse)
async def reset(context: RequestContext, agent_id: str) -> Json:
    """Delete all messages of the agent's own conversation and start it again. Memory stays as it is."""
    return agent_json(context, await reset_messages(context.runtime, context.scope, agent_id))


def by_time(
    tx: Transaction, context: RequestContext, paging: Paging, view: MessageFormat, **equal: Any
) -> list[Json]:
    """One page of messages with these values in these columns, oldest first: by default the newest."""
    page = paging.page_by_time(default=100)

    def read(reading: Page) -> list[Message]:
        return messages.page(tx, context.scope, reading, **equal)

    found = messages.page_of_kept(read, page, keeps_some(view))
    return messages_response(found if page.order == "asc" else found[::-1], view)


def outcome_json(outcome: Mapping[str, bool]) -> dict[str, str]:
    """What became of the runs that were to be cancelled; raises Conflict where there are none."""
    if not outcome:
        raise Conflict("No active runs to cancel.")
    return {run_id: "cancelled" if done else "failed" for run_id, done in outcome.items()}


async def turn_request(
    context: RequestContext,
    agent_id: str,
    body: SendRequest,
    conversation_id: str | None = None,
    *,
    is_background: bool = False,
    callback: Mapping[str, Any] | None = None,
) -> TurnRequest:
    """The turn that a body asks for, in this conversation (None: the agent's default). Raises Unsupported and Invalid."""
    if body.override_model:
        models = await context.runtime.organization_providers.of(context.scope.organization_id)
        await models.require(body.override_model)
    body_hash, is_retry = await sent_again(context)
    return replace(
        request_of(context.scope, agent_id, body),
        conversation_id=conversation_id,
        is_background=is_background,
        callback=dict(callback or {}),
        body_hash=body_hash,
        is_retry=is_retry,
    )


async def sent_again(context: RequestContext, sent: bytes | None = None) -> tuple[str, bool]:
    """Return the hash of what was sent, the body unless it is given, and whether the client says that it sends it again.

    Clients try again by themselves after a time-out; an equal body then is the same turn (design, invariant 8).
    """
    sent = await context.request.body() if sent is None else sent
    digest = await offload(lambda: blake2b(sent, digest_size=16).hexdigest(), len(sent))
    return digest, context.request.headers.get("x-stainless-retry-count", "0") not in ("", "0")


def request_of(scope: Scope, agent_id: str, body: SendRequest) -> TurnRequest:
    """The turn that a body asks for, in the agent's default conversation. Raises Unsupported and Invalid."""
    if (body.messages is None) == (body.input is None):
        raise Unsupported("Must specify either 'input' or 'messages'.")
    sent = body.messages or ()
    said = tuple(new_message(item) for item in sent if isinstance(item, MessageRequest))
    approvals = [item for item in sent if isinstance(item, ApprovalDecisionRequest)]
    if len(approvals) > 1:
        raise Invalid(
            "There are two answers to one request for approval. Send one that names all calls."
        )
    if body.input is not None:
        said = (NewMessage("user", _parts(body.input)),)
    return TurnRequest(
        scope=scope,
        agent_id=agent_id,
        messages=said,
        approval=_approval(approvals[0]) if approvals else None,
        max_steps=body.max_steps,
        streams_tokens=body.stream_tokens,
        client_tools=tuple(_client_tool(tool) for tool in body.client_tools or ()),
        client_skills=tuple(
            ClientSkill(one.name, one.description, one.location) for one in body.client_skills or ()
        ),
        model=body.override_model,
        system=body.override_system,
        request_config=message_view(body).to_json(),
        logprobs=body.logprobs,
    )


def message_view(body: SendRequest) -> MessageFormat:
    """How the sender wants to read messages."""
    return MessageFormat.from_json(vars(body))


def run_view(run: Run) -> MessageFormat:
    """The form of the run's messages: as its request asked for, with the events that came in."""
    return replace(MessageFormat.from_json(run.request_config), shows_events=True)


def types_of(names: Sequence[str] | None) -> frozenset[str] | None:
    return None if names is None else frozenset(names)


def turn_response(result: Answer, body: SendRequest) -> Response:
    """Return a turn that has ended as the answer to this body."""
    if result.failure:
        return model_failure(result.failure.kind, result.failure.message, result.failure.detail)
    if body.logprobs is None:
        body.warn_of_logprobs("It has an effect together with return_logprobs.")
    elif result.logprobs is None:
        body.warn_of_logprobs(_NO_LOGPROBS)
    return answer(turn_json(result, message_view(body)))


def turn_json(result: Answer, view: MessageFormat) -> Json:
    ending = {
        "stop_reason": StopReasonResponse.of(result.run),
        "usage": UsageResponse.of(result.run),
    }
    tokens = (
        {name: result.logprobs.get(name) for name in ("content", "refusal")}
        if result.logprobs
        else None
    )
    return {
        "messages": messages_response(result.messages, view),
        **ending,
        "logprobs": tokens,
        "turns": None,
    }


async def stream_turn(
    context: RequestContext,
    agent_id: str,
    body: SendRequest,
    conversation_id: str | None = None,
    begin: Begin = run_turn,
) -> Response:
    """A turn as server-sent events, as it happens; with `background` as it is stored, so that it can be read again."""
    body.warn_of_logprobs(NO_LOGPROBS["return_logprobs"])
    request = await turn_request(
        context, agent_id, body, conversation_id, is_background=body.background
    )
    request = replace(request, logprobs=None)
    view = message_view(body)
    if body.background:
        run = await begin_recorded(context.runtime, request, view, begin)
        return stream_of(context, run, Resumption(has_pings=body.include_pings))
    turn = await begin(context.runtime, request)
    chunks = sse_stream(
        turn.events(),
        view,
        context.store.clock,
        has_tokens=body.stream_tokens,
        has_pings=body.include_pings,
        keepalive=context.runtime.settings.keepalive,
    )
    return sse_response(chunks)


def new_message(message: MessageRequest) -> NewMessage:
    return NewMessage(
        message.role,
        _parts(message.content),
        message.otid,
        message.name,
        message.sender_id,
        message.group_id,
    )


def keeps_some(view: MessageFormat) -> Callable[[Message], bool]:
    """Whether a stored message has any piece that the view wants; one that has none would make a page look like the last."""
    return lambda message: bool(message_responses(message, view))


def _approval(body: ApprovalDecisionRequest) -> Approval:
    if body.approvals:
        return Approval(tuple(_decision(item) for item in body.approvals), otid=body.otid)
    if body.approve is None:
        raise Invalid(
            "An approval needs approvals, one for each call that waits, or approve for all of them."
        )
    return Approval((), body.otid, body.approve, body.reason, body.approval_request_id)


def _decision(item: CallDecisionRequest) -> Part:
    if item.is_result:
        given = _parts(item.tool_return or "")
        return ToolReturnPart(
            item.tool_call_id,
            "",
            item.status,
            "\n".join(part.text for part in given if isinstance(part, TextPart)),
            stdout=tuple(item.stdout or ()),
            stderr=tuple(item.stderr or ()),
            pictures=tuple(part for part in given if isinstance(part, ImagePart)),
        )
    if item.approve is None:
        raise Invalid(f"The answer to {item.tool_call_id} does not say approve: true or false.")
    return ApprovalPart(item.tool_call_id, item.approve, item.reason)


def _client_tool(tool: Mapping[str, Any]) -> ToolSchema:
    name = tool.get("name")
    parameters = tool.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(name, str) or not name or not isinstance(parameters, dict):
        raise Invalid(
            "Each of client_tools needs a name, and parameters that are a JSON schema of an object."
        )
    return ToolSchema(
        name, str(tool.get("description") or ""), {"type": "object", "properties": {}, **parameters}
    )


def _parts(content: str | Sequence[TextContent | ImageContent]) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (TextPart(content),)
    return tuple(_part(item) for item in content)


def _part(item: TextContent | ImageContent) -> Part:
    if isinstance(item, TextContent):
        return TextPart(item.text)
    source = item.source
    if not (source.data or source.url):
        raise Invalid("A picture needs data in base64, or the url where it lies.")
    if source.data:
        try:
            b64decode(source.data, validate=True)
        except ValueError as error:
            raise Invalid(
                f"The data of the picture is not base64 ({error}). Encode the file's bytes."
            ) from error
    return ImagePart(source.media_type, source.data, source.url, source.detail)
