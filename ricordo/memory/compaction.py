"""Which messages leave a window that is too full: a cut splits no call from its result, and frees room wherever it can.

Pure. Who sums up what left is `memory/summary.py`; a message that alone is too long is for `prompt/fitting.py`.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from ricordo.domain.agent import TRIGGER, CompactionMode
from ricordo.domain.message import Message
from ricordo.llm.tokens import message_tokens
from ricordo.prompt.truncation import exchanges

# What a summary may take of the window, and at most, in tokens.
_SUMMARY_SHARE = 0.15
_SUMMARY_MOST = 12_500
# After a refusal the transcript counts as this much larger than the window, in percent.
_BEYOND = 125
# A server may have been started with a hundredth of the window that its model is known for.
_MOST_PERCENT = 10_000


@dataclass(frozen=True, slots=True)
class Cut:
    """A window in two: what leaves, and what stays after the system message. It `is_whole` if only this turn stays."""

    evicted: tuple[Message, ...]
    kept: tuple[Message, ...]
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class _CutPlan:
    """A window's exchanges, where the turn begins, and the tokens that may stay: a cut's `goal`, and its `limit`."""

    window: Sequence[Message]
    pieces: Sequence[tuple[int, int]]
    turn: int
    goal: float
    limit: float
    sums: Sequence[float]

    def tokens(self, begin: int, end: int) -> float:
        return self.sums[end] - self.sums[begin]


def cut(
    window: Sequence[Message],
    mode: CompactionMode,
    share: float,
    *,
    window_tokens: int,
    overhead: int,
    percent: int,
    keep_from: int,
    fewest: int = 1,
) -> Cut | None:
    """Return what leaves the window, so many messages at least; None where nothing can.

    `share` is how much of the conversation leaves first in the sliding modes; more does until system and rest are within
    `1 - share` of `window_tokens`. `overhead` is the tools' tokens, `percent` what the provider counts for a hundred of ours,
    `keep_from` where this turn begins (the window's length: no turn runs), whose exchanges go only when nothing else is left.
    """
    if len(window) < 2:
        return None
    plan = _plan(window, share, window_tokens, overhead, percent, keep_from)
    if mode in ("sliding_window", "self_compact_sliding_window"):
        for place in _sliding_places(plan, share):
            if place > fewest and plan.tokens(0, 1) + plan.tokens(place, len(window)) <= plan.goal:
                return Cut(tuple(window[1:place]), (window[0], *window[place:]))
    rest = _all_before(plan)
    return rest if rest and len(rest.evicted) >= fewest else None


def summary_room(window_tokens: int, percent: int = 100) -> int:
    """Return how many tokens, by our own estimate, a summary may take of the window."""
    return min(_SUMMARY_MOST, int(window_tokens * _SUMMARY_SHARE)) * 100 // max(1, percent)


def percent_after_refusal(estimate: int, window_tokens: int, percent: int) -> int:
    """The correction of our estimate after "too long": larger than the window, so that `cut` and `fit` make it smaller."""
    least = -(-window_tokens * _BEYOND // max(1, estimate))
    return min(_MOST_PERCENT, max(percent + percent // 4, least))


def _plan(
    window: Sequence[Message],
    share: float,
    window_tokens: int,
    overhead: int,
    percent: int,
    keep_from: int,
) -> _CutPlan:
    pieces = [piece for piece in exchanges(window) if piece[0] > 0 or piece[1] > 1]
    if pieces and pieces[0][0] == 0:
        # Something right behind the system message claims to belong to it; nothing takes the system message along.
        pieces[0] = (1, pieces[0][1])
    factor = percent / 100
    sums = list(accumulate((message_tokens(message) * factor for message in window), initial=0.0))
    room = summary_room(window_tokens)
    fixed = sums[1] + overhead * factor
    limit = TRIGGER * window_tokens - room
    # A share of what the system message and the tools leave over, where they take much: else all would go at every turn.
    goal = min(max((1 - share) * window_tokens, fixed + (1 - share) * (limit - fixed)), limit)
    turn = next(
        (begin for begin, end in pieces if begin <= keep_from < end),
        max(1, min(keep_from, len(window))),
    )
    turn = min(turn, _waiting(window, pieces))
    return _CutPlan(window, pieces, turn, goal - fixed + sums[1], limit - fixed + sums[1], sums)


def _waiting(window: Sequence[Message], pieces: Sequence[tuple[int, int]]) -> int:
    """Where calls begin that may yet be answered: nothing but what people said came after them. Else the window's end."""
    for begin, end in reversed(pieces):
        calls = {call.call_id for message in window[begin:end] for call in message.tool_calls}
        if calls:
            answered = {
                part.call_id for message in window[begin:end] for part in message.tool_returns
            }
            return begin if calls - answered else len(window)
        if any(message.role == "assistant" for message in window[begin:end]):
            break
    return len(window)


def _sliding_places(plan: _CutPlan, share: float) -> list[int]:
    """Where the window may be cut once `share` of the conversation leaves, or more; the turn's own beginning comes last."""
    window = plan.window
    first = next((i for i in range(1, len(window)) if _is_progress(window[i : i + 1])), len(window))
    places = [
        begin for begin, _ in plan.pieces if first < begin < plan.turn and _may_begin(window[begin])
    ]
    wanted = share * plan.tokens(1, len(window)) + 1e-6
    below = bisect_right(places, wanted, key=lambda place: plan.tokens(1, place))
    return [*places[max(0, below - 1) :], *([plan.turn] if first < plan.turn else [])]


def _may_begin(message: Message) -> bool:
    return message.role == "assistant" or (message.role == "approval" and bool(message.tool_calls))


def _all_before(plan: _CutPlan) -> Cut | None:
    """All that came before this turn leaves; where that is not enough, so do the turn's own older exchanges."""
    window = plan.window
    evicted = list(range(1, plan.turn))
    stays = plan.tokens(0, 1) + plan.tokens(plan.turn, len(window))
    if stays > plan.limit:
        waiting = _waiting(window, plan.pieces)
        for begin, end in [piece for piece in plan.pieces if piece[0] >= plan.turn][:-1]:
            if stays <= plan.goal:
                break
            if begin < waiting and not any(map(_is_said_to_agent, window[begin:end])):
                evicted += range(begin, end)
                stays -= plan.tokens(begin, end)
    gone = set(evicted)
    leaving = tuple(window[index] for index in evicted)
    if not _is_progress(leaving):
        return None
    return Cut(
        leaving,
        tuple(message for index, message in enumerate(window) if index not in gone),
        is_whole=True,
    )


def _is_said_to_agent(message: Message) -> bool:
    return message.role == "system" or (message.role == "user" and not message.is_event)


def _is_progress(messages: Sequence[Message]) -> bool:
    return any(message.role != "summary" for message in messages)
