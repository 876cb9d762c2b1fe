"""What programs send in protocols of their kind: messages that may be repeated, and decisions.

AG-UI and A2A are such protocols.
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
    """Return the key by which a message that is sent again is known.

    `seed` is JSON that is equal for both: the program's id of the message, and what it holds.
    """
    return f"{protocol}-{blake2b(orjson.dumps(seed), digest_size=16).hexdigest()}"


def decision_about(call_id: str, answer: Any) -> ApprovalPart:
    """Return a program's decision about a waiting call; without a clear yes the call is denied.

    `answer` is any JSON, for example `{"approved": false, "reason": "Not now."}`. A call runs as it
    was asked for, or not at all. So changed arguments are passed to the agent as the reason of a
    denial.
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

    `answers` are results and decisions by the id of the call. A call of a tool that the client runs
    counts as failed without a result, if another call is answered. If no call waits, the decisions
    may be repeated: they were applied before, and get the answer of their run.
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
    """Return the user's messages after the last one that the conversation has.

    `history` is the whole thread as a program sends it with each run: the user's messages with
    their otids, and None for each answer of the agent. In a conversation that has none of them, the
    messages after the last answer are new. Without a new message and a later answer, the run is
    repeated: its answer did not reach the client, so its message is returned.
    """
    numbered = list(enumerate(history))
    users = {index: message for index, message in numbered if message is not None}
    otids = [message.otid or "" for message in users.values()]
    stored = await runtime.store.read(lambda tx: messages.by_otids(tx, conversation_id, otids))
    known = {message.otid for message in stored}
    known_indexes = [index for index, message in users.items() if message.otid in known]
    last_answer = max((index for index, message in numbered if message is None), default=-1)
    first = max(known_indexes, default=last_answer)
    if first == max(users, default=-1) and last_answer < first:
        return [users[first]]
    return [message for index, message in users.items() if index > first]
