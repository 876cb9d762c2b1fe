"""An embedding model that needs nothing: the same text gives the same vector anywhere, and texts that share words lie close.

For tests, demos and the authors of plugins, as `ScriptedModel` is; it can be slow, and fail, on demand.
"""

import asyncio
import hashlib
import math
import re
from collections import deque
from collections.abc import Sequence

from ricordo.domain.model import EmbeddingInfo, EmbeddingPurpose

_WORD = re.compile(r"\w+")


class ScriptedEmbedder:
    """Puts each word at places that its hash says. `asked` holds the texts of every call; `delay` is in seconds a call."""

    def __init__(self, *, name: str = "embedder", dimensions: int = 64, delay: float = 0) -> None:
        self.asked: list[list[str]] = []
        self.delay = delay
        self.info = EmbeddingInfo(f"scripted/{name}", "scripted", name, "openai", dimensions)
        self.handle = self.info.handle
        self._dimensions = dimensions
        self._failures: deque[Exception] = deque()

    def fails(self, *errors: Exception) -> None:
        self._failures.extend(errors)

    async def embed(self, texts: Sequence[str], *, purpose: EmbeddingPurpose = "document") -> list[list[float]]:  # noqa: ARG002
        """One vector of length 1 for each text, in order; zeros for a text without words."""
        self.asked.append(list(texts))
        if self.delay:
            await asyncio.sleep(self.delay)
        if self._failures:
            raise self._failures.popleft()
        return [self._vector(text) for text in texts]

    def _vector(self, text: str) -> list[float]:
        vector = [0.0] * self._dimensions
        for word in _WORD.findall(text.lower()):
            digest = hashlib.blake2b(word.encode("utf-8", "replace"), digest_size=16).digest()
            for place, sign in zip(digest[::2], digest[1::2], strict=True):
                vector[place % self._dimensions] += 1 if sign < 128 else -1
        length = math.hypot(*vector)
        return [number / length for number in vector] if length else vector
