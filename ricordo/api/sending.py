"""What every route that sends something to an agent shares: from the body to the turn, and from the turn to the answer."""

from base64 import b64decode
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from fastapi import Response
from fastapi.responses import StreamingResponse

from ricordo.agents.request import Approval, Decision, NewMessage, TurnRequest
from ricordo.agents.turn import Answer, run_turn
from ricordo.api.call import Call, answer
from ricordo.api.errors import model_failure
from ricordo.api.following import Wanted
from ricordo.api.models.messages import (
    ApprovalDecisionRequest,
    CallDecisionRequest,
    ImageContent,
    MessageRequest,
    SendRequest,
    TextContent,
)
from ricordo.api.models.runs import StopReasonResponse, UsageResponse
from ricordo.api.recording import begin_recorded
from ricordo.api.run_stream import stream_of
from ricordo.api.wire.messages import MessageView, messages_to_wire
from ricordo.api.wire.stream import EventStream
from ricordo.domain.message import ApprovalPart, ImagePart, Part, TextPart, ToolReturnPart
from ricordo.domain.model import ToolSchema
from ricordo.errors import Invalid, Unsupported
from ricordo.runtime import LiveTurn

STREAM: dict[int | str, dict[str, Any]] = {
    200: {"description": "Server-sent events", "content": {"text/event-stream": {"schema": {"type": "string"}}}}
}


async def begin(
    here: Call,
    agent_id: str,
    body: SendRequest,
    conversation_id: str | None = None,
) -> LiveTurn:
    """Begin a turn with what was sent, in this thread (None: the agent's own). Raises what `run_turn` does, and Unsupported."""
    return await run_turn(here.runtime, await request_of(here, agent_id, body, conversation_id))


async def request_of(
    here: Call,
    agent_id: str,
    body: SendRequest,
    conversation_id: str | None = None,
    *,
    is_background: bool = False,
    callback: Mapping[str, Any] | None = None,
) -> TurnRequest:
    """The turn that is asked for. Raises Unsupported and Invalid."""
    body.refuse_unsupported()
    if body.override_model:
        await (await here.runtime.organization_providers.of(here.scope.organization_id)).require(body.override_model)
    headers = here.request.headers
    said, approval = _said(body)
    return TurnRequest(
        scope=here.scope,
        agent_id=agent_id,
        messages=said,
        approval=approval,
        conversation_id=conversation_id,
        max_steps=body.max_steps,
        streams_tokens=body.stream_tokens,
        client_tools=tuple(_client_tool(tool) for tool in body.client_tools or ()),
        model=body.override_model,
        system=body.override_system,
        is_background=is_background,
        callback=dict(callback or {}),
        # Clients try again by themselves after a time-out; an equal body then is the same turn (design, invariant 8).
        body_hash=blake2b(await here.request.body(), digest_size=16).hexdigest(),
        is_retry=headers.get("x-stainless-retry-count", "0") not in ("", "0"),
        request_config=view_of(body).to_json(),
    )


def whole_answer(result: Answer, view: MessageView) -> Response:
    """A turn that has ended, as one answer."""
    if result.failure:
        return model_failure(result.failure.kind, result.failure.message, result.failure.detail)
    run = result.run
    return answer(
        {
            "messages": messages_to_wire(result.messages, view),
            "stop_reason": StopReasonResponse.from_reason(run.stop_reason),
            "usage": UsageResponse.from_usage(run.usage, run.step_count, [run.id], run.context_tokens),
            "logprobs": None,
            "turns": None,
        }
    )


async def event_stream(here: Call, agent_id: str, body: SendRequest, conversation_id: str | None = None) -> Response:
    """A turn as server-sent events, as it happens; with `background` as it is stored, so that it can be read again."""
    if body.background:
        request = await request_of(here, agent_id, body, conversation_id, is_background=True)
        run = await begin_recorded(here.runtime, request, view_of(body))
        return stream_of(here, run, Wanted(has_pings=body.include_pings))
    turn = await begin(here, agent_id, body, conversation_id)
    events = EventStream(
        view_of(body),
        here.store.clock,
        has_tokens=body.stream_tokens,
        has_pings=body.include_pings,
        keepalive=here.runtime.settings.keepalive,
    )
    return sse(events.read(turn.events()))


def sse(chunks: Any) -> Response:
    """Server-sent events that no proxy holds back."""
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(chunks, media_type="text/event-stream", headers=headers)


def view_of(body: SendRequest) -> MessageView:
    """How the sender wants to read messages."""
    types = frozenset(body.include_return_message_types) if body.include_return_message_types is not None else None
    return MessageView(
        body.use_assistant_message,
        body.assistant_message_tool_name,
        body.assistant_message_tool_kwarg,
        types,
        shows_summaries=body.include_compaction_messages,
        shows_events=False,
    )


def _said(body: SendRequest) -> tuple[tuple[NewMessage, ...], Approval | None]:
    if (body.messages is None) == (body.input is None):
        raise Unsupported("Must specify either 'input' or 'messages'.")
    if body.input is not None:
        return (NewMessage("user", _parts(body.input)),), None
    approvals = [item for item in body.messages or () if isinstance(item, ApprovalDecisionRequest)]
    said = tuple(new_message(item) for item in body.messages or () if isinstance(item, MessageRequest))
    if len(approvals) > 1:
        raise Invalid("There are two answers to one request for approval. Send one that names all calls.")
    return said, _approval(approvals[0]) if approvals else None


def _approval(body: ApprovalDecisionRequest) -> Approval:
    if body.approvals:
        return Approval(tuple(_decision(item) for item in body.approvals), otid=body.otid)
    if body.approve is None:
        raise Invalid("An approval needs approvals, one for each call that waits, or approve for all of them.")
    return Approval(decision=Decision(body.approve, body.reason, body.approval_request_id), otid=body.otid)


def _decision(item: CallDecisionRequest) -> Part:
    if item.is_result:
        return ToolReturnPart(
            item.tool_call_id,
            "",
            item.status,
            _returned(item.tool_return),
            stdout=tuple(item.stdout or ()),
            stderr=tuple(item.stderr or ()),
        )
    if item.approve is None:
        raise Invalid(f"The answer to {item.tool_call_id} does not say approve: true or false.")
    return ApprovalPart(item.tool_call_id, item.approve, item.reason)


def _returned(value: str | list[TextContent | ImageContent] | None) -> str:
    if isinstance(value, list):
        return "\n".join(part.text for part in value if isinstance(part, TextContent))
    return value or ""


def _client_tool(tool: Mapping[str, Any]) -> ToolSchema:
    name = tool.get("name")
    parameters = tool.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(name, str) or not name or not isinstance(parameters, dict):
        raise Invalid("Each of client_tools needs a name, and parameters that are a JSON schema of an object.")
    return ToolSchema(name, str(tool.get("description") or ""), {"type": "object", "properties": {}, **parameters})


def new_message(message: MessageRequest) -> NewMessage:
    """A message as it comes in."""
    return NewMessage(
        message.role, _parts(message.content), message.otid, message.name, message.sender_id, message.group_id
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
            raise Invalid(f"The data of the picture is not base64 ({error}). Encode the file's bytes.") from error
    return ImagePart(source.media_type, source.data, source.url, source.detail)
