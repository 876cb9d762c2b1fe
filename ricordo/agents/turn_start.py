"""Beginning a turn: take the lease, load the agent and its window, store what was said, all in one transaction.

The run's row is the lease. It is inserted before anything is read, so nobody else can change the window that is read after it;
the database refuses a second open run in a conversation, and a second message with the same otid.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ricordo.agents.approvals import EXPIRED, answered, given_up, require_nothing_waits, to_all, waiting_in
from ricordo.agents.budgets import require_budget
from ricordo.agents.edit_context import is_others
from ricordo.agents.request import Approval, NewMessage, TurnContext, TurnRequest
from ricordo.agents.run_end import heal
from ricordo.agents.styles import called, rulebook
from ricordo.agents.threads import effective, system_message, with_model
from ricordo.domain.agent import AgentState
from ricordo.domain.clock import SECOND
from ricordo.domain.ids import new_id
from ricordo.domain.message import Message, Part, ToolReturnPart
from ricordo.domain.run import Run
from ricordo.errors import Busy, Collision, Conflict, Invalid, NotFound
from ricordo.runtime import Runtime
from ricordo.search.index import insert_messages
from ricordo.storage import agents, conversations, messages, runs
from ricordo.storage.store import Transaction
from ricordo.tools.rules import Called

LEASE = 30 * SECOND
REPEAT_WINDOW = 600 * SECOND
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Repeated:
    """The request was accepted before, by this run."""

    run_id: str


async def load(runtime: Runtime, request: TurnRequest) -> TurnContext | Repeated:
    """Begin the turn, or say which run has these messages already. Raises NotFound, Busy, Conflict, Invalid."""
    _require_different_otids(request)
    await runtime.organization_providers.of(request.scope.organization_id)
    for _ in range(_ATTEMPTS):
        try:
            # A retry may overtake its original, so it is looked for in the transaction that would begin it anew.
            return await runtime.store.write(lambda tx: _same_body(tx, request) or _begin(tx, runtime, request))
        except Collision:
            if repeated := await runtime.store.write(lambda tx: _settle(tx, runtime, request)):
                return repeated
    raise Busy()


def _begin(tx: Transaction, runtime: Runtime, request: TurnRequest) -> TurnContext:
    run = _new_run(tx, request)
    runs.open_run(tx, run)
    # Once more, now that the lease is taken: on a shared database the original may have begun and ended since.
    if _same_body(tx, request, other_than=run.id):
        raise Collision("The same request was accepted a moment ago.")
    own = effective(agents.load(tx, request.scope, request.agent_id, request.conversation_id))
    state = _as_asked(own, runtime, request)
    # What is said in a user's thread is about her, and stays with her.
    run = replace(run, user_id=run.user_id or state.conversation.user_id)
    require_budget(tx, runtime.settings, state.agent, request.purpose)
    window, prompt_key = _window(tx, runtime, state)
    if state.agent.clears_buffer and state.conversation.last_run_ended_at and not _goes_on(request, window):
        window = window[:1]  # a turn that failed left what was said in it
    turn = TurnContext(
        request,
        run,
        state,
        runtime.organization_providers.known(request.scope.organization_id).get(state.agent.model),
        window,
        unsaved=0,
        prompt_key=prompt_key,
        rules=rulebook(state, request.client_tools),
        token_percent=(state is own and state.conversation.token_percent) or 100,
        own_window=None if state is own else own.agent.context_window,
    )
    _take_in(tx, turn, runtime.settings.approval_expiry)
    return turn


def _goes_on(request: TurnRequest, window: Sequence[Message]) -> bool:
    """Whether the turn is about what stands in the window, and not about something new."""
    return bool(request.approval or request.compaction or waiting_in(window))


def _window(tx: Transaction, runtime: Runtime, state: AgentState) -> tuple[list[Message], str]:
    """The messages in context, the system message first, and the key that tells from what that was made."""
    thread = state.conversation
    window = messages.by_ids(tx, thread.window)
    if window and window[0].role == "system":
        return window, thread.prompt_key
    # A turn writes its prompt over the window's first message, which must never be something that was said.
    system, key = system_message(tx, runtime, state)
    insert_messages(tx, [system])
    window.insert(0, system)
    conversations.save_window(tx, thread.id, [message.id for message in window], key, added=1)
    return window, key


def _take_in(tx: Transaction, turn: TurnContext, expiry: float) -> None:
    """Store what was said, and put it into the window; raises Conflict or Invalid where an answer is due, or none is."""
    request, run, now = turn.request, turn.run, tx.clock.now()
    thread = turn.state.conversation
    said = [_stored(tx, item, run, is_untrusted=is_others(item, request, thread)) for item in request.messages]
    before: list[Message] = []
    if request.approval:
        if request.approval.otid and messages.by_otids(tx, run.conversation_id, [request.approval.otid]):
            raise Collision("This answer was accepted before.")  # before it is said that nothing waits for it
        parts = tuple(_by_client(part) for part in _decided(turn.window, request.approval))
        turn.answered = answered(turn.window, parts)
        turn.called = called_before(turn.window)
        answer = NewMessage("approval", parts, request.approval.otid)
        before = [_stored(tx, answer, run, is_untrusted=bool(turn.answered.returns))]
        turn.waiting = said
    elif late := require_nothing_waits(turn.window, now, expiry):
        results = tuple(given_up(late, EXPIRED))
        before = [_stored(tx, NewMessage("tool", results), run)]
    insert_messages(tx, [*before, *said])
    turn.first = len(turn.window)
    turn.window += before if turn.answered else [*before, *said]
    turn.unsaved = len(before) + len(said)


def _decided(window: list[Message], approval: Approval) -> tuple[Part, ...]:
    if approval.decision is None:
        return approval.parts
    request = waiting_in(window)
    asked = approval.decision.request_id
    if request and asked and asked != request.id:
        raise Invalid(f"Invalid approval request ID. Expected '{request.id}' but received '{asked}'.")
    return to_all(window, approval.decision.approves, approval.decision.reason)


def _by_client(part: Part) -> Part:
    """A result of the client's own, which nobody here vouches for."""
    return replace(part, is_untrusted=True) if isinstance(part, ToolReturnPart) else part


def _as_asked(state: AgentState, runtime: Runtime, request: TurnRequest) -> AgentState:
    """The state with the model that the request names for this turn alone."""
    if request.model is None or request.model == state.agent.model:
        return state
    info = runtime.organization_providers.known(request.scope.organization_id).get(request.model).info
    return with_model(state, info.handle, info.context_window)


def called_before(window: Sequence[Message]) -> list[Called]:
    """The calls that were finished since somebody last said something: a turn that waited goes on with its rules."""
    results: list[ToolReturnPart] = []
    for message in reversed(window):
        if message.role == "user" and not message.is_event:
            break
        results = [*message.tool_returns, *results] if message.role == "tool" else results
    return called(results)


def _settle(tx: Transaction, runtime: Runtime, request: TurnRequest) -> Repeated | None:
    """Find out why the database refused the turn: raises what the caller must hear, or clears a dead run out of the way."""
    conversation = conversations.get(tx, _thread(request))
    agents.require(tx, request.scope, request.agent_id)
    if conversation is None or conversation.agent_id != request.agent_id:
        raise NotFound(f"Conversation with ID {request.conversation_id} not found")
    if repeated := _same_otids(tx, request) or _same_body(tx, request):
        return repeated
    for run in runs.open_runs(tx, conversation_id=conversation.id):
        # A turn of this process is alive whatever the clock says, which may have jumped while the machine slept.
        if run.id in runtime.live or not heal(tx, run):
            raise Busy(run.id)
    return None


def _require_different_otids(request: TurnRequest) -> None:
    otids = _otids(request)
    if twice := next((otid for otid in otids if otids.count(otid) > 1), None):
        raise Invalid(f"Two of these messages have the otid {twice}. Give every message an otid of its own.")


def _otids(request: TurnRequest) -> list[str]:
    otids = [request.approval.otid if request.approval else None, *(message.otid for message in request.messages)]
    return [otid for otid in otids if otid]


def _same_otids(tx: Transaction, request: TurnRequest) -> Repeated | None:
    otids = _otids(request)
    known = messages.by_otids(tx, _thread(request), otids) if otids else []
    if not known:
        return None
    run_ids = {message.run_id for message in known}
    run_id = known[0].run_id
    sent = len(request.messages) + bool(request.approval)
    if len(known) == len(otids) == sent and len(run_ids) == 1 and run_id:
        return Repeated(run_id)
    used = ", ".join(str(message.otid) for message in known)
    raise Conflict(f"The otid {used} was used before, by another request. Give every new message an otid of its own.")


def _same_body(tx: Transaction, request: TurnRequest, other_than: str = "") -> Repeated | None:
    if not (request.is_retry and request.body_hash):
        return None
    since = tx.clock.now() - REPEAT_WINDOW
    run = runs.with_same_body(tx, _thread(request), request.body_hash, since, other_than=other_than)
    return Repeated(run.id) if run and run.organization_id == request.scope.organization_id else None


def _thread(request: TurnRequest) -> str:
    return request.conversation_id or conversations.default_id(request.agent_id)


def _new_run(tx: Transaction, request: TurnRequest) -> Run:
    now = tx.clock.now()
    return Run(
        id=new_id("run"),
        organization_id=request.scope.organization_id,
        agent_id=request.agent_id,
        conversation_id=_thread(request),
        status="running",
        user_id=request.scope.subject_id,
        background=request.is_background,
        purpose=request.purpose,
        callback=request.callback,
        body_hash=request.body_hash,
        request_config=request.request_config,
        created_at=now,
        lease_token=secrets.token_hex(16),
        lease_expires_at=now + LEASE,
    )


def _stored(tx: Transaction, item: NewMessage, run: Run, *, is_untrusted: bool = False) -> Message:
    return Message(
        id=new_id("message"),
        agent_id=run.agent_id,
        conversation_id=run.conversation_id,
        role=item.role,
        parts=item.parts,
        created_at=tx.clock.now(),
        organization_id=run.organization_id,
        user_id=run.user_id,
        run_id=run.id,
        otid=item.otid,
        name=item.name,
        sender_id=item.sender_id,
        group_id=item.group_id,
        is_untrusted=is_untrusted,
    )


def renewed(run: Run, now: int) -> Run:
    """The run with its lease held for longer."""
    return replace(run, lease_expires_at=now + LEASE)
