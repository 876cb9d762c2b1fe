"""The loop of one turn: ask the model, run the tools it calls, save the step whole, until it has nothing more to do.

Events are yielded as they happen; whole messages only after they are saved.
"""

import logging
import time
from collections.abc import AsyncIterator
from dataclasses import replace

from ricordo.agents.deltas import Deltas
from ricordo.agents.request import StepDraft, TurnContext
from ricordo.agents.saving import save_calls, save_step
from ricordo.agents.styles import Reading, style_of
from ricordo.domain.event import Event, RunEnded, StepSaved
from ricordo.domain.ids import new_id
from ricordo.domain.message import Part, ToolCallPart, ToolReturnPart
from ricordo.domain.model import ModelReply, ModelRequest, Restarted
from ricordo.errors import ModelError
from ricordo.memory.working import WorkingMemory
from ricordo.prompt.assemble import system_prompt
from ricordo.prompt.transcript import has_pictures, transcript, without_pictures
from ricordo.runtime import Runtime
from ricordo.tools.toolbox import ToolContext

log = logging.getLogger(__name__)
_MAY_BE_A_PICTURE = ("llm_bad_request", "llm_error")


async def run_loop(runtime: Runtime, turn: TurnContext) -> AsyncIterator[Event]:
    """Take steps until the style says stop or the limit is reached; the last step's save ends the run."""
    style = style_of(turn.state.agent.agent_type)
    for number in range(1, turn.request.max_steps + 1):
        step = StepDraft(number, WorkingMemory(turn.state), runtime.store.clock.now())
        reply: ModelReply | None = None
        async for item in _ask(runtime, turn, step):
            if isinstance(item, ModelReply):
                reply = _with_different_call_ids(item)
            else:
                yield item
        if reply is None:
            raise ModelError("llm_empty_response", "The model ended its answer without one. Try again.")
        reading = style.read(reply)
        if reading.stop is None and number == turn.request.max_steps:
            reading = replace(reading, stop="max_steps")
        saved: list[StepSaved] = []
        if _acts_outside(runtime, reading.calls):
            saved.append(await save_calls(runtime, turn, step, reply))
        results = await _run_tools(runtime, turn, step, reading)
        saved.append(await save_step(runtime, turn, step, reply, reading.stop, results))
        for event in saved:
            yield event
        if reading.stop:
            yield RunEnded(turn.run)
            return


async def _ask(runtime: Runtime, turn: TurnContext, step: StepDraft) -> AsyncIterator[Event | ModelReply]:
    request = _assemble(runtime, turn, is_first=step.number == 1)
    deltas = Deltas(turn.run.id, step.id, step.message_id)
    try:
        async for item in _answer(turn, step, request, deltas):
            yield item
    except ModelError as error:
        if error.kind not in _MAY_BE_A_PICTURE or not has_pictures(request.messages):
            raise
        # Some servers answer 400 to a picture and some 500; without this one picture would silence the agent for good.
        log.warning("asking again without pictures", extra={"run": turn.run.id, "kind": error.kind})
        if void := deltas.read(Restarted()):
            yield void
        blind = replace(request, messages=without_pictures(request.messages))
        async for item in _answer(turn, step, blind, deltas):
            yield item


async def _answer(
    turn: TurnContext, step: StepDraft, request: ModelRequest, deltas: Deltas
) -> AsyncIterator[Event | ModelReply]:
    began = time.monotonic_ns()
    async for item in turn.model.answer(request):
        step.first_ns = step.first_ns or time.monotonic_ns() - began
        if isinstance(item, ModelReply):
            step.model_ns = time.monotonic_ns() - began
            step.message_id = deltas.message_id
            yield item
        elif event := deltas.read(item):
            yield event


def _assemble(runtime: Runtime, turn: TurnContext, *, is_first: bool) -> ModelRequest:
    """The model's input for this step; rebuilds the system message only where it has to change."""
    agent, info, now = turn.state.agent, turn.model.info, runtime.store.clock.now()
    recall_count = max(0, turn.state.conversation.message_count + turn.unsaved - len(turn.window))
    prompt = system_prompt(turn.state, info.provider, now, recall_count=recall_count)
    if not prompt.is_current(turn.prompt_key, first_step=is_first):
        turn.refresh_system(prompt.text, prompt.key, now)
    tools, choice = style_of(agent.agent_type).present(turn.state.tools)
    return ModelRequest(
        messages=transcript(turn.window, agent.timezone, agent.context_window),
        tools=tools,
        tool_choice=choice if tools else "none",
        settings=agent.model_settings,
        stream=turn.request.streams_tokens,
        user_id=turn.request.scope.user_id,
    )


async def _run_tools(runtime: Runtime, turn: TurnContext, step: StepDraft, reading: Reading) -> list[ToolReturnPart]:
    if not reading.calls:
        return []
    began = time.monotonic_ns()

    def context(call_id: str) -> ToolContext:
        return ToolContext(call_id, turn.state, step.memory, runtime.store, turn.request.scope, runtime.recall)

    attached = {tool.name: tool for tool in turn.state.tools}
    results = await runtime.toolbox.run(reading.calls, attached, context)
    step.tools_ns = time.monotonic_ns() - began
    return results


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
