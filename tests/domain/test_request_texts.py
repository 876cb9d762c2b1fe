"""A request scans all of its texts as one, with the same result as scanning each alone."""

import random

import pytest

from ricordo.domain.hidden_text import with_marks
from ricordo.domain.message import (
    ImagePart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from ricordo.domain.model import ModelRequest

# Letters, marks, joiners, selectors, tags and controls, in correct and in meaningless positions.
_PIECES = (
    *("a", "ä", "\u0308", "\u200b", "\u200d", "\ufe0f", "\u2764", "\U0001f469", "\u0645"),
    *("\u200c", "\u200f", "\u00ad", "\U000e0041", "\n", "\x07", "\\u200b", " ", "\u0378"),
)


def texts(part: Part) -> list[str]:
    match part:
        case TextPart() | ReasoningPart():
            return [part.text]
        case ToolReturnPart():
            return [part.content]
        case _:
            return []


def test_each_text_is_marked_as_if_it_were_scanned_alone() -> None:
    chance = random.Random(36)  # noqa: S311 - not for keys
    marked_count = 0
    for number in range(400):
        pieces = _PIECES if number % 2 else (*_PIECES[:2], *_PIECES[5:9])
        messages = []
        for _ in range(chance.randrange(1, 5)):
            text = "".join(chance.choices(pieces, k=chance.randrange(1, 6)))
            part = chance.choice(
                (TextPart(text), ReasoningPart(text), ToolReturnPart("c", "t", "success", text))
            )
            messages.append(Message("message-1", "agent-1", "conv-1", "user", (part,), 0))
        request = ModelRequest(tuple(messages))
        shown = [text for message in request.messages for text in texts(message.parts[0])]
        alone = [with_marks(text) for message in messages for text in texts(message.parts[0])]
        assert shown == alone
        marked_count += shown != [text for row in messages for text in texts(row.parts[0])]
        assert request.characters == sum(map(len, shown))
    assert 50 < marked_count < 350


def test_a_request_counts_the_characters_and_pictures_that_a_model_reads() -> None:
    call = ToolCallPart("call-1", "roll", '{"sides": 6}')
    parts = (
        TextPart("on\u200bce"),
        call,
        ReasoningPart("", redacted="xyz"),
        ImagePart("image/png"),
    )
    request = ModelRequest((Message("message-1", "agent-1", "conv-1", "user", parts, 0),))
    assert request.characters == len("on⟦U+200B⟧ce") + len("roll" + call.arguments) + len("xyz")
    assert request.pictures == 1


@pytest.mark.parametrize("depth", [300, 900])
def test_deeply_nested_arguments_with_escapes_can_be_requested(depth: int) -> None:
    arguments = '{"a": ' + "[" * depth + '"\\u200b"' + "]" * depth + "}"
    part = ToolCallPart("call-1", "roll", arguments)
    message = Message("message-1", "agent-1", "conv-1", "assistant", (part,), 0)
    assert ModelRequest((message,)).messages == (message,)
