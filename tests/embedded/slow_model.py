"""A model that sends its second word only after the reader has the first."""

import asyncio
import threading
from collections.abc import AsyncGenerator

from ricordo.domain.message import TextPart
from ricordo.domain.model import Chunk, ModelInfo, ModelReply, ModelRequest, TextChunk

LIMIT = 60.0  # seconds after which a test that waits fails


class SlowModel:
    """A model that sends a word, and the next one when its reader has the first."""

    def __init__(self) -> None:
        self.was_heard = threading.Event()

    @property
    def info(self) -> ModelInfo:
        return ModelInfo("slow/model", "slow", "model", "openai")

    async def answer(self, _request: ModelRequest) -> AsyncGenerator[Chunk | ModelReply, None]:
        yield TextChunk("First ")
        assert await asyncio.to_thread(self.was_heard.wait, LIMIT)
        yield TextChunk("second.")
        yield ModelReply((TextPart("First second."),))
