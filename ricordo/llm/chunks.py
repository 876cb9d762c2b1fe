"""A whole reply as the chunks it would have come in."""

import re
from collections.abc import Iterator

from ricordo.domain.message import ReasoningPart, TextPart, ToolCallPart
from ricordo.domain.model import Chunk, ModelReply, ReasoningChunk, TextChunk, ToolCallChunk

_WORDS = re.compile(r"\S*\s*")


def chunks_of(reply: ModelReply, *, by_word: bool = False) -> Iterator[Chunk]:
    """Each part as one chunk, or its texts word by word."""
    calls = 0
    for part in reply.parts:
        match part:
            case TextPart():
                yield from map(TextChunk, _pieces(part.text, by_word))
            case ReasoningPart():
                yield from map(ReasoningChunk, _pieces(part.text, by_word))
            case ToolCallPart():
                yield ToolCallChunk(calls, part.arguments, part.call_id, part.name)
                calls += 1
            case _:
                pass


def _pieces(text: str, by_word: bool) -> list[str]:
    return [piece for piece in (_WORDS.findall(text) if by_word else [text]) if piece]
