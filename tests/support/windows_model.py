"""The models of the window campaign: each counts tokens in its own way, refuses what is too long, and checks the rest."""

import base64
import random
import string
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from itertools import takewhile

import orjson

from ricordo.domain.message import ImagePart, Part, ReasoningPart, TextPart, ToolCallPart, ToolReturnPart
from ricordo.domain.model import Chunk, ModelInfo, ModelReply, ModelRequest
from ricordo.domain.usage import Usage
from ricordo.errors import ModelError
from ricordo.llm.openai_format import to_messages
from tests.support.faults_wire import faults_of

PICTURE = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(24)).decode()
_LETTERS = string.ascii_lowercase
_AS_LETTERS = str.maketrans("0123456789", "bcfhjklmnp")


@dataclass
class Counted:
    """What happened to requests: `refused` are those that were too long, `open` those whose refusal was not made good yet."""

    requests: int = 0
    refused: int = 0
    refused_summaries: int = 0
    fullest: float = 0.0
    open: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


class CountingModel:
    """A model with a window of `window` tokens, of which our estimate is off by the factor `rate`; it says what its luck says."""

    def __init__(self, name: str, window: int, rate: float, counted: Counted, luck: random.Random) -> None:
        self.rate = rate
        self.counted = counted
        self.luck = luck
        self.words = 0
        self._info = ModelInfo(f"counting/{name}", "counting", name, "openai", window)
        self._calls = 0

    @property
    def info(self) -> ModelInfo:
        return self._info

    async def answer(self, request: ModelRequest) -> AsyncGenerator[Chunk | ModelReply, None]:
        """Refuse what is too long; else call tools or speak."""
        counted, window = self.counted, self._info.context_window
        size = self.size_of(request)
        is_for_summary = not request.tools or request.tool_choice == "none"
        if size > window:
            if is_for_summary:
                counted.refused_summaries += 1
            else:
                counted.refused += 1
                counted.open[self._info.handle] += 1
            raise ModelError("context_window_exceeded", f"This model's maximum context length is {window} tokens.")
        counted.requests += 1
        counted.fullest = max(counted.fullest, size / window)
        counted.faults += faults_of({"messages": to_messages(request.messages)})
        if is_for_summary:
            yield self._reply((TextPart(self.text(self.luck.randint(20, 400))),), size)
            return
        counted.open[self._info.handle] = 0
        yield self._reply(self._parts(request), size)

    def size_of(self, request: ModelRequest) -> int:
        """The tokens of a request as this model's provider counts them."""
        tools = sum(len(orjson.dumps([tool.name, tool.description, tool.parameters])) for tool in request.tools)
        return int(
            self.rate * (tools / 4 + sum(3 + sum(map(_size_of_part, message.parts)) for message in request.messages))
        )

    def text(self, tokens: int) -> str:
        """About so many tokens of text by our estimate, with a word at its beginning that no other text has."""
        self.words += 1
        # Letters alone, and none that a stemmer takes for an ending: search knows it as one word.
        unique = f"q{self._info.name[1:].partition('s')[0]}{self.words:06d}".translate(_AS_LETTERS)
        return f"{unique} " + " ".join(self.luck.choices(_WORDS, k=max(0, tokens * 4 // 7 - 2)))

    def _parts(self, request: ModelRequest) -> tuple[Part, ...]:
        window = self._info.context_window
        tokens = random_size(self.luck, window)
        since = list(takewhile(lambda one: one.role != "user" or one.text.startswith("{"), reversed(request.messages)))
        must_speak = sum(bool(message.tool_calls) for message in since) > 4
        names = [tool.name for tool in request.tools]
        if self.luck.random() < 0.4 and "tell" in names and not must_speak:
            thought = (ReasoningPart(self.text(tokens // 3), signature="proof", provider="counting"),)
            calls = [self._call(names) for _ in range(self.luck.choice((1, 1, 2, 4)))]
            return (*(thought if self.luck.random() < 0.2 else ()), *calls)
        if "send_message" in names:
            return (self._named("send_message", {"message": self.text(tokens)}),)
        return (TextPart(self.text(tokens)),)

    def _call(self, names: list[str]) -> ToolCallPart:
        window = self._info.context_window
        given = {"tokens": random_size(self.luck, window * 2), "mark": self.text(self.luck.choice((2, 2, 300)))}
        return self._named("tell", given | ({"request_heartbeat": True} if "send_message" in names else {}))

    def _named(self, name: str, given: dict[str, object]) -> ToolCallPart:
        self._calls += 1
        return ToolCallPart(f"call_{self._calls}", name, orjson.dumps(given).decode())

    def _reply(self, parts: tuple[Part, ...], size: int) -> ModelReply:
        has_calls = any(isinstance(part, ToolCallPart) for part in parts)
        usage = Usage(size, 50) if self.luck.random() < 0.9 else Usage(0, 50)  # some providers report none
        return ModelReply(parts, usage, "tool_calls" if has_calls else "stop", self._info.name)


_WORDS = ["".join(random.Random(number).choices(_LETTERS, k=6)) for number in range(500)]  # noqa: S311


def random_size(luck: random.Random, window: int, most: float = 1.5) -> int:
    """Mostly small next to the window, and now and then larger than it."""
    return min(int(window * luck.lognormvariate(-4.2, 1.5)) + 2, int(window * most))


def _size_of_part(part: Part) -> float:
    match part:
        case TextPart() | ReasoningPart():
            return len(part.text) / 4
        case ToolCallPart():
            return (len(part.name) + len(part.arguments)) / 4 + 5
        case ToolReturnPart():
            return len(part.content) / 4 + 5
        case ImagePart():
            return 900
    return 0
