"""Messages over HTTP: send and wait, stream, list, cancel and reset.

`turn_request` converts a request body to a turn; `turn_response` or `stream_turn` creates its
answer.
"""

from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import Annotated, Any

import orjson
from fastapi import Depends, Query, Response
from fastapi.responses import StreamingResponse

from ricordo.agents.conversations import DEFAULT, open_conversation
from ricordo.agents.lifecycle import cancel_runs, reset_messages
from ricordo.agents.recording import Begin, begin_recorded
from ricordo.agents.request import (
    Approval,
    NewMessage,
    TurnDelivery,
    TurnOverrides,
    TurnRequest,
)
from ricordo.agents.turn import Answer, collect, run_turn
from ricordo.api.call import Paged, Paging, RequestContext, agent_json
from ricordo.api.errors import model_failure
from ricordo.api.models.agents import AgentResponse
from ricordo.api.models.base import without_none
from ricordo.api.models.messages import (
    AnyMessage,
    MessageFormat,
    message_responses,
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
from ricordo.api.stored_streams import Resumption, stream_of
from ricordo.domain.message import ApprovalPart, ImagePart, Message, Part, TextPart, ToolReturnPart
from ricordo.domain.model import ToolSchema
from ricordo.domain.run import Run
from ricordo.domain.scope import Scope
from ricordo.domain.text import Json
from ricordo.domain.tool import ClientSkill
from ricordo.errors import Conflict, Invalid, Unsupported
from ricordo.llm.addresses import require_callable
from ricordo.offload import SMALL, offload
from ricordo.storage import messages
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction

_NO_LOGPROBS = (
    "The answer has no probabilities: the model gives none, a secret was removed, or the answer is "
    "from an earlier request."
)
Types = Annotated[list[str] | None, Query()]
router = Routes(prefix="/v1/agents/{agent_id}", tags=["messages"], scope="messages")


@router.post("/messages", response_model=TurnResponse)
async def send(context: RequestContext, agent_id: str, body: SendRequest) -> Response:
    """Send messages to the agent and wait for its whole answer.

    With `streaming`, the answer is streamed.
    """
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
    """Send messages to the agent and return the run at once.

    When it has ended, `callback_url` is called.
    """
    return await begin_async(context, agent_id, body)


async def begin_async(
    context: RequestContext,
    agent_id: str,
    body: AsyncSendRequest,
    conversation_id: str | None = None,
    begin: Begin = run_turn,
) -> Run:
    """Begin the requested turn in the background, and return its run.

    Its stream is stored, and can be read by the run.

    Args:
        context: The caller's context.
        agent_id: The agent.
        body: The request. Its `callback_url` is called after the end of the run.
        conversation_id: The conversation; None for the agent's default conversation.
        begin: The function that begins the work; a talk with a group has another one.

    Raises:
        NotFound: There is no such agent, conversation or model.
        Invalid: The callback address is forbidden, or the body asks for the impossible.
        Conflict: The turn cannot begin now; see `run_turn`.
    """
    if body.callback_url:
        require_callable(
            body.callback_url, allow_private=context.runtime.settings.allow_private_callbacks
        )
    if body.callback_url:
        callback = {"url": body.callback_url}
    else:
        callback = {}
    request = await turn_request(
        context, agent_id, body, conversation_id, is_background=True, callback=callback
    )
    return await begin_recorded(context.runtime, request, begin)


@dataclass(frozen=True, slots=True)
class MessageViewQuery:
    """The form of the messages in a list."""

    use_assistant_message: bool = True
    assistant_message_tool_name: str = "send_message"
    assistant_message_tool_kwarg: str = "message"
    include_return_message_types: Types = None

    def view(self) -> MessageFormat:
        return MessageFormat(
            self.use_assistant_message,
            self.assistant_message_tool_name,
            self.assistant_message_tool_kwarg,
            types_of(self.include_return_message_types),
        )


@dataclass(frozen=True, slots=True)
class MessageQuery(MessageViewQuery):
    """The selection of messages and their form."""

    conversation_id: str | None = None
    group_id: str | None = None


@router.get("/messages", response_model=list[AnyMessage])
async def list_messages(
    context: RequestContext, agent_id: str, paging: Paged, query: Annotated[MessageQuery, Depends()]
) -> list[Json]:
    """List messages of a conversation, by default the newest of the agent's default conversation.

    `after` selects newer and `before` older messages, in both orders.
    """
    conversation_id = query.conversation_id or DEFAULT
    conversation = await open_conversation(
        context.runtime, context.scope, conversation_id, agent_id
    )
    columns = without_none(conversation_id=conversation.id, group_id=query.group_id)
    view = query.view()
    return await context.store.read(lambda tx: by_time(tx, context, paging, view, **columns))


@router.post("/messages/cancel", response_model=dict[str, str])
async def cancel(
    context: RequestContext, agent_id: str, body: CancelRequest | None = None
) -> dict[str, str]:
    """Cancel the agent's running turns, or only the named ones."""
    return outcome_json(
        await cancel_runs(context.runtime, context.scope, agent_id, body.run_ids if body else None)
    )


@router.patch("/reset-messages", response_model=AgentResponse)
async def reset(context: RequestContext, agent_id: str) -> Json:
    """Delete all messages of the agent's default conversation and start it again.

    Memory stays as it is.
    """
    return agent_json(context, await reset_messages(context.runtime, context.scope, agent_id))


def by_time(
    tx: Transaction, context: RequestContext, paging: Paging, view: MessageFormat, **columns: Any
) -> list[Json]:
    """Return a page of messages with these column values.

    By default it has the newest messages, the oldest of them first. Messages of which the format
    shows nothing do not count.

    Args:
        tx: The transaction, or a read.
        context: The caller's context.
        paging: The page; 100 messages by default.
        view: The format of the messages.
        **columns: Values of columns that the messages must have, such as `conversation_id`.
    """
    page = paging.page_by_time(default=100)

    def read(part: Page) -> list[Message]:
        return messages.page(tx, context.scope, part, **columns)

    rows = messages.page_of_kept(read, page, keeps_some(view))
    return message_responses(rows if page.order == "asc" else rows[::-1], view)


def outcome_json(outcome: Mapping[str, bool]) -> dict[str, str]:
    """Return the result of each cancelled run.

    Args:
        outcome: By run id, whether the run was cancelled.

    Raises:
        Conflict: There was no active run.
    """
    if not outcome:
        raise Conflict("No active runs to cancel.")
    return {run_id: "cancelled" if success else "failed" for run_id, success in outcome.items()}


async def turn_request(
    context: RequestContext,
    agent_id: str,
    body: SendRequest,
    conversation_id: str | None = None,
    *,
    is_background: bool = False,
    callback: Mapping[str, Any] | None = None,
) -> TurnRequest:
    """Return the turn that the body requests in this conversation.

    Args:
        context: The caller's context. The body of its HTTP request is hashed, so that a client's
            retry can be recognized.
        agent_id: The agent.
        body: The request.
        conversation_id: The conversation; None for the agent's default conversation.
        is_background: The run is marked as a background run, which no reader has to wait for.
        callback: The webhook of the run, with `url`; None or empty for none.

    Raises:
        NotFound: There is no model with the handle in `override_model`.
        Unsupported: The body has both `messages` and `input`, or neither.
        Invalid: A message, a tool or a decision in the body cannot be used.
    """
    if body.override_model:
        models = await context.runtime.organization_providers.of(context.scope.organization_id)
        await models.require(body.override_model)
    body_hash, is_retry = await sent_again(context)
    request = request_of(context.scope, agent_id, body)
    delivery = replace(
        request.delivery,
        is_background=is_background,
        callback=dict(callback or {}),
        body_hash=body_hash,
        is_retry=is_retry,
    )
    return replace(request, conversation_id=conversation_id, delivery=delivery)


async def sent_again(context: RequestContext, content: bytes | None = None) -> tuple[str, bool]:
    """Return the hash of the request's content, and whether the client marks it as a retry.

    Clients retry by themselves after a time-out. Such a retry has an equal body and asks for the
    same turn.

    Args:
        context: The caller's context, with the HTTP request.
        content: The bytes to hash; None for the request's body.
    """
    hashed = await context.request.body() if content is None else content
    hash_content = partial(blake2b, hashed, digest_size=16)
    is_small = len(hashed) <= SMALL
    digest = hash_content() if is_small else await offload(hash_content, len(hashed))
    return digest.hexdigest(), context.request.headers.get("x-stainless-retry-count", "0") not in (
        "",
        "0",
    )


def request_of(scope: Scope, agent_id: str, body: SendRequest) -> TurnRequest:
    """Return the turn that a body requests in the agent's default conversation.

    Args:
        scope: The caller.
        agent_id: The agent.
        body: The request.

    Raises:
        Unsupported: The body has both `messages` and `input`, or neither.
        Invalid: A message, a tool or a decision in the body cannot be used.
    """
    if (body.messages is None) == (body.input is None):
        raise Unsupported("Must specify either 'input' or 'messages'.")
    parts = body.messages or ()
    new_messages = tuple(new_message(part) for part in parts if isinstance(part, MessageRequest))
    approvals = [part for part in parts if isinstance(part, ApprovalDecisionRequest)]
    if len(approvals) > 1:
        raise Invalid(
            "This request answers one approval request twice. Send one answer that names all calls."
        )
    if body.input is not None:
        new_messages = (NewMessage("user", _parts(body.input)),)
    return TurnRequest(
        scope=scope,
        agent_id=agent_id,
        messages=new_messages,
        approval=_approval(approvals[0]) if approvals else None,
        overrides=TurnOverrides(
            max_steps=body.max_steps,
            streams_tokens=body.stream_tokens,
            client_tools=tuple(_client_tool(tool) for tool in body.client_tools or ()),
            client_skills=tuple(
                ClientSkill(skill.name, skill.description, skill.location)
                for skill in body.client_skills or ()
            ),
            model=body.override_model,
            system=body.override_system,
            logprobs=(body.top_logprobs or 0) if body.return_logprobs else None,
        ),
        delivery=TurnDelivery(request_config=MessageFormat.from_json(vars(body)).to_json()),
    )


def run_view(run: Run) -> MessageFormat:
    """Return the message format that the run's request chose. It also shows incoming events.

    Args:
        run: The run, with the stored format of its request.
    """
    return replace(MessageFormat.from_json(run.request_config), shows_events=True)


def types_of(names: Sequence[str] | None) -> frozenset[str] | None:
    """Return the selected types of messages as a set.

    Args:
        names: The types in the query, such as "user_message"; None selects all.
    """
    if names is None:
        return None
    return frozenset(names)


def turn_response(turn: Answer, body: SendRequest) -> Response:
    """Return an ended turn as the answer to this body.

    Args:
        turn: The whole turn. A failed one becomes the failure of a model.
        body: The request, for the format of the messages and warnings about probabilities.
    """
    if turn.failure:
        return model_failure(turn.failure.kind, turn.failure.message, turn.failure.detail)
    if body.top_logprobs is not None and not body.return_logprobs:
        body.warn_of_logprobs("It has an effect together with return_logprobs.")
    elif body.return_logprobs and turn.logprobs is None:
        body.warn_of_logprobs(_NO_LOGPROBS)
    content = turn_json(turn, MessageFormat.from_json(vars(body)))
    return Response(orjson.dumps(content), media_type="application/json")


def turn_json(turn: Answer, view: MessageFormat) -> Json:
    """Return an ended turn as the JSON of an answer.

    Args:
        turn: The turn, which has not failed.
        view: The format of its messages.
    """
    names = ("content", "refusal")
    tokens = {name: turn.logprobs.get(name) for name in names} if turn.logprobs else None
    return {
        "messages": message_responses(turn.messages, view),
        "stop_reason": StopReasonResponse.of(turn.run),
        "usage": UsageResponse.of(turn.run),
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
    """Stream a turn as server-sent events while it runs.

    Args:
        context: The caller's context.
        agent_id: The agent.
        body: The request. With its `background`, the stream is stored while it is sent, and can be
            read again.
        conversation_id: The conversation; None for the agent's default conversation.
        begin: The function that begins the work; a talk with a group has another one.

    Raises:
        NotFound: There is no such agent, conversation or model.
        Invalid: The body asks for the impossible.
        Conflict: The turn cannot begin now; see `run_turn`.
    """
    body.warn_of_logprobs(NO_LOGPROBS["return_logprobs"])
    request = await turn_request(
        context, agent_id, body, conversation_id, is_background=body.background
    )
    request = replace(request, overrides=replace(request.overrides, logprobs=None))
    view = MessageFormat.from_json(vars(body))
    if body.background:
        run = await begin_recorded(context.runtime, request, begin)
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
    """Return a message of the request as the turn's input.

    Args:
        message: The message in the request.

    Raises:
        Invalid: A picture has neither data nor an address, or its data is not base64.
    """
    content = message.content
    return NewMessage(
        message.role,
        (TextPart(content),) if isinstance(content, str) else _parts(content),
        otid=message.otid,
        name=message.name,
        sender_id=message.sender_id,
        group_id=message.group_id,
    )


def keeps_some(view: MessageFormat) -> Callable[[Message], bool]:
    """Return a function that tests whether this view shows any piece of a message.

    Without this test, a page of messages with no shown pieces would look like the last page.

    Args:
        view: The format of the messages.
    """
    return lambda message: bool(message_responses([message], view))


def _approval(body: ApprovalDecisionRequest) -> Approval:
    if body.approvals:
        return Approval(tuple(_decision(decision) for decision in body.approvals), otid=body.otid)
    if body.approve is None:
        raise Invalid(
            "An approval needs the field `approvals`, with one entry for each waiting call, or the field "
            "`approve` for all calls."
        )
    return Approval((), body.otid, body.approve, body.reason, body.approval_request_id)


def _decision(decision: CallDecisionRequest) -> Part:
    if decision.is_result:
        parts = _parts(decision.tool_return or "")
        return ToolReturnPart(
            decision.tool_call_id,
            "",
            decision.status,
            "\n".join(part.text for part in parts if isinstance(part, TextPart)),
            stdout=tuple(decision.stdout or ()),
            stderr=tuple(decision.stderr or ()),
            pictures=tuple(part for part in parts if isinstance(part, ImagePart)),
        )
    if decision.approve is None:
        raise Invalid(
            f"The answer to {decision.tool_call_id} needs the field approve: true or false."
        )
    return ApprovalPart(decision.tool_call_id, decision.approve, decision.reason)


def _client_tool(tool: Mapping[str, Any]) -> ToolSchema:
    name = tool.get("name")
    parameters = tool.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(name, str) or not name or not isinstance(parameters, dict):
        raise Invalid(
            "Each of client_tools needs a name, and a JSON schema of an object as its parameters."
        )
    return ToolSchema(
        name, str(tool.get("description") or ""), {"type": "object", "properties": {}, **parameters}
    )


def _parts(content: str | Sequence[TextContent | ImageContent]) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (TextPart(content),)
    return tuple(_part(piece) for piece in content)


def _part(content: TextContent | ImageContent) -> Part:
    if isinstance(content, TextContent):
        return TextPart(content.text)
    source = content.source
    if not (source.data or source.url):
        raise Invalid("A picture needs its data in base64, or its url.")
    if source.data:
        try:
            b64decode(source.data, validate=True)
        except ValueError as error:
            raise Invalid(
                f"The data of the picture is not base64 ({error}). Encode the file's bytes."
            ) from error
    return ImagePart(source.media_type, source.data, source.url, source.detail)
