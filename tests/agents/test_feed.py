"""The feed from a turn to its readers.

No reader delays the turn, whole messages always arrive, and deltas never contradict them.
"""

import asyncio
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from ricordo.agents.feed import Deltas, Feed, Reader
from ricordo.domain.event import (
    Event,
    MessageRestarted,
    ReasoningDelta,
    RunEnded,
    RunStarted,
    StepSaved,
    TextDelta,
    ToolCallDelta,
)
from ricordo.domain.message import Message
from ricordo.domain.model import Chunk, ReasoningChunk, Restarted, TextChunk, ToolCallChunk
from tests.seams import make
from tests.seams.stage import saved, soon

AGENT = make.agent()
RUN = make.run(AGENT)
END = RunEnded(RUN)


def full_message(id: str, text: str = "Hello.") -> Message:
    return make.message(AGENT, text, "assistant", id=id, step_id="step-1")


def text(id: str, words: str) -> TextDelta:
    return TextDelta(RUN.id, "step-1", id, 0, words)


class Stored:
    """The stored messages that a reader gets when it reads again."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.reads = 0

    async def read(self) -> list[Message]:
        self.reads += 1
        await asyncio.sleep(0)
        return list(self.messages)


async def events_of(reader: Reader) -> list[Event]:
    async def gather() -> list[Event]:
        return [event async for event in reader.events() if not isinstance(event, RunStarted)]

    return await soon(gather())


def step_saved(*messages: Message) -> StepSaved:
    return StepSaved(RUN.id, None, messages)


async def test_a_full_queue_merges_consecutive_deltas_of_one_part() -> None:
    reader = Feed(RUN, Stored().read).subscribe(capacity=4)
    for number in range(100):
        reader.put(text("m1", f"{number} "))
    reader.put(ReasoningDelta(RUN.id, "step-1", "m1", 1, "a"))
    reader.put(ReasoningDelta(RUN.id, "step-1", "m1", 1, "b"))
    reader.put(ToolCallDelta(RUN.id, "step-1", "m1", 2, "call-a", "roll", "{"))
    reader.put(ToolCallDelta(RUN.id, "step-1", "m1", 2, "call-a", None, "}"))
    reader.put(text("m2", "Bye."))
    reader.put(END)
    events = await events_of(reader)
    assert len(events) <= 6
    assert events[0] == text("m1", " ".join(str(number) for number in range(100)) + " ")
    assert ToolCallDelta(RUN.id, "step-1", "m1", 2, "call-a", "roll", "{}") in events


async def test_catching_up_publishes_messages_that_were_saved_without_an_event() -> None:
    stored = Stored()
    feed = Feed(RUN, stored.read)
    reader = feed.subscribe()
    feed.publish(step_saved(full_message("m1")))
    stored.messages += [full_message("m1"), full_message("m2")]
    feed.catch_up()
    feed.publish(END)
    assert saved(await events_of(reader)) == ["m1", "m2"]


IDS = ("run-1", "step-1", "message-1")


def deltas_of(deltas: Deltas, *chunks: Chunk) -> list[object]:
    return [event for chunk in chunks for event in deltas.events(chunk)]


def test_message_parts_are_numbered_in_the_order_they_begin() -> None:
    told = deltas_of(
        Deltas(*IDS),
        ReasoningChunk("Hm"),
        TextChunk("Good "),
        ToolCallChunk(0, "{", "call-a", "roll"),
        TextChunk("day."),
        ToolCallChunk(0, "}"),
        ToolCallChunk(1, "{}", "call-b", "toss"),
    )
    assert told == [
        ReasoningDelta(*IDS, 0, "Hm"),
        TextDelta(*IDS, 1, "Good "),
        ToolCallDelta(*IDS, 2, "call-a", "roll", "{"),
        TextDelta(*IDS, 1, "day."),
        ToolCallDelta(*IDS, 2, "call-a", None, "}"),
        ToolCallDelta(*IDS, 3, "call-b", "toss", "{}"),
    ]
    unnamed = deltas_of(Deltas(*IDS), ToolCallChunk(3, "{", None, "roll"), ToolCallChunk(3, "}"))
    assert {event.call_id for event in unnamed if isinstance(event, ToolCallDelta)} == {"call_3"}


def test_a_restart_voids_the_streamed_message_and_begins_another() -> None:
    deltas = Deltas(*IDS)
    *_, restarted, again = deltas_of(
        deltas,
        TextChunk("Go"),
        ToolCallChunk(0, "{", "call-a", "roll"),
        Restarted(),
        ToolCallChunk(0, "{", "call-b", "roll"),
    )
    assert isinstance(restarted, MessageRestarted)
    assert restarted.message_id == "message-1"
    assert restarted.new_message_id == deltas.message_id != "message-1"
    assert again == ToolCallDelta("run-1", "step-1", deltas.message_id, 0, "call-b", "roll", "{")


def test_a_thoughts_argument_becomes_reasoning_before_its_call() -> None:
    told = deltas_of(
        Deltas(*IDS, thoughts_argument="thinking"),
        ToolCallChunk(0, "", "call-a", "roll"),
        ToolCallChunk(0, '{"thinking": "I ', None),
        ToolCallChunk(0, 'roll.", "sides": "6'),
        ToolCallChunk(1, '{"thinking": "And toss."}', "call-b", "toss"),
        ToolCallChunk(0, '"}'),
    )
    assert told == [
        ReasoningDelta(*IDS, 0, "I "),
        ReasoningDelta(*IDS, 0, "roll."),
        ToolCallDelta(*IDS, 1, "call-a", "roll", '{"sides":"6'),
        ReasoningDelta(*IDS, 2, "And toss."),
        ToolCallDelta(*IDS, 3, "call-b", "toss", "{}"),
        ToolCallDelta(*IDS, 1, "call-a", None, '"}'),
    ]


def test_a_gated_call_is_not_streamed_while_others_are() -> None:
    deltas = Deltas(*IDS, gated_tools={"roll"})
    assert deltas_of(deltas, ToolCallChunk(0, "{", "a", "roll"), ToolCallChunk(0, "}")) == []
    (told,) = deltas_of(deltas, ToolCallChunk(1, "{}", "b", "toss"))
    assert isinstance(told, ToolCallDelta)
    assert (told.call_id, told.name) == ("b", "toss")
    deltas.events(Restarted())
    assert len(deltas_of(deltas, ToolCallChunk(0, "{}", "c", "toss"))) == 1


# Random turns and readers.

WORDS = st.lists(st.sampled_from(["a ", "bc ", "d"]), max_size=6)
TURNS = st.lists(st.tuples(WORDS, st.booleans()), min_size=1, max_size=6)


@given(
    turn=TURNS,
    capacity=st.integers(1, 6),
    pauses=st.lists(st.integers(0, 12), max_size=20),
    late=st.integers(0, 12),
)
async def test_every_reader_gets_each_message_once_in_order_with_consistent_deltas(
    turn: Sequence[tuple[Sequence[str], bool]], capacity: int, pauses: list[int], late: int
) -> None:
    stored = Stored()
    feed = Feed(RUN, stored.read)
    texts: dict[str, str] = {}
    readers: list[Reader] = []
    tasks: list[asyncio.Task[list[Event]]] = []

    def join() -> None:
        readers.append(feed.subscribe(capacity))
        tasks.append(asyncio.create_task(events_of(readers[-1])))

    moment = 0

    async def publish(event: Event) -> None:
        nonlocal moment
        feed.publish(event)
        moment += 1
        if moment == late:
            join()
        for _ in range(pauses[moment % len(pauses)] if pauses else 0):
            await asyncio.sleep(0)

    join()
    for number, (words, restarts) in enumerate(turn):
        id = f"m{number}"
        for word in words:
            await publish(text(id, word))
        if restarts and words:
            await publish(MessageRestarted(RUN.id, "step-1", id, f"{id}-again"))
            id = f"{id}-again"
            for word in words:
                await publish(text(id, word))
        texts[id] = "".join(words)
        stored.messages.append(full_message(id, texts[id]))
        await asyncio.sleep(0)
        await publish(step_saved(stored.messages[-1]))
    await publish(END)
    join()
    for task in tasks:
        events = await task
        assert saved(events) == list(texts)
        assert events[-1] == END
        require_consistent(events, texts)


def require_consistent(events: Sequence[Event], texts: dict[str, str]) -> None:
    """Check that deltas form the beginning of their message, and that none follows the message."""
    heard: dict[str, str] = {}
    finished: set[str] = set()
    for event in events:
        if isinstance(event, TextDelta):
            assert event.message_id not in finished
            heard[event.message_id] = heard.get(event.message_id, "") + event.text
        elif isinstance(event, StepSaved):
            for message in event.messages:
                finished.add(message.id)
                assert texts[message.id].startswith(heard.get(message.id, ""))
