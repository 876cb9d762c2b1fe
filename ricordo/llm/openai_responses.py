"""The thin door to OpenAI's responses API, for models that think between their calls. No vendor's SDK."""

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from typing import Any

import httpx2
import orjson

from ricordo.domain.model import Chunk, ModelInfo, ModelReply, ModelRequest, ReasoningChunk, TextChunk, ToolCallChunk
from ricordo.errors import ModelError
from ricordo.llm.chunks import chunks_of
from ricordo.llm.connections import Connections
from ricordo.llm.openai_compatible import call_headers, call_url
from ricordo.llm.openai_dialect import dialect_of
from ricordo.llm.openai_reading import as_text, read_text
from ricordo.llm.openai_stream import EventLines
from ricordo.llm.policy import (
    CallPolicy,
    answer_by_policy,
    error_from_event,
    error_from_status,
    error_from_transport,
)
from ricordo.llm.repair import new_call_id
from ricordo.llm.responses_format import fault_of, require_response, to_body, to_reply

_LAST = {"response.completed", "response.incomplete", "response.failed", "response.cancelled"}


class OpenAIResponsesModel:
    """A chat model behind `<base_url>/responses`."""

    def __init__(
        self,
        info: ModelInfo,
        connections: Connections,
        policy: CallPolicy,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        api_version: str | None = None,
    ) -> None:
        self._info = info
        self._connections = connections
        self._policy = policy
        self._url = httpx2.URL(call_url(info, "responses", api_version))
        self._dialect = dialect_of(info.endpoint_type, "https://api.openai.com", info.name, info.provider)
        self._headers = call_headers(info.endpoint_type, api_key) | dict(headers or {})

    @property
    def info(self) -> ModelInfo:
        """Which model this is."""
        return self._info

    def answer(self, request: ModelRequest) -> AsyncGenerator[Chunk | ModelReply, None]:
        """Yield chunks where `request.stream` asks for them, and last of all the whole reply."""

        def again(changed: ModelRequest) -> AsyncGenerator[Chunk | ModelReply, None]:
            return self._attempt(changed)

        return answer_by_policy(self._policy, request, lambda: self._attempt(request), again=again)

    async def _attempt(self, request: ModelRequest) -> AsyncGenerator[Chunk | ModelReply, None]:
        body = orjson.dumps(to_body(request, self._info.name, self._dialect))
        asked = httpx2.Request("POST", self._url, headers=self._headers, content=body)
        try:
            response = await self._connections.client().send(asked, stream=True)
            async with aclosing(response):
                is_whole = response.headers.get("content-type", "").startswith("application/json")
                if response.status_code != 200 or is_whole or not request.stream:
                    reply = self._reply(response, await response.aread(), request)
                    if request.stream:
                        for chunk in chunks_of(reply):
                            yield chunk
                    yield reply
                    return
                async for item in self._read_events(response, request):
                    yield item
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            raise error_from_transport(self._info.provider, error) from error

    def _reply(self, response: httpx2.Response, content: bytes, request: ModelRequest) -> ModelReply:
        if response.status_code != 200:
            raise error_from_status(self._info.provider, response.status_code, content, response.headers)
        try:
            payload = orjson.loads(content)
        except orjson.JSONDecodeError:
            payload = None
        return self._whole(require_response(payload, str(self._url)), request)

    def _whole(self, response: dict[str, Any], request: ModelRequest) -> ModelReply:
        if (fault := fault_of(response)) is not None:
            raise error_from_event(self._info.provider, fault)
        return to_reply(response, request, self._dialect)

    async def _read_events(
        self, response: httpx2.Response, request: ModelRequest
    ) -> AsyncGenerator[Chunk | ModelReply, None]:
        lines, reader = EventLines(), EventReader()
        try:
            async for data in response.aiter_bytes():
                for event in lines.feed(data):
                    if event.get("type") == "error" or (event.get("error") and "response" not in event):
                        raise error_from_event(self._info.provider, event if event.get("error") else {"error": event})
                    for chunk in reader.feed(event):
                        yield chunk
        except httpx2.TransportError:
            if reader.response is None:
                raise
        if reader.response is None:
            raise ModelError("llm_error", f"{self._info.provider} ended its answer in the middle.")
        yield self._whole(reader.with_items(), request)


class EventReader:
    """Reads a response's events: chunks as they come, the response of the last one, and the items that were finished."""

    def __init__(self) -> None:
        self.response: dict[str, Any] | None = None
        self._items: dict[int, dict[str, Any]] = {}
        self._slots: dict[int, int] = {}

    def feed(self, event: dict[str, Any]) -> Iterator[Chunk]:
        """The chunks in one event; events of kinds that nobody needs give none."""
        kind, place = read_text(event, "type"), event.get("output_index")
        place = place if isinstance(place, int) else 0
        delta = as_text(event.get("delta"))
        match kind:
            case "response.output_text.delta" | "response.refusal.delta" if delta:
                yield TextChunk(delta)
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" if delta:
                yield ReasoningChunk(delta)
            case "response.reasoning_summary_part.added":
                if event.get("summary_index"):
                    yield ReasoningChunk("\n\n")
            case "response.function_call_arguments.delta" if place in self._slots and delta:
                yield ToolCallChunk(self._slots[place], delta)
            case "response.output_item.added" | "response.output_item.done":
                item = event.get("item")
                if not isinstance(item, dict):
                    return
                if kind.endswith("done"):
                    self._items[place] = item
                elif item.get("type") == "function_call":
                    slot = self._slots[place] = len(self._slots)
                    call_id = read_text(item, "call_id") or new_call_id()
                    yield ToolCallChunk(slot, as_text(item.get("arguments")), call_id, read_text(item, "name"))
            case _ if kind in _LAST and isinstance(event.get("response"), dict):
                self.response = event["response"]
            case _:
                pass

    def with_items(self) -> dict[str, Any]:
        """The last response; its output put together from the finished items where it was left out."""
        found = dict(self.response or {})
        if not found.get("output") and self._items:
            found["output"] = [self._items[place] for place in sorted(self._items)]
        found.setdefault("output", [])
        return found
