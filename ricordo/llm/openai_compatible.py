"""The thin door to every server that speaks OpenAI's chat completions. No vendor's SDK: a call costs well under 1 ms of CPU."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import httpx2
import orjson

from ricordo.domain.model import Chunk, ModelInfo, ModelReply, ModelRequest
from ricordo.errors import ModelError
from ricordo.llm.chunks import chunks_of
from ricordo.llm.connections import Connections
from ricordo.llm.openai_format import dialect_of, to_body, to_reply
from ricordo.llm.openai_stream import EventLines, ReplyBuilder
from ricordo.llm.policy import (
    CallPolicy,
    answer_by_policy,
    error_from_event,
    error_from_status,
    error_from_transport,
    words_of,
)

# After its last event a server ends the body at once; one that does not is not waited for.
LAST_BYTES_SECONDS = 0.5


class OpenAICompatibleModel:
    """A chat model behind `<base_url>/chat/completions`."""

    def __init__(
        self,
        info: ModelInfo,
        connections: Connections,
        policy: CallPolicy,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        base_url = (info.endpoint or "").rstrip("/")
        self._info = info
        self._connections = connections
        self._policy = policy
        self._url = httpx2.URL(f"{base_url}/chat/completions")
        self._dialect = dialect_of(info.endpoint_type, base_url)
        self._headers = {"content-type": "application/json", "user-agent": "ricordo", **(headers or {})}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"

    @property
    def info(self) -> ModelInfo:
        """Which model this is."""
        return self._info

    def answer(self, request: ModelRequest) -> AsyncGenerator[Chunk | ModelReply, None]:
        """Yield chunks where `request.stream` asks for them, and last of all the whole reply."""
        body = orjson.dumps(to_body(request, self._info.name, self._dialect))
        attempt = self._streamed if request.stream else self._whole
        return answer_by_policy(self._policy, request, lambda: attempt(request, body))

    def _post(self, body: bytes) -> httpx2.Request:
        # Made directly: to have the client merge its own headers and cookies in costs a tenth of a call.
        return httpx2.Request("POST", self._url, headers=self._headers, content=body)

    async def _whole(self, request: ModelRequest, body: bytes) -> AsyncGenerator[Chunk | ModelReply, None]:
        try:
            response = await self._connections.client().send(self._post(body))
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            raise error_from_transport(self._info.provider, error) from error
        if response.status_code != 200:
            raise error_from_status(self._info.provider, response.status_code, response.content, response.headers)
        yield to_reply(self._payload(response.content), request)

    async def _streamed(self, request: ModelRequest, body: bytes) -> AsyncGenerator[Chunk | ModelReply, None]:
        try:
            response = await self._connections.client().send(self._post(body), stream=True)
            async with aclosing(response):
                if response.status_code != 200:
                    content = await response.aread()
                    raise error_from_status(self._info.provider, response.status_code, content, response.headers)
                if response.headers.get("content-type", "").startswith("application/json"):
                    # The server took no notice of `stream`.
                    reply = to_reply(self._payload(await response.aread()), request)
                    for chunk in chunks_of(reply):
                        yield chunk
                    yield reply
                    return
                async for item in self._read_events(response, request):
                    yield item
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            raise error_from_transport(self._info.provider, error) from error

    async def _read_events(
        self, response: httpx2.Response, request: ModelRequest
    ) -> AsyncGenerator[Chunk | ModelReply, None]:
        lines, builder = EventLines(), ReplyBuilder()
        pieces = response.aiter_bytes()
        try:
            async for data in pieces:
                for event in lines.feed(data):
                    for chunk in self._chunks(builder, event):
                        yield chunk
                if lines.is_done:
                    break
        except httpx2.TransportError:
            if not builder.is_finished:
                raise
        for event in lines.end():
            for chunk in self._chunks(builder, event):
                yield chunk
        if not (lines.is_done or builder.is_finished):
            raise ModelError("llm_error", f"{self._info.provider} ended its answer in the middle.")
        if lines.is_done:
            await _read_to_the_end(pieces)
        yield builder.reply(request)

    def _chunks(self, builder: ReplyBuilder, event: dict[str, Any]) -> list[Chunk]:
        if event.get("error") or event.get("object") == "error":
            raise error_from_event(self._info.provider, event)
        return list(builder.feed(event))

    def _payload(self, content: bytes) -> dict[str, Any]:
        try:
            payload = orjson.loads(content)
        except orjson.JSONDecodeError:
            payload = None
        if not isinstance(payload, dict):
            words, _ = words_of(content)
            problem = f"{self._info.endpoint} did not answer with a chat completion. Check its address. It said: "
            raise ModelError("llm_bad_request", problem + words[:200])
        if payload.get("error") and not payload.get("choices"):
            raise error_from_event(self._info.provider, payload)
        return payload


async def _read_to_the_end(pieces: AsyncGenerator[bytes, None]) -> None:
    # A body that was read to its end leaves its connection open for the next call.
    try:
        async with asyncio.timeout(LAST_BYTES_SECONDS):
            async for _ in pieces:
                pass
    except (TimeoutError, httpx2.TransportError):
        return
