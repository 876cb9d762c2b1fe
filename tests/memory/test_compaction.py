"""The choice of messages that leave a window.

Calls stay with their results, order stays, and each compaction makes progress if it can.
"""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ricordo.domain.agent import TRIGGER, CompactionMode
from ricordo.domain.message import (
    ApprovalPart,
    CompactionPart,
    Message,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from ricordo.llm.tokens import message_tokens, transcript_tokens
from ricordo.memory.compaction import Cut, cut, percent_after_refusal, summary_room
from ricordo.memory.summary import clipped
from ricordo.prompt.transcript import heartbeat_event, paired
from ricordo.prompt.truncation import fit
from tests.seams import make

AGENT = make.agent()
SYSTEM = make.message(AGENT, "You are Nina. " * 20, "system")
SUMMARY = make.message(
    AGENT,
    role="summary",
    parts=(TextPart("Before."), CompactionPart("window", ("message-1",), 9, 1, 4_096, 9, 2)),
)
MODES: tuple[CompactionMode, ...] = (
    "all",
    "sliding_window",
    "self_compact_all",
    "self_compact_sliding_window",
)


def message_of_size(size: int, role: str = "user") -> Message:
    return replace(make.message(AGENT, "x" * 4 * size), role=role)


def exchange(*sizes: int, gated: bool = False, answered: bool = True) -> list[Message]:
    """Return calls with results of this number of tokens.

    Calls that need approval have a decision in between, and unanswered calls have no result.
    """
    calls = tuple(
        ToolCallPart(f"call-{n}", "look", "{}", is_gated=gated) for n in range(len(sizes))
    )
    asked = make.message(AGENT, role="approval" if gated else "assistant", parts=calls)
    if not answered:
        return [asked]
    results = tuple(
        ToolReturnPart(f"call-{n}", "look", "success", "r" * 4 * size)
        for n, size in enumerate(sizes)
    )
    decided = [
        make.message(
            AGENT, role="approval", parts=tuple(ApprovalPart(call.call_id, True) for call in calls)
        )
    ]
    return [asked, *(decided if gated else []), make.message(AGENT, role="tool", parts=results)]


def cut_at(
    window: list[Message], mode: CompactionMode, keep_from: int | None = None, **other: int | float
) -> Cut | None:
    given = {"window_tokens": 10_000, "overhead": 0, "percent": 100, "share": 0.3} | other
    return cut(
        window,
        mode,
        given["share"],
        window_tokens=int(given["window_tokens"]),
        overhead=int(given["overhead"]),
        percent=int(given["percent"]),
        keep_from=len(window) if keep_from is None else keep_from,
    )


def talk(turns: int, size: int = 100) -> list[Message]:
    return [
        message
        for _ in range(turns)
        for message in (message_of_size(size), message_of_size(size, "assistant"))
    ]


sizes = st.one_of(st.integers(0, 60), st.integers(0, 3_000), st.sampled_from([9_000, 70_000]))
pieces = st.one_of(
    st.builds(lambda size: [message_of_size(size)], sizes),
    st.builds(lambda size: [message_of_size(size, "assistant")], sizes),
    st.builds(
        lambda many, gated: exchange(*many, gated=gated),
        st.lists(sizes, min_size=1, max_size=3),
        st.booleans(),
    ),
    st.builds(lambda size: exchange(size, answered=False), sizes),
)
endings = st.sampled_from(
    [[], exchange(5, gated=True, answered=False), exchange(5, gated=True)[:2]]
)
modes = st.sampled_from(MODES)


@st.composite
def windows(draw: st.DrawFn) -> tuple[list[Message], int]:
    """Return a window, and the position where the turn begins.

    A turn begins with a user's message or a decision.
    """
    before = [message for piece in draw(st.lists(pieces, max_size=14)) for message in piece]
    window = [SYSTEM, *([SUMMARY] if draw(st.booleans()) else []), *before]
    if draw(st.booleans()):
        return [*window, *draw(endings)], len(window) + 1
    during = [m for piece in draw(st.lists(pieces, max_size=6)) for m in piece if m.role != "user"]
    return [*window, message_of_size(draw(sizes)), *during, *draw(endings)], len(window)


def starts_of(messages: list[Message]) -> list[str]:
    return [message.id for message in messages]


@given(
    windows(),
    modes,
    st.sampled_from([4_096, 16_000, 128_000, 200_000]),
    st.floats(0, 1),
    st.sampled_from([50, 100, 200]),
)
def test_a_cut_splits_no_call_from_its_result_keeps_the_order_and_loses_nothing(
    case: tuple[list[Message], int],
    mode: CompactionMode,
    window_tokens: int,
    share: float,
    percent: int,
) -> None:
    window, keep_from = case
    found = cut_at(
        window, mode, keep_from, window_tokens=window_tokens, share=share, percent=percent
    )
    if found is None:
        return
    order = starts_of(window)
    for part in (found.evicted, found.remaining):
        places = [order.index(message.id) for message in part]
        assert places == sorted(places)
    assert sorted(starts_of([*found.evicted, *found.remaining])) == sorted(order)
    assert found.remaining[0] is window[0]
    assert any(message.role != "summary" for message in found.evicted)
    assert SUMMARY not in found.remaining

    # Each call that had a result still has it, and no new call lacks one.
    def results(messages: list[Message]) -> list[tuple[str, ...]]:
        without_decisions = [m for m in messages if m.role != "approval" or m.tool_calls]
        return [
            (asked.id, answer.id)
            for asked, answer in pairwise(without_decisions)
            if asked.tool_calls and answer.role == "tool"
        ]

    assert sorted(results([*found.evicted]) + results([*found.remaining])) == sorted(
        results(window)
    )
    plain = [
        message for message in found.remaining if message.role != "approval" or message.tool_calls
    ]
    # Calls with repeated ids get new ids, so messages are compared by their ids.
    shapes = {(message.id, message.role, len(message.parts)) for message in paired(plain)}
    assert [
        message for message in plain if (message.id, message.role, len(message.parts)) not in shapes
    ] == []


settled = st.one_of(
    st.builds(
        lambda size, role: [message_of_size(size, role)],
        sizes,
        st.sampled_from(["user", "assistant"]),
    ),
    st.builds(lambda many: exchange(*many), st.lists(sizes, min_size=1, max_size=3)),
)


@given(
    st.lists(settled, max_size=14),
    sizes,
    st.lists(settled, max_size=6),
    modes,
    st.sampled_from([4_096, 32_000]),
)
def test_every_cut_makes_progress_if_it_can(
    before: list[list[Message]],
    asked: int,
    during: list[list[Message]],
    mode: CompactionMode,
    window_tokens: int,
) -> None:
    question = message_of_size(asked)
    steps = [step for step in during if step[0].role == "assistant"]
    past = [message for piece in before for message in piece]
    window = [SYSTEM, *past, question, *(message for step in steps for message in step)]
    found = cut_at(window, mode, 1 + len(past), window_tokens=window_tokens)

    limit = TRIGGER * window_tokens - summary_room(window_tokens)
    if found is None:
        assert not past
        assert transcript_tokens(window) <= limit or len(steps) <= 1
    elif transcript_tokens(found.remaining) > limit:
        # If more remains than the limit, every message that may leave has left.
        assert list(found.remaining) == [SYSTEM, question, *(steps[-1] if steps else [])]


def test_a_sliding_cut_evicts_its_share_and_ends_before_an_assistant_message() -> None:
    window = [SYSTEM, *talk(10)]
    found = cut_at(window, "sliding_window", share=0.3)
    assert found.remaining[1].role == "assistant"
    share = transcript_tokens(found.evicted) / transcript_tokens(window[1:])
    assert 0.2 <= share <= 0.3


def test_mode_all_keeps_only_the_system_message_and_the_current_turn() -> None:
    window = [SYSTEM, SUMMARY, *talk(5), message_of_size(50), *exchange(10)]
    found = cut_at(window, "all", keep_from=12)
    assert found == Cut(tuple(window[1:12]), (SYSTEM, *window[12:]), is_whole=True)
    on_demand = cut_at(window, "all")
    assert on_demand == Cut(tuple(window[1:]), (SYSTEM,), is_whole=True)


def test_an_earlier_summary_is_evicted_with_later_messages_but_never_alone() -> None:
    window = [SYSTEM, SUMMARY, *talk(6)]
    found = cut_at(window, "sliding_window")
    assert found.evicted[0] is SUMMARY
    assert cut_at([SYSTEM, SUMMARY, message_of_size(9_500)], "sliding_window", keep_from=2) is None
    assert cut_at([SYSTEM, SUMMARY], "all") is None
    assert cut_at([SYSTEM], "all") is None
    assert cut_at([], "all") is None


@pytest.mark.parametrize("mode", MODES)
def test_a_too_long_turn_loses_its_older_exchanges_and_keeps_the_users_message(
    mode: CompactionMode,
) -> None:
    question = message_of_size(500)
    steps = [exchange(1_500) for _ in range(8)]
    window = [SYSTEM, SUMMARY, question, *(message for step in steps for message in step)]
    found = cut_at(window, mode, keep_from=2)
    assert found.remaining[:2] == (SYSTEM, question)
    assert found.evicted[0] is SUMMARY
    assert found.remaining[-2:] == tuple(steps[-1])
    assert transcript_tokens(found.remaining) <= 7_000
    assert [message.id for message in paired(found.remaining)] == [
        message.id for message in found.remaining
    ]


def test_a_heartbeat_does_not_count_as_the_users_message() -> None:
    question, beat = message_of_size(100), make.message(AGENT, parts=(heartbeat_event("x", "now"),))
    window = [SYSTEM, question, *exchange(4_000), beat, *exchange(4_000), beat, *exchange(4_000)]
    found = cut_at(window, "all", keep_from=1)
    assert found is not None
    assert found == Cut(tuple(window[2:7]), (SYSTEM, question, *window[7:]), is_whole=True)


def test_an_old_call_without_a_result_can_be_evicted() -> None:
    window = [
        SYSTEM,
        *exchange(10, answered=False),
        message_of_size(10),
        message_of_size(10, "assistant"),
        *talk(60),
    ]
    found = cut_at(window, "all")
    assert found == Cut(tuple(window[1:]), (SYSTEM,), is_whole=True)


def test_a_large_system_message_does_not_evict_the_whole_conversation() -> None:
    system = make.message(AGENT, "s" * 4 * 5_000, "system")
    window = [system, *talk(20)]
    found = cut_at(window, "sliding_window", overhead=1_000)
    assert len(found.remaining) >= 10


def test_after_a_refusal_the_same_transcript_counts_as_too_long() -> None:
    for estimate in (100, 3_000, 9_000, 20_000):
        percent = percent_after_refusal(estimate, 10_000, 100)
        assert percent <= 10_000
        assert estimate * percent / 100 > TRIGGER * 10_000
    assert percent_after_refusal(20_000, 10_000, 160) == 200
    assert percent_after_refusal(0, 10_000, 100) == 10_000
    window = [SYSTEM, *talk(20)]
    refused = transcript_tokens(window)
    found = cut_at(window, "sliding_window", percent=percent_after_refusal(refused, 10_000, 100))
    assert transcript_tokens(found.remaining) < refused * 0.56


turns = st.lists(st.tuples(sizes, st.lists(sizes, max_size=5)), min_size=1, max_size=25)


@given(
    turns,
    modes,
    st.sampled_from([4_096, 8_192, 32_000, 200_000]),
    st.sampled_from([0.5, 0.8, 1.0, 1.3, 2.0]),
    st.sampled_from([0, 700]),
)
def test_every_request_soon_fits_even_if_the_estimate_is_half_or_double(
    said_and_done: list[tuple[int, list[int]]],
    mode: CompactionMode,
    window_tokens: int,
    truth: float,
    overhead: int,
) -> None:
    """All parts of the loop: cut before a call, summarize, fit, and learn from a refusal."""
    window, percent, refusals = [SYSTEM], 100, 0

    def make_room(keep_from: int) -> int:
        found = cut_at(
            window,
            mode,
            keep_from,
            window_tokens=window_tokens,
            overhead=overhead,
            percent=percent,
            share=0.3,
        )
        if found is None:
            return keep_from
        first = window[keep_from] if keep_from < len(window) else None
        room = summary_room(window_tokens, percent)
        summary = make.message(AGENT, clipped("s" * 200_000, 50_000, room), "summary")
        window[:] = [found.remaining[0], summary, *found.remaining[1:]]
        return window.index(first) if first in window else len(window)

    def ask(keep_from: int) -> int:
        nonlocal percent, refusals
        for _ in range(4):
            budget = int(TRIGGER * window_tokens) - -(-overhead * percent // 100)
            if transcript_tokens(window) * percent / 100 > budget:
                keep_from = make_room(keep_from)
            sent = fit(paired(window), budget, percent, count=message_tokens)
            assert [message.id for message in paired(sent)] == [message.id for message in sent]
            assert transcript_tokens(sent) * percent / 100 <= budget
            estimate = transcript_tokens(sent) + overhead
            if estimate * truth <= window_tokens:
                percent = max(50, round(100 * truth))
                return keep_from
            refusals += 1
            percent = percent_after_refusal(estimate, window_tokens, percent)
        raise AssertionError("refused four times")

    for asked, steps in said_and_done:
        question = message_of_size(asked)
        window.append(question)
        begin = len(window) - 1
        for size in steps:
            begin = ask(begin)
            assert question in window
            window += exchange(size)
        ask(begin)
        window.append(message_of_size(3, "assistant"))
    # The loop learns the correction once, and keeps it.
    assert refusals <= 2
