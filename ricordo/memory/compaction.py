"""Choose the messages that leave a window that is too full. Pure.

A cut never separates a call from its result. It always makes room if any message can leave.
`memory/summary.py` summarizes the evicted messages; `prompt/truncation.py` shortens single messages
that are too long.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from ricordo.domain.agent import TRIGGER, CompactionMode
from ricordo.domain.message import Message
from ricordo.llm.tokens import message_tokens
from ricordo.prompt.truncation import exchanges

# The largest summary: as a share of the window, and in tokens.
_SUMMARY_SHARE = 0.15
_SUMMARY_LIMIT = 12_500
# After a refusal the request counts as at least this many percent of the window.
_PERCENT_AFTER_REFUSAL = 125
# The highest correction of estimates. It allows for a server that was started with a hundredth of
# its model's usual window.
HIGHEST_PERCENT = 10_000


@dataclass(frozen=True, slots=True)
class Cut:
    """A window in two parts: evicted and remaining messages.

    The system message always remains. With `is_whole`, everything else before this turn is evicted,
    or before calls that wait for an answer.
    """

    evicted: tuple[Message, ...]
    remaining: tuple[Message, ...]
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class _CutPlan:
    """A window's exchanges, the turn's start, and the tokens that may stay.

    A cut aims at `goal` tokens. If more than `limit` tokens remain, older exchanges of the turn
    leave too.
    """

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
    """Choose at least `fewest` messages that leave the window; None if fewer can leave.

    Args:
        window: The messages, the system message first.
        mode: The sliding modes evict only the oldest part of the conversation, if that is enough.
        share: The share of the conversation that leaves first in the sliding modes. More messages
            leave until the window takes at most `1 - share` of `window_tokens`, with the system
            message and the tools. If these two are large, then until the other messages take at
            most `1 - share` of the room that these two leave.
        window_tokens: The size of the window.
        overhead: The tokens of the tools.
        percent: The provider's tokens for a hundred of our estimate.
        keep_from: The index where this turn begins, or the window's length if no turn runs.
            Messages of this turn leave only if no others are left.
        fewest: The least number of messages to evict.
    """
    if len(window) < 2:
        return None
    plan = _make_plan(
        window,
        share,
        window_tokens,
        overhead=overhead,
        percent=percent,
        keep_from=keep_from,
    )
    if mode in ("sliding_window", "self_compact_sliding_window"):
        for index in _sliding_cuts(plan, share):
            if index > fewest and plan.tokens(0, 1) + plan.tokens(index, len(window)) <= plan.goal:
                return Cut(tuple(window[1:index]), (window[0], *window[index:]))
    whole_cut = _cut_before_turn(plan)
    if whole_cut and len(whole_cut.evicted) >= fewest:
        return whole_cut
    return None


def summary_room(window_tokens: int, percent: int = 100) -> int:
    """Return the largest summary, in tokens by our own estimate.

    Args:
        window_tokens: The size of the window.
        percent: The provider's tokens for a hundred of our estimate.
    """
    return min(_SUMMARY_LIMIT, int(window_tokens * _SUMMARY_SHARE)) * 100 // max(1, percent)


def percent_after_refusal(estimate: int, window_tokens: int, percent: int) -> int:
    """Return the `percent` to assume after a provider refused a request as too long.

    With it, the refused request counts as larger than the window, so that `cut` and `fit` make the
    request smaller.

    Args:
        estimate: Our estimate of the refused request, in tokens.
        window_tokens: The size of the window.
        percent: The provider's tokens for a hundred of our estimate, as assumed before.
    """
    smallest = -(-window_tokens * _PERCENT_AFTER_REFUSAL // max(1, estimate))
    return min(HIGHEST_PERCENT, max(percent + percent // 4, smallest))


def _make_plan(
    window: Sequence[Message],
    share: float,
    window_tokens: int,
    *,
    overhead: int,
    percent: int,
    keep_from: int,
) -> _CutPlan:
    """Find the window's exchanges and the tokens that may stay."""
    pieces = [piece for piece in exchanges(window) if piece[0] > 0 or piece[1] > 1]
    if pieces and pieces[0][0] == 0:
        # The system message must stay, so only the rest of its piece can leave.
        pieces[0] = (1, pieces[0][1])
    factor = percent / 100
    sums = list(accumulate((message_tokens(message) * factor for message in window), initial=0.0))
    room = summary_room(window_tokens)
    fixed = sums[1] + overhead * factor
    limit = TRIGGER * window_tokens - room
    # If system message and tools take much of the window, the goal is a share of the rest.
    # Otherwise every turn would evict everything.
    goal = min(max((1 - share) * window_tokens, fixed + (1 - share) * (limit - fixed)), limit)
    turn = next(
        (begin for begin, end in pieces if begin <= keep_from < end),
        max(1, min(keep_from, len(window))),
    )
    turn = min(turn, _start_of_waiting(window, pieces))
    return _CutPlan(
        window=window,
        pieces=pieces,
        turn=turn,
        goal=goal - fixed + sums[1],
        limit=limit - fixed + sums[1],
        sums=sums,
    )


def _start_of_waiting(window: Sequence[Message], pieces: Sequence[tuple[int, int]]) -> int:
    """Return the start of the exchange whose calls wait for an answer, else the window's end.

    Only the newest exchange with calls can wait, and only if no reply of the assistant follows it.
    """
    for begin, end in reversed(pieces):
        calls = {call.call_id for message in window[begin:end] for call in message.tool_calls}
        if calls:
            answered = {
                part.call_id for message in window[begin:end] for part in message.tool_returns
            }
            if calls - answered:
                return begin
            return len(window)
        if any(message.role == "assistant" for message in window[begin:end]):
            break
    return len(window)


def _sliding_cuts(plan: _CutPlan, share: float) -> list[int]:
    """Return the indexes of possible cuts, the smallest cut first.

    The first evicts at most `share` of the conversation, if there is such a cut; the others evict
    more. The start of the current turn comes last.
    """
    window = plan.window
    first_evictable = next(
        (index for index in range(1, len(window)) if _is_progress(window[index : index + 1])),
        len(window),
    )
    indexes = [
        begin
        for begin, _ in plan.pieces
        if first_evictable < begin < plan.turn and _may_begin(window[begin])
    ]
    tokens_to_evict = share * plan.tokens(1, len(window)) + 1e-6
    below = bisect_right(indexes, tokens_to_evict, key=lambda index: plan.tokens(1, index))
    return [*indexes[max(0, below - 1) :], *([plan.turn] if first_evictable < plan.turn else [])]


def _may_begin(message: Message) -> bool:
    return message.role == "assistant" or (message.role == "approval" and bool(message.tool_calls))


def _cut_before_turn(plan: _CutPlan) -> Cut | None:
    """Return the cut that evicts everything before this turn, or before calls that wait.

    If that is not enough, the turn's older exchanges leave too.
    """
    window = plan.window
    evicted = list(range(1, plan.turn))
    remaining_tokens = plan.tokens(0, 1) + plan.tokens(plan.turn, len(window))
    if remaining_tokens > plan.limit:
        waiting = _start_of_waiting(window, plan.pieces)
        for begin, end in [piece for piece in plan.pieces if piece[0] >= plan.turn][:-1]:
            if remaining_tokens <= plan.goal:
                break
            if begin < waiting and not any(map(_is_said_to_agent, window[begin:end])):
                evicted += range(begin, end)
                remaining_tokens -= plan.tokens(begin, end)
    evicted_indexes = set(evicted)
    evicted_messages = tuple(window[index] for index in evicted)
    if not _is_progress(evicted_messages):
        return None
    return Cut(
        evicted_messages,
        tuple(message for index, message in enumerate(window) if index not in evicted_indexes),
        is_whole=True,
    )


def _is_said_to_agent(message: Message) -> bool:
    return message.role == "system" or (message.role == "user" and not message.is_event)


def _is_progress(messages: Sequence[Message]) -> bool:
    return any(message.role != "summary" for message in messages)
