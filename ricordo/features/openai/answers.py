"""A turn as one answer in OpenAI's form, streamed or whole.

Calls of the agent's tools are not shown.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field

import orjson

from ricordo.api.models.messages import MessageFormat
from ricordo.api.sse import DONE, PING, ReadableTurn, events_for_client
from ricordo.api.turn_encoder import TurnEncoder
from ricordo.domain.clock import SECOND, Clock
from ricordo.domain.event import Event, Failed, RunEnded, RunStarted, waiting_in
from ricordo.domain.message import Message, ToolCallPart
from ricordo.domain.run import Run
from ricordo.domain.text import Json
from ricordo.domain.usage import Usage
from ricordo.features.openai.errors import failure_json

_SHOWN = MessageFormat(
    types=frozenset({"assistant_message", "reasoning_message"}), shows_summaries=False
)
_TEXTS = {
    "assistant_message": ("content", "content"),
    "reasoning_message": ("reasoning", "reasoning_content"),
}
# The reasons to stop that OpenAI's clients read as the `finish_reason` "length".
_CUT = ("max_steps", "max_tokens_exceeded")
_USAGE_CHUNK: Json = {"object": "chat.completion.chunk", "choices": []}
Noting = Callable[["AnswerReader"], Awaitable[None]]
"""A function that is called with the reader at the run's start, and at its end with an answer."""


@dataclass(slots=True)
class AnswerReader:
    """Reads the events of a turn as deltas, and collects the text.

    `page` is the address of the page where a person decides on waiting calls of the agent's tools.
    With `has_form` (for example JSON), only the last text is the answer, and it is sent once it is
    complete. Texts before a call or a correction are dropped.
    """

    clock: Clock
    client_tools: Collection[str]
    page: str
    has_form: bool = False
    run: Run | None = None
    failed: Failed | None = None
    text: str = ""
    reasoning: str = ""
    calls: list[ToolCallPart] = field(default_factory=list)
    _encoder: TurnEncoder | None = None
    _last_message_id: str = ""
    _is_asked: bool = False

    def read(self, event: Event) -> Iterator[Json]:
        """Yield the deltas that the event adds to the message."""
        self._encoder = self._encoder or TurnEncoder(_SHOWN, self.clock, has_tokens=True)
        if isinstance(event, RunStarted | RunEnded | Failed):
            self.run = event.run
            self.failed = None
            if isinstance(event, Failed) and event.run.stop_reason in _CUT:
                yield from self._show_reason(event.message)
            elif isinstance(event, Failed):
                self.failed = event
            if isinstance(event, RunStarted):
                yield {"role": "assistant", "content": ""}
            elif isinstance(event, RunEnded) and self.has_form and self.text and not self.calls:
                yield {"content": self.text}
            return
        for wire in self._encoder.encode(event):
            yield from self._delta(wire)
        waiting = waiting_in(event)
        if waiting and not self._is_asked:
            yield self._ask(waiting)

    @property
    def finish_reason(self) -> str:
        if self.calls:
            return "tool_calls"
        if self.run and self.run.stop_reason in _CUT:
            return "length"
        return "stop"

    @property
    def run_suffix(self) -> str:
        """Return the run's id without its prefix, empty before the start."""
        if self.run:
            return self.run.id.removeprefix("run-")
        return ""

    @property
    def created_seconds(self) -> int:
        if self.run:
            return self.run.created_at // SECOND
        return 0

    def usage(self) -> Json:
        return usage_json(self.run.usage if self.run else Usage())

    def message(self) -> Json:
        """Return the whole message."""
        no_text = None if self.calls else ""
        return {
            "role": "assistant",
            "content": self.text or no_text,
            "refusal": None,
            "reasoning_content": self.reasoning or None,
            "tool_calls": [_call_json(call) for call in self.calls] or None,
        }

    def _delta(self, wire: Json) -> Iterator[Json]:
        names = _TEXTS.get(wire.get("message_type", ""))
        if names is None or not (text := wire[names[0]]):
            return
        is_new_message = self._last_message_id != wire["id"]
        if names[1] == "content" and self.has_form:
            if is_new_message:
                self.text = ""
            self.text += text
            self._last_message_id = wire["id"]
            return
        if names[1] == "content":
            if self._last_message_id and is_new_message and self.text:
                text = f"\n\n{text}"  # the agent called a tool between two texts
            self._last_message_id = wire["id"]
            self.text += text
        else:
            self.reasoning += text
        yield {names[1]: text}

    def _show_reason(self, reason: str) -> Iterator[Json]:
        """Yield the sentence that says why the answer is missing or incomplete.

        A client that expects a form such as JSON gets no text, only `finish_reason`.
        """
        if self.has_form:
            self.text = ""
            return
        text = f"\n\n{reason}" if self.text else reason
        self.text += text
        yield {"content": text}

    def _ask(self, message: Message) -> Json:
        """Return the calls for the client, or a text with the address where a person decides."""
        self._is_asked = True
        waiting = list(message.waiting_calls)
        if others := [call.name for call in waiting if call.name not in self.client_tools]:
            notice = (
                f"This waits for your approval: {', '.join(others)}. Approve or reject it at "
                f"{self.page}"
            )
            if self.text:
                notice = f"\n\n{notice}"
            self.text += notice
            if self.has_form:
                return {}
            return {"content": notice}
        self.calls = waiting
        if self.has_form:
            self.text = ""
        return {
            "tool_calls": [
                {"index": index, **_call_json(call)} for index, call in enumerate(waiting)
            ]
        }


def usage_json(usage: Usage) -> Json:
    """Return token counts in OpenAI's form."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {
            "cached_tokens": usage.cached_tokens or 0,
            "cache_write_tokens": usage.cache_write_tokens or 0,
        },
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
    }


def _call_json(call: ToolCallPart) -> Json:
    return {
        "id": call.call_id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


async def no_note(_reader: AnswerReader) -> None:
    """Record nothing, since this answer is not kept."""


def data(event_json: Json) -> bytes:
    return b"data: " + orjson.dumps(event_json) + b"\n\n"


async def deltas_of(
    turn: ReadableTurn,
    reader: AnswerReader,
    noting: Noting,
    keepalive: float,
    *,
    stops_when_left: bool,
) -> AsyncGenerator[Json | None]:
    """Yield the deltas that the turn adds to the message, and None after a pause.

    Args:
        turn: The turn that answers.
        reader: Collects the answer; it has the run and the whole message at the end.
        noting: Called with the reader when the run starts, and when it ends with an answer.
        keepalive: The seconds of silence after which None is yielded.
        stops_when_left: Cancel the turn if its client leaves the stream.
    """
    async with aclosing(events_for_client(turn, keepalive, lambda: stops_when_left)) as events:
        async for event in events:
            if event is None:
                yield None
                continue
            for delta in reader.read(event):
                yield delta
            if isinstance(event, RunStarted | RunEnded | Failed) and not reader.failed:
                await noting(reader)


def completion_head(reader: AnswerReader, model: str) -> Json:
    """Return the common fields of all pieces of an answer.

    Args:
        reader: The reader of the answer. Before the run starts, the id is incomplete.
        model: The model's name as the client sent it.
    """
    return {
        "id": f"chatcmpl-{reader.run_suffix}",
        "created": reader.created_seconds,
        "model": model,
    }


async def completion_chunks(
    model: str, deltas: AsyncGenerator[Json | None], reader: AnswerReader, *, has_usage: bool
) -> AsyncGenerator[bytes]:
    """Yield the pieces of a chat completion as server-sent events.

    Args:
        model: The model's name as the client sent it.
        deltas: The deltas of `deltas_of`, with this reader.
        reader: The reader, which has the outcome after the last delta.
        has_usage: Send the token counts as a last piece, as `stream_options.include_usage` asks.
    """

    def chunk(delta: Json, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return data(
            {
                **completion_head(reader, model),
                "object": "chat.completion.chunk",
                "choices": [choice],
            }
        )

    async with aclosing(deltas):
        async for delta in deltas:
            yield PING if delta is None else chunk(delta)
    if reader.failed:
        yield data(failure_json(reader.failed))
    else:
        yield chunk({}, reader.finish_reason)
        if has_usage:
            yield data({**completion_head(reader, model), **_USAGE_CHUNK, "usage": reader.usage()})
    yield DONE
