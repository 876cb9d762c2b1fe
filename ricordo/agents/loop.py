"""The loop of one turn: ask the model, run its calls, save the step.

The loop repeats until a step ends the turn. Events are yielded as they happen. Whole messages are
yielded only after they are saved.
"""

import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ricordo.agents.agent_types import TRAITS
from ricordo.agents.context_limit import (
    calibrate,
    compact,
    fitted,
    is_too_long,
    learn,
    outlined,
    with_fitting_budget,
)
from ricordo.agents.failed_runs import leave_out_failed_runs
from ricordo.agents.feed import Deltas
from ricordo.agents.step_decisions import (
    WITHHELD,
    NextAction,
    OfferedTools,
    ParsedReply,
    next_action,
    offer_tools,
    parse_approved,
    parse_nested,
    parse_reply,
)
from ricordo.agents.step_save import save_calls, save_step
from ricordo.agents.turn_context import (
    AnsweredApproval,
    StepDraft,
    TurnContext,
)
from ricordo.domain.event import (
    ApprovalAsked,
    Compacted,
    Event,
    RunEnded,
    StepSaved,
    ToolProgress,
)
from ricordo.domain.message import Message, ToolCallPart, ToolReturnPart
from ricordo.domain.model import Chunk, ModelReply, ModelRequest, ModelSettings, Restarted
from ricordo.errors import Invalid, ModelError
from ricordo.llm.adaptation import reads_plain_results
from ricordo.llm.answer_format import with_instruction
from ricordo.llm.answer_limits import usual_output_tokens
from ricordo.llm.egress import ask
from ricordo.llm.exchange import EXCHANGE, Exchange
from ricordo.llm.policy import is_after_results
from ricordo.memory.edits import EditGuard, WorkingMemory
from ricordo.memory.schemas import enforced_schema
from ricordo.prompt.system_prompt import key_without_edits, with_skills
from ricordo.prompt.transcript import (
    has_picture_texts,
    has_pictures,
    transcript,
    without_pictures,
)
from ricordo.prompt.truncation import SystemPromptTooLong
from ricordo.tools.presentation import SPOKEN, THINKING, with_thoughts
from ricordo.tools.rules import finished_calls
from ricordo.tools.toolbox import CallingStep, ToolContext

log = logging.getLogger(__name__)
_MAY_BE_A_PICTURE = ("llm_bad_request", "llm_error")
_ATTEMPTS = 5
# The attempts in all, if each is refused and only the size of the request can explain it.
_JUDGED_ATTEMPTS = 3
# The longest progress report of a running tool, in characters.
_PROGRESS_SIZE = 500
# Limits of progress reports: the first ones of a call, and further ones in each second. Streams are
# stored, and a tool may print a million lines.
_PROGRESS_FIRST = 20
_PROGRESS_MORE = 5


async def run_loop(turn: TurnContext) -> AsyncIterator[Event]:
    """Take steps until one ends the turn, or their limit is reached.

    The last step's save ends the run.
    """
    if turn.request.compaction:
        yield await _compact_only(turn)
        yield RunEnded(turn.run)
        return
    action = NextAction()
    if turn.approval:
        saved, action = await resume_after_approval(turn, turn.approval)
        yield saved
    step_limit = min(
        turn.request.overrides.max_steps,
        turn.state.agent.max_steps or turn.request.overrides.max_steps,
    )
    for number in range(1, step_limit + 1):
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
            raise ModelError("llm_empty_response", "The model's answer was empty. Try again.")
        is_withheld = reply.finish == "content_filter" and not reply.has_text
        if is_withheld and not any(isinstance(part, ToolCallPart) for part in reply.parts):
            await turn.payer.record(turn.model.info.handle, reply.usage)
            raise ModelError("llm_bad_request", WITHHELD)
        turn.unsaved_usage = reply.usage
        parsed = parse_reply(reply, offered)
        reply = replace(reply, parts=parsed.parts)
        if not parsed.is_waiting and any(call.name in offered.acting for call in parsed.calls):
            yield await save_calls(turn, step, reply)
        results = await run_tools(turn, step, offered, parsed)
        is_last = number == step_limit
        action = next_action(turn.rules, offered, reply, parsed, results, action, is_last=is_last)
        turn.rules.finished += action.finished
        saved = await save_step(turn, step, reply, action, results)
        turn.unsaved_usage = None
        # The list of tokens would show the secrets that were removed from the texts.
        if reply.logprobs and not turn.removed:
            saved = replace(saved, logprobs=reply.logprobs)
        yield saved
        if parsed.is_waiting:
            yield ApprovalAsked(turn.run.id, turn.window.messages[-1])
    yield RunEnded(turn.run)


async def _compact_only(turn: TurnContext) -> Compacted:
    """Shrink the window as the request asks, and end the run."""
    request = build_request(turn, offer_tools(turn), is_first=True)
    compacted = await compact(turn, request, stop="end_turn")
    if compacted is None:
        # wire fact of the retired Letta V1 server: the beginning of the sentence.
        raise Invalid(
            "Summarization failed to reduce the number of messages: "
            "there is nothing that could leave the window."
        )
    return compacted


def _new_step(turn: TurnContext, number: int) -> StepDraft:
    guard = EditGuard(turn.guard_sources, turn.clearance)
    memory = WorkingMemory(
        turn.state, guard, partial(enforced_schema, turn.runtime.settings.data_dir)
    )
    return StepDraft(number, memory, turn.runtime.store.clock.now())


async def resume_after_approval(
    turn: TurnContext, answer: AnsweredApproval
) -> tuple[StepSaved, NextAction]:
    """Run the approved calls, and save them with the client's results.

    Returns the saved step and what to do next.

    Args:
        turn: The turn, whose window ends with the answer; it is updated after the save.
        answer: The request for approval with its answer.
    """
    step = replace(_new_step(turn, 0), id=answer.request.step_id or "")
    offered = offer_tools(turn)
    parsed = parse_approved(answer, offered)
    results = answer.results(await run_tools(turn, step, offered, parsed))
    has_new_input = bool(turn.window.delayed)
    action = next_action(
        turn.rules, offered, None, parsed, results, NextAction(), has_new_input=has_new_input
    )
    turn.rules.finished += action.finished
    return await save_step(turn, step, None, action, results), action


async def ask_model(
    turn: TurnContext, step: StepDraft, offered: OfferedTools
) -> AsyncIterator[Event | ModelReply]:
    """Ask the model once, and yield its events and its reply.

    A request that is too long, or has a picture that the model refuses, is made smaller and sent
    again. After some other failures, it is sent again without the messages of failed runs.

    Args:
        turn: The turn. A compaction changes its window.
        step: The step, which gets the request and its times.
        offered: The tools to present.

    Raises:
        ModelError: The provider failed, or refused also the smallest request.
    """
    thoughts_argument = THINKING if offered.presentation.thinks_in_arguments else None
    speech_argument = SPOKEN if offered.presentation.spoken else None
    deltas = Deltas(
        turn.run.id,
        step.id,
        step.message_id,
        thoughts_argument=thoughts_argument,
        speech_argument=speech_argument,
        gated_tools=offered.gated,
    )
    refusal: ModelError | None = None
    is_blind = False
    judged_refusals = 0
    for attempt in range(1, _ATTEMPTS + 1):
        request = build_request(turn, offered, is_first=step.number == 1)
        if is_too_long(turn, request):
            if compacted := await compact(turn, request):
                yield compacted
            # The removed texts may have shown edits of memory, so the prompt has to show them now.
            turn.window.prompt_key = key_without_edits(turn.window.prompt_key)
            try:
                request = await _cut_to_fit(turn, offered)
            except SystemPromptTooLong as error:
                # If the provider refused first, its error says more than our count.
                raise (refusal or error) from None
        if is_blind:
            turn.window.shows_picture_texts |= has_picture_texts(request.messages)
            request = replace(request, messages=without_pictures(request.messages))
        request = with_fitting_budget(turn, request)
        try:
            async for item in _answer_of(turn, step, deltas, request):
                if isinstance(item, ModelReply):
                    yield item
                else:
                    for event in deltas.events(item):
                        yield event
        except ModelError as error:
            judged_refusals += error.is_judged
            is_last = attempt == _ATTEMPTS or judged_refusals == _JUDGED_ATTEMPTS
            is_blind = await _learn_from(turn, request, error, is_last=is_last) or is_blind
            refusal = error if error.kind == "context_window_exceeded" else refusal
            for restart_event in deltas.events(Restarted()):
                yield restart_event
        else:
            return


async def _answer_of(
    turn: TurnContext, step: StepDraft, deltas: Deltas, request: ModelRequest
) -> AsyncIterator[Chunk | ModelReply]:
    """Ask the model, record its times, and learn from the provider's count."""
    turn.asking = step
    step.request = request
    step.request_ns = time.monotonic_ns()
    if turn.runtime.settings.traces != "off":
        step.exchange = Exchange()
        EXCHANGE.set(step.exchange)
    # Nobody reads the text of a background run. An agent that asked this one can read the results
    # of its calls instead of a text.
    is_wordless = turn.request.delivery.is_background or bool(turn.request.delivery.callers)
    takes_empty = is_wordless and is_after_results(request)
    answer = ask(turn.model, request, turn.clearance, turn.payer, takes_empty=takes_empty)
    async for item in answer:
        step.first_ns = step.first_ns or time.monotonic_ns() - step.request_ns
        if isinstance(item, ModelReply):
            EXCHANGE.set(None)
            turn.asking = None
            step.model_ns = time.monotonic_ns() - step.request_ns
            turn.runtime.speeds.note(turn.model.info.handle, item.usage, step.model_ns / 1e9)
            step.message_id = deltas.message_id
            calibrate(turn, request, item.usage)
        yield item


def build_request(
    turn: TurnContext,
    offered: OfferedTools,
    *,
    is_first: bool = False,
    window: Sequence[Message] | None = None,
) -> ModelRequest:
    """Return the model's input for this step, with this `window` if given.

    The turn's system message is rendered again only if it has to change.

    Args:
        turn: The turn; a new system message is put into its window.
        offered: The tools to present.
        is_first: It is the turn's first step, where more changes make the prompt outdated.
        window: Messages to send instead of the turn's window, the system message first.
    """
    agent = turn.state.agent
    overrides = turn.request.overrides
    now = turn.runtime.store.clock.now()
    recall_count = turn.window.evicted_count
    prompt = turn.prompt_of(turn.state, now, recall_count)
    key = turn.window.prompt_key
    if not prompt.is_current(key, first_step=is_first, mode=turn.memory_in_prompt):
        turn.window.replace_system(prompt.text, prompt.key, now)
    window = turn.window.messages if window is None else window
    # The transcript may combine messages, so it gets what the provider may see.
    window = turn.clearance.messages(window, turn.destination)
    if overrides.system is not None or overrides.client_skills or overrides.instructions:
        system = window[0].text if overrides.system is None else overrides.system
        system = f"{system}\n\n{overrides.instructions}" if overrides.instructions else system
        window = [window[0].with_text(with_skills(system, overrides.client_skills)), *window[1:]]
    packs = TRAITS[agent.agent_type].packs_user_messages
    is_plain = reads_plain_results(turn.model, turn.learned, turn.profile)
    shown_messages = transcript(
        window,
        agent.timezone,
        agent.context_window,
        packs_user_messages=packs,
        has_plain_results=is_plain,
    )
    settings = _settings_of(turn, offered)
    if offered.presentation.response_format is not None:
        # The response format is in the arguments of the tool that speaks.
        settings = replace(settings, response_format=None)
    elif settings.response_format is not None:
        shown_messages = with_instruction(shown_messages, settings.response_format)
    if offered.presentation.thinks_in_arguments:
        shown_messages = with_thoughts(shown_messages)
    return ModelRequest(
        messages=shown_messages,
        tools=tuple(tool for name, tool in offered.tools.items() if name not in offered.hidden),
        tool_choice=offered.choice,
        forced_tool=offered.forced,
        settings=settings,
        stream=overrides.streams_tokens,
        user_id=turn.request.scope.user_id,
        logprobs=overrides.logprobs,
    )


def _settings_of(turn: TurnContext, offered: OfferedTools) -> ModelSettings:
    """Return the call's settings: the agent's, an output budget and the turn's response format."""
    agent = turn.state.agent
    settings = agent.model_settings
    if settings.max_output_tokens is None:
        budget = usual_output_tokens(
            turn.model.info,
            agent.context_window,
            is_small=turn.profile != "full",
            chosen=turn.runtime.settings.max_output_tokens,
        )
        settings = replace(settings, max_output_tokens=budget)
    if turn.request.overrides.response_format is not None:
        settings = replace(settings, response_format=turn.request.overrides.response_format)
    if offered.tools and offered.is_ordered:
        settings = replace(settings, parallel_tool_calls=False)
    return settings


async def run_tools(
    turn: TurnContext, step: StepDraft, offered: OfferedTools, parsed: ParsedReply
) -> list[ToolReturnPart]:
    """Return the results of the step's calls, in the order of the calls.

    The list is empty while the reply waits for approval.

    Args:
        turn: The turn.
        step: The step; calls change its memory and add its jobs.
        offered: The tools of the step.
        parsed: The parsed reply, with the calls to run and the results of refused calls.
    """
    if parsed.is_waiting:
        return []
    if not parsed.calls:
        return list(parsed.refused)
    began = time.monotonic_ns()
    step.memory.reasons.update(parsed.reasons)
    calling = CallingStep(
        step.id,
        turn.run.id,
        turn.request.delivery.callers,
        turn.is_untrusted,
        step.jobs,
        shows_edits=turn.memory_in_prompt == "step",
    )

    open_recall = partial(
        turn.runtime.recall_for,
        turn.request.scope,
        turn.state.agent.id,
        user_id=turn.run.user_id,
    )

    def context(call_id: str) -> ToolContext:
        return ToolContext(
            call_id=call_id,
            state=turn.state,
            memory=step.memory,
            store=turn.runtime.store,
            scope=turn.request.scope,
            open_recall=open_recall,
            settings=turn.runtime.settings,
            call_tool=call_tool,
            turn_began=turn.began_at,
            view_began=turn.view_began,
            report=_ProgressReports(turn, call_id),
            step=calling,
            clearance=turn.clearance,
            reader=turn.destination,
            runtime=turn.runtime,
        )

    async def call_tool(name: str, arguments: Mapping[str, Any]) -> ToolReturnPart:
        call = parse_nested(name, arguments, offer_tools(turn))
        if isinstance(call, ToolReturnPart):
            return call
        results = await turn.runtime.toolbox.run([call], attached, context)
        turn.rules.finished += finished_calls(results)
        return results[0]

    attached = {tool.name: tool for tool in turn.state.tools}
    toolbox = turn.runtime.toolbox
    notices = turn.reads.notices(parsed.calls, offered.reading)
    results = await toolbox.run(
        [call for call in parsed.calls if call.call_id not in notices], attached, context
    )
    if turn.reads.counts:
        turn.reads.allow_again(parsed.calls, results)
    step.tools_ns = time.monotonic_ns() - began
    results_by_call = {result.call_id: result for result in (*results, *parsed.refused)} | notices
    # Calls of a waiting reply may be missing here: they were denied, or the client ran them.
    return [
        results_by_call[part.call_id]
        for part in parsed.parts
        if isinstance(part, ToolCallPart) and part.call_id in results_by_call
    ]


@dataclass(slots=True)
class _ProgressReports:
    """Publishes a call's progress to the turn's readers; surplus reports are dropped."""

    turn: TurnContext
    call_id: str
    began: float = field(default_factory=time.monotonic)
    count: int = 0

    def __call__(self, text: str) -> None:
        if self.count < _PROGRESS_FIRST + _PROGRESS_MORE * (time.monotonic() - self.began):
            self.count += 1
            self.turn.publish(ToolProgress(self.turn.run.id, self.call_id, text[:_PROGRESS_SIZE]))


async def _cut_to_fit(turn: TurnContext, offered: OfferedTools) -> ModelRequest:
    """Return the request, cut if it is still too long after a compaction.

    Stored messages stay whole.
    """
    request = build_request(turn, offered)
    if turn.limit.own_window and is_too_long(turn, request):
        request = build_request(turn, offered, window=await outlined(turn, request))
    return fitted(turn, request)


async def _learn_from(
    turn: TurnContext, request: ModelRequest, error: ModelError, *, is_last: bool
) -> bool:
    """Return whether the model may have refused a picture.

    The turn learns from a request that was too long, and leaves out messages at which the model
    failed before. All other errors are raised again, and the last one too.
    """
    if not is_last and await leave_out_failed_runs(turn, error):
        return False
    # Some servers answer 400 to a picture and some 500. Without a second try, one picture in the
    # window would block the agent for good.
    may_be_a_picture = error.kind in _MAY_BE_A_PICTURE and has_pictures(request.messages)
    if is_last or not (may_be_a_picture or error.kind == "context_window_exceeded"):
        raise error
    log.warning("asking again with less", extra={"run": turn.run.id, "kind": error.kind})
    if not may_be_a_picture:
        learn(turn, request, error)
    return may_be_a_picture
