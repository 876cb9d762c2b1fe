"""Keeping a turn within its model's context window: it is compacted before a call that would not fit, and where a provider refuses.

Sizes are our own estimate, corrected by what the provider last counted. Nothing is deleted: what leaves the window stays in recall.
"""

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from ricordo.agents.agent_types import traits_of
from ricordo.agents.conversations import within_window
from ricordo.agents.request import TurnContext
from ricordo.agents.step_save import save_compaction
from ricordo.agents.tracing import Call, RecordingModel, recorded_calls, traces_of_summary
from ricordo.domain.agent import TRIGGER, CompactionSettings
from ricordo.domain.event import Compacted
from ricordo.domain.message import (
    CompactionPart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    Trigger,
)
from ricordo.domain.model import ModelRequest
from ricordo.domain.run import StopReason
from ricordo.domain.usage import Usage
from ricordo.errors import ModelError, NotFound
from ricordo.llm.adaptation import LearnedModel, learned_of
from ricordo.llm.chat import ChatModel
from ricordo.llm.tokens import (
    IMAGE_TOKENS,
    MESSAGE_TOKENS,
    message_tokens,
    request_tokens,
    tool_tokens,
    transcript_tokens,
)
from ricordo.memory.compaction import Cut, cut, percent_after_refusal, summary_room
from ricordo.memory.summary import TIMEOUT, Summary, Writer, summarize, timeout_for
from ricordo.prompt.system_prompt import system_prompt
from ricordo.prompt.transcript import transcript
from ricordo.prompt.truncation import fit

log = logging.getLogger(__name__)
# The librarian is no language model: an outline says more than it would.
NO_WRITER = "ricordo"
# A provider's count is believed within these bounds, in percent of our estimate, and only for prompts large enough to tell. It
# may raise the estimate and hardly lower it: some servers cut a prompt off, or count only what their cache does not hold.
_LEAST = 90
_MOST = 400
_LARGE_PROMPT = 2_000
# What descriptions of tools and what surrounds each message take at most, in all usual cases.
_TOOLS_AND_MORE = 12_000
# A turn whose last compaction freed less of the window than this asks no model to write another: it could go on so at each step.
_LITTLE = 0.1
_FEWEST_EVICTED = 2  # messages, of a compaction that somebody asked for
# An answer gets this many tokens at least.
_LEAST_OUTPUT = 64
# A refusal teaches a smaller window where it is smaller than this share of what was known, in percent.
_SMALLER_WINDOW = 90
# A summary of next to nothing may still take so many tokens.
_LEAST_SUMMARY = 60


def is_too_long(turn: TurnContext, request: ModelRequest) -> bool:
    """Whether the request comes too near to the window's end."""
    room = _room(turn)
    # Nearly always this alone tells that there is room, at a tenth of the cost.
    if _most_tokens(request) * turn.limit.token_percent < room * 100:
        return False
    return _tokens(turn, request) > room


def _most_tokens(request: ModelRequest) -> int:
    """More tokens than the request can have: no character takes more than one."""
    messages = request.messages
    return (
        _TOOLS_AND_MORE
        + MESSAGE_TOKENS * len(messages)
        + sum(_size(part) for one in messages for part in one.parts)
    )


def _size(part: Part) -> int:
    match part:
        case TextPart():
            return len(part.text)
        case ReasoningPart():
            return len(part.text) + len(part.redacted or "")
        case ToolCallPart():
            return len(part.name) + len(part.arguments)
        case ToolReturnPart():
            return len(part.content)
    return IMAGE_TOKENS


def fitted(turn: TurnContext, request: ModelRequest) -> ModelRequest:
    """The request, its longest texts cut where it is too long; raises ModelError where the system prompt alone is."""
    if not is_too_long(turn, request):
        return request
    percent = turn.limit.token_percent
    budget = _room(turn) - tool_tokens(request.tools) * percent // 100
    return replace(request, messages=fit(request.messages, budget, percent, count=message_tokens))


def with_fitting_budget(turn: TurnContext, request: ModelRequest) -> ModelRequest:
    """The request with an output budget that its window has room for beside the prompt."""
    window = turn.state.agent.context_window
    budget = request.settings.max_output_tokens
    if (
        budget is None
        or _most_tokens(request) * turn.limit.token_percent <= (window - budget) * 100
    ):
        return request
    # What surrounds each message is not in our estimate.
    room = max(_LEAST_OUTPUT, window - _tokens(turn, request) * 21 // 20 - window // 50)
    if budget <= room:
        return request
    return replace(request, settings=replace(request.settings, max_output_tokens=room))


def calibrate(turn: TurnContext, request: ModelRequest, usage: Usage) -> None:
    """Learn from the provider's count how far our estimate is off, and from what it refused before how small its window is."""
    limit = turn.limit
    learned = learned_of(turn.model)
    counted = _counted_prompt(usage)
    percent = 100
    # In a small window no prompt is large: a wrong count would never be corrected.
    is_large = counted >= min(_LARGE_PROMPT, turn.state.agent.context_window // 8)
    if is_large:
        estimate = request_tokens(request)
        percent = counted * 100 // max(1, estimate)
        if learned:
            learned.note_count(turn.run.conversation_id, estimate, counted)
        # What it refused in this turn was longer than its window, whatever it counts for what it takes.
        limit.token_percent = max(limit.least_percent, min(_MOST, max(_LEAST, percent)))
    elif limit.token_percent > _MOST:
        # A refusal taught that, and no prompt is large enough any more to tell: the model may have got more room since.
        limit.token_percent -= limit.token_percent // 100
    # Also of a server whose counts tell nothing: else it would refuse the same again and again.
    if learned and limit.refused and (is_large or limit.refused[0] >= _LARGE_PROMPT):
        _learn_window(turn, learned, percent)
    limit.was_refused = False
    limit.refused = None


def _counted_prompt(usage: Usage) -> int:
    """The tokens of the whole prompt: some servers count what their cache holds apart."""
    cached = usage.cached_tokens or 0
    if cached > usage.prompt_tokens:
        return usage.prompt_tokens + cached
    return usage.prompt_tokens


def _learn_window(turn: TurnContext, learned: LearnedModel, percent: int) -> None:
    """Remember a window that is smaller than was told: by the words of a refusal, else by the size that was refused."""
    estimate, named = turn.limit.refused or (0, None)
    window = named or estimate * max(100, percent) // 100 * 19 // 20
    if window * 100 < learned.info.context_window * _SMALLER_WINDOW:
        learned.learn_window(window)


def learn(turn: TurnContext, request: ModelRequest, refusal: ModelError) -> None:
    """Take from a refusal of too long a request that the window is smaller, or that our estimate is too low."""
    estimate = request_tokens(request)
    limit = turn.limit
    limit.was_refused = True
    smallest = min(estimate, limit.refused[0]) if limit.refused else estimate
    limit.refused = smallest, refusal.limit
    window = turn.state.agent.context_window
    tokens = _tokens(turn, request)
    if refusal.limit is None and tokens * 2 < window:
        # So far off is no estimate: it is the window that is another one.
        turn.state = within_window(turn.state, tokens * 19 // 20)
        return
    if refusal.limit is not None and refusal.limit < window:
        window = refusal.limit
        turn.state = within_window(turn.state, window)
        if is_too_long(turn, request):
            return
    limit.token_percent = limit.least_percent = percent_after_refusal(
        estimate, window, limit.token_percent
    )


async def compact(
    turn: TurnContext, request: ModelRequest, *, stop: StopReason | None = None
) -> Compacted | None:
    """Replace what leaves the window by a summary, and save the smaller window, with the run's end where `stop` says so.

    None where nothing can leave, or where it is too long only for a model that this turn alone borrows.
    """
    if _is_doubtful(turn, request):
        turn.limit.token_percent = 100
        if not is_too_long(turn, request):
            return None
    window, percent = _kept_within(turn)
    is_borrowed = window > turn.state.agent.context_window
    if is_borrowed and request_tokens(request) * percent <= TRIGGER * window * 100:
        return None
    settings = turn.request.compaction or turn.state.agent.compaction
    found = _cut(turn, request, settings, window, percent)
    if found is None:
        return None
    room = summary_room(window, percent)
    if turn.request.compaction is None:
        # What stands for messages takes no more than they did: the window gets smaller, whatever is written.
        room = min(room, max(_LEAST_SUMMARY, transcript_tokens(found.evicted)))
    gains_little = turn.limit.gained is not None and turn.limit.gained < _LITTLE * window
    calls = recorded_calls(turn)
    writer = None if gains_little else _writer(turn, request, settings, calls)
    resting = turn.runtime.resting_writers
    agent = turn.state.agent
    clock = turn.runtime.store.clock
    # Who asks for a compaction asks the writer too.
    if writer and turn.request.compaction is None and resting.holds(agent.id, writer, clock.now()):
        writer = None
    timeout = _summary_timeout(turn, found, writer, room)
    summary = await summarize(
        found.evicted, settings, writer=writer, room=room, timezone=agent.timezone, timeout=timeout
    )
    if writer:
        resting.note(agent.id, writer, summary, clock.now())
    found = _with_current_prompt(turn, found)
    message = _summary_message(turn, request, found, summary)
    traces = traces_of_summary(turn, calls)
    return await save_compaction(turn, found, message, summary, traces, stop)


def _summary_timeout(turn: TurnContext, found: Cut, writer: Writer | None, room: int) -> float:
    """The seconds for a summary, by how fast its writer has answered so far."""
    if writer is None:
        return TIMEOUT
    read = transcript_tokens(found.evicted) + tool_tokens(writer.tools)
    return timeout_for(turn.runtime.speeds.seconds_for(writer.model.info.handle, read, room))


async def outlined(turn: TurnContext, request: ModelRequest) -> list[Message]:
    """The window for a borrowed model with less room: an outline takes the place of what is left out. Nothing of it is saved."""
    agent = turn.state.agent
    percent = turn.limit.token_percent
    found = _cut(turn, request, agent.compaction, agent.context_window, percent)
    if found is None:
        return turn.window
    room = summary_room(agent.context_window, percent)
    summary = await summarize(
        found.evicted, agent.compaction, writer=None, room=room, timezone=agent.timezone
    )
    outline = replace(
        found.evicted[-1],
        id="",
        role="summary",
        parts=(TextPart(summary.text),),
        otid=None,
        name=None,
    )
    return [found.remaining[0], outline, *found.remaining[1:]]


def _with_current_prompt(turn: TurnContext, found: Cut) -> Cut:
    """The cut with the system message of the smaller window, which says how many messages are in recall now."""
    now = turn.runtime.store.clock.now()
    # The summary is one message more, inside of the window.
    recall_count = turn.state.conversation.message_count + turn.unsaved - len(found.remaining)
    prompt = system_prompt(
        turn.state,
        turn.model.info.provider,
        now,
        recall_count=max(0, recall_count),
        rule_lines=turn.rules.lines,
        is_brief=turn.profile != "full",
    )
    turn.refresh_system(prompt.text, prompt.key, now)
    return replace(found, remaining=(turn.window[0], *found.remaining[1:]))


def _cut(
    turn: TurnContext,
    request: ModelRequest,
    settings: CompactionSettings,
    window_tokens: int,
    percent: int,
) -> Cut | None:
    return cut(
        turn.window,
        settings.mode,
        settings.sliding_window_percentage,
        window_tokens=window_tokens,
        overhead=tool_tokens(request.tools),
        percent=percent,
        keep_from=turn.first,
        # One summary in the place of one message gains nothing, and whoever asked would pay for it.
        fewest=_FEWEST_EVICTED if turn.request.compaction else 1,
    )


def _kept_within(turn: TurnContext) -> tuple[int, int]:
    """The window that a conversation is kept within, in tokens, and what its provider counts: the larger of the two models'."""
    window = turn.state.agent.context_window
    own = turn.limit.own_window
    if own is None or own <= window:
        return window, turn.limit.token_percent
    return own, turn.state.conversation.token_percent or 100


def _is_doubtful(turn: TurnContext, request: ModelRequest) -> bool:
    """Whether by what was learned in another turn not even the system prompt fits: then the provider has to say so itself."""
    percent = turn.limit.token_percent
    if turn.limit.was_refused or percent <= 100 or turn.request.compaction:
        return False
    least = message_tokens(request.messages[0]) + tool_tokens(request.tools)
    return least * percent > _room(turn) * 100


def _writer(
    turn: TurnContext,
    request: ModelRequest,
    settings: CompactionSettings,
    calls: deque[Call] | None,
) -> Writer | None:
    """Who writes summaries; its calls are noted in `calls`.

    In the modes that begin with `self_` the agent's own model, asked as the agent is, so that its provider's cache still knows the
    beginning. Else the model that was chosen; where none was, or it is gone, the agent's own.
    """
    agent = turn.state.agent
    percent = turn.limit.token_percent
    user_id = request.user_id
    is_model = turn.model.info.provider != NO_WRITER
    is_own = is_model and settings.mode.startswith("self_")

    def recording(model: ChatModel) -> ChatModel:
        if calls is None:
            return model
        return RecordingModel(model, calls)

    if settings.model and not is_own:
        try:
            chosen = turn.runtime.organization_providers.known(turn.run.organization_id).get(
                settings.model
            )
            return Writer(
                model=recording(chosen), window=chosen.info.context_window, user_id=user_id
            )
        except NotFound:
            log.warning(
                "the model for summaries is not there",
                extra={"model": settings.model, "run": turn.run.id},
            )
    if not is_model:
        return None
    writer = Writer(
        model=recording(turn.model), window=agent.context_window, percent=percent, user_id=user_id
    )
    if not is_own:
        return writer
    packs = traits_of(agent.agent_type).packs_user_messages
    is_plain = turn.reads_plain_results

    def render(window: Sequence[Message]) -> Sequence[Message]:
        return transcript(
            window,
            agent.timezone,
            agent.context_window,
            packs_user_messages=packs,
            has_plain_results=is_plain,
        )

    system = request.messages[0]
    tools = request.tools
    return replace(writer, settings=request.settings, system=system, tools=tools, render=render)


def _summary_message(
    turn: TurnContext, request: ModelRequest, found: Cut, summary: Summary
) -> Message:
    """The summary as the message that takes the place of those that left, with what became of the window."""
    # Who wrote it may have read memory too.
    is_untrusted = any(one.is_untrusted for one in found.evicted) or any(
        block.is_untrusted for block in turn.state.blocks
    )
    message = turn.run.new_message(
        "summary", (TextPart(summary.text),), turn.runtime.store.clock.now()
    )
    message = replace(message, model=summary.model, is_untrusted=is_untrusted)
    after = transcript_tokens([*found.remaining, message]) + tool_tokens(request.tools)
    trigger: Trigger = (
        "request" if turn.request.compaction else "provider" if turn.limit.was_refused else "window"
    )
    part = CompactionPart(
        trigger=trigger,
        evicted=tuple(message.id for message in found.evicted),
        tokens_before=_tokens(turn, request),
        tokens_after=after * turn.limit.token_percent // 100,
        context_window=_kept_within(turn)[0],
        messages_before=len(turn.window),
        messages_after=len(found.remaining) + 1,
        is_whole=found.is_whole,
    )
    turn.limit.gained = part.tokens_before - part.tokens_after
    return replace(message, parts=(*message.parts, part))


def _tokens(turn: TurnContext, request: ModelRequest) -> int:
    return request_tokens(request) * turn.limit.token_percent // 100


def _room(turn: TurnContext) -> int:
    window = turn.state.agent.context_window
    settings = turn.state.agent.model_settings
    return max(window // 2, min(int(TRIGGER * window), window - (settings.max_output_tokens or 0)))
