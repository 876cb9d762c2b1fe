"""The loop of one turn: ask the model, run the tools it calls, save the step whole, until it has nothing more to do.

Events are yielded as they happen; whole messages only after they are saved.
"""

import logging
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from ricordo.agents.agent_types import traits_of
from ricordo.agents.approvals import Answered
from ricordo.agents.context_limit import calibrate, compact_only, fitted, in_brief, is_too_long, learn, make_room
from ricordo.agents.deltas import Deltas
from ricordo.agents.edit_context import memory_of
from ricordo.agents.request import StepDraft, TurnContext
from ricordo.agents.step_save import save_calls, save_step
from ricordo.agents.styles import (
    REMINDER,
    NextAction,
    OfferedTools,
    ParsedReply,
    Style,
    decide,
    read,
    read_again,
    require_before_exit,
    style_of,
)
from ricordo.domain.event import ApprovalAsked, Event, RunEnded, StepSaved
from ricordo.domain.ids import new_id
from ricordo.domain.message import Message, Part, ToolCallPart, ToolReturnPart
from ricordo.domain.model import ModelReply, ModelRequest, Restarted, ToolSchema
from ricordo.errors import ModelError
from ricordo.prompt.assemble import system_prompt
from ricordo.prompt.fitting import SystemPromptTooLong
from ricordo.prompt.transcript import has_pictures, transcript, without_pictures
from ricordo.runtime import Runtime
from ricordo.tools.presenting import THINKING, with_thoughts
from ricordo.tools.toolbox import ToolContext, schema_of

log = logging.getLogger(__name__)
_MAY_BE_A_PICTURE = ("llm_bad_request", "llm_error")
_ATTEMPTS = 5


async def run_loop(runtime: Runtime, turn: TurnContext) -> AsyncIterator[Event]:
    """Take steps until the style or a rule says stop, or the limit is reached; the last step's save ends the run."""
    style, coming = style_of(turn.state.agent.agent_type), NextAction()
    if turn.request.compaction:
        async for event in compact_only(
            runtime, turn, _assemble(runtime, turn, _offer(runtime, turn, style), is_first=True)
        ):
            yield event
        return
    if turn.answered:
        saved, coming = await _take_up(runtime, turn, style, turn.answered)
        yield saved
    for number in range(1, turn.request.max_steps + 1):
        if coming.stop:
            break
        step = StepDraft(number, memory_of(runtime, turn), runtime.store.clock.now())
        offer = _offer(runtime, turn, style)
        reply: ModelReply | None = None
        async for item in _ask(runtime, turn, step, offer):
            if isinstance(item, ModelReply):
                reply = _with_different_call_ids(item)
            else:
                yield item
        if reply is None:
            raise ModelError("llm_empty_response", "The model ended its answer without one. Try again.")
        reading = read(reply, offer, turn.rules, _client_tools(turn))
        reply = replace(reply, parts=reading.parts)
        if _acts_outside(runtime, reading.calls) and not reading.is_waiting:
            yield await save_calls(runtime, turn, step, reply)
        results = [] if reading.is_waiting else await _run_tools(runtime, turn, step, reading)
        coming = _next(turn, style, reply, offer, reading, results, before=coming)
        if coming.stop is None and number == turn.request.max_steps:
            coming = NextAction("max_steps")
        yield await save_step(runtime, turn, step, reply, coming, results)
        if reading.is_waiting:
            yield ApprovalAsked(turn.run.id, turn.window[-1])
    yield RunEnded(turn.run)


async def _take_up(runtime: Runtime, turn: TurnContext, style: Style, answer: Answered) -> tuple[StepSaved, NextAction]:
    """Run what was approved, take what the client did, and go on where the turn waited; what else was said comes after that."""
    memory = memory_of(runtime, turn)
    step = StepDraft(0, memory, runtime.store.clock.now(), id=answer.request.step_id or "")
    reading = read_again(answer, _offer(runtime, turn, style), turn.rules, _client_tools(turn))
    results = answer.results(await _run_tools(runtime, turn, step, reading))
    coming = decide(style, turn.rules, reading, results, turn.called)
    if turn.waiting:
        coming = NextAction()  # somebody said something beside the answer: that wants an answer too
    return await save_step(runtime, turn, step, None, coming, results), coming


async def _ask(
    runtime: Runtime, turn: TurnContext, step: StepDraft, offer: OfferedTools
) -> AsyncIterator[Event | ModelReply]:
    """One answer of the model. What does not fit its window, or is a picture it cannot take, is made to fit and asked again."""
    thoughts = THINKING if offer.how.thinks_in_arguments else None
    held = {name for name in offer.tools if turn.rules.needs_approval(name)} | _client_tools(turn).keys()
    deltas, is_blind = Deltas(turn.run.id, step.id, step.message_id, thoughts=thoughts, held=held), False
    refusal: ModelError | None = None
    for attempt in range(1, _ATTEMPTS + 1):
        request = _assemble(runtime, turn, offer, is_first=step.number == 1)
        if is_too_long(turn, request):
            compacted = await make_room(runtime, turn, request)
            if compacted:
                yield compacted
                request = _assemble(runtime, turn, offer, is_first=False)
            try:
                request = await _cut_to_fit(turn, offer, request)
            except SystemPromptTooLong as error:
                raise refusal or error from None  # where the provider refused, its own words say more than our count
        if is_blind:
            request = replace(request, messages=without_pictures(request.messages))
        try:
            async for item in _answer(turn, step, request, deltas):
                yield item
        except ModelError as error:
            may_be_a_picture = error.kind in _MAY_BE_A_PICTURE and has_pictures(request.messages)
            if attempt == _ATTEMPTS or not (may_be_a_picture or error.kind == "context_window_exceeded"):
                raise
            # Some servers answer 400 to a picture and some 500; without this one picture would silence the agent for good.
            log.warning("asking again with less", extra={"run": turn.run.id, "kind": error.kind})
            if may_be_a_picture:
                is_blind = True
            else:
                refusal = error
                learn(turn, request)
            for void in deltas.events(Restarted()):
                yield void
        else:
            return


async def _cut_to_fit(turn: TurnContext, offer: OfferedTools, request: ModelRequest) -> ModelRequest:
    """The request, where it is too long even so, with less in it; what is stored stays whole."""
    if turn.own_window and is_too_long(turn, request):
        request = replace(request, messages=_shown(turn, offer, await in_brief(turn, request)))
    return fitted(turn, request)


async def _answer(
    turn: TurnContext, step: StepDraft, request: ModelRequest, deltas: Deltas
) -> AsyncIterator[Event | ModelReply]:
    began = time.monotonic_ns()
    turn.asking, step.asked, step.asked_ns = step, request, began
    async for item in turn.model.answer(request):
        step.first_ns = step.first_ns or time.monotonic_ns() - began
        if isinstance(item, ModelReply):
            step.model_ns = time.monotonic_ns() - began
            turn.asking = None
            step.message_id = deltas.message_id
            calibrate(turn, request, item.usage)
            yield item
        else:
            for event in deltas.events(item):
                yield event


def _offer(runtime: Runtime, turn: TurnContext, style: Style) -> OfferedTools:
    """What the model is offered now: the agent's tools and the caller's, as far as the rules allow them.

    Where a block is changed in the user's own words alone, the tools that edit memory take these words too.
    """
    theirs = turn.request.client_tools
    names = {tool.name for tool in theirs}
    tools = (*(schema_of(tool) for tool in turn.state.tools if tool.name not in names), *theirs)
    quoting: frozenset[str] = frozenset()
    if any(block.rule == "explicit" for block in turn.state.blocks):
        quoting = frozenset(tool.name for tool in turn.state.tools if runtime.toolbox.edits_memory(tool.name)) - names
    return style.present(tools, turn.rules.allowed(turn.called), turn.rules, turn.state.agent, quoting)


def _assemble(runtime: Runtime, turn: TurnContext, offer: OfferedTools, *, is_first: bool) -> ModelRequest:
    """The model's input for this step; rebuilds the system message only where it has to change."""
    agent, info, now = turn.state.agent, turn.model.info, runtime.store.clock.now()
    recall_count = max(0, turn.state.conversation.message_count + turn.unsaved - len(turn.window))
    prompt = system_prompt(turn.state, info.provider, now, recall_count=recall_count, rule_lines=turn.rules.lines())
    if not prompt.is_current(turn.prompt_key, first_step=is_first):
        turn.refresh_system(prompt.text, prompt.key, now)
    settings = agent.model_settings
    if offer.tools and turn.rules.is_ordered:
        settings = replace(settings, parallel_tool_calls=False)
    if offer.how.response_format is not None:
        settings = replace(settings, response_format=None)  # it is in the speaking tool's arguments
    return ModelRequest(
        messages=_shown(turn, offer, turn.window),
        tools=tuple(offer.tools.values()),
        tool_choice=offer.choice,
        settings=settings,
        stream=turn.request.streams_tokens,
        user_id=turn.request.scope.user_id,
    )


def _shown(turn: TurnContext, offer: OfferedTools, window: Sequence[Message]) -> tuple[Message, ...]:
    """The messages as this model gets them."""
    agent = turn.state.agent
    if turn.request.system is not None:
        window = [window[0].with_text(turn.request.system), *window[1:]]
    packs = traits_of(agent.agent_type).packs_user_messages
    messages = transcript(window, agent.timezone, agent.context_window, packs_user_messages=packs)
    return with_thoughts(messages) if offer.how.thinks_in_arguments else messages


def _next(
    turn: TurnContext,
    style: Style,
    reply: ModelReply,
    offer: OfferedTools,
    reading: ParsedReply,
    results: Sequence[ToolReturnPart],
    *,
    before: NextAction,
) -> NextAction:
    """What comes after this step; `before` is what came before it."""
    if reading.is_waiting:
        return NextAction("requires_approval")
    if results:
        return decide(style, turn.rules, reading, results, turn.called)
    coming = style.after_text(reply, offer, was_reminded=before.heartbeat == REMINDER)
    coming = require_before_exit(turn.rules, turn.called, coming)
    # Who was just told which tool to call and answers in words again would go on so up to the limit of steps.
    return NextAction("no_tool_call") if coming.heartbeat and coming.heartbeat == before.heartbeat else coming


async def _run_tools(
    runtime: Runtime, turn: TurnContext, step: StepDraft, reading: ParsedReply
) -> list[ToolReturnPart]:
    """The results of the step's calls, in the order of the calls; those that must not run have theirs already."""
    if not reading.calls:
        return list(reading.refused)
    began = time.monotonic_ns()
    step.memory.quotes.update(reading.quotes)

    def context(call_id: str) -> ToolContext:
        return ToolContext(call_id, turn.state, step.memory, runtime.store, turn.request.scope, runtime.recall)

    attached = {tool.name: tool for tool in turn.state.tools}
    run = await runtime.toolbox.run(reading.calls, attached, context)
    step.tools_ns = time.monotonic_ns() - began
    if not reading.refused:
        return run
    known = {result.call_id: result for result in (*run, *reading.refused)}
    # Of a reply that waited some calls are neither: they were denied, or done by the client.
    return [
        known[call_id]
        for part in reading.parts
        if isinstance(part, ToolCallPart) and (call_id := part.call_id) in known
    ]


def _client_tools(turn: TurnContext) -> dict[str, ToolSchema]:
    return {tool.name: tool for tool in turn.request.client_tools}


def _with_different_call_ids(reply: ModelReply) -> ModelReply:
    """The reply, its second use of a call id replaced: results are matched to calls by it, each call having one."""
    calls = [part for part in reply.parts if isinstance(part, ToolCallPart)]
    if len({call.call_id for call in calls}) == len(calls):
        return reply
    seen: set[str] = set()
    parts: list[Part] = []
    for part in reply.parts:
        if isinstance(part, ToolCallPart):
            parts.append(replace(part, call_id=new_id("call")) if part.call_id in seen else part)
            seen.add(part.call_id)
        else:
            parts.append(part)
    return replace(reply, parts=tuple(parts))


def _acts_outside(runtime: Runtime, calls: tuple[ToolCallPart, ...]) -> bool:
    tools = (runtime.toolbox.get(call.name) for call in calls)
    return any(tool is not None and tool.acts_outside for tool in tools)
