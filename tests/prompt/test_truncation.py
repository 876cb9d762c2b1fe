"""Truncation, the last resort.

Whatever the transcript, the request fits, and every call keeps its one result.
"""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ricordo.domain.message import (
    ApprovalPart,
    ImagePart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from ricordo.llm.tokens import message_tokens, transcript_tokens
from ricordo.prompt.transcript import heartbeat_event, paired, transcript
from ricordo.prompt.truncation import LEAST_ROOM, SystemPromptTooLong, exchanges, fit, shorten
from tests.seams import make

AGENT = make.agent()
SYSTEM = make.message(AGENT, "You are Nina." * 5, "system")


def fitted(messages: list[Message], budget: int, percent: int = 100) -> list[Message]:
    return list(fit(messages, budget, percent, count=message_tokens))


def asks(*calls: tuple[str, str]) -> Message:
    return make.message(
        AGENT, role="assistant", parts=tuple(ToolCallPart(id, "look", text) for id, text in calls)
    )


def answers(*results: tuple[str, str]) -> Message:
    return make.message(
        AGENT,
        role="tool",
        parts=tuple(ToolReturnPart(id, "look", "success", t) for id, t in results),
    )


sizes = st.one_of(st.integers(0, 80), st.integers(0, 4_000), st.sampled_from([20_000, 90_000]))
texts = st.builds(
    lambda letter, size: letter * size,
    st.sampled_from(["a", "b ", "é", "日", "\\", '"', "😀"]),
    sizes,
)
arguments = st.one_of(
    st.builds(lambda text: orjson.dumps({"query": text, "more": [text]}).decode(), texts),
    texts,
    st.builds(lambda levels: '{"a":' + "[" * levels + "]" * levels + "}", st.integers(0, 1_000)),
    st.builds(
        lambda count: orjson.dumps({str(n): n for n in range(count)}).decode(), st.integers(0, 400)
    ),
)
said = st.builds(
    lambda text, role: make.message(AGENT, text or "x", role),
    texts,
    st.sampled_from(["user", "assistant"]),
)
shown = st.builds(
    lambda n: make.message(AGENT, parts=(TextPart("See"), *[ImagePart("image/png", "eA==")] * n)),
    st.integers(1, 9),
)
thought = st.builds(
    lambda text: make.message(AGENT, role="assistant", parts=(ReasoningPart(text, signature="s"),)),
    texts,
)


@st.composite
def calls(draw: st.DrawFn) -> list[Message]:
    count = draw(st.integers(1, 4))
    asked = [(f"call-{n}", draw(arguments)) for n in range(count)]
    results = [(f"call-{n}", draw(texts)) for n in range(count)]
    thoughts: tuple[Part, ...] = (
        (ReasoningPart(draw(texts), signature="s"),) if draw(st.booleans()) else ()
    )
    question = asks(*asked)
    return [
        make.message(AGENT, role="assistant", parts=(*thoughts, *question.parts)),
        answers(*results),
    ]


transcripts = st.lists(
    st.one_of(
        said.map(lambda one: [one]),
        shown.map(lambda one: [one]),
        thought.map(lambda one: [one]),
        calls(),
    ),
    max_size=12,
).map(lambda pieces: [SYSTEM, *(message for piece in pieces for message in piece)])


@given(transcripts, st.integers(0, 60_000), st.sampled_from([50, 100, 130, 200]))
def test_a_truncated_request_always_fits_and_stays_valid(
    messages: list[Message], more: int, percent: int
) -> None:
    # The ids of all calls differ, as in every transcript.
    messages = paired(messages)
    budget = -(-(message_tokens(SYSTEM) + LEAST_ROOM + more) * percent // 100)
    sent = fitted(messages, budget, percent)
    assert transcript_tokens(sent) * percent / 100 <= budget
    assert paired(sent) == sent
    assert sent[0] == SYSTEM
    order = [message.id for message in messages]
    places = [order.index(message.id) for message in sent]
    assert places == sorted(set(places))
    for message in sent:
        assert message.parts
        for call in message.tool_calls:
            original = next(
                one
                for one in messages[order.index(message.id)].tool_calls
                if one.call_id == call.call_id
            )
            assert call == original or isinstance(orjson.loads(call.arguments), dict)


@given(transcripts)
def test_the_newest_user_message_is_always_sent(messages: list[Message]) -> None:
    newest = next((message.id for message in reversed(messages) if message.role == "user"), None)
    sent = fitted(messages, message_tokens(SYSTEM) + LEAST_ROOM + 40)
    assert newest is None or newest in [message.id for message in sent]


def test_a_users_message_and_the_summary_are_kept_before_later_heartbeats() -> None:
    summary = make.message(AGENT, "What was before.", "summary")
    beat = make.message(AGENT, parts=(heartbeat_event("Go on.", "now"),))
    question = make.message(AGENT, "Where is my cat?")
    many = [
        m for n in range(40) for m in (asks((f"c{n}", "{}")), answers((f"c{n}", "result")), beat)
    ]
    shown = list(transcript([SYSTEM, summary, question, *many], "UTC", 128_000))
    sent = fitted(shown, 400)
    assert sent[:3] == shown[:3]
    assert sent[-1].id == beat.id
    barest = fitted(shown, message_tokens(SYSTEM) + LEAST_ROOM)
    assert [message.id for message in barest][-1] in (question.id, beat.id)
    assert question.id in [message.id for message in barest]


def test_the_longest_texts_are_cut_first_and_the_newest_message_last() -> None:
    old, new = make.message(AGENT, "o" * 4_000), make.message(AGENT, "n" * 4_000)
    messages = [SYSTEM, old, asks(("a", "{}")), answers(("a", "r" * 40_000)), new]

    roomy = fitted(messages, 4_000)
    assert (roomy[1], roomy[4]) == (old, new)
    assert "left out here" in roomy[3].tool_returns[0].content
    assert transcript_tokens(roomy) > 3_900

    narrow = fitted(messages, 1_300)
    assert narrow[4] == new
    assert len(narrow[1].text) == len(narrow[3].tool_returns[0].content) < 1_000

    tight = fitted(messages, 500)
    assert 300 < len(tight[4].text) < 2_000


def test_a_cut_text_keeps_its_beginning_and_end_and_says_how_much_is_missing() -> None:
    text = "begin" + "x" * 1_000 + "end"
    short = shorten(text, 200)
    assert 195 <= len(short) <= 200
    assert short.startswith("begin")
    assert short.endswith("end")
    assert f"[... {1_000 - short.count('x')} characters were left out" in short
    assert shorten(text, 1_008) == text
    assert shorten("abcdefgh", 5) == "ab..."
    assert shorten("abcdefgh", 1) == "."


def test_cut_arguments_stay_valid_json_and_keep_their_short_values() -> None:
    written = orjson.dumps({"path": "a.txt", "lines": ["y" * 9_000], "count": 3}).decode()
    sent = fitted([SYSTEM, make.message(AGENT), asks(("a", written)), answers(("a", "ok"))], 300)
    values = orjson.loads(sent[2].tool_calls[0].arguments)
    assert (values["path"], values["count"]) == ("a.txt", 3)
    assert "left out here" in values["lines"][0]


def test_a_system_message_that_fills_the_window_is_an_error_with_advice() -> None:
    system = make.message(AGENT, "x" * 40_000, "system")
    with pytest.raises(
        SystemPromptTooLong, match=r"takes about 10004 of the 9000 tokens.*Shorten"
    ) as caught:
        fitted([system, make.message(AGENT)], 9_000)
    assert caught.value.kind == "context_window_exceeded"


def test_calls_with_their_decision_and_results_are_one_exchange() -> None:
    asked = make.message(
        AGENT, role="approval", parts=(ToolCallPart("a", "look", "{}", is_gated=True),)
    )
    decided = make.message(AGENT, role="approval", parts=(ApprovalPart("a", True),))
    messages = [
        SYSTEM,
        make.message(AGENT),
        asked,
        make.message(AGENT, "Hello?"),
        decided,
        answers(("a", "ok")),
    ]
    assert exchanges(messages) == [(0, 1), (1, 2), (2, 6)]
    assert exchanges([SYSTEM, answers(("x", "stray")), asks(("a", "{}"))]) == [
        (0, 1),
        (1, 2),
        (2, 3),
    ]
    assert exchanges(
        [asks(("a", "{}")), answers(("a", "1")), asks(("a", "{}")), answers(("a", "2"))]
    ) == [
        (0, 2),
        (2, 4),
    ]
