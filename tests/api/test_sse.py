"""The events that a reader of a turn receives, also if deltas are missing or the reader leaves."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ricordo.api.models.messages import AnyMessage, MessageFormat, message_responses
from ricordo.api.sse import SseEncoder, sse_stream
from ricordo.api.turn_encoder import TurnEncoder
from ricordo.domain.event import (
    ApprovalAsked,
    Compacted,
    Event,
    Failed,
    MessageRestarted,
    ReasoningDelta,
    RunEnded,
    RunStarted,
    StepSaved,
    TextDelta,
    ToolCallDelta,
    ToolProgress,
)
from ricordo.domain.message import Message, Part, ReasoningPart, TextPart, ToolCallPart
from tests.seams import make
from tests.seams.http import require_fits
from tests.seams.server import events_of, sums_of
from tests.seams.stores import ManualClock

Stream = Callable[[AsyncGenerator[Event]], AsyncIterator[bytes]]
AGENT = make.agent()
RUN = make.run(AGENT)
ENDED = make.run(AGENT, id=RUN.id, status="completed", stop_reason="end_turn", step_count=1)


def event_stream(*, tokens: bool = True, pings: bool = False, keepalive: float = 5) -> Stream:
    options = {"has_tokens": tokens, "has_pings": pings, "keepalive": keepalive}
    return partial(sse_stream, view=MessageFormat(), clock=ManualClock(), **options)


def message(*parts: Part) -> Message:
    return make.message(AGENT, role="assistant", parts=parts, run_id=RUN.id, step_id="step-1")


async def events_of_run(*events: Event) -> AsyncGenerator[Event]:
    yield RunStarted(RUN)
    for event in events:
        yield event


async def values_sent(stream: Stream, events: AsyncGenerator[Event]) -> list[Any]:
    body = b"".join([chunk async for chunk in stream(events)])
    return [value for _, value in events_of(body.decode())]


async def messages_sent(stream: Stream, *events: Event) -> list[Any]:
    values = await values_sent(stream, events_of_run(*events, RunEnded(ENDED)))
    assert values[-1] == "[DONE]"
    return values[:-3]


def text(of: Message, words: str, part: int = 0) -> TextDelta:
    return TextDelta(RUN.id, "step-1", of.id, part, words)


def thought(of: Message, words: str, part: int = 0) -> ReasoningDelta:
    return ReasoningDelta(RUN.id, "step-1", of.id, part, words)


def piece(
    of: Message, call: ToolCallPart, arguments: str, *, part: int = 0, named: bool = False
) -> ToolCallDelta:
    return ToolCallDelta(
        RUN.id, "step-1", of.id, part, call.call_id, call.name if named else None, arguments
    )


def saved(*messages: Message) -> StepSaved:
    return StepSaved(RUN.id, None, messages)


async def test_a_delta_event_holds_only_the_new_piece() -> None:
    one = message(TextPart("Hello."))

    first, second = await messages_sent(
        event_stream(), text(one, "Hel", 1), text(one, "lo.", 1), saved(one)
    )

    require_fits(AnyMessage, first)
    assert first == {
        "id": one.id,
        "date": "2026-01-01T00:00:00+00:00",
        "message_type": "assistant_message",
        "content": "Hel",
        "name": None,
        "otid": one.id.removeprefix("message-")[:-2] + "01",
        "sender_id": None,
        "step_id": "step-1",
        "is_err": None,
        "seq_id": None,
        "run_id": RUN.id,
    }
    assert second == {**first, "content": "lo."}


async def test_the_rest_of_a_partly_streamed_call_follows_when_it_is_saved() -> None:
    calls = [ToolCallPart(f"call-{n}", "search", f'{{"query": {n}}}') for n in range(3)]
    one = message(*calls)
    deltas = [
        piece(one, calls[0], '{"que', named=True),
        piece(one, calls[1], calls[1].arguments, named=True),
    ]

    rest = (await messages_sent(event_stream(), *deltas, saved(one)))[2:]

    assert [event["tool_calls"] for event in rest] == [
        [{"tool_call_id": "call-2", "name": "search", "arguments": '{"query": 2}'}],
        {"tool_call_id": "call-0", "arguments": 'ry": 0}'},
    ]
    for event in rest:
        require_fits(AnyMessage, event)
    assert rest[1]["tool_call"] == rest[1]["tool_calls"]


async def test_a_restarted_message_is_streamed_whole_under_a_new_id() -> None:
    void, one = message(), message(TextPart("Anew."))
    restarted = MessageRestarted(RUN.id, "step-1", void.id, one.id)

    events = await messages_sent(
        event_stream(), text(void, "Lost"), restarted, text(one, "An"), saved(one)
    )

    assert [(event["id"], event["content"]) for event in events] == [
        (void.id, "Lost"),
        (one.id, "An"),
        (one.id, "ew."),
    ]
    # The second attempt repeats the call with the same call id.
    one = message(call := ToolCallPart("call_0", "search", '{"query": "tea"}'))
    restarted = MessageRestarted(RUN.id, "step-1", void.id, one.id)
    events = await messages_sent(
        event_stream(), piece(void, call, '{"query', named=True), restarted, saved(one)
    )
    assert events[1]["tool_calls"] == [
        {"tool_call_id": "call_0", "name": "search", "arguments": call.arguments}
    ]


async def test_pings_are_sent_while_nothing_happens() -> None:
    gate = asyncio.Event()

    async def silent() -> AsyncGenerator[Event]:
        yield RunStarted(RUN)
        await gate.wait()
        yield RunEnded(ENDED)

    chunks = event_stream(pings=True, keepalive=0.01)(silent())
    pings = [await anext(chunks) for _ in range(4)]
    gate.set()
    rest = [chunk async for chunk in chunks]

    assert all(b'"message_type":"ping"' in ping and RUN.id.encode() in ping for ping in pings)
    assert len(set(pings)) == 4
    assert [chunk for chunk in rest if b'"ping"' not in chunk][-1] == b"data: [DONE]\n\n"


async def test_closing_a_silent_stream_closes_its_source() -> None:
    left = asyncio.Event()

    async def silent() -> AsyncGenerator[Event]:
        try:
            yield RunStarted(RUN)
            await asyncio.Event().wait()
        finally:
            left.set()

    for pings in (1, 2):  # At the second ping the stream already waits for the next event.
        left.clear()
        chunks = event_stream(pings=True, keepalive=0.01)(silent())
        for _ in range(pings):
            await anext(chunks)
        await chunks.aclose()  # type: ignore[attr-defined]
        assert left.is_set()


def deltas_of(one: Message, size: int) -> Iterator[Event]:
    """Yield a message in pieces of this size; the pieces of parallel calls alternate."""
    calls: list[list[Event]] = []
    for place, part in enumerate(one.parts):
        if isinstance(part, ToolCallPart):
            whole, starts = part.arguments, range(0, len(part.arguments), size)
            calls.append(
                [
                    piece(one, part, whole[at : at + size], part=place, named=at == 0)
                    for at in starts
                ]
            )
        elif isinstance(part, TextPart | ReasoningPart):
            delta = thought if isinstance(part, ReasoningPart) else text
            yield from (
                delta(one, part.text[at : at + size], place)
                for at in range(0, len(part.text), size)
            )
    yield from (event for events in zip_longest(*calls) for event in events if event)


@given(
    number=st.integers(1, 3), size=st.integers(1, 9), kept=st.integers(0, 90), tokens=st.booleans()
)
def test_a_streams_deltas_add_up_to_the_stored_messages(
    number: int, size: int, kept: int, tokens: bool
) -> None:
    messages = [
        message(
            ReasoningPart(f"Let me think about {n}."),
            TextPart(f"I will look for {n}."),
            ToolCallPart(f"call-{n}-a", "search", f'{{"query": "{n}"}}'),
            ToolCallPart(f"call-{n}-b", "search", f'{{"query": "not {n}"}}'),
        )
        for n in range(number)
    ]
    events = [
        event for one in messages for event in (*list(deltas_of(one, size))[:kept], saved(one))
    ]
    added = sums_of(asyncio.run(messages_sent(event_stream(tokens=tokens), *events)))
    assert added == sums_of(message_responses(messages, MessageFormat()))


@given(size=st.integers(1, 9), kept=st.integers(0, 90), tokens=st.booleans())
def test_the_objects_of_a_turn_equal_the_events_of_its_stream(
    size: int, kept: int, tokens: bool
) -> None:
    one = message(
        ReasoningPart("Let me think."), TextPart("I look."), ToolCallPart("call-1", "search", "{}")
    )
    failed = Failed(replace(ENDED, status="failed", stop_reason="error"), "llm_error", "It broke.")
    progress = ToolProgress(RUN.id, "call-1", "half")
    for end in (RunEnded(ENDED), failed):
        events = (RunStarted(RUN), *list(deltas_of(one, size))[:kept], saved(one), progress, end)
        clock = ManualClock()
        objects = TurnEncoder(MessageFormat(), clock, has_tokens=tokens, first=1)
        stream = SseEncoder(MessageFormat(), clock, has_tokens=tokens, first=1)

        wires = [wire for event in events for wire in objects.encode(event)]
        chunks = [chunk for event in events for chunk in stream.encode(event)]

        *told_objects, done = [value for _, value in events_of(b"".join(chunks).decode())]
        assert done == "[DONE]"
        assert [without_ping_id(told) for told in told_objects] == list(map(without_ping_id, wires))


def without_ping_id(wire: Any) -> Any:
    """Return the message; a ping gets a fixed id, since its id is random."""
    return {**wire, "id": "ping"} if wire["message_type"] == "ping" else wire


async def test_the_text_of_a_message_tool_call_is_streamed_once_as_it_arrives() -> None:
    one = message(
        ToolCallPart(
            "call-1", "send_message", '{"message": "Hello, \\u00e9.", "request_heartbeat": false}'
        )
    )
    arguments = one.tool_calls[0].arguments
    deltas = [
        piece(one, one.tool_calls[0], sign, named=not place) for place, sign in enumerate(arguments)
    ]

    events = await messages_sent(event_stream(), *deltas, saved(one))
    cut = await messages_sent(event_stream(), *deltas[:20], saved(one))

    assert [event["content"] for event in events] == list("Hello, é.")
    assert {event["message_type"] for event in events} == {"assistant_message"}
    assert "".join(event["content"] for event in cut) == "Hello, é."
    assert len(cut) < len(events)
    # If the pieces of two calls alternate, each spoken text comes in one piece.
    calls = [
        ToolCallPart(f"call-{n}", "send_message", f'{{"message": "Speech {n}."}}') for n in range(2)
    ]
    one = message(*calls)
    deltas = [
        piece(one, call, call.arguments[at : at + 9], named=not at)
        for at in range(0, 27, 9)
        for call in calls
    ]
    events = await messages_sent(event_stream(), *deltas, saved(one))
    assert "".join(event["content"] for event in events) == "Speech 0.Speech 1."


async def test_a_call_streamed_without_spaces_is_not_repeated_when_it_is_saved() -> None:
    call = ToolCallPart("call-1", "search", '{"query": "tea", "limit": 3}')
    one = message(call)

    for end in (12, len('{"query":"tea","limit":3}')):
        deltas = [piece(one, call, '{"query":"tea","limit":3}'[:end], named=True)]
        events = await messages_sent(event_stream(), *deltas, saved(one))
        told_arguments = "".join(event["tool_calls"].get("arguments", "") for event in events)
        assert told_arguments == '{"query":"tea","limit":3}'


async def test_a_summary_and_an_approval_request_are_streamed_once() -> None:
    summary = make.message(AGENT, "What was said.", role="summary", run_id=RUN.id)
    asked = make.message(AGENT, "May I?", role="assistant", run_id=RUN.id, step_id="step-1")
    compacted = Compacted(RUN.id, summary, 900, 300)

    events = await messages_sent(
        event_stream(), compacted, saved(summary), saved(asked), ApprovalAsked(RUN.id, asked)
    )

    assert [event["message_type"] for event in events] == ["summary_message", "assistant_message"]
