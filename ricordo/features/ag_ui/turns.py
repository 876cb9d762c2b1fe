"""The turn that a run of AG-UI requests.

A client sends its whole history with each run. A user's message is known by its id and text, which
are stored as its `otid`. So no message is taken twice, and a repeated run gets the answer of the
run before.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import orjson

from ricordo.agents.conversations import (
    cancel_conversation,
    open_named_conversation,
    waiting_message,
)
from ricordo.agents.request import Approval, NewMessage, TurnOverrides, TurnRequest
from ricordo.api.call import RequestContext
from ricordo.domain.message import ApprovalPart, ImagePart, Message, Part, ToolReturnPart
from ricordo.features.ag_ui.models import AgUiAnswer, AgUiMessage, RunAgentRequest
from ricordo.storage import messages

_APPROVED = ("approved", "approve", "accepted")
_CHANGED = ("editedArgs", "edited_args", "args")
_NO_RESULT = "The client gave no result for this call."


@dataclass(frozen=True, slots=True)
class ThreadRun:
    """A run in its conversation. `request` is None if the client sent nothing new to answer."""

    conversation_id: str
    request: TurnRequest | None


async def thread_run(context: RequestContext, agent_id: str, body: RunAgentRequest) -> ThreadRun:
    """Return the turn that answers the new messages and answers of the request.

    Raises NotFound for a thread or agent that the caller may not see.
    """
    conversation = await open_named_conversation(
        context.runtime, context.scope, agent_id, body.thread_id
    )
    waiting = await waiting_message(context.runtime, conversation)
    history = list(enumerate(body.messages or ()))
    new_messages = await _new_messages(context, conversation.id, history)
    approval = _approval(body, waiting)
    if approval is None and new_messages and waiting and _waits_for_client(body, waiting):
        # The user went on without results, so nobody waits for these calls.
        await cancel_conversation(context.runtime, context.scope, conversation.id)
    if approval is None and not new_messages:
        return ThreadRun(conversation.id, None)
    request = TurnRequest(
        scope=context.scope,
        agent_id=agent_id,
        messages=tuple(new_messages),
        approval=approval,
        conversation_id=conversation.id,
        overrides=TurnOverrides(
            instructions=body.instructions,
            client_tools=tuple(tool.schema_for_model for tool in body.tools or ()),
            streams_tokens=True,
        ),
    )
    return ThreadRun(conversation.id, request)


async def _new_messages(
    context: RequestContext, conversation_id: str, history: Sequence[tuple[int, AgUiMessage]]
) -> list[NewMessage]:
    """Return the user's messages after the last one that the conversation has.

    Without a new message, the messages at the end of the history are repeated.
    """
    users = {
        index: NewMessage("user", message.parts, otid=_otid(index, message))
        for index, message in history
        if message.role == "user" and message.parts
    }
    otids = [message.otid or "" for message in users.values()]
    stored = await context.store.read(lambda tx: messages.by_otids(tx, conversation_id, otids))
    known = {message.otid for message in stored}
    known_indexes = [index for index, message in users.items() if message.otid in known]
    last_answer = max((i for i, message in history if message.role == "assistant"), default=-1)
    first = max(known_indexes, default=last_answer)
    if first == max(users, default=-1) and last_answer < first:
        # The run is repeated: its answer did not reach the client.
        return [users[first]]
    return [message for index, message in users.items() if index > first]


def _otid(index: int, message: AgUiMessage) -> str:
    """Return the key of a user's message: a digest of its id, or else its index, and its parts."""
    pictures = [part.url or part.data for part in message.parts if isinstance(part, ImagePart)]
    key = orjson.dumps([message.id or index, message.text, pictures])
    return f"ag-ui-{blake2b(key, digest_size=16).hexdigest()}"


def _waits_for_client(body: RunAgentRequest, waiting: Message) -> bool:
    """Return whether all waiting calls are of tools that the client runs."""
    names = {tool.name for tool in body.tools or ()}
    return {call.name for call in waiting.tool_calls if call.is_gated} <= names


def _approval(body: RunAgentRequest, waiting: Message | None) -> Approval | None:
    """Return the answers to waiting calls, or None if the request has none.

    A client's tool without a result counts as failed, if the request answers another call.
    """
    decisions = {answer.interrupt_id: decision(answer) for answer in body.resume or ()}
    answers: dict[str, Part] = {
        message.tool_call_id or "": message.result
        for message in body.messages or ()
        if message.role == "tool"
    }
    answers.update(decisions)
    if waiting is None:
        # Decisions that were applied before get the answer of their run.
        return Approval(tuple(decisions.values())) if decisions else None
    gated = [call for call in waiting.tool_calls if call.is_gated]
    if not answers.keys() & {call.call_id for call in gated}:
        return None
    names = {tool.name for tool in body.tools or ()}
    parts: list[Part] = []
    for call in gated:
        if call.call_id in answers:
            parts.append(answers[call.call_id])
        elif call.name in names:
            parts.append(ToolReturnPart(call.call_id, "", "error", _NO_RESULT))
    return Approval(tuple(parts))


def decision(answer: AgUiAnswer) -> ApprovalPart:
    """Return the decision about a waiting call; without a clear yes the call is denied.

    A call runs as it was asked for, or not at all. So changed arguments are passed to the agent as
    the reason of a denial.
    """
    payload = answer.payload
    if answer.status != "resolved" or not isinstance(payload, dict):
        is_approved = answer.status == "resolved" and payload is True
        return ApprovalPart(answer.interrupt_id, is_approved, None)
    changed = next((payload[name] for name in _CHANGED if payload.get(name) is not None), None)
    if changed is not None:
        reason = f"Call it again with these arguments: {orjson.dumps(changed).decode()}"
        return ApprovalPart(answer.interrupt_id, False, reason)
    is_approved = any(payload.get(name) is True for name in _APPROVED)
    stated_reason = payload.get("reason")
    reason_text = stated_reason if isinstance(stated_reason, str) else None
    return ApprovalPart(answer.interrupt_id, is_approved, reason_text)
