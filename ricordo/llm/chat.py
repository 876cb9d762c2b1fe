"""The protocols of models: what every chat model and embedder offers."""

import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

from ricordo.domain.message import ReasoningPart, TextPart, ToolCallPart
from ricordo.domain.model import (
    Chunk,
    EmbeddingInfo,
    EmbeddingPurpose,
    ModelInfo,
    ModelReply,
    ModelRequest,
    ReasoningChunk,
    TextChunk,
    ToolCallChunk,
)

_WORDS = re.compile(r"\S*\s*")


class ChatModel(Protocol):
    """A model that answers a transcript."""

    @property
    def info(self) -> ModelInfo:
        """Which model this is."""

    def answer(self, request: ModelRequest) -> AsyncIterator[Chunk | ModelReply]:
        """Yield chunks where `request.stream` asks for them, last the whole reply. Raises ModelError after the policy's retries."""


@runtime_checkable
class Embedder(Protocol):
    """A model that turns texts into vectors of one dimension."""

    @property
    def info(self) -> EmbeddingInfo:
        """Which model this is; its dimensions are known once it was asked."""

    @property
    def handle(self) -> str:
        """Which model this is, as `provider/name`."""

    async def embed(
        self, texts: Sequence[str], *, purpose: EmbeddingPurpose = "document"
    ) -> list[list[float]]:
        """One vector of length 1 a text, in order; zeros for one without words. Raises ModelError after retries, Unavailable."""


@runtime_checkable
class KnowsWords(Protocol):
    """What an embedder may offer besides: words near in meaning to those of a question."""

    async def related(self, text: str) -> Mapping[str, Sequence[str]]:
        """By word, nearest first; the word itself and its other forms may be among them."""


async def whole_reply(model: ChatModel, request: ModelRequest) -> ModelReply:
    """The reply alone, for callers that want no chunks."""
    reply: ModelReply | None = None
    async for item in model.answer(request):
        if isinstance(item, ModelReply):
            reply = item
    if reply is None:
        raise RuntimeError(
            "A chat model ended without a reply; `answer` must yield one last of all."
        )
    return reply


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
