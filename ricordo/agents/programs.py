"""Messages and decisions of other programs, by protocols such as AG-UI and A2A.

A program may send the same message or decision again.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import orjson

from ricordo.agents.request import Approval, NewMessage
from ricordo.domain.message import ApprovalPart, Message, Part, ToolReturnPart
from ricordo.runtime import Runtime
from ricordo.storage import messages

_APPROVED = ("approved", "approve", "accepted")
_CHANGED = ("editedArgs", "edited_args", "args")
DECISION_SCHEMA = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}, "reason": {"type": "string"}},
    "required": ["approved"],
}
"""The JSON schema of a decision, for programs that ask a person."""
_NO_RESULT = "The client gave no result for this call."


def repeatable_otid(protocol: str, seed: Sequence[Any]) -> str:
    """Return the `otid` of a program's message, which is the same when it is sent again.

    Args:
        protocol: The prefix of the otid, such as "a2a".
        seed: JSON that is equal both times: the program's id of the message, and its content.
    """
    return f"{protocol}-{blake2b(orjson.dumps(seed), digest_size=16).hexdigest()}"


def decision_about(call_id: str, answer: Any) -> ApprovalPart:
    """Return a program's decision about a waiting call; without a clear yes the call is denied.

    A call runs with the agent's arguments, or not at all. If the program changed them, the call is
    denied, and the reason names the changed arguments.

    Args:
        call_id: The waiting call.
        answer: Any JSON, for example `{"approved": false, "reason": "Not now."}`.
    """
    if not isinstance(answer, dict):
        return ApprovalPart(call_id, answer is True, None)
    changed = next((answer[name] for name in _CHANGED if answer.get(name) is not None), None)
    if changed is not None:
        reason = f"Call it again with these arguments: {orjson.dumps(changed).decode()}"
        return ApprovalPart(call_id, False, reason)
    is_approved = any(answer.get(name) is True for name in _APPROVED)
    stated_reason = answer.get("reason")
    return ApprovalPart(
        call_id, is_approved, stated_reason if isinstance(stated_reason, str) else None
    )


def approval_of(
    waiting: Message | None, answers: Mapping[str, Part], client_tools: Collection[str]
) -> Approval | None:
    """Return the answers to the calls of `waiting`, or None if there are none.

    Args:
        waiting: The message whose calls wait. None: no call waits, so the decisions may have been
            applied before. They are returned without the results, and the program gets the answer
            of the run that applied them.
        answers: Results and decisions, by the id of the call.
        client_tools: Names of the tools that the program runs. If at least one call is answered, a
            call of such a tool without a result counts as failed.
    """
    if waiting is None:
        decisions = tuple(part for part in answers.values() if isinstance(part, ApprovalPart))
        return Approval(decisions) if decisions else None
    if not answers.keys() & {call.call_id for call in waiting.waiting_calls}:
        return None
    parts: list[Part] = []
    for call in waiting.waiting_calls:
        if call.call_id in answers:
            parts.append(answers[call.call_id])
        elif call.name in client_tools:
            parts.append(ToolReturnPart(call.call_id, "", "error", _NO_RESULT))
    return Approval(tuple(parts))


async def new_in_history(
    runtime: Runtime, conversation_id: str, history: Iterable[NewMessage | None]
) -> list[NewMessage]:
    """Return the user's messages after the last stored one.

    If none of the messages is stored, those after the last answer are new. If the last message is
    stored and no answer follows it, the client did not get the answer. Then that message is
    returned, so that the run is repeated.

    Args:
        runtime: The server's parts.
        conversation_id: The conversation in which the messages are looked up.
        history: The whole thread, which a program sends with each run. It has the user's messages
            with their otids, and None for each answer of the agent.
    """
    numbered = list(enumerate(history))
    users = {index: message for index, message in numbered if message is not None}
    otids = [message.otid or "" for message in users.values()]
    stored = await runtime.store.read(lambda tx: messages.by_otids(tx, conversation_id, otids))
    stored_otids = {message.otid for message in stored}
    stored_indexes = [index for index, message in users.items() if message.otid in stored_otids]
    last_answer = max((index for index, message in numbered if message is None), default=-1)
    first = max(stored_indexes, default=last_answer)
    if first == max(users, default=-1) and last_answer < first:
        return [users[first]]
    return [message for index, message in users.items() if index > first]
