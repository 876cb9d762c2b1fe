"""Requests that come again: a client that heard no answer sends its message once more, with the same otids or the same body.

What was taken is not taken twice: who repeats it gets the answer of the run that took it, its failure too. Only where the server
was stopped in the middle of that run is the message answered anew, by a new run that takes it over
(`docs/internals/decisions/0004`).
An answer to calls is another matter: where its run was cancelled or failed, the calls have their results and the agent has not
spoken yet, so the same answer lets a new run continue.
"""

from collections.abc import Sequence
from dataclasses import replace

from ricordo.agents.request import Approval, NewMessage, TurnRequest
from ricordo.domain.clock import SECOND
from ricordo.domain.message import ApprovalPart, Message, ToolReturnPart
from ricordo.domain.run import INTERRUPTED, Run
from ricordo.errors import Conflict, Invalid
from ricordo.storage import conversations, messages, runs
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction

REPEAT_WINDOW = 600 * SECOND
_DECISIONS = 100  # how many of the newest decisions of a conversation are compared
_INPUT = ("user", "assistant", "system", "approval")


def require_own_otids(request: TurnRequest) -> None:
    """Raise Invalid where two messages of one request have the same otid."""
    otids = _otids(request)
    if twice := next((otid for otid in otids if otids.count(otid) > 1), None):
        raise Invalid(
            f"Two of these messages have the otid {twice}. Give every message an otid of its own."
        )


def same_body(tx: Transaction, request: TurnRequest, other_than: str = "") -> Run | None:
    """The newest run of the last minutes that took an equal body, where this request says that it is a retry."""
    if not (request.is_retry and request.body_hash):
        return None
    since = tx.clock.now() - REPEAT_WINDOW
    run = runs.with_same_body(
        tx, conversation_of(request), request.body_hash, since, other_than=other_than
    )
    scope = request.scope
    return (
        run
        if run and run.organization_id == scope.organization_id and scope.sees(run.user_id)
        else None
    )


def same_otids(tx: Transaction, request: TurnRequest) -> Run | None:
    """The run that took these very messages; raises Conflict where one of their otids stands for another message."""
    otids = _otids(request)
    known = (
        {
            message.otid or "": message
            for message in messages.by_otids(tx, conversation_of(request), otids)
        }
        if otids
        else {}
    )
    if not known:
        return None
    sent: list[NewMessage | Approval] = [
        *([request.approval] if request.approval else []),
        *request.messages,
    ]
    (run_id, *others) = {message.run_id for message in known.values()}
    if run_id and not others and all(_is_same(one, known.get(one.otid or "")) for one in sent):
        return runs.get(tx, request.scope, run_id)
    used = ", ".join(known)
    raise Conflict(
        f"The otid {used} was used before, for another message. Give every new message an otid of its own, or repeat the request "
        "as it was."
    )


def same_decision(tx: Transaction, request: TurnRequest) -> Run | None:
    """The run that took this very answer to calls, known by their ids: without an otid too, and after they left the window."""
    approval = request.approval
    if approval is None:
        return None
    newest = Page(limit=_DECISIONS)
    stored = messages.page(
        tx, request.scope, newest, conversation_id=conversation_of(request), role="approval"
    )
    run_id = next(
        (one.run_id for one in stored if one.run_id and _is_same_decision(approval, one)), None
    )
    return runs.get(tx, request.scope, run_id) if run_id else None


def was_cut_off(run: Run) -> bool:
    """Whether the server was stopped or killed in the middle of this run."""
    return run.status == "failed" and (run.error or {}).get("type") == INTERRUPTED


def was_broken_off(run: Run) -> bool:
    """Return whether the run ended without its answer, so that the same decision, sent again, continues the turn."""
    return run.status in ("cancelled", "failed") and not was_cut_off(run)


def input_of(tx: Transaction, run: Run) -> list[Message]:
    """What was said in this run, without what the agent answered."""
    return [
        one for one in messages.of_run(tx, run.id) if one.step_id is None and one.role in _INPUT
    ]


def conversation_of(request: TurnRequest) -> str:
    return request.conversation_id or conversations.default_id(request.agent_id)


def _otids(request: TurnRequest) -> list[str]:
    otids = [
        request.approval.otid if request.approval else None,
        *(message.otid for message in request.messages),
    ]
    return [otid for otid in otids if otid]


def _is_same(sent: NewMessage | Approval, stored: Message | None) -> bool:
    if stored is None:
        return False
    if isinstance(sent, NewMessage):
        return (sent.role, sent.parts) == (stored.role, stored.parts)
    decided = [part for part in stored.parts if isinstance(part, ApprovalPart)]
    if sent.approves is not None:
        return stored.role == "approval" and all(part.approves == sent.approves for part in decided)
    return _by_call(sent.parts) == _by_call(stored.parts)


def _is_same_decision(approval: Approval, stored: Message) -> bool:
    if approval.approves is None:
        decisions = _by_call(approval.parts)
        return bool(decisions) and _by_call(stored.parts) == decisions
    decided = [part for part in stored.parts if isinstance(part, ApprovalPart)]
    # Older clients name the message that asked, or its call.
    is_named = any(approval.request_id in (part.request_id, part.call_id) for part in decided)
    return is_named and all(
        (one.approves, one.reason) == (approval.approves, approval.reason) for one in decided
    )


def _by_call(parts: Sequence[object]) -> dict[str, object]:
    """Decisions and results by the call that they are of, without what the server knows of them alone."""
    known: dict[str, object] = {}
    for part in parts:
        if isinstance(part, ToolReturnPart):
            known[part.call_id] = replace(part, is_untrusted=True, name="", request_id=None)
        elif isinstance(part, ApprovalPart):
            known[part.call_id] = replace(part, request_id=None)
    return known
