"""The loop of one turn: ask the model, run the tools it calls, save the step whole, until a step ends the turn.

Events are yielded as they happen; whole messages only after they are saved.
"""

import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ricordo.agents.agent_types import traits_of
from ricordo.agents.context_limit import (
    calibrate,
    compact,
    fitted,
    is_too_long,
    learn,
    outlined,
    with_fitting_budget,
)
from ricordo.agents.feed import Deltas
from ricordo.agents.request import Answered, StepDraft, TurnContext
from ricordo.agents.step_decisions import (
    NextAction,
    OfferedTools,
    ParsedReply,
    finished_calls,
    next_action,
    offer_tools,
    parse_approved,
    parse_nested,
    parse_reply,
)
from ricordo.agents.step_save import save_calls, save_step
from ricordo.agents.tracing import begin_exchange
from ricordo.domain.event import ApprovalAsked, Event, RunEnded, StepSaved, ToolProgress
from ricordo.domain.message import Message, ToolCallPart, ToolReturnPart
from ricordo.domain.model import Chunk, ModelReply, ModelRequest, Restarted
from ricordo.errors import Invalid, ModelError
from ricordo.llm.answer_format import with_instruction
from ricordo.llm.exchange import EXCHANGE
from ricordo.llm.policy import EmptyReply, is_after_results
from ricordo.memory.schemas import schemas_in
from ricordo.memory.working_memory import WorkingMemory
from ricordo.prompt.system_prompt import system_prompt, with_skills
from ricordo.prompt.transcript import has_pictures, transcript, without_pictures
from ricordo.prompt.truncation import SystemPromptTooLong
from ricordo.tools.presentation import SPOKEN, THINKING, with_thoughts
from ricordo.tools.toolbox import CallingStep, ToolContext

log = logging.getLogger(__name__)
_MAY_BE_A_PICTURE = ("llm_bad_request", "llm_error")
_ATTEMPTS = 5
# So often a request is made shorter for a refusal that only its size explains.
_JUDGED_ATTEMPTS = 3
# Characters of what a tool reports while it runs.
_PROGRESS_SIZE = 500
# So many reports of a call, and so many more a second: streams are stored, and a tool may print a million lines.
_PROGRESS_FIRST = 20
_PROGRESS_MORE = 5


async def run_loop(turn: TurnContext) -> AsyncIterator[Event]:
    """Take steps until one ends the turn, or their limit is reached; the last step's save ends the run."""
    if turn.request.compaction:
        request = build_request(turn, offer_tools(turn), is_first=True)
        compacted = await compact(turn, request, stop="end_turn")
        if compacted is None:
            # The beginning is a wire fact of the retired Letta V1 server.
            raise Invalid(
                "Summarization failed to reduce the number of messages: "
                "there is nothing that could leave the window."
            )
        yield compacted
        yield RunEnded(turn.run)
        return
    action = NextAction()
    if turn.approval:
        saved, action = await resume_after_approval(turn, turn.approval)
        yield saved
    most = min(turn.request.max_steps, turn.state.agent.max_steps or turn.request.max_steps)
    for number in range(1, most + 1):
        if action.stop:
            break
        step = _new_step(turn, number)
        offered = offer_tools(turn)
        reply: ModelReply | None = None
        async for item in ask_model(turn, step, offered):
            if isinstance(item, ModelReply):
                reply = item
            else:
                yield item
        if reply is None:
            raise ModelError(
                "llm_empty_response", "The model ended its answer without one. Try again."
            )
        parsed = parse_reply(reply, offered)
        reply = replace(reply, parts=parsed.parts)
        if not parsed.is_waiting and any(_acts_outside(turn, call) for call in parsed.calls):
            yield await save_calls(turn, step, reply)
        results = await run_tools(turn, step, parsed)
        action = next_action(turn, offered, reply, parsed, results, action)
        if action.stop is None and number == most:
            action = NextAction("max_steps")
        saved = await save_step(turn, step, reply, action, results)
        # The tokens would show the secrets that were taken out of the texts.
        yield (
            replace(saved, logprobs=reply.logprobs)
            if reply.logprobs and not turn.removed
            else saved
        )
        if parsed.is_waiting:
            yield ApprovalAsked(turn.run.id, turn.window[-1])
    yield RunEnded(turn.run)


def _acts_outside(turn: TurnContext, call: ToolCallPart) -> bool:
    return any(
        tool.name == call.name and turn.runtime.toolbox.acts_outside(tool)
        for tool in turn.state.tools
    )


def _new_step(turn: TurnContext, number: int) -> StepDraft:
    memory = WorkingMemory(
        turn.state, turn.edit_guard(), schemas_in(turn.runtime.settings.data_dir)
    )
    return StepDraft(number, memory, turn.runtime.store.clock.now())


async def resume_after_approval(
    turn: TurnContext, answer: Answered
) -> tuple[StepSaved, NextAction]:
    """Run the approved calls, take the client's results, and save them; returns what comes next."""
    step = replace(_new_step(turn, 0), id=answer.request.step_id or "")
    offered = offer_tools(turn)
    parsed = parse_approved(answer, offered)
    results = answer.results(await run_tools(turn, step, parsed))
    action = next_action(turn, offered, None, parsed, results, NextAction())
    if turn.delayed:
        action = NextAction()  # what was said beside the answer wants an answer too
    return await save_step(turn, step, None, action, results), action


async def ask_model(
    turn: TurnContext, step: StepDraft, offered: OfferedTools
) -> AsyncIterator[Event | ModelReply]:
    """One answer of the model. What does not fit its window, or is a picture it cannot take, is reduced and asked again."""
    thoughts = THINKING if offered.how.thinks_in_arguments else None
    words = SPOKEN if offered.how.spoken else None
    deltas = Deltas(
        turn.run.id, step.id, step.message_id, thoughts=thoughts, words=words, held=offered.gated
    )
    refusal: ModelError | None = None
    is_blind = False
    judged = 0
    for attempt in range(1, _ATTEMPTS + 1):
        request = build_request(turn, offered, is_first=step.number == 1)
        if is_too_long(turn, request):
            if compacted := await compact(turn, request):
                yield compacted
            try:
                request = await _cut_to_fit(turn, offered)
            except SystemPromptTooLong as error:
                raise (
                    refusal or error
                ) from None  # where the provider refused, its own words say more than our count
        if is_blind:
            request = replace(request, messages=without_pictures(request.messages))
        request = with_fitting_budget(turn, request)
        turn.asking, step.asked, step.asked_ns = step, request, time.monotonic_ns()
        EXCHANGE.set(begin_exchange(turn, step))
        try:
            async for item in _answer_of(turn, step, deltas, request):
                if isinstance(item, ModelReply):
                    yield item
                else:
                    for event in deltas.events(item):
                        yield event
        except ModelError as error:
            judged += error.is_judged
            is_last = attempt == _ATTEMPTS or judged == _JUDGED_ATTEMPTS
            is_blind = _refused_a_picture(turn, request, error, is_last=is_last) or is_blind
            refusal = error if error.kind == "context_window_exceeded" else refusal
            for void in deltas.events(Restarted()):
                yield void
        else:
            return


async def _answer_of(
    turn: TurnContext, step: StepDraft, deltas: Deltas, request: ModelRequest
) -> AsyncIterator[Chunk | ModelReply]:
    """Ask the model, note when it answered, and learn from the provider's count."""
    try:
        async for item in turn.model.answer(request):
            step.first_ns = step.first_ns or time.monotonic_ns() - step.asked_ns
            if isinstance(item, ModelReply):
                EXCHANGE.set(None)
                turn.asking, step.model_ns = None, time.monotonic_ns() - step.asked_ns
                turn.runtime.speeds.note(turn.model.info.handle, item.usage, step.model_ns / 1e9)
                step.message_id = deltas.message_id
                calibrate(turn, request, item.usage)
            yield item
    except EmptyReply as error:
        # In the background nobody waits for words, and an agent that asked is told what was done.
        is_wordless = turn.request.is_background or turn.request.callers
        if not (is_wordless and is_after_results(request)):
            raise
        turn.asking = None
        step.message_id = deltas.message_id
        yield error.reply


def build_request(
    turn: TurnContext,
    offered: OfferedTools,
    *,
    is_first: bool = False,
    window: Sequence[Message] | None = None,
) -> ModelRequest:
    """The model's input for this step (with this `window`); rebuilds the system message only where it has to change."""
    agent = turn.state.agent
    asked = turn.request
    now = turn.runtime.store.clock.now()
    recall_count = turn.evicted_count()
    provider = turn.model.info.provider
    is_small = turn.profile != "full"
    prompt = system_prompt(
        turn.state,
        provider,
        now,
        recall_count=recall_count,
        rule_lines=turn.rules.lines,
        is_brief=is_small,
    )
    if not prompt.is_current(turn.prompt_key, first_step=is_first):
        turn.refresh_system(prompt.text, prompt.key, now)
    window = turn.window if window is None else window
    if asked.system is not None or asked.client_skills or asked.instructions:
        system = window[0].text if asked.system is None else asked.system
        system = f"{system}\n\n{asked.instructions}" if asked.instructions else system
        window = [window[0].with_text(with_skills(system, asked.client_skills)), *window[1:]]
    packs = traits_of(agent.agent_type).packs_user_messages
    is_plain = turn.reads_plain_results
    shown = transcript(
        window,
        agent.timezone,
        agent.context_window,
        packs_user_messages=packs,
        has_plain_results=is_plain,
    )
    settings = agent.model_settings
    if settings.max_output_tokens is None:
        settings = replace(settings, max_output_tokens=turn.output_budget)
    if asked.response_format is not None:
        settings = replace(settings, response_format=asked.response_format)
    if offered.tools and offered.is_ordered:
        settings = replace(settings, parallel_tool_calls=False)
    if offered.how.response_format is not None:
        settings = replace(settings, response_format=None)  # it is in the speaking tool's arguments
    elif settings.response_format is not None:
        shown = with_instruction(shown, settings.response_format)
    return ModelRequest(
        messages=with_thoughts(shown) if offered.how.thinks_in_arguments else shown,
        tools=tuple(tool for name, tool in offered.tools.items() if name not in offered.hidden),
        tool_choice=offered.choice,
        forced_tool=offered.forced,
        settings=settings,
        stream=asked.streams_tokens,
        user_id=asked.scope.user_id,
        logprobs=asked.logprobs,
    )


async def run_tools(
    turn: TurnContext, step: StepDraft, parsed: ParsedReply
) -> list[ToolReturnPart]:
    """The results of the step's calls, in the order of the calls; none while the reply waits."""
    if parsed.is_waiting:
        return []
    if not parsed.calls:
        return list(parsed.refused)
    began = time.monotonic_ns()
    step.memory.reasons.update(parsed.reasons)
    calling = CallingStep(step.id, turn.run.id, turn.request.callers, turn.is_untrusted, step.jobs)

    def context(call_id: str) -> ToolContext:
        return ToolContext(
            call_id,
            turn.state,
            step.memory,
            turn.runtime.store,
            turn.request.scope,
            turn.runtime.recall,
            turn.runtime.settings,
            call_tool,
            turn_began=turn.began_at,
            view_began=turn.view_began,
            report=_ProgressReports(turn, call_id),
            step=calling,
            runtime=turn.runtime,
        )

    async def call_tool(name: str, arguments: Mapping[str, Any]) -> ToolReturnPart:
        call = parse_nested(name, arguments, offer_tools(turn))
        if isinstance(call, ToolReturnPart):
            return call
        results = await turn.runtime.toolbox.run([call], attached, context)
        turn.finished += finished_calls(results)
        return results[0]

    attached = {tool.name: tool for tool in turn.state.tools}
    toolbox = turn.runtime.toolbox
    notices = turn.reads.notices(
        parsed.calls, {name for name, tool in attached.items() if toolbox.is_read_only(tool)}
    )
    results = await toolbox.run(
        [call for call in parsed.calls if call.call_id not in notices], attached, context
    )
    step.tools_ns = time.monotonic_ns() - began
    known = {result.call_id: result for result in (*results, *parsed.refused)} | notices
    # Of a reply that waited some calls are neither: they were denied, or done by the client.
    return [
        known[part.call_id]
        for part in parsed.parts
        if isinstance(part, ToolCallPart) and part.call_id in known
    ]


@dataclass(slots=True)
class _ProgressReports:
    """Tells the turn's readers how far a call is; of too many reports some are left out."""

    turn: TurnContext
    call_id: str
    began: float = field(default_factory=time.monotonic)
    count: int = 0

    def __call__(self, text: str) -> None:
        if self.count < _PROGRESS_FIRST + _PROGRESS_MORE * (time.monotonic() - self.began):
            self.count += 1
            self.turn.publish(ToolProgress(self.turn.run.id, self.call_id, text[:_PROGRESS_SIZE]))


async def _cut_to_fit(turn: TurnContext, offered: OfferedTools) -> ModelRequest:
    """The request, with less in it where it is too long even after a compaction; what is stored stays whole."""
    request = build_request(turn, offered)
    if turn.limit.own_window and is_too_long(turn, request):
        request = build_request(turn, offered, window=await outlined(turn, request))
    return fitted(turn, request)


def _refused_a_picture(
    turn: TurnContext, request: ModelRequest, error: ModelError, *, is_last: bool
) -> bool:
    """Whether the model may have refused a picture; learns from a request that was too long, and raises any other error."""
    # Some servers answer 400 to a picture and some 500; without this one picture would silence the agent for good.
    may_be_a_picture = error.kind in _MAY_BE_A_PICTURE and has_pictures(request.messages)
    if is_last or not (may_be_a_picture or error.kind == "context_window_exceeded"):
        raise error
    log.warning("asking again with less", extra={"run": turn.run.id, "kind": error.kind})
    if not may_be_a_picture:
        learn(turn, request, error)
    return may_be_a_picture
