"""Chunks of an answer as events about the message it becomes."""

from ricordo.agents.deltas import Deltas
from ricordo.domain.event import MessageRestarted, ReasoningDelta, TextDelta, ToolCallDelta
from ricordo.domain.model import Chunk, ReasoningChunk, Restarted, TextChunk, ToolCallChunk

IDS = ("run-1", "step-1", "message-1")


def events(deltas: Deltas, *chunks: Chunk) -> list[object]:
    return [event for chunk in chunks for event in deltas.events(chunk)]


def test_parts_are_counted_in_the_order_in_which_they_begin() -> None:
    told = events(
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


def test_a_call_without_an_id_has_the_same_one_in_all_its_pieces() -> None:
    told = events(Deltas(*IDS), ToolCallChunk(3, "{", None, "roll"), ToolCallChunk(3, "}"))
    assert {event.call_id for event in told if isinstance(event, ToolCallDelta)} == {"call_3"}


def test_empty_chunks_are_no_events_and_count_no_part() -> None:
    assert events(Deltas(*IDS), TextChunk(""), ReasoningChunk(""), TextChunk("Hi")) == [TextDelta(*IDS, 0, "Hi")]


def test_a_restart_makes_what_was_told_void_and_begins_another_message() -> None:
    deltas = Deltas(*IDS)
    *_, restarted, again = events(
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


def test_a_restart_before_anything_was_told_is_no_event() -> None:
    deltas = Deltas(*IDS)
    assert events(deltas, Restarted(), TextChunk("Hi")) == [TextDelta(*IDS, 0, "Hi")]


def test_thoughts_among_the_arguments_are_reasoning_before_their_call() -> None:
    told = events(
        Deltas(*IDS, thoughts="thinking"),
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


def test_after_a_restart_the_thoughts_are_read_anew() -> None:
    deltas = Deltas(*IDS, thoughts="thinking")
    void, restarted, again = events(
        deltas,
        ToolCallChunk(0, '{"thinking": "I', "call-a", "roll"),
        Restarted(),
        ToolCallChunk(0, '{"thinking": "We"', "call-b", "roll"),
    )
    assert void == ReasoningDelta(*IDS, 0, "I")
    assert isinstance(restarted, MessageRestarted)
    assert again == ReasoningDelta("run-1", "step-1", deltas.message_id, 0, "We")


def test_a_call_that_has_to_wait_is_not_told_in_pieces_and_others_beside_it_are() -> None:
    deltas = Deltas(*IDS, held={"roll"})
    assert events(deltas, ToolCallChunk(0, "{", "a", "roll"), ToolCallChunk(0, "}")) == []
    (told,) = events(deltas, ToolCallChunk(1, "{}", "b", "toss"))
    assert isinstance(told, ToolCallDelta)
    assert (told.call_id, told.name) == ("b", "toss")
    deltas.events(Restarted())
    assert len(events(deltas, ToolCallChunk(0, "{}", "c", "toss"))) == 1
