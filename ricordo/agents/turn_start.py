"""Start a turn in one transaction: lease, agent, window and input.

The run's row is the lease. It is inserted before anything is read, so no other process can change
the window after that. The database refuses a second open run in a conversation, and a second
message with the same otid.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ricordo.agents.agent_types import memory_in_prompt, profile_of, with_profile
from ricordo.agents.conversations import (
    DEFAULT,
    SHARED,
    open_conversation,
    system_message,
)
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
    Approval,
    TurnRequest,
)
from ricordo.agents.run_end import expired_results, heal
from ricordo.agents.step_decisions import rulebook
from ricordo.agents.turn_context import (
    AnsweredApproval,
    ContextWindow,
    TurnContext,
    WindowLimit,
)
from ricordo.domain.agent import (
    AgentState,
    effective,
    with_model,
    within_window,
)
from ricordo.domain.clock import SECOND
from ricordo.domain.egress import Clearance, Destination
from ricordo.domain.ids import new_id
from ricordo.domain.message import ApprovalPart, EventPart, Message, Part, ToolReturnPart
from ricordo.domain.run import Run
from ricordo.domain.scope import Scope
from ricordo.errors import Busy, Collision, Conflict, Forbidden, Invalid, NotFound
from ricordo.llm.adaptation import learned_of
from ricordo.llm.registry.organization_providers import OrganizationModels
from ricordo.memory.egress import spans_of
from ricordo.prompt.egress import cleared_state, refusal, require_permitted
from ricordo.prompt.system_prompt import key_without_edits
from ricordo.prompt.transcript import local_time, rejection_event
from ricordo.runtime import Runtime
from ricordo.search.index import insert_messages
from ricordo.storage import agents, conversations, messages, proposals, runs
from ricordo.storage import tools as stored_tools
from ricordo.storage.budgets import DAILY_TOKENS, require_budget
from ricordo.storage.engine.store import Transaction
from ricordo.storage.message_cache import read_window
from ricordo.storage.model_costs import ReplyAccount
from ricordo.tools.rules import CallRules, FinishedCall, finished_calls
from ricordo.tools.tool_search import FIND_TOOLS
from ricordo.tools.toolbox import unstored_tool

LEASE = 30 * SECOND
_ATTEMPTS = 5
# The most rejections that one turn reports; later turns report the rest.
_REJECTION_LIMIT = 20
_OF_GROUP = ("group_id", "speaker")
# wire facts: clients of the retired Letta V1 server match these two sentences.
NOTHING_WAITS = "No tool call is currently awaiting approval"
STILL_WAITING = (
    "Cannot send a new message: The agent is waiting for approval on a tool call. "
    "Please approve or deny the pending request before continuing."
)
# wire fact: the agent reads it if an answer to calls is repeated after its run was broken off.
KEEP_ALIVE = (
    "<system-alert>Automated keep-alive ping. Ignore this message and continue from where you "
    "stopped.</system-alert>"
)
EXPIRED = "The request for approval was not answered in time, so the tool call was denied."


async def start_turn(runtime: Runtime, request: TurnRequest) -> TurnContext | str:
    """Start the turn, or return the id of the run that accepted this request.

    Args:
        runtime: The server's parts.
        request: The request. Without a `conversation_id`, the caller's default conversation is
            meant.

    Returns:
        The turn: its lease is taken, and its input is stored. If an earlier run had the same
        request and was not cut off, its id is returned instead.

    Raises:
        NotFound: The agent, the conversation or a model does not exist.
        Busy: Another turn runs in the conversation.
        Conflict: Calls wait for an answer, or a message's otid belongs to another request. Also if
            an answer to calls was interrupted, and the conversation has newer messages.
        Invalid: The input answers no waiting call, or does not fit otherwise.
        Forbidden: The caller may only read the conversation, or an egress policy refuses the turn.
        BudgetSpent: A budget of tokens is used up.
    """
    if len(request.messages) + bool(request.approval) > 1:
        require_own_otids(request)
    models = await runtime.organization_providers.of(request.scope.organization_id)
    if request.conversation_id is None and request.scope.subject:
        default_conversation = await open_conversation(
            runtime, request.scope, DEFAULT, request.agent_id
        )
        request = replace(request, conversation_id=default_conversation.id)
    repeated: Run | None = None
    is_looked_up = False
    for _ in range(_ATTEMPTS):
        try:
            return await runtime.store.write(
                partial(
                    _open_turn,
                    runtime=runtime,
                    request=request,
                    models=models,
                    cut_off=repeated,
                    is_looked_up=is_looked_up,
                )
            )
        except _UnlistedModel as unlisted:
            await models.look_up(unlisted.args[0])
            is_looked_up = True
        except Collision:
            repeated = await runtime.store.write(lambda tx: resolve_conflict(tx, runtime, request))
            if repeated and not was_cut_off(repeated):
                return repeated.id
    raise Busy()


class _UnlistedModel(Exception):
    """Leaves the transaction, because the provider's list of models must be read first.

    The prompt and tools depend on the model's size and window, which the list may contain.
    """


class _Previewed(Exception):
    """Leaves the transaction of a preview, so that nothing is stored."""


async def preview_turn(runtime: Runtime, request: TurnRequest) -> TurnContext:
    """Return the turn as it would start, and store nothing.

    Args:
        runtime: The runtime.
        request: The turn as it would be requested.

    Raises:
        Busy: Another turn runs in the conversation.
        RicordoError: As `start_turn`.
    """
    models = await runtime.organization_providers.of(request.scope.organization_id)

    def begin(tx: Transaction, is_looked_up: bool) -> TurnContext:
        raise _Previewed(_open_turn(tx, runtime, request, models, is_looked_up=is_looked_up))

    try:
        try:
            return await runtime.store.write(lambda tx: begin(tx, False))
        except _UnlistedModel as unlisted:
            await models.look_up(unlisted.args[0])
        return await runtime.store.write(lambda tx: begin(tx, True))
    except _Previewed as previewed:
        turn: TurnContext = previewed.args[0]
        return turn
    except Collision as error:
        raise Busy from error


def _open_turn(
    tx: Transaction,
    runtime: Runtime,
    request: TurnRequest,
    models: OrganizationModels,
    *,
    cut_off: Run | None = None,
    is_looked_up: bool = False,
) -> TurnContext:
    """Take the lease, load the state for the request, and save the input.

    `cut_off` is an interrupted run whose input is used instead. Raises _UnlistedModel if the
    provider's list of models was never read, except with `is_looked_up`.
    """
    run = _take_lease(tx, request, cut_off)
    turn = _load_turn(tx, runtime, request, models, run=run, is_looked_up=is_looked_up)
    if turn.state.conversation.egress:
        require_permitted(turn.state, turn.destination)
    if runtime.settings.egress_refuses:
        _require_whole(turn.window, turn.destination, turn.clearance)
    earlier_input = input_of(tx, cut_off) if cut_off else ()
    if cut_off and earlier_input:
        stored = _adopt_input(tx, turn, cut_off, earlier_input)
    else:
        stored = save_input(tx, turn, runtime.settings.approval_expiry)
    if request.delivery.also_save:
        request.delivery.also_save(tx, turn.run, ())
    return replace(
        turn,
        run=stored.run,
        window=stored.window,
        approval=stored.approval,
        rules=CallRules(turn.rules.book, stored.finished),
    )


def _load_turn(
    tx: Transaction,
    runtime: Runtime,
    request: TurnRequest,
    models: OrganizationModels,
    *,
    run: Run,
    is_looked_up: bool,
) -> TurnContext:
    """Return the turn before its input: its state, model, rules and window.

    Raises _UnlistedModel if the provider's list of models was never read, except with
    `is_looked_up`.
    """
    own_state = effective(agents.load(tx, request.scope, request.agent_id, request.conversation_id))
    if not request.scope.owns(own_state.conversation.user_id):
        raise Forbidden(SHARED)
    state = own_state
    if request.overrides.model not in (None, own_state.agent.model):
        state = _with_borrowed_model(own_state, request.overrides.model, models)
    is_borrowed = state is not own_state
    if not is_looked_up and models.is_unlisted(state.agent.model):
        raise _UnlistedModel(state.agent.model)
    model = models.get(state.agent.model)
    learned = learned_of(model)
    window_tokens = learned.window if learned else None
    if window_tokens and window_tokens < state.agent.context_window:
        state = within_window(state, window_tokens)
    (state,) = runtime.complete(tx, (state,))
    # Messages in a user's conversation are about that user and belong to that user.
    run = replace(run, user_id=run.user_id or state.conversation.user_id)
    if runtime.settings.daily_tokens or DAILY_TOKENS in state.agent.settings:
        require_budget(tx, runtime.settings, state.agent, request.delivery.purpose)
    conversation = state.conversation
    window = ContextWindow(
        read_window(tx, state), conversation.prompt_key, conversation.message_count
    )
    # A turn overwrites the window's first message with its prompt, so that must be a system
    # message.
    if not window.messages or window.messages[0].role != "system":
        window = _with_system_message(tx, runtime, state, window.messages)
    if state.agent.clears_buffer:
        window = _without_leftovers(window, state, request)
    profile = profile_of(state.agent, model.info, runtime.settings.model_profile)
    if profile != "full":
        state = with_profile(state, profile, runtime.toolbox)
    if request.overrides.added_tools or request.overrides.only_tools is not None:
        state = _with_tools(tx, state, request, runtime)
    if 0 < runtime.settings.tool_search_from <= len(state.tools):
        state = _with_tool_search(state, runtime)
    limit = WindowLimit(token_percent=state.conversation.token_percent or 100)
    if is_borrowed:
        limit = WindowLimit(own_window=own_state.agent.context_window)
    clearance = Clearance(runtime.networks)
    destination = clearance.networks.of_model(model.info)
    find_spans = partial(spans_of, runtime.settings.data_dir)
    state = cleared_state(state, destination, clearance, find_spans)
    return TurnContext(
        runtime=runtime,
        request=request,
        payer=ReplyAccount(
            runtime.store,
            run.organization_id,
            "sleeptime" if run.purpose == "sleeptime" else "turn",
            agent_id=run.agent_id,
            user_id=run.user_id,
        ),
        run=run,
        state=state,
        model=model,
        window=window,
        rules=CallRules(rulebook(state, request.overrides.client_tools)),
        limit=limit,
        learned=learned,
        clearance=clearance,
        destination=destination,
        profile=profile,
        memory_in_prompt=memory_in_prompt(
            state.agent, model.info, runtime.settings.memory_in_prompt
        ),
    )


def _with_tool_search(state: AgentState, runtime: Runtime) -> AgentState:
    """Return the state of an agent with many tools, with the tool that finds them."""
    if any(tool.name == FIND_TOOLS for tool in state.tools):
        return state
    finder = unstored_tool(runtime.toolbox.unstored(FIND_TOOLS), state.agent.organization_id)
    return replace(state, tools=(*state.tools, finder))


def _require_whole(window: ContextWindow, destination: Destination, clearance: Clearance) -> None:
    """Raise Forbidden if an egress policy withholds a part of the prompt."""
    clearance.messages(window.messages[1:], destination)
    if clearance.withheld:
        raise Forbidden(refusal(clearance, destination))


def _with_borrowed_model(
    state: AgentState, handle: str | None, models: OrganizationModels
) -> AgentState:
    """Return the state with the model that the request wants for this turn."""
    info = models.get(handle or "").info
    return with_model(state, info.handle, info.context_window)


def _without_leftovers(
    window: ContextWindow, state: AgentState, request: TurnRequest
) -> ContextWindow:
    """Return the window without leftovers of a failed turn.

    For agents with `clears_buffer`, whose turns begin with only the system message.
    """
    is_continued = bool(request.approval or request.compaction or window.waiting)
    if is_continued or not state.conversation.last_run_ended_at:
        return window
    return replace(
        window,
        messages=window.messages[:1],
        prompt_key=key_without_edits(window.prompt_key),
    )


def _take_lease(tx: Transaction, request: TurnRequest, cut_off: Run | None) -> Run:
    """Store the request's run, whose row is the lease.

    Raises Collision if the conversation has an open run, or if the original of a retry was
    accepted.
    """
    run = new_run(tx, request)
    planned = (
        replace(run, id=request.delivery.planned_run)
        if request.delivery.planned_run and not cut_off
        else None
    )
    if planned:
        # On PostgreSQL, the insert of a new run waits for this lock, because of its foreign key. A
        # planned run is only updated, which would not wait, so take the lock here.
        conversations.lock(tx, planned.conversation_id)
    if planned and runs.begin_planned(tx, planned):
        run = planned
    else:
        runs.open_run(tx, run)
    # A retry may overtake its original, so the original is looked for in this transaction.
    earlier = same_body(tx, request, other_than=run.id) if request.delivery.is_retry else None
    if earlier and (cut_off is None or earlier.id != cut_off.id):
        raise Collision("The same request was accepted before.")
    return run


def _in_group(tx: Transaction, run: Run, group_fields: dict[str, Any]) -> Run:
    """Record that the run is a turn in this group, and return the run.

    A run that has metadata already, such as its group, is returned unchanged.
    """
    if not group_fields or run.metadata:
        return run
    run = replace(run, metadata=group_fields)
    runs.save_metadata(tx, run)
    return run


def _with_tools(
    tx: Transaction, state: AgentState, request: TurnRequest, runtime: Runtime
) -> AgentState:
    """Return the state with the tools and rules that the request replaces and adds."""
    if request.overrides.only_tools is not None:
        scope = Scope(state.agent.organization_id)
        stored = stored_tools.by_names(tx, scope, request.overrides.only_tools)
        rules = tuple(rule for rule in state.agent.tool_rules if rule.tool_name in stored)
        agent = replace(state.agent, tool_rules=rules)
        state = replace(state, agent=agent, tools=tuple(stored.values()))
    tools = [
        unstored_tool(runtime.toolbox.unstored(name), state.agent.organization_id)
        for name in request.overrides.added_tools
    ]
    agent = replace(
        state.agent, tool_rules=(*state.agent.tool_rules, *request.overrides.added_rules)
    )
    return replace(state, agent=agent, tools=(*state.tools, *tools))


@dataclass(frozen=True, slots=True)
class StoredInput:
    """A turn's stored input, and the parts of the turn that it changes.

    Attributes:
        run: The run, with the group of the turn that it continues.
        window: The window with the input. The input is at its end, unless the agent has already
            acted on it.
        approval: The answered request for approval that the turn resumes.
        finished: Calls of the turn that is continued; they count for the tool rules.
    """

    run: Run
    window: ContextWindow
    approval: AnsweredApproval | None = None
    finished: list[FinishedCall] = field(default_factory=list)


def save_input(tx: Transaction, turn: TurnContext, expiry: float) -> StoredInput:
    """Store the input, and return it with the window, which now ends with it.

    Args:
        tx: The transaction.
        turn: The turn that starts. The user's new messages are added to the exemptions of its
            clearance, unless they have an egress policy of their own.
        expiry: The seconds after which waiting calls expire.

    Raises:
        Conflict: Calls wait for an answer.
        Invalid: The input answers no waiting call, or does not fit the waiting calls.
        Collision: The answer was accepted before, or a message has the otid of a stored one.
    """
    request = turn.request
    run = turn.run
    now = tx.clock.now()
    user_id = turn.state.conversation.user_id
    label = turn.state.conversation.egress
    new_messages = [
        new_message.signed(
            run.new_message(new_message.role, new_message.parts, now),
            is_untrusted=new_message.is_others(request.scope, user_id),
            label=label,
        )
        for new_message in request.messages
    ]
    # An assistant's answer that the client sends back is not a statement of the user.
    turn.clearance.exempt |= {
        message.id for message in new_messages if not message.egress and message.role != "assistant"
    }
    if turn.clearance.texts:
        new_messages = [turn.clearance.with_labels(message) for message in new_messages]
    approval = _approval_to_apply(tx, turn, request.approval) if request.approval else None
    if approval:
        return _save_approval(tx, turn, approval, new_messages)
    preceding: list[Message] = []
    if request.approval and not new_messages:
        new_messages = [run.new_message("user", (EventPart(KEEP_ALIVE),), now)]
    if unanswered := turn.window.waiting:
        if now - unanswered.created_at < expiry * SECOND:
            raise Conflict(STILL_WAITING)
        preceding = [run.new_message("tool", expired_results(unanswered, EXPIRED), now)]
    # The conversation of a background task is deleted after the task, so the next chat reports the
    # rejections.
    reports_rejections = turn.state.conversation.has_untold and request.delivery.purpose is None
    if reports_rejections and new_messages:
        preceding += tell_rejections(tx, turn, now)
    input_messages = [*preceding, *new_messages]
    insert_messages(tx, input_messages)
    return StoredInput(run, turn.window.with_input(input_messages))


def _adopt_input(
    tx: Transaction, turn: TurnContext, cut_off: Run, input_messages: Sequence[Message]
) -> StoredInput:
    """Move the input of an interrupted run to this run, and return the input.

    If the agent has already acted on the input, and nobody has written since, the input stays where
    it is in the window. Otherwise it moves to the window's end. Raises Conflict if calls wait for
    an answer, or if the input is an answer to calls and somebody has written since.
    """
    window = turn.window
    group_fields = {name: cut_off.metadata[name] for name in _OF_GROUP if name in cut_off.metadata}
    run = _in_group(tx, turn.run, group_fields)
    if window.waiting:
        raise Conflict(STILL_WAITING)
    ids = {message.id for message in input_messages}
    indexes = [index for index, message in enumerate(window.messages) if message.id in ids]
    later = window.messages[indexes[-1] + 1 :] if indexes else []
    was_answered = bool(later)
    has_new_input = any(message.is_said for message in later)
    if has_new_input and any(message.role == "approval" for message in input_messages):
        raise Conflict(
            "This turn was interrupted, and the conversation has newer messages. Ask the agent again."
        )
    if was_answered and not has_new_input:
        messages.move(tx, input_messages, run.id)
        return StoredInput(
            run, replace(window, first=indexes[0]), finished=finished_before(window.messages)
        )
    input_messages = messages.move(tx, input_messages, run.id, tx.clock.now())
    remaining = [message for message in window.messages if message.id not in ids]
    conversations.save_window(
        tx,
        turn.state.conversation.id,
        [message.id for message in remaining],
        window.prompt_key,
        added=-len(input_messages),
    )
    return StoredInput(run, replace(window, messages=remaining).with_input(input_messages))


def tell_rejections(tx: Transaction, turn: TurnContext, now: int) -> list[Message]:
    """Return messages with the reasons for rejected proposals, each once.

    They are not stored yet.

    Args:
        tx: The transaction.
        turn: The turn that starts. Only proposals for the memory of its run's user count.
        now: The present time in microseconds UTC.
    """
    conversation = turn.state.conversation
    user_id = turn.run.user_id
    if user_id is None:
        return []
    # A concurrent rejection waits for this lock and then sets the flag again.
    conversations.lock(tx, conversation.id)
    rejections = proposals.take_untold(tx, conversation.agent_id, user_id, _REJECTION_LIMIT)
    conversations.set_untold(tx, conversation.id, len(rejections) == _REJECTION_LIMIT)
    shown_labels = {(block.chain_id, block.label): block.shown_label for block in turn.state.blocks}
    time = local_time(now, turn.state.agent.timezone)
    events = [
        rejection_event(
            shown_labels.get((rejection.chain_id, rejection.label), rejection.label),
            rejection.proposal_id,
            rejection.reason,
            time,
        )
        for rejection in rejections
    ]
    return [
        replace(turn.run.new_message("user", (event,), now), egress=conversation.egress)
        for event in events
    ]


def _approval_to_apply(tx: Transaction, turn: TurnContext, approval: Approval) -> Approval | None:
    """Return the request's answer to calls; None if the answer was applied before.

    In that case, other messages of the request begin a new turn.
    """
    waiting = turn.window.waiting
    call_ids = {
        part.call_id for part in approval.parts if isinstance(part, ApprovalPart | ToolReturnPart)
    }
    is_due = bool(
        waiting and (not call_ids or call_ids & {call.call_id for call in waiting.tool_calls})
    )
    if is_due:
        return approval
    earlier_run = same_decision(tx, turn.request)
    if earlier_run is None:
        return approval
    if not (turn.request.messages or was_broken_off(earlier_run)):
        raise Collision("This answer was accepted before.")
    return None


def _save_approval(
    tx: Transaction, turn: TurnContext, approval: Approval, new_messages: Sequence[Message]
) -> StoredInput:
    """Match the answer with the waiting calls, and store it as a message.

    New messages follow it once the calls have results.
    """
    if approval.otid and messages.by_otids(tx, turn.run.conversation_id, [approval.otid]):
        # Check for a repeated answer first. Otherwise the error would say that no call waits.
        raise Collision("This answer was accepted before.")
    answer = answered(turn.window.waiting, approval)
    # If the resumed turn was in a group, this turn belongs to that group too.
    asking = answer.request
    group_fields = {"group_id": asking.group_id, "speaker": asking.name}
    run = _in_group(tx, turn.run, group_fields if asking.group_id else {})
    message = replace(
        run.new_message("approval", answer.parts, tx.clock.now()),
        otid=approval.otid,
        is_untrusted=bool(answer.returns),
        egress=turn.state.conversation.egress,
    )
    insert_messages(tx, [message, *new_messages])
    return StoredInput(
        run=run,
        window=turn.window.with_answer(message, new_messages),
        approval=answer,
        finished=finished_before(turn.window.messages),
    )


def answered(request: Message | None, approval: Approval) -> AnsweredApproval:
    """Return the waiting request with this answer.

    Args:
        request: The message whose calls wait; None if none waits.
        approval: The client's decisions and results. They must answer each waiting call exactly
            once.

    Raises:
        Invalid: No call waits, or the answer does not fit.
    """
    if request is None:
        raise Invalid(NOTHING_WAITS)
    gated = {call.call_id: call for call in request.waiting_calls}
    parts = _answer_parts(request, approval, list(gated))
    ids = [part.call_id for part in parts if isinstance(part, ApprovalPart | ToolReturnPart)]
    if sorted(ids) != sorted(gated):
        raise Invalid(f"Invalid tool call IDs. Expected '{list(gated)}', but received '{ids}'.")
    # Results of the client are untrusted, and do not name their tool.
    decisions = [
        replace(part, request_id=request.id) for part in parts if isinstance(part, ApprovalPart)
    ]
    client_results = [part for part in parts if isinstance(part, ToolReturnPart)]
    answer_results = [
        replace(part, is_untrusted=True, request_id=request.id) for part in client_results
    ]
    returns = {
        part.call_id: replace(part, is_untrusted=True, name=gated[part.call_id].name)
        for part in client_results
    }
    return AnsweredApproval(
        request, {part.call_id: part for part in decisions}, returns, (*decisions, *answer_results)
    )


def _answer_parts(request: Message, approval: Approval, gated: Sequence[str]) -> tuple[Part, ...]:
    """Return the parts of an answer, with call ids also for the forms of older clients.

    Older clients decide on all calls at once, or name the message that asked instead of its only
    call. Raises Invalid if a decision on all calls names another request. The other ids are not
    checked here.
    """
    if approval.approves is not None:
        if approval.request_id not in (None, "", request.id, *gated):
            raise Invalid(
                f"Invalid approval request ID. Expected '{request.id}' but received "
                f"'{approval.request_id}'."
            )
        return tuple(ApprovalPart(id, approval.approves, approval.reason) for id in gated)
    if not len(gated) == len(approval.parts) == 1:
        return approval.parts
    (part,) = approval.parts
    if isinstance(part, ApprovalPart | ToolReturnPart) and part.call_id == request.id:
        part = replace(part, call_id=gated[0])
    return (part,)


def finished_before(window: Sequence[Message]) -> list[FinishedCall]:
    """Return the calls that have finished since the last message of a person.

    When a waiting or interrupted turn continues, its tool rules count them.

    Args:
        window: The conversation's messages in context, in order.
    """
    results: list[ToolReturnPart] = []
    for message in reversed(window):
        if message.is_said:
            break
        results = [*message.tool_returns, *results] if message.role == "tool" else results
    return finished_calls(results)


def resolve_conflict(tx: Transaction, runtime: Runtime, request: TurnRequest) -> Run | None:
    """After the database refused the turn, return the run that accepted the request before.

    A dead run that had the lease is closed.

    Args:
        tx: A transaction after the one that the database refused.
        runtime: The runtime, which knows the runs that live in this process.
        request: The refused request.

    Returns:
        The run; if the server's stop cut it off, the turn is repeated. None: the turn can be tried
        again.

    Raises:
        NotFound: The agent or the conversation does not exist, or the caller may not see it.
        Conflict: A message's otid belongs to another request.
        Busy: Another turn runs in the conversation.
    """
    conversation = conversations.get(tx, conversation_of(request))
    agents.require(tx, request.scope, request.agent_id)
    is_visible = conversation is not None and request.scope.sees(conversation.user_id)
    if conversation is None or not is_visible or conversation.agent_id != request.agent_id:
        raise NotFound(f"Conversation with ID {request.conversation_id} not found")
    earlier_run = same_otids(tx, request) or same_body(tx, request) or same_decision(tx, request)
    if earlier_run and request.approval and was_broken_off(earlier_run):
        earlier_run = None
    if earlier_run and not was_cut_off(earlier_run):
        return earlier_run
    for run in runs.open_runs(tx, conversation_id=conversation.id):
        # A turn of this process is alive even with an expired lease, since the clock may have
        # jumped while the machine slept.
        if run.id in runtime.live or not heal(tx, run, is_gone=run.id in runtime.unended):
            raise Busy(run.id)
    return earlier_run


def _with_system_message(
    tx: Transaction, runtime: Runtime, state: AgentState, window: Sequence[Message]
) -> ContextWindow:
    """If a window has no system message, store one in front, and return the window."""
    conversation = state.conversation
    system, key = system_message(tx, runtime, state)
    insert_messages(tx, [system])
    ids = [system.id, *(message.id for message in window)]
    conversations.save_window(tx, conversation.id, ids, key, added=1)
    return ContextWindow([system, *window], key, conversation.message_count + 1)


def new_run(tx: Transaction, request: TurnRequest) -> Run:
    """Return an open run for the request, not yet stored.

    Its row is the lease.

    Args:
        tx: The transaction, for its clock.
        request: The turn's request.
    """
    now = tx.clock.now()
    return Run(
        id=new_id("run"),
        organization_id=request.scope.organization_id,
        agent_id=request.agent_id,
        conversation_id=request.conversation_id or conversations.default_id(request.agent_id),
        status="running",
        user_id=request.scope.subject,
        background=request.delivery.is_background,
        purpose=request.delivery.purpose,
        callback=request.delivery.callback,
        body_hash=request.delivery.body_hash,
        request_config=request.delivery.request_config,
        metadata=request.delivery.metadata,
        created_at=now,
        lease_token=secrets.token_hex(16),
        lease_expires_at=now + LEASE,
    )
