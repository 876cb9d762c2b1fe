"""Keep a turn within its model's context window.

The window is compacted before a request that would not fit, and after a provider's refusal. Sizes
are our own estimate, corrected by the provider's last count. Nothing is deleted: evicted messages
stay in recall.
"""

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from ricordo.agents.agent_types import TRAITS
from ricordo.agents.step_save import save_compaction
from ricordo.agents.tracing import Call, RecordingModel, recorded_calls, traces_of_summary
from ricordo.agents.turn_context import (
    TurnContext,
)
from ricordo.domain.agent import (
    TRIGGER,
    CompactionSettings,
    within_window,
)
from ricordo.domain.egress import join
from ricordo.domain.event import Compacted
from ricordo.domain.message import (
    CompactionPart,
    Message,
    TextPart,
    Trigger,
)
from ricordo.domain.model import ModelRequest
from ricordo.domain.run import StopReason
from ricordo.domain.usage import Usage
from ricordo.errors import ModelError, NotFound
from ricordo.llm.adaptation import LearnedModel, reads_plain_results
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
from ricordo.prompt.transcript import transcript
from ricordo.prompt.truncation import fit

log = logging.getLogger(__name__)
# The provider of the librarian. It is no language model, so an outline is better than its summary.
NO_WRITER = "ricordo"
# A provider's count is accepted only for large prompts and within these bounds, in percent of our
# estimate. It may raise the estimate much but lower it little, because some servers cut prompts, or
# do not count cached tokens.
_LOWEST_PERCENT = 90
_HIGHEST_PERCENT = 400
_LARGE_PROMPT = 2_000
# The most tokens that tool descriptions and message overhead take in usual requests.
_TOOLS_AND_OVERHEAD = 12_000
# A turn's last compaction may have freed less than this share of the window. Then the next summary
# is an outline, which needs no model. Otherwise every step could ask a model for a summary.
_SMALL_GAIN = 0.1
_FEWEST_EVICTED = 2  # messages, in a requested compaction
# An answer gets this many tokens at least.
_SMALLEST_OUTPUT = 64
# A window size in a refusal counts if it is below this percentage of the known window.
_SMALLER_WINDOW = 90
# A summary of very little text may still take this many tokens.
_SMALLEST_SUMMARY = 60


def is_too_long(turn: TurnContext, request: ModelRequest) -> bool:
    """Return True if the request is too large for the window, by our estimate.

    Args:
        turn: The turn, with its window and the correction of the estimate.
        request: The request to the model.
    """
    room = _room(turn)
    # This cheap bound nearly always shows that there is room, for a tenth of the cost.
    if _token_bound(request) * turn.limit.token_percent < room * 100:
        return False
    return _tokens(turn, request) > room


def _token_bound(request: ModelRequest) -> int:
    """Return an upper bound of the estimate for a request whose tools are of usual size.

    It counts one token for each character.
    """
    return (
        _TOOLS_AND_OVERHEAD
        + MESSAGE_TOKENS * len(request.messages)
        + request.characters
        + IMAGE_TOKENS * request.pictures
    )


def fitted(turn: TurnContext, request: ModelRequest) -> ModelRequest:
    """Return the request; if it is too long, its longest texts are cut.

    Args:
        turn: The turn, whose model and estimate give the room.
        request: The next request; it is not changed.

    Raises:
        ModelError: The system prompt alone is too long.
    """
    if not is_too_long(turn, request):
        return request
    percent = turn.limit.token_percent
    budget = _room(turn) - tool_tokens(request.tools) * percent // 100
    return replace(request, messages=fit(request.messages, budget, percent, count=message_tokens))


def with_fitting_budget(turn: TurnContext, request: ModelRequest) -> ModelRequest:
    """Return the request with an output budget that leaves room for the prompt.

    Args:
        turn: The turn, with its window and the correction of the estimate.
        request: The request. It is returned unchanged if it has no output budget, or if there is
            room.
    """
    window = turn.state.agent.context_window
    budget = request.settings.max_output_tokens
    if (
        budget is None
        or _token_bound(request) * turn.limit.token_percent <= (window - budget) * 100
    ):
        return request
    # Our estimate does not include the provider's overhead for each message.
    room = max(_SMALLEST_OUTPUT, window - _tokens(turn, request) * 21 // 20 - window // 50)
    if budget <= room:
        return request
    return replace(request, settings=replace(request.settings, max_output_tokens=room))


def calibrate(turn: TurnContext, request: ModelRequest, usage: Usage) -> None:
    """Learn the error of our estimate from the provider's count.

    After refusals, also learn the window's size.

    Args:
        turn: The turn. Its `limit` is changed, and the model's learned values are too.
        request: The request that the provider accepted.
        usage: The provider's counts for it.
    """
    limit = turn.limit
    learned_model = turn.learned
    # Some servers report the tokens in their cache separately.
    cached = usage.cached_tokens or 0
    counted = usage.prompt_tokens + (cached if cached > usage.prompt_tokens else 0)
    percent = 100
    # A small window never holds a large prompt, so a wrong count would never be corrected.
    is_large = counted >= min(_LARGE_PROMPT, turn.state.agent.context_window // 8)
    if is_large:
        estimate = request_tokens(request)
        percent = counted * 100 // max(1, estimate)
        if learned_model:
            learned_model.note_count(turn.run.conversation_id, estimate, counted)
        # Never estimate below what a refusal in this turn proved.
        limit.token_percent = max(
            limit.least_percent, min(_HIGHEST_PERCENT, max(_LOWEST_PERCENT, percent))
        )
    elif limit.token_percent > _HIGHEST_PERCENT:
        # A refusal raised the estimate so far that no prompt is large enough to correct it. The
        # model may have a larger window now, so lower the estimate.
        limit.token_percent -= limit.token_percent // 100
    # Learn the window also if the server's counts are useless. Otherwise it would refuse each such
    # request.
    if learned_model and limit.refused and (is_large or limit.refused[0] >= _LARGE_PROMPT):
        _learn_window(turn, learned_model, percent)
    limit.was_refused = False
    limit.refused = None


def _learn_window(turn: TurnContext, learned_model: LearnedModel, percent: int) -> None:
    """Remember a window that is smaller than the known one.

    The refusal names its size; otherwise the size of the refused request gives an estimate.
    """
    estimate, named_window = turn.limit.refused or (0, None)
    window = named_window or estimate * max(100, percent) // 100 * 19 // 20
    if window * 100 < learned_model.info.context_window * _SMALLER_WINDOW:
        learned_model.learn_window(window)


def learn(turn: TurnContext, request: ModelRequest, refusal: ModelError) -> None:
    """Learn from a refusal: a smaller window, or a higher estimate.

    Args:
        turn: The turn. Its `limit` is changed; for a smaller window, its `state` is replaced.
        request: The request that the provider refused as too long.
        refusal: The provider's answer; its `limit` is the window's tokens, None if not named.
    """
    estimate = request_tokens(request)
    limit = turn.limit
    limit.was_refused = True
    smallest = min(estimate, limit.refused[0]) if limit.refused else estimate
    limit.refused = smallest, refusal.limit
    window = turn.state.agent.context_window
    tokens = _tokens(turn, request)
    if refusal.limit is None and tokens * 2 < window:
        # Our corrected estimate is hardly ever wrong by a factor of two, so the window must be
        # smaller than we assumed.
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
    """Replace evicted messages by a summary, and save the smaller window.

    Args:
        turn: The turn, whose window is replaced.
        request: The next request, for the estimate of its tokens.
        stop: The run ends with this reason, and its end is saved too; None: the run continues.

    Returns:
        The event of the compaction. None if no message can leave the window, if the request may fit
        after all, or if it is too long only for a model that this turn borrows
        (`TurnOverrides.model`).
    """
    if _is_doubtful(turn, request):
        turn.limit.token_percent = 100
        if not is_too_long(turn, request):
            return None
    window, percent = _stored_window(turn)
    is_borrowed = window > turn.state.agent.context_window
    if is_borrowed and request_tokens(request) * percent <= TRIGGER * window * 100:
        return None
    settings = turn.request.compaction or turn.state.agent.compaction
    evicting_cut = _cut(turn, request, settings, window, percent)
    if evicting_cut is None:
        return None
    room = summary_room(window, percent)
    if turn.request.compaction is None:
        # A summary is not larger than its messages, so the window always shrinks.
        room = min(room, max(_SMALLEST_SUMMARY, transcript_tokens(evicting_cut.evicted)))
    gains_little = turn.limit.gained is not None and turn.limit.gained < _SMALL_GAIN * window
    calls = recorded_calls(turn)
    writer = None if gains_little else _writer(turn, request, settings, calls)
    resting = turn.runtime.resting_writers
    agent = turn.state.agent
    clock = turn.runtime.store.clock
    # If a user requested the compaction, ask the summary model even if it failed recently.
    if writer and turn.request.compaction is None and resting.holds(agent.id, writer, clock.now()):
        writer = None
    timeout = _summary_timeout(turn, evicting_cut, writer, room)
    summary = await summarize(
        evicting_cut.evicted,
        settings,
        writer=writer,
        room=room,
        timezone=agent.timezone,
        timeout=timeout,
    )
    if writer:
        resting.note(agent.id, writer, summary, clock.now())
    evicting_cut = _with_current_prompt(turn, evicting_cut)
    message = _summary_message(turn, request, evicting_cut, summary)
    traces = traces_of_summary(turn, calls)
    return await save_compaction(turn, evicting_cut, message, traces, stop)


def _summary_timeout(
    turn: TurnContext, evicting_cut: Cut, writer: Writer | None, room: int
) -> float:
    """Return the seconds for a summary, by its writer's speed so far."""
    if writer is None:
        return TIMEOUT
    prompt_tokens = transcript_tokens(evicting_cut.evicted) + tool_tokens(writer.tools)
    return timeout_for(
        turn.runtime.speeds.seconds_for(writer.model.info.handle, prompt_tokens, room)
    )


async def outlined(turn: TurnContext, request: ModelRequest) -> list[Message]:
    """Return the window for a borrowed model that has less room.

    An outline replaces the messages that are left out. Nothing is saved.

    Args:
        turn: The turn; it is not changed.
        request: The next request, for the estimate of its tokens.
    """
    agent = turn.state.agent
    percent = turn.limit.token_percent
    evicting_cut = _cut(turn, request, agent.compaction, agent.context_window, percent)
    if evicting_cut is None:
        return turn.window.messages
    room = summary_room(agent.context_window, percent)
    evicted = turn.clearance.messages(evicting_cut.evicted, turn.destination)
    summary = await summarize(
        evicted, agent.compaction, writer=None, room=room, timezone=agent.timezone
    )
    outline = replace(
        evicting_cut.evicted[-1],
        id="",
        role="summary",
        parts=(TextPart(summary.text),),
        otid=None,
        name=None,
    )
    return [evicting_cut.remaining[0], outline, *evicting_cut.remaining[1:]]


def _with_current_prompt(turn: TurnContext, evicting_cut: Cut) -> Cut:
    """Return the cut with the system message that the smaller window needs.

    The system message says how many messages are in recall now.
    """
    now = turn.runtime.store.clock.now()
    # The summary adds one to both numbers, so it does not change their difference.
    recall_count = turn.window.message_count - len(evicting_cut.remaining)
    prompt = turn.prompt_of(turn.state, now, max(0, recall_count))
    turn.window.replace_system(prompt.text, prompt.key, now)
    return replace(evicting_cut, remaining=(turn.window.messages[0], *evicting_cut.remaining[1:]))


def _cut(
    turn: TurnContext,
    request: ModelRequest,
    settings: CompactionSettings,
    window_tokens: int,
    percent: int,
) -> Cut | None:
    return cut(
        turn.window.messages,
        settings.mode,
        settings.sliding_window_percentage,
        window_tokens=window_tokens,
        overhead=tool_tokens(request.tools),
        percent=percent,
        keep_from=turn.window.first,
        # A summary of one message costs a model call and saves no tokens.
        fewest=_FEWEST_EVICTED if turn.request.compaction else 1,
    )


def _stored_window(turn: TurnContext) -> tuple[int, int]:
    """Return the size of the stored window in tokens, and the percentage for its provider.

    If the turn borrows a model, the larger of the two windows counts.
    """
    window = turn.state.agent.context_window
    own_window = turn.limit.own_window
    if own_window is None or own_window <= window:
        return window, turn.limit.token_percent
    return own_window, turn.state.conversation.token_percent or 100


def _is_doubtful(turn: TurnContext, request: ModelRequest) -> bool:
    """Return whether the learned percentage claims that not even the system prompt fits.

    Another turn learned it, so the provider should confirm it.
    """
    percent = turn.limit.token_percent
    if turn.limit.was_refused or percent <= 100 or turn.request.compaction:
        return False
    smallest_request = message_tokens(request.messages[0]) + tool_tokens(request.tools)
    return smallest_request * percent > _room(turn) * 100


def _writer(
    turn: TurnContext,
    request: ModelRequest,
    settings: CompactionSettings,
    calls: deque[Call] | None,
) -> Writer | None:
    """Return the writer of summaries; its calls are recorded in `calls`.

    In the modes that begin with `self_` the agent's model writes. Its request begins like a usual
    request, so that the provider's cache is used. In other modes the chosen model writes, or the
    agent's model if none is chosen.
    """
    agent = turn.state.agent
    percent = turn.limit.token_percent
    user_id = request.user_id
    is_model = turn.model.info.provider != NO_WRITER
    payer = replace(turn.payer, purpose="compaction")
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
                model=recording(chosen),
                window=chosen.info.context_window,
                payer=payer,
                user_id=user_id,
                clearance=turn.clearance,
            )
        except NotFound:
            log.warning(
                "the model for summaries is not available",
                extra={"model": settings.model, "run": turn.run.id},
            )
    if not is_model:
        return None
    writer = Writer(
        model=recording(turn.model),
        window=agent.context_window,
        payer=payer,
        percent=percent,
        user_id=user_id,
        clearance=turn.clearance,
    )
    if not is_own:
        return writer
    packs = TRAITS[agent.agent_type].packs_user_messages
    is_plain = reads_plain_results(turn.model, turn.learned, turn.profile)

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
    turn: TurnContext, request: ModelRequest, evicting_cut: Cut, summary: Summary
) -> Message:
    """Return the message that replaces the evicted messages, with figures of the compaction."""
    # The writer may have read memory and texts of pictures too.
    is_untrusted = any(
        evicted.is_untrusted or evicted.picture_text for evicted in evicting_cut.evicted
    ) or any(block.is_untrusted for block in turn.state.blocks)
    message = turn.run.new_message(
        "summary", (TextPart(summary.text),), turn.runtime.store.clock.now()
    )
    egress = join(turn.clearance.label, *(entry.egress for entry in evicting_cut.evicted))
    message = replace(message, model=summary.model, is_untrusted=is_untrusted, egress=egress)
    after = transcript_tokens([*evicting_cut.remaining, message]) + tool_tokens(request.tools)
    trigger: Trigger = "provider" if turn.limit.was_refused else "window"
    if turn.request.compaction:
        trigger = "request"
    part = CompactionPart(
        trigger=trigger,
        evicted=tuple(message.id for message in evicting_cut.evicted),
        tokens_before=_tokens(turn, request),
        tokens_after=after * turn.limit.token_percent // 100,
        context_window=_stored_window(turn)[0],
        messages_before=len(turn.window.messages),
        messages_after=len(evicting_cut.remaining) + 1,
        is_whole=evicting_cut.is_whole,
    )
    turn.limit.gained = part.tokens_before - part.tokens_after
    return replace(message, parts=(*message.parts, part))


def _tokens(turn: TurnContext, request: ModelRequest) -> int:
    return request_tokens(request) * turn.limit.token_percent // 100


def _room(turn: TurnContext) -> int:
    window = turn.state.agent.context_window
    settings = turn.state.agent.model_settings
    return max(window // 2, min(int(TRIGGER * window), window - (settings.max_output_tokens or 0)))
