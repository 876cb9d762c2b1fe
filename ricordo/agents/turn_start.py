"""Starting a turn: take the lease, load the agent and its window, store the input, all in one transaction.

The run's row is the lease. It is inserted before anything is read, so nobody else can change the window that is read after it;
the database refuses a second open run in a conversation, and a second message with the same otid.
"""

import secrets
from collections.abc import Sequence
from dataclasses import replace

from ricordo.agents.budgets import has_budget, require_budget
from ricordo.agents.conversations import (
    DEFAULT,
    effective,
    open_conversation,
    require_own,
    system_message,
    with_model,
    within_window,
)
from ricordo.agents.model_profile import profile_of, with_profile
from ricordo.agents.repeats import (
    conversation_of,
    input_of,
    require_own_otids,
    same_body,
    same_decision,
    same_otids,
    was_broken_off,
    was_cut_off,
)
from ricordo.agents.request import (
    Answered,
    Approval,
    NewMessage,
    TurnContext,
    TurnRequest,
    WindowLimit,
)
from ricordo.agents.run_end import given_up, heal
from ricordo.agents.step_decisions import finished_calls, rulebook
from ricordo.domain.agent import AgentState
from ricordo.domain.clock import SECOND
from ricordo.domain.ids import new_id
from ricordo.domain.message import ApprovalPart, EventPart, Message, TextPart, ToolReturnPart
from ricordo.domain.retrieved import holds_retrieved
from ricordo.domain.run import Run
from ricordo.domain.scope import Scope
from ricordo.errors import Busy, Collision, Conflict, Invalid, NotFound
from ricordo.llm.adaptation import learned_of
from ricordo.prompt.transcript import local_time, rejection_event
from ricordo.runtime import Runtime
from ricordo.search.index import insert_messages
from ricordo.storage import agents, conversations, messages, proposals, runs
from ricordo.storage.engine.store import Transaction
from ricordo.tools.rules import FinishedCall
from ricordo.tools.toolbox import unstored_tool

LEASE = 30 * SECOND
_ATTEMPTS = 5
# So many rejections are told in one turn; the rest in the next.
_MOST_TOLD = 20
_OF_GROUP = ("group_id", "speaker")
# These two sentences are wire facts: clients of the retired Letta V1 server match them.
NOTHING_WAITS = "No tool call is currently awaiting approval"
STILL_WAITING = (
    "Cannot send a new message: The agent is waiting for approval on a tool call. "
    "Please approve or deny the pending request before continuing."
)
# A wire fact too. It is what the agent reads where an answer to calls comes again after its run was broken off.
KEEP_ALIVE = "<system-alert>Automated keep-alive ping. Ignore this message and continue from where you stopped.</system-alert>"
EXPIRED = "The request for approval was not answered in time, so the tool call was denied."


async def start_turn(runtime: Runtime, request: TurnRequest) -> TurnContext | str:
    """Start the turn, or return the id of the run that took this request before. Raises NotFound, Busy, Conflict, Invalid."""
    require_own_otids(request)
    models = await runtime.organization_providers.of(request.scope.organization_id)
    if request.conversation_id is None and request.scope.subject:
        own = await open_conversation(runtime, request.scope, DEFAULT, request.agent_id)
        request = replace(request, conversation_id=own.id)
    repeated: Run | None = None
    is_looked_up = False
    for _ in range(_ATTEMPTS):
        try:
            return await runtime.store.write(
                lambda tx: _open(tx, runtime, request, repeated, is_looked_up)  # noqa: B023
            )
        except _Unlisted as unlisted:
            await models.look_up(unlisted.args[0])
            is_looked_up = True
        except Collision:
            repeated = await runtime.store.write(lambda tx: resolve_conflict(tx, runtime, request))
            if repeated and not was_cut_off(repeated):
                return repeated.id
    raise Busy()


class _Unlisted(Exception):
    """Takes a turn out of the transaction that began it, since its model's provider was never asked for its list.

    Which prompt and tools a model gets depends on its size and window, which the list may tell.
    """


class _Previewed(Exception):
    """Takes a turn out of the transaction that began it, of which nothing stays."""


async def preview_turn(runtime: Runtime, request: TurnRequest) -> TurnContext:
    """Return the turn as it would start, and store nothing. Raises what `start_turn` raises; Busy while another turn runs."""
    models = await runtime.organization_providers.of(request.scope.organization_id)

    def begin(tx: Transaction, is_looked_up: bool) -> TurnContext:
        raise _Previewed(_open(tx, runtime, request, None, is_looked_up))

    try:
        try:
            return await runtime.store.write(lambda tx: begin(tx, False))
        except _Unlisted as unlisted:
            await models.look_up(unlisted.args[0])
        return await runtime.store.write(lambda tx: begin(tx, True))
    except _Previewed as previewed:
        turn: TurnContext = previewed.args[0]
        return turn
    except Collision as error:
        raise Busy from error


def _open(
    tx: Transaction, runtime: Runtime, request: TurnRequest, cut_off: Run | None, is_looked_up: bool
) -> TurnContext:
    """Take the lease, load the state as the request wants it, and save the input, or take it over from a run that was cut off.

    Raises _Unlisted unless `is_looked_up`, where the list of the model's provider was never read.
    """
    # A retry may overtake its original, so it is looked for in the transaction that would start it again.
    run = new_run(tx, request)
    planned = replace(run, id=request.planned_run) if request.planned_run and not cut_off else None
    if planned and runs.begin_planned(tx, planned):
        run = planned
    else:
        runs.open_run(tx, run)
    earlier = same_body(tx, request, other_than=run.id)
    if earlier and (cut_off is None or earlier.id != cut_off.id):
        raise Collision("The same request was accepted before.")
    own = effective(agents.load(tx, request.scope, request.agent_id, request.conversation_id))
    require_own(request.scope, own.conversation)
    models, state = runtime.organization_providers.known(request.scope.organization_id), own
    if request.model is not None and request.model != own.agent.model:
        info = models.get(request.model).info
        state = with_model(own, info.handle, info.context_window)
    is_borrowed = state is not own
    if not is_looked_up and models.is_unlisted(state.agent.model):
        raise _Unlisted(state.agent.model)
    model = models.get(state.agent.model)
    learned = learned_of(model)
    if learned and learned.window and learned.window < state.agent.context_window:
        state = within_window(state, learned.window)
    state = runtime.complete(tx, state)
    # What is said in a user's conversation is about that user, and stays theirs.
    run = replace(run, user_id=run.user_id or state.conversation.user_id)
    if has_budget(runtime.settings, state.agent):
        require_budget(tx, runtime.settings, state.agent, request.purpose)
    window, prompt_key = _window(tx, runtime, state)
    is_continued = bool(request.approval or request.compaction or waiting_in(window))
    if state.agent.clears_buffer and state.conversation.last_run_ended_at and not is_continued:
        window = window[:1]  # a turn that failed left what was said in it
    profile = profile_of(state.agent, model.info, runtime.settings.model_profile)
    state = with_profile(state, profile, runtime.toolbox)
    state = _with_added(state, request, runtime)
    rules = rulebook(state, request.client_tools)
    limit = WindowLimit(token_percent=state.conversation.token_percent or 100)
    if is_borrowed:
        limit = WindowLimit(own_window=own.agent.context_window)
    turn = TurnContext(
        runtime, request, run, state, model, window, prompt_key, rules, limit, profile=profile
    )
    if cut_off and (said := input_of(tx, cut_off)):
        _stay_in_group(tx, turn, cut_off)
        _take_over(tx, turn, said)
    else:
        save_input(tx, turn, runtime.settings.approval_expiry)
    if request.also_save:
        request.also_save(tx, run, ())
    return turn


def _stay_in_group(tx: Transaction, turn: TurnContext, cut_off: Run) -> None:
    """Keep the turn in the group in which the run that it takes over was."""
    kept = {name: cut_off.metadata[name] for name in _OF_GROUP if name in cut_off.metadata}
    if kept and not turn.run.metadata:
        turn.run = replace(turn.run, metadata=kept)
        runs.save_metadata(tx, turn.run)


def _with_added(state: AgentState, request: TurnRequest, runtime: Runtime) -> AgentState:
    """Return the state with the tools and rules that the request adds for this turn."""
    if not request.added_tools:
        return state
    tools = [
        unstored_tool(runtime.toolbox.unstored(name), state.agent.organization_id)
        for name in request.added_tools
    ]
    agent = replace(state.agent, tool_rules=(*state.agent.tool_rules, *request.added_rules))
    return replace(state, agent=agent, tools=(*state.tools, *tools))


def save_input(tx: Transaction, turn: TurnContext, expiry: float) -> None:
    """Store what was said, and put it into the window; raises Conflict or Invalid where an answer is due, or none is."""
    request, run, now = turn.request, turn.run, tx.clock.now()
    said = [
        _stored(item, run, now, is_others(item, request.scope, turn.state.conversation.user_id))
        for item in request.messages
    ]
    before: list[Message] = []
    approval = _due(tx, turn)
    if request.approval and not approval and not said:
        said = [run.new_message("user", (EventPart(KEEP_ALIVE),), now)]
    if approval:
        before = [_take_approval(tx, turn, approval, now)]
        turn.delayed = said
    elif late := waiting_in(turn.window):
        if now - late.created_at < expiry * SECOND:
            raise Conflict(STILL_WAITING)
        before = [run.new_message("tool", given_up(late, EXPIRED), now)]
    if turn.state.conversation.has_untold and said and not approval:
        before += tell_rejections(tx, turn, now)
    insert_messages(tx, [*before, *said])
    turn.first = len(turn.window)
    turn.window += before if turn.approval else [*before, *said]
    turn.unsaved = len(before) + len(said)


def _take_over(tx: Transaction, turn: TurnContext, said: Sequence[Message]) -> None:
    """Answer what was said in a run that was cut off: it belongs to this run now, and stands where the run has brought it.

    Where the agent did nothing yet it is as if it was said now. Raises Conflict where an answer is due first, or came since.
    """
    if waiting_in(turn.window):
        raise Conflict(STILL_WAITING)
    ids = {message.id for message in said}
    places = [place for place, message in enumerate(turn.window) if message.id in ids]
    later = turn.window[places[-1] + 1 :] if places else []
    is_begun, went_on = bool(later), any(message.is_said for message in later)
    if went_on and any(message.role == "approval" for message in said):
        raise Conflict(
            "The conversation went on since the server was stopped in the middle of this. Ask the agent again."
        )
    if is_begun and not went_on:
        messages.move(tx, said, turn.run.id)
        turn.first, turn.finished = places[0], finished_before(turn.window)
        return
    said = messages.move(tx, said, turn.run.id, tx.clock.now())
    turn.window = [message for message in turn.window if message.id not in ids]
    turn.first, turn.unsaved = len(turn.window), len(said)
    kept = [message.id for message in turn.window]
    conversation = turn.state.conversation
    conversations.save_window(tx, conversation.id, kept, turn.prompt_key, added=-len(said))
    turn.window += said


def tell_rejections(tx: Transaction, turn: TurnContext, now: int) -> list[Message]:
    """The messages that tell the agent why the user rejected what it proposed, each once; not yet stored."""
    conversation, user_id = turn.state.conversation, turn.run.user_id
    if user_id is None:
        return []
    # A rejection at this very moment waits for the lock, and sets the flag again.
    conversations.lock(tx, conversation.id)
    found = proposals.take_untold(tx, conversation, user_id, _MOST_TOLD)
    conversations.set_untold(tx, conversation.id, len(found) == _MOST_TOLD)
    shown = {(block.chain_id, block.label): block.shown_label for block in turn.state.blocks}
    time = local_time(now, turn.state.agent.timezone)
    events = [
        rejection_event(
            shown.get((one.chain_id, one.label), one.label), one.proposal_id, one.reason, time
        )
        for one in found
    ]
    return [turn.run.new_message("user", (event,), now) for event in events]


def _due(tx: Transaction, turn: TurnContext) -> Approval | None:
    """The request's answer to calls; None where it was given before, and what was said with it is a turn of its own."""
    approval, waiting = turn.request.approval, waiting_in(turn.window)
    named = (
        {part.call_id for part in approval.parts if isinstance(part, ApprovalPart | ToolReturnPart)}
        if approval
        else set()
    )
    is_due = bool(waiting and (not named or named & {call.call_id for call in waiting.tool_calls}))
    if approval is None or is_due:
        return approval
    repeated = same_decision(tx, turn.request)
    if repeated is None:
        return approval
    if not (turn.request.messages or was_broken_off(repeated)):
        raise Collision("This answer was accepted before.")
    return None


def _take_approval(tx: Transaction, turn: TurnContext, approval: Approval, now: int) -> Message:
    """Match the answer with the calls that wait for it; returns it as a message."""
    if approval.otid and messages.by_otids(tx, turn.run.conversation_id, [approval.otid]):
        raise Collision(
            "This answer was accepted before."
        )  # before it is said that nothing waits for it
    turn.approval = answered(turn.window, approval)
    asking = turn.approval.request
    if asking.group_id and not turn.run.metadata:
        # The turn that goes on was one in a group, and so is its rest.
        turn.run = replace(turn.run, metadata={"group_id": asking.group_id, "speaker": asking.name})
        runs.save_metadata(tx, turn.run)
    turn.finished = finished_before(turn.window)
    return _stored(
        NewMessage("approval", turn.approval.parts, approval.otid),
        turn.run,
        now,
        bool(turn.approval.returns),
    )


def waiting_in(window: Sequence[Message]) -> Message | None:
    return window[-1] if window and window[-1].is_waiting else None


def answered(window: Sequence[Message], approval: Approval) -> Answered:
    """The request that waits, with this answer to it; raises Invalid where nothing waits or the answer does not fit it."""
    request, parts = waiting_in(window), approval.parts
    if request is None:
        raise Invalid(NOTHING_WAITS)
    gated = {call.call_id: call for call in request.tool_calls if call.is_gated}
    if approval.approves is not None:
        if approval.request_id not in (None, "", request.id, *gated):
            raise Invalid(
                f"Invalid approval request ID. Expected '{request.id}' but received '{approval.request_id}'."
            )
        parts = tuple(ApprovalPart(id, approval.approves, approval.reason) for id in gated)
    if len(gated) == len(parts) == 1:
        # Older clients name the message that asked in place of its only call.
        (call_id,) = gated
        parts = tuple(
            replace(one, call_id=call_id)
            if isinstance(one, ApprovalPart | ToolReturnPart) and one.call_id == request.id
            else one
            for one in parts
        )
    ids = [part.call_id for part in parts if isinstance(part, ApprovalPart | ToolReturnPart)]
    if sorted(ids) != sorted(gated):
        raise Invalid(f"Invalid tool call IDs. Expected '{list(gated)}', but received '{ids}'.")
    # What the client says is untrusted, and it does not say which tool a result is of.
    decided = [
        replace(one, request_id=request.id) for one in parts if isinstance(one, ApprovalPart)
    ]
    sent = [one for one in parts if isinstance(one, ToolReturnPart)]
    given = [replace(one, is_untrusted=True, request_id=request.id) for one in sent]
    returns = {
        one.call_id: replace(one, is_untrusted=True, name=gated[one.call_id].name) for one in sent
    }
    return Answered(request, {part.call_id: part for part in decided}, returns, (*decided, *given))


def finished_before(window: Sequence[Message]) -> list[FinishedCall]:
    """The calls that were finished since somebody last said something: a turn that waited goes on with its rules."""
    results: list[ToolReturnPart] = []
    for message in reversed(window):
        if message.is_said:
            break
        results = [*message.tool_returns, *results] if message.role == "tool" else results
    return finished_calls(results)


def resolve_conflict(tx: Transaction, runtime: Runtime, request: TurnRequest) -> Run | None:
    """Find out why the database refused the turn: the run that took it before, or None where a dead run was in its way.

    Raises what the caller has to know.
    """
    conversation = conversations.get(tx, conversation_of(request))
    agents.require(tx, request.scope, request.agent_id)
    is_there = conversation is not None and request.scope.sees(conversation.user_id)
    if conversation is None or not is_there or conversation.agent_id != request.agent_id:
        raise NotFound(f"Conversation with ID {request.conversation_id} not found")
    repeated = same_otids(tx, request) or same_body(tx, request) or same_decision(tx, request)
    if repeated and request.approval and was_broken_off(repeated):
        repeated = None
    if repeated and not was_cut_off(repeated):
        return repeated
    for run in runs.open_runs(tx, conversation_id=conversation.id):
        # A turn of this process is alive whatever the clock says, which may have jumped while the machine slept.
        if run.id in runtime.live or not heal(tx, run, is_gone=run.id in runtime.unended):
            raise Busy(run.id)
        runtime.unended.discard(run.id)
    return repeated


def _window(tx: Transaction, runtime: Runtime, state: AgentState) -> tuple[list[Message], str]:
    """The messages in context, the system message first, and the key that tells from what that was made."""
    conversation = state.conversation
    window = messages.by_ids(tx, conversation.window)
    if window and window[0].role == "system":
        return window, conversation.prompt_key
    # A turn writes its prompt over the window's first message, which must never be something that was said.
    system, key = system_message(tx, runtime, state)
    insert_messages(tx, [system])
    window.insert(0, system)
    conversations.save_window(tx, conversation.id, [message.id for message in window], key, added=1)
    return window, key


def new_run(tx: Transaction, request: TurnRequest) -> Run:
    """Return an open run for the request, not yet stored: its row is the lease."""
    now = tx.clock.now()
    return Run(
        id=new_id("run"),
        organization_id=request.scope.organization_id,
        agent_id=request.agent_id,
        conversation_id=conversation_of(request),
        status="running",
        user_id=request.scope.subject,
        background=request.is_background,
        purpose=request.purpose,
        callback=request.callback,
        body_hash=request.body_hash,
        request_config=request.request_config,
        metadata=request.metadata,
        created_at=now,
        lease_token=secrets.token_hex(16),
        lease_expires_at=now + LEASE,
    )


def _stored(item: NewMessage, run: Run, now: int, is_untrusted: bool) -> Message:
    return replace(
        item.signed(run.new_message(item.role, item.parts, now)), is_untrusted=is_untrusted
    )


def is_others(said: NewMessage, scope: Scope, user_id: str | None) -> bool:
    """Return whether this is from somebody other than the conversation's user: another sender or, without one, another name."""
    texts = (part.text for part in said.parts if isinstance(part, TextPart))
    if said.is_untrusted or any(map(holds_retrieved, texts)):
        return True
    if said.role != "user":
        return False
    users = {scope.subject, user_id} - {None} or {scope.user_id}
    if said.sender_id:
        return said.sender_id not in users
    return bool(said.name) and said.name not in users | {scope.user_name}
