"""The protocols of models: the interface of every chat model and embedder."""

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
        """Describe the model."""

    def answer(self, request: ModelRequest) -> AsyncIterator[Chunk | ModelReply]:
        """Yield chunks if `request.stream` is set, and finally the whole reply.

        Args:
            request: The transcript, the tools and the settings of one call.

        Raises:
            ModelError: The call failed, after the policy's retries.
        """


@runtime_checkable
class Embedder(Protocol):
    """A model that turns texts into vectors of one dimension."""

    @property
    def info(self) -> EmbeddingInfo:
        """Describe the model; its dimensions are known after its first call."""

    @property
    def handle(self) -> str:
        """Return the model's handle, `provider/name`."""

    async def embed(
        self, texts: Sequence[str], *, purpose: EmbeddingPurpose = "document"
    ) -> list[list[float]]:
        """Return one vector of length 1 for each text, in order.

        A text without words gets zeros.

        Args:
            texts: The texts. The embedder cuts one that is too long.
            purpose: "query" for a question of a search, "document" for a stored text.

        Raises:
            Unavailable: The model cannot be used.
            ModelError: The call failed, after the policy's retries.
        """


@runtime_checkable
class CostsTokens(Protocol):
    """An embedder of a provider. Its calls need a payer, and count their tokens with a meter."""

    costs_tokens: bool


@runtime_checkable
class KnowsWords(Protocol):
    """An optional ability of an embedder: find words with a similar meaning."""

    async def related(self, text: str) -> Mapping[str, Sequence[str]]:
        """Return related words for each word, nearest first.

        The word itself and its other forms may be among them.

        Args:
            text: The words of a query.
        """


async def whole_reply(model: ChatModel, request: ModelRequest) -> ModelReply:
    """Return the reply alone, for callers that want no chunks.

    Args:
        model: The model to call.
        request: The request. Chunks are dropped if it asks for a stream.

    Raises:
        ModelError: The call failed, after the policy's retries.
        RuntimeError: The model yielded no reply, which is a fault of its adapter.
    """
    reply: ModelReply | None = None
    async for event in model.answer(request):
        if isinstance(event, ModelReply):
            reply = event
    if reply is None:
        raise RuntimeError(
            "A chat model ended without a reply; `answer` must yield one last of all."
        )
    return reply


def chunks_of(reply: ModelReply, *, by_word: bool = False) -> Iterator[Chunk]:
    """Yield each part as one chunk, or its texts word by word.

    Args:
        reply: The whole reply.
        by_word: Cut texts and reasoning into words; calls stay whole.
    """
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
    pieces = _WORDS.findall(text) if by_word else [text]
    return [piece for piece in pieces if piece]
