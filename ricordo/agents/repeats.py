"""Repeated requests: the same otids or the same body sent again.

A client that got no answer sends its message once more. The repeated message is not accepted a
second time. The request gets the answer or the failure of the run that accepted it. Only if the
server was stopped or its database failed during that run does a new run adopt the message and
answer it (`docs/internals/decisions/0004`).

An answer to calls may also be repeated after a cancelled or failed run. The calls have results, but
the agent has not spoken, so a new run continues the turn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ricordo.agents.request import (
    Approval,
    NewMessage,
    TurnRequest,
)
from ricordo.domain.clock import SECOND
from ricordo.domain.message import ApprovalPart, Message, ToolReturnPart
from ricordo.domain.run import INTERRUPTED, Run
from ricordo.errors import Conflict, Invalid
from ricordo.storage import conversations, messages, runs
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction

REPEAT_WINDOW = 600 * SECOND
_DECISIONS = 100  # the newest decisions of a conversation that are compared
_INPUT = ("user", "assistant", "system", "approval")


def require_own_otids(request: TurnRequest) -> None:
    """Raise Invalid if two messages of one request have the same otid."""
    otids = _otids(request)
    if repeated := next((otid for otid in otids if otids.count(otid) > 1), None):
        raise Invalid(
            f"Two of these messages have the otid {repeated}. Give every message a different otid."
        )


def same_body(tx: Transaction, request: TurnRequest, other_than: str = "") -> Run | None:
    """Return the newest run of the last ten minutes whose request had an equal body.

    Returns None if the request is not marked as a retry.
    """
    if not (request.delivery.is_retry and request.delivery.body_hash):
        return None
    since = tx.clock.now() - REPEAT_WINDOW
    run = runs.with_same_body(
        tx, conversation_of(request), request.delivery.body_hash, since, other_than=other_than
    )
    scope = request.scope
    if run and run.organization_id == scope.organization_id and scope.sees(run.user_id):
        return run
    return None


def same_otids(tx: Transaction, request: TurnRequest) -> Run | None:
    """Return the run that accepted these messages.

    Returns None if all their otids are new. Raises Conflict if one of these otids is stored, and
    the request does not repeat messages of one run.
    """
    otids = _otids(request)
    if otids:
        messages_by_otid = {
            message.otid or "": message
            for message in messages.by_otids(tx, conversation_of(request), otids)
        }
    else:
        messages_by_otid = {}
    if not messages_by_otid:
        return None
    (run_id, *others) = {message.run_id for message in messages_by_otid.values()}
    if run_id and not others and _are_repeated(tx, request, run_id, messages_by_otid):
        return runs.get(tx, request.scope, run_id)
    used_otids = ", ".join(messages_by_otid)
    raise Conflict(
        f"The otid {used_otids} already belongs to a message of another request. Give every new "
        "message a new otid, or repeat the request unchanged."
    )


def _are_repeated(
    tx: Transaction,
    request: TurnRequest,
    run_id: str,
    messages_by_otid: Mapping[str, Message],
) -> bool:
    """Return True if each message of the request was sent in this run.

    Messages without an otid are compared with those of the run, in their order.
    """
    new_messages: list[NewMessage | Approval] = [
        *([request.approval] if request.approval else []),
        *request.messages,
    ]
    without_otid = [message for message in new_messages if not message.otid]
    stored = iter(
        [message for message in _sent_in(tx, run_id) if not message.otid] if without_otid else []
    )
    return all(
        _is_same(message, messages_by_otid.get(message.otid))
        if message.otid
        else any(_is_same(message, earlier) for earlier in stored)
        for message in new_messages
    )


def same_decision(tx: Transaction, request: TurnRequest) -> Run | None:
    """Return the run that accepted this answer to calls.

    The calls' ids identify the answer, even without an otid and after the calls have left the
    window. Only the newest hundred decisions of the conversation are compared.
    """
    approval = request.approval
    if approval is None:
        return None
    newest = Page(limit=_DECISIONS)
    decisions = messages.page(
        tx, request.scope, newest, conversation_id=conversation_of(request), role="approval"
    )
    run_id = next(
        (
            decision.run_id
            for decision in decisions
            if decision.run_id and _is_same_decision(approval, decision)
        ),
        None,
    )
    if run_id:
        return runs.get(tx, request.scope, run_id)
    return None


def was_cut_off(run: Run) -> bool:
    """Return whether the server was stopped or killed, or its database failed, during this run."""
    return run.status == "failed" and (run.error or {}).get("type") == INTERRUPTED


def was_broken_off(run: Run) -> bool:
    """Return whether the run was cancelled, or failed without being cut off.

    If so, the same decision continues the turn when it is sent again.
    """
    return run.status in ("cancelled", "failed") and not was_cut_off(run)


def input_of(tx: Transaction, run: Run) -> list[Message]:
    """Return the messages that were sent in this run, without the agent's answers."""
    return _sent_in(tx, run.id)


def _sent_in(tx: Transaction, run_id: str) -> list[Message]:
    return [
        message
        for message in messages.of_run(tx, run_id)
        if message.step_id is None and message.role in _INPUT
    ]


def conversation_of(request: TurnRequest) -> str:
    return request.conversation_id or conversations.default_id(request.agent_id)


def _otids(request: TurnRequest) -> list[str]:
    otids = [
        request.approval.otid if request.approval else None,
        *(message.otid for message in request.messages),
    ]
    return [otid for otid in otids if otid]


def _is_same(new_message: NewMessage | Approval, stored: Message | None) -> bool:
    if stored is None:
        return False
    if isinstance(new_message, NewMessage):
        return (new_message.role, new_message.parts) == (stored.role, stored.parts)
    decisions = [part for part in stored.parts if isinstance(part, ApprovalPart)]
    if new_message.approves is not None:
        return stored.role == "approval" and all(
            part.approves == new_message.approves for part in decisions
        )
    return _by_call(new_message.parts) == _by_call(stored.parts)


def _is_same_decision(approval: Approval, stored: Message) -> bool:
    if approval.approves is None:
        decisions = _by_call(approval.parts)
        return bool(decisions) and _by_call(stored.parts) == decisions
    stored_decisions = [part for part in stored.parts if isinstance(part, ApprovalPart)]
    # Older clients name the message that asked, or one of its calls.
    is_named = any(
        approval.request_id in (part.request_id, part.call_id) for part in stored_decisions
    )
    return is_named and all(
        (decision.approves, decision.reason) == (approval.approves, approval.reason)
        for decision in stored_decisions
    )


def _by_call(parts: Sequence[object]) -> dict[str, object]:
    """Return decisions and results by call id, without fields that only the server sets."""
    parts_by_call: dict[str, object] = {}
    for part in parts:
        if isinstance(part, ToolReturnPart):
            parts_by_call[part.call_id] = replace(part, is_untrusted=True, name="", request_id=None)
        elif isinstance(part, ApprovalPart):
            parts_by_call[part.call_id] = replace(part, request_id=None)
    return parts_by_call
