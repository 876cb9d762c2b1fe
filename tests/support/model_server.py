"""A scripted model server on loopback, with real HTTP.

It speaks OpenAI's chat completions and embeddings, and Anthropic's messages. In a test: `async with
ModelServer() as server:` then `server.push(...)`, `server.url`, `server.requests`. Alone, for
benches: `python -m tests.support.model_server --port 0` prints its port and answers "ok" to
everything.
"""

import argparse
import asyncio
import contextlib
import json
import re
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Seen:
    """A request as the server received it."""

    method: str
    path: str
    head: bytes
    raw: bytes

    @property
    def headers(self) -> dict[str, str]:
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        return {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


@dataclass(frozen=True)
class Answer:
    """A response of the server: a whole body, or `pieces` one by one.

    Afterwards it may break the connection off. `wire` is a response given down to the last byte.
    `pause` is the number of seconds between pieces. With `is_raw` the pieces are sent unchanged,
    without HTTP headers.
    """

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    pieces: tuple[bytes, ...] | None = None
    breaks_off: bool = False
    delay: float = 0
    wire: bytes | None = None
    pause: float = 0
    is_raw: bool = False


def completion(
    text: str | None = "ok", calls: Iterable[dict[str, Any]] = (), **message: Any
) -> Answer:
    """Return a whole chat completion.

    `usage=None` leaves the usage out; `finish` overrides the reason.
    """
    usage = message.pop("usage", {"prompt_tokens": 11, "completion_tokens": 2, "total_tokens": 13})
    calls = list(calls)
    finish = message.pop("finish", "tool_calls" if calls else "stop")
    content = {"role": "assistant", "content": text, **message} | (
        {"tool_calls": calls} if calls else {}
    )
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "scripted-1",
        "choices": [{"index": 0, "message": content, "finish_reason": finish}],
    }
    return Answer(body | ({"usage": usage} if usage else {}))


def embeddings(*vectors: Any, order: Iterable[int] | None = None) -> Answer:
    rows = [
        {"object": "embedding", "index": place, "embedding": vector}
        for place, vector in enumerate(vectors)
    ]
    rows = rows if order is None else [rows[place] for place in order]
    return Answer(
        {"object": "list", "data": rows, "model": "scripted-1", "usage": {"prompt_tokens": 1}}
    )


def vector_of(text: str) -> list[float]:
    return [float(len(text)), float(ord(text[0])), 1.0, 0.0]


def tool_call(
    name: str, arguments: Any, call_id: str | None = "call_1", **more: Any
) -> dict[str, Any]:
    found = {"type": "function", "function": {"name": name, "arguments": arguments}, **more}
    return found | ({"id": call_id} if call_id else {})


def stream(
    *deltas: dict[str, Any] | bytes,
    finish: str | None = "stop",
    usage: Any = None,
    done: bool = True,
) -> Answer:
    """Return a streamed chat completion, one event for each piece.

    Bytes are sent unchanged.
    """
    pieces = [
        piece if isinstance(piece, bytes) else event({"choices": [{"delta": piece}]})
        for piece in deltas
    ]
    if finish:
        pieces.append(
            event({"choices": [{"delta": {}, "finish_reason": finish}], "model": "scripted-1"})
        )
    if usage:
        pieces.append(event({"choices": [], "usage": usage}))
    if done:
        pieces.append(b"data: [DONE]\n\n")
    return Answer(pieces=tuple(pieces), headers={"content-type": "text/event-stream"})


def event(value: Any, name: str | None = None) -> bytes:
    return (
        (f"event: {name}\n" if name else "").encode()
        + b"data: "
        + json.dumps(value).encode()
        + b"\n\n"
    )


def claude(*blocks: dict[str, Any], stop: str = "end_turn", **usage: int) -> Answer:
    return Answer(
        _claude_message(list(blocks), stop, {"input_tokens": 20, "output_tokens": 5} | usage)
    )


def _claude_message(
    blocks: list[dict[str, Any]], stop: str | None, usage: dict[str, int]
) -> dict[str, Any]:
    kind = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-scripted"}
    return {**kind, "content": blocks, "stop_reason": stop, "stop_sequence": None, "usage": usage}


def claude_stream(
    *blocks: dict[str, Any], stop: str | None = "end_turn", tail: tuple[bytes, ...] = ()
) -> Answer:
    """Return a streamed message of Anthropic: each block comes in two deltas.

    Without `stop` it ends after the blocks.
    """
    start = _claude_message([], None, {"input_tokens": 20, "output_tokens": 1})
    pieces = [event({"type": "message_start", "message": start}, "message_start")]
    for index, block in enumerate(blocks):
        pieces += _claude_block(index, block)
    if stop:
        ended = {
            "delta": {"stop_reason": stop, "stop_sequence": None},
            "usage": {"output_tokens": 7},
        }
        pieces += [
            event({"type": "message_delta", **ended}, "message_delta"),
            event({"type": "message_stop"}, "message_stop"),
        ]
    return Answer(pieces=(*pieces, *tail), headers={"content-type": "text/event-stream"})


def _claude_block(index: int, block: dict[str, Any]) -> list[bytes]:
    deltas: list[dict[str, Any]]
    match block["type"]:
        case "text":
            empty, whole = {"type": "text", "text": ""}, block["text"]
            deltas = [{"type": "text_delta", "text": piece} for piece in _halves(whole)]
        case "thinking":
            empty, whole = {"type": "thinking", "thinking": "", "signature": ""}, block["thinking"]
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in _halves(whole)]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        case "tool_use":
            empty, whole = block | {"input": {}}, json.dumps(block["input"])
            deltas = [
                {"type": "input_json_delta", "partial_json": piece} for piece in _halves(whole)
            ]
        case _:
            empty, deltas = block, []
    events = [{"type": "content_block_start", "index": index, "content_block": empty}]
    events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
    events.append({"type": "content_block_stop", "index": index})
    return [event(value, str(value["type"])) for value in events]


def _halves(text: str) -> tuple[str, str]:
    return text[: len(text) // 2], text[len(text) // 2 :]


class ModelServer:
    """A model server that sends the pushed answers in order, and then what `otherwise` says.

    `connections` counts opened connections.
    """

    def __init__(
        self, otherwise: Callable[[Seen], Answer] | None = None, *, keeps: bool = True
    ) -> None:
        self.requests: list[Seen] = []
        self.connections = 0
        self.port = 0
        self._answers: deque[Answer] = deque()
        self.otherwise = otherwise or say_ok
        self._keeps = keeps
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Transport] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.root}/v1"

    def clear(self) -> None:
        """Drop the answers that were not used."""
        self._answers.clear()

    def push(self, *answers: Answer) -> None:
        self._answers.extend(answers)

    async def start(self, port: int = 0) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        for transport in tuple(self._open):
            transport.abort()
        await self._server.wait_closed()

    async def __aenter__(self) -> "ModelServer":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def handle(self, seen: Seen, transport: asyncio.Transport) -> None:
        """Answer one request, at once if the answer has no pause."""
        if self._keeps:
            self.requests.append(seen)
        answer = self._answers.popleft() if self._answers else self.otherwise(seen)
        if answer.wire is not None:
            transport.write(answer.wire)
            return
        if not answer.delay and answer.pieces is None:
            transport.write(_head(answer, _dumped(answer.body)))
            return
        task = asyncio.get_running_loop().create_task(_send_slowly(answer, transport))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def opened(self, transport: asyncio.Transport) -> None:
        self.connections += 1
        self._open.add(transport)

    def closed(self, transport: asyncio.Transport) -> None:
        self._open.discard(transport)


def _dumped(body: Any) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body).encode()


def _head(answer: Answer, body: bytes | None) -> bytes:
    headers = {"content-type": "application/json"} | answer.headers
    headers |= (
        {"transfer-encoding": "chunked"} if body is None else {"content-length": str(len(body))}
    )
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {answer.status} Scripted\r\n{lines}\r\n".encode() + (body or b"")


def _chunk(piece: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(piece), piece)


async def _send_slowly(answer: Answer, transport: asyncio.Transport) -> None:
    await asyncio.sleep(answer.delay)
    if answer.pieces is None:
        transport.write(_head(answer, _dumped(answer.body)))
        return
    if not answer.is_raw:
        transport.write(_head(answer, None))
    for piece in answer.pieces:
        if transport.is_closing():
            return
        transport.write(piece if answer.is_raw else _chunk(piece))
        await asyncio.sleep(answer.pause)
    if answer.breaks_off:
        transport.close()
    else:
        transport.write(_chunk(b""))


class _Connection(asyncio.Protocol):
    def __init__(self, server: ModelServer) -> None:
        self._server = server
        self._transport: Any = None
        self._data = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._server.opened(transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the name is asyncio's
        self._server.closed(self._transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, end, rest = self._data.partition(b"\r\n\r\n")
        if not end:
            return
        found = _LENGTH.search(head)
        length = int(found.group(1)) if found else 0
        if len(rest) < length:
            return
        self._data = rest[length:]
        method, path, _ = head[: head.index(b"\r\n")].decode("latin-1").split(" ")
        self._server.handle(Seen(method, path, head, rest[:length]), self._transport)


def _put_together(answer: Answer) -> Answer:
    if answer.pieces is None:
        return Answer(wire=_head(answer, _dumped(answer.body)))
    chunks = b"".join(_chunk(piece) for piece in answer.pieces)
    return Answer(wire=_head(answer, None) + chunks + _chunk(b""))


_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_OK = _put_together(completion("ok"))
_OK_STREAM = _put_together(
    stream(
        {"role": "assistant", "content": "ok"},
        usage={"prompt_tokens": 11, "completion_tokens": 2, "total_tokens": 13},
    )
)
_OK_CLAUDE = _put_together(claude({"type": "text", "text": "ok"}))
_OK_CLAUDE_STREAM = _put_together(claude_stream({"type": "text", "text": "ok"}))
_MODELS = _put_together(
    Answer(
        {
            "object": "list",
            "data": [{"id": "scripted-1", "object": "model", "owned_by": "scripted"}],
        }
    )
)


def say_ok(seen: Seen) -> Answer:
    if seen.method == "GET":
        return _MODELS
    if seen.path.endswith("/embeddings"):
        return embeddings(*map(vector_of, seen.body["input"]))
    streams = b'"stream":true' in seen.raw or b'"stream": true' in seen.raw
    if seen.path.partition("?")[0].endswith("/messages"):
        return _OK_CLAUDE_STREAM if streams else _OK_CLAUDE
    return _OK_STREAM if streams else _OK


async def _serve(port: int) -> None:
    server = ModelServer(keeps=False)
    await server.start(port)
    print(server.port, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="port to listen on; 0 takes a free one")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(parser.parse_args().port))
