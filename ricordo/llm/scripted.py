"""A chat model that follows a script, and an embedder without a network or key.

For tests, demos and authors of plugins.
"""

import asyncio
import hashlib
import inspect
import math
import re
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import orjson

from ricordo.domain.message import Part, TextPart, ToolCallPart
from ricordo.domain.model import (
    DEFAULT_CONTEXT_WINDOW,
    Chunk,
    EmbeddingInfo,
    EmbeddingPurpose,
    ModelInfo,
    ModelReply,
    ModelRequest,
)
from ricordo.domain.usage import Usage
from ricordo.errors import ModelError
from ricordo.llm.chat import chunks_of
from ricordo.llm.tokens import estimated_usage
from ricordo.llm.written_calls import new_call_id

Line = str | ToolCallPart | Sequence[Part] | ModelReply | Exception
"""One reply: a text, a call, parallel calls, a whole reply, or an error to raise."""

Script = Iterable[Line] | Callable[[ModelRequest], Line | Awaitable[Line]]


def call(name: str, **arguments: Any) -> ToolCallPart:
    """Return a tool call with a fresh id.

    Example: `call("memory_insert", label="human", new_string="Likes tea.")`.

    Args:
        name: The name of the tool.
        **arguments: The arguments, as JSON values.
    """
    return ToolCallPart(new_call_id(), name, orjson.dumps(arguments).decode())


class ScriptedModel:
    """Answers from a script or from a function of the request.

    `requests` keeps every request.
    """

    def __init__(
        self,
        script: Script,
        *,
        name: str = "model",
        delay: float = 0,
        context_window: int = DEFAULT_CONTEXT_WINDOW,
    ) -> None:
        self.requests: list[ModelRequest] = []
        self.info = ModelInfo(f"scripted/{name}", "scripted", name, "openai", context_window)
        self._answer = script if callable(script) else None
        if callable(script):
            self._lines: Iterator[Line] = iter(())
        else:
            self._lines = iter(script)
        self._delay = delay

    async def answer(self, request: ModelRequest) -> AsyncGenerator[Chunk | ModelReply, None]:
        """Yield the script's next reply, word by word first if `request.stream` is set.

        Args:
            request: The request, which is added to `requests`.

        Raises:
            ModelError: The script has no reply left.
            Exception: The next line of the script is an error.
        """
        self.requests.append(request)
        if self._delay:
            await asyncio.sleep(self._delay)
        line = await self._next(request)
        if isinstance(line, Exception):
            raise line
        reply = self._reply(line, request)
        if request.stream:
            for chunk in chunks_of(reply, by_word=True):
                yield chunk
        yield reply

    async def _next(self, request: ModelRequest) -> Line:
        if self._answer is not None:
            line = self._answer(request)
            if inspect.isawaitable(line):
                return await line
            return line
        try:
            return next(self._lines)
        except StopIteration:
            calls = len(self.requests)
            raise ModelError(
                "llm_error",
                f"The script of {self.info.handle} has no reply for call {calls}. Add more "
                "replies.",
            ) from None

    def _reply(
        self, line: str | ToolCallPart | Sequence[Part] | ModelReply, request: ModelRequest
    ) -> ModelReply:
        if isinstance(line, ModelReply):
            reply = line
        else:
            if isinstance(line, str):
                parts: tuple[Part, ...] = (TextPart(line),)
            else:
                parts = (line,) if isinstance(line, ToolCallPart) else tuple(line)
            has_calls = any(isinstance(part, ToolCallPart) for part in parts)
            reply = ModelReply(parts, finish="tool_calls" if has_calls else "stop")
        if reply.usage == Usage():
            reply = replace(reply, usage=estimated_usage(request, reply))
        if reply.model:
            return reply
        return replace(reply, model=self.info.name)


_WORD = re.compile(r"\w+")


class ScriptedEmbedder:
    """Vectors from hashes of words: texts that share words lie close together.

    `asked` has all texts, a list for each call; `delay` is the time of a call in seconds.
    """

    def __init__(self, *, name: str = "embedder", dimensions: int = 64, delay: float = 0) -> None:
        self.asked: list[list[str]] = []
        self.delay = delay
        self.info = EmbeddingInfo(f"scripted/{name}", "scripted", name, "openai", dimensions)
        self.handle = self.info.handle
        self._dimensions = dimensions
        self._failures: deque[Exception] = deque()

    def fails(self, *errors: Exception) -> None:
        """Let the next calls raise these errors, one each.

        Args:
            *errors: The errors, in the order of the calls.
        """
        self._failures.extend(errors)

    async def embed(
        self,
        texts: Sequence[str],
        *,
        purpose: EmbeddingPurpose = "document",  # noqa: ARG002
    ) -> list[list[float]]:
        """Return a vector of length 1 for each text, in order.

        A text without words gets zeros.

        Args:
            texts: The texts, which are added to `asked`.
            purpose: Ignored: questions and documents get the same vectors.

        Raises:
            Exception: The next error that `fails` prepared.
        """
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
            for index, sign in zip(digest[::2], digest[1::2], strict=True):
                vector[index % self._dimensions] += 1 if sign < 128 else -1
        length = math.hypot(*vector)
        if length:
            return [number / length for number in vector]
        return vector
