"""Beginning a turn: take the lease, load the agent and its window, store what was said, all in one transaction.

The run's row is the lease. It is inserted before anything is read, so nobody else can change the window that is read after it;
the database refuses a second open run in a conversation, and a second message with the same otid.
"""

import secrets
from dataclasses import dataclass, replace

from ricordo.agents.closing import heal
from ricordo.agents.request import NewMessage, TurnContext, TurnRequest
from ricordo.domain.clock import SECOND
from ricordo.domain.ids import new_id
from ricordo.domain.message import Message
from ricordo.domain.run import Run
from ricordo.errors import Busy, Collision, Conflict, Invalid, NotFound
from ricordo.runtime import Runtime
from ricordo.storage import agents, conversations, messages, runs
from ricordo.storage.store import Transaction

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
    state = agents.load(tx, request.scope, request.agent_id, request.conversation_id)
    model = runtime.models.get(state.agent.model)
    window = messages.by_ids(tx, state.conversation.window)
    new = [_stored(tx, item, run) for item in request.messages]
    messages.insert_all(tx, new)
    return TurnContext(request, run, state, model, [*window, *new], len(new), state.conversation.prompt_key)


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
    otids = [message.otid for message in request.messages if message.otid]
    if twice := next((otid for otid in otids if otids.count(otid) > 1), None):
        raise Invalid(f"Two of these messages have the otid {twice}. Give every message an otid of its own.")


def _same_otids(tx: Transaction, request: TurnRequest) -> Repeated | None:
    otids = [message.otid for message in request.messages if message.otid]
    known = messages.by_otids(tx, _thread(request), otids) if otids else []
    if not known:
        return None
    run_ids = {message.run_id for message in known}
    run_id = known[0].run_id
    if len(known) == len(otids) == len(request.messages) and len(run_ids) == 1 and run_id:
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
        body_hash=request.body_hash,
        request_config=request.request_config,
        created_at=now,
        lease_token=secrets.token_hex(16),
        lease_expires_at=now + LEASE,
    )


def _stored(tx: Transaction, item: NewMessage, run: Run) -> Message:
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
    )


def renewed(run: Run, now: int) -> Run:
    """The run with its lease held for longer."""
    return replace(run, lease_expires_at=now + LEASE)
