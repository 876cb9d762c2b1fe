"""The last resort before a call: a transcript that is still too long is cut until it fits, and stays valid.

Compaction comes first and loses nothing. This is for what it cannot help: one message larger than a window, or a turn whose
newest exchange alone fills it. Only what the model is sent gets shorter; what is stored stays whole.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import orjson

from ricordo.domain.message import (
    ApprovalPart,
    Message,
    Part,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from ricordo.errors import ModelError

Count = Callable[[Message], int]
"""How many tokens a message takes, by our own estimate: `ricordo.llm.tokens.message_tokens`."""
Excess = Callable[[Iterable[Message]], int]
"""How many tokens some messages take beyond what is allowed."""

# Tokens that must be left beside the system message, else there is nothing to ask.
LEAST_ROOM = 64
# A text this short, in characters, is left alone while anything longer can be cut.
_LEAST_TEXT = 300
_CHARACTERS = 4
# All of it ASCII, since the tokens of a text with other letters take longer to count.
_NOTE = "\n[... {} characters were left out here to save room ...]\n"


class SystemPromptTooLong(ModelError):
    """The system message leaves no room for a conversation, so no call can be made."""

    def __init__(self, tokens: int, budget: int) -> None:
        super().__init__(
            "context_window_exceeded",
            f"The system prompt takes about {tokens} of the {budget} tokens this model has for it "
            "and the conversation. "
            "Shorten the instructions or the memory blocks, detach tools, or give the agent a "
            "larger context window.",
        )


def fit(
    messages: Sequence[Message], budget: int, percent: int = 100, *, count: Count
) -> tuple[Message, ...]:
    """The transcript, cut until `percent` of its estimate is within `budget` tokens; every call keeps its one result.

    The longest texts are cut first, and what a user said last after all others; then whole exchanges go, oldest first.
    The system message stays whole. Raises SystemPromptTooLong where it leaves no room.
    """
    allowed = budget * 100 // max(1, percent)

    def excess(some: Iterable[Message]) -> int:
        return sum(map(count, some)) - allowed

    whole = tuple(messages)
    if excess(whole) <= 0:
        return whole
    system = count(whole[0]) if whole and whole[0].role == "system" else 0
    if system + LEAST_ROOM > allowed:
        raise SystemPromptTooLong(-(-system * percent // 100), budget)
    for shorter in _attempts(whole, _CHARACTERS * allowed, excess):
        whole = shorter
        if excess(whole) <= 0:
            break
    return whole


def exchanges(messages: Sequence[Message]) -> list[tuple[int, int]]:
    """Where the pieces of a transcript that must stay together begin and end: a message, or calls with all their results.

    What a person decided about calls belongs to them too. Results that come late, after other messages, bind what is between.
    """
    pieces: list[tuple[int, int]] = []
    asked: set[str] = set()
    asked_at = 0
    for index, message in enumerate(messages):
        begin = index
        if message.tool_calls:
            asked = {call.call_id for call in message.tool_calls}
            asked_at = index
        elif message.role in ("tool", "approval") and any(
            part.call_id in asked
            for part in message.parts
            if isinstance(part, ToolReturnPart | ApprovalPart)
        ):
            begin = asked_at
        while pieces and pieces[-1][0] >= begin:
            pieces.pop()
        pieces.append((begin, index + 1))
    return pieces


def shorten(text: str, limit: int) -> str:
    """The text, cut in its middle to at most `limit` characters, with a note of how many are missing where there is room."""
    if len(text) <= limit:
        return text
    kept = limit - len(_NOTE.format(len(text)))
    if kept < 0:
        return text[: max(0, limit - 3)] + "..."[:limit]
    tail = kept // 3
    return text[: kept - tail] + _NOTE.format(len(text) - kept) + text[len(text) - tail :]


def _attempts(
    messages: tuple[Message, ...], longest: int, excess: Excess
) -> Iterator[tuple[Message, ...]]:
    """Ever shorter transcripts, each made from the one before; no text that fits has more than `longest` characters."""
    newest = _newest_words(messages)
    # As it is stored, or as `prompt/transcript.py` shows it.
    if len(messages) > 1 and (messages[1].role == "summary" or messages[1].is_event):
        summary = [1]
    else:
        summary = []
    for spared in (newest, -1):
        messages = _capped(messages, spared, _LEAST_TEXT, longest, excess)
        yield messages
    places = _kept_exchanges(messages, {0, *summary, newest}, excess)
    messages = tuple(messages[place] for place in places)
    yield messages
    messages = _capped(messages, -1, 1, longest, excess)
    yield messages
    # The system message and what a user said last, as far as it fits.
    system = tuple(message for message in messages[:1] if message.role == "system")
    last = messages[places.index(newest)]
    if last.role in ("user", "summary"):
        # No character takes more than one token.
        room = max(1, -excess((*system, last.with_text(""))))
        system = (*system, last.with_text(shorten(last.text, room)))
    yield system


def _newest_words(messages: Sequence[Message]) -> int:
    """Where the newest message of a user is, or else the newest event; the last message where there is neither."""
    users = [index for index, message in enumerate(messages) if message.role == "user"]
    said = [index for index in users if not messages[index].is_event]
    return (said or users or [len(messages) - 1])[-1]


def _capped(
    messages: tuple[Message, ...], spared: int, least: int, longest: int, excess: Excess
) -> tuple[Message, ...]:
    """The texts cut to the largest length with which all fits, or to `least` where none does; one message is `spared`."""
    cuttable = [
        message.role != "system" and index != spared for index, message in enumerate(messages)
    ]

    def at(cap: int) -> tuple[Message, ...]:
        return tuple(
            replace(message, parts=tuple(_cut(part, cap) for part in message.parts))
            if is_cuttable and any(_size(part) > cap for part in message.parts)
            else message
            for message, is_cuttable in zip(messages, cuttable, strict=True)
        )

    sizes = [
        _size(part)
        for message, is_cut in zip(messages, cuttable, strict=True)
        if is_cut
        for part in message.parts
    ]
    caps = range(least, min(max(sizes, default=0), longest) + 1)
    too_long = bisect_left(caps, True, key=lambda cap: excess(at(cap)) > 0)
    return at(caps[too_long - 1] if too_long else least)


def _size(part: Part) -> int:
    match part:
        case TextPart():
            return len(part.text)
        case ToolReturnPart():
            return len(part.content)
        case ToolCallPart():
            return len(part.arguments)
    return 0


def _cut(part: Part, cap: int) -> Part:
    if _size(part) <= cap:
        return part
    match part:
        case TextPart():
            # Its provider's proof was for the whole text.
            return replace(part, text=shorten(part.text, cap), signature=None)
        case ToolReturnPart():
            return replace(part, content=shorten(part.content, cap), is_json=False)
        case ToolCallPart():
            return replace(part, arguments=_short_arguments(part.arguments, cap))
    return part


def _short_arguments(arguments: str, cap: int) -> str:
    """The arguments with shorter texts in them; providers refuse a call whose arguments are no JSON object."""
    try:
        values = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        values = None
    each = cap if isinstance(values, dict) else 0
    while each and len(arguments) > cap:
        arguments = orjson.dumps(_with_short_texts(values, each)).decode()
        each //= 2
    if len(arguments) <= cap:
        return arguments
    return "{}"


def _with_short_texts(value: Any, limit: int) -> Any:
    match value:
        case str():
            return shorten(value, limit)
        case list():
            return [_with_short_texts(item, limit) for item in value]
        case dict():
            return {key: _with_short_texts(item, limit) for key, item in value.items()}
    return value


def _kept_exchanges(messages: tuple[Message, ...], kept: set[int], excess: Excess) -> list[int]:
    """Where the messages are that stay when the oldest exchanges go; those in `kept` stay, and so does the last exchange."""
    over = excess(messages)
    gone = set[int]()
    for begin, end in exchanges(messages)[:-1]:
        if over > 0 and kept.isdisjoint(range(begin, end)):
            gone.update(range(begin, end))
            over -= excess(messages[begin:end]) - excess(())
    return [place for place in range(len(messages)) if place not in gone]
