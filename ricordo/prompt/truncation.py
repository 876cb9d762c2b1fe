"""The last resort before a model call: cut a transcript until it fits the window.

The result is valid. Compaction is tried first, since a summary tells more than a cut text.
Truncation helps where compaction cannot: one message may be larger than the window, or the turn's
newest exchange may fill it. Only the model's input gets shorter; stored messages stay whole.
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
from ricordo.domain.text import nests_deeply
from ricordo.errors import ModelError

Count = Callable[[Message], int]
"""Returns a message's tokens by our estimate, as `ricordo.llm.tokens.message_tokens` does."""
Excess = Callable[[Iterable[Message]], int]
"""Returns by how many tokens the messages exceed the limit."""

# The fewest tokens that a request needs in addition to the system message.
LEAST_ROOM = 64
# In characters. Shorter texts are not cut while longer ones can be.
_SHORT_TEXT = 300
_CHARACTERS = 4
# The note is ASCII, since tokens of other letters take longer to count.
_NOTE = "\n[... {} characters were left out here to save room ...]\n"


class SystemPromptTooLong(ModelError):
    """The system message leaves no room for a conversation."""

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
    """Cut the transcript until `percent` of its estimate is within `budget` tokens.

    The longest texts are cut first, and the user's last message after all others. Then whole
    exchanges are removed, oldest first. The system message stays whole, and every call keeps its
    one result.

    Args:
        messages: A valid transcript, as `transcript` returns it. A system message, if any, comes
            first.
        budget: The most tokens of the whole transcript.
        percent: The tokens that the provider counts, in percent of the estimate by `count`.
        count: Returns the estimated tokens of one message.

    Raises:
        SystemPromptTooLong: The system message leaves no room for a conversation.
    """
    allowed = budget * 100 // max(1, percent)

    def excess(part: Iterable[Message]) -> int:
        return sum(map(count, part)) - allowed

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
    """Return the beginning and end of each inseparable piece of a transcript.

    A piece is a message, or calls with all their results. A person's decisions on the calls belong
    to the piece too. If results are late, the messages between a call and its results belong to the
    piece.
    """
    pieces: list[tuple[int, int]] = []
    call_ids: set[str] = set()
    calls_index = 0
    for index, message in enumerate(messages):
        begin = index
        if message.tool_calls:
            call_ids = {call.call_id for call in message.tool_calls}
            calls_index = index
        elif message.role in ("tool", "approval") and any(
            part.call_id in call_ids
            for part in message.parts
            if isinstance(part, ToolReturnPart | ApprovalPart)
        ):
            begin = calls_index
        while pieces and pieces[-1][0] >= begin:
            pieces.pop()
        pieces.append((begin, index + 1))
    return pieces


def shorten(text: str, limit: int) -> str:
    """Cut the text in its middle to at most `limit` characters.

    A note counts the missing characters, if there is room for it.
    """
    if len(text) <= limit:
        return text
    remaining = limit - len(_NOTE.format(len(text)))
    if remaining < 0:
        return text[: max(0, limit - 3)] + "..."[:limit]
    tail = remaining // 3
    return text[: remaining - tail] + _NOTE.format(len(text) - remaining) + text[len(text) - tail :]


def _attempts(
    messages: tuple[Message, ...], longest: int, excess: Excess
) -> Iterator[tuple[Message, ...]]:
    """Yield ever shorter transcripts, each made from the one before.

    `longest` is the most characters that a text within the budget can have.
    """
    newest = _newest_user_index(messages)
    # The summary has its stored form, or the form of `prompt/transcript.py`.
    if len(messages) > 1 and (messages[1].role == "summary" or messages[1].is_event):
        summary = [1]
    else:
        summary = []
    for spared in (newest, -1):
        messages = _capped(messages, spared, _SHORT_TEXT, longest, excess)
        yield messages
    indexes = _remaining_indexes(messages, {0, *summary, newest}, excess)
    messages = tuple(messages[index] for index in indexes)
    yield messages
    messages = _capped(messages, -1, 1, longest, excess)
    yield messages
    # The system message, and as much as possible of the user's last message.
    system = tuple(message for message in messages[:1] if message.role == "system")
    newest_message = messages[indexes.index(newest)]
    if newest_message.role in ("user", "summary"):
        # A character takes at most one token.
        room = max(1, -excess((*system, newest_message.with_text(""))))
        system = (*system, newest_message.with_text(shorten(newest_message.text, room)))
    yield system


def _newest_user_index(messages: Sequence[Message]) -> int:
    """Return the index of the newest user message, or else of the newest event.

    If there is neither, it is the last message.
    """
    users = [index for index, message in enumerate(messages) if message.role == "user"]
    spoken = [index for index in users if not messages[index].is_event]
    return (spoken or users or [len(messages) - 1])[-1]


def _capped(
    messages: tuple[Message, ...], spared: int, shortest: int, longest: int, excess: Excess
) -> tuple[Message, ...]:
    """Cut all texts to the largest length at which the transcript fits.

    The message with the index `spared` is not cut. If no length fits, texts are cut to `shortest`.
    """
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
    caps = range(shortest, min(max(sizes, default=0), longest) + 1)
    too_long = bisect_left(caps, True, key=lambda cap: excess(at(cap)) > 0)
    return at(caps[too_long - 1] if too_long else shortest)


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
            # The provider's signature is only valid for the whole text.
            return replace(part, text=shorten(part.text, cap), signature=None)
        case ToolReturnPart():
            return replace(part, content=shorten(part.content, cap), is_json=False)
        case ToolCallPart():
            return replace(part, arguments=_short_arguments(part.arguments, cap))
    return part


def _short_arguments(arguments: str, cap: int) -> str:
    """Return the arguments with shorter texts; "{}" if they are still too long.

    Providers refuse a call whose arguments are not a JSON object.
    """
    try:
        parsed = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        parsed = None
    is_readable = isinstance(parsed, dict) and not nests_deeply(arguments, parsed)
    text_limit = cap if is_readable else 0
    while text_limit and len(arguments) > cap:
        arguments = orjson.dumps(_with_short_texts(parsed, text_limit)).decode()
        text_limit //= 2
    if len(arguments) <= cap:
        return arguments
    return "{}"


def _with_short_texts(content: Any, limit: int) -> Any:
    match content:
        case str():
            return shorten(content, limit)
        case list():
            return [_with_short_texts(part, limit) for part in content]
        case dict():
            return {key: _with_short_texts(part, limit) for key, part in content.items()}
    return content


def _remaining_indexes(
    messages: tuple[Message, ...], protected: set[int], excess: Excess
) -> list[int]:
    """Return the indexes of the messages that remain when the oldest exchanges are removed.

    The messages in `protected` remain, and so does the last exchange.
    """
    over = excess(messages)
    removed = set[int]()
    for begin, end in exchanges(messages)[:-1]:
        if over > 0 and protected.isdisjoint(range(begin, end)):
            removed.update(range(begin, end))
            over -= excess(messages[begin:end]) - excess(())
    return [index for index in range(len(messages)) if index not in removed]
