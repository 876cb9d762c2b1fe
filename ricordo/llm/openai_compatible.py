"""The thin adapter for every server that speaks OpenAI's chat completions.

It uses no vendor's SDK: a call costs well under 1 ms of CPU.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any
from urllib.parse import quote

import httpx2
import orjson

from ricordo.domain.model import Chunk, EmbeddingInfo, ModelInfo, ModelReply, ModelRequest
from ricordo.errors import ModelError
from ricordo.llm.adaptation import Adaptation, LearnedModel, lessons_of
from ricordo.llm.addresses import Connections
from ricordo.llm.answer_bounds import BoundReached
from ricordo.llm.chat import chunks_of
from ricordo.llm.learned_dialect import LearnedDialect
from ricordo.llm.loose_json import read_answer
from ricordo.llm.openai_conform import conform
from ricordo.llm.openai_dialect import dialect_of
from ricordo.llm.openai_format import to_body
from ricordo.llm.openai_reply import ReplyBuilder, SseReader, generation_in, read_fault, to_reply
from ricordo.llm.policy import (
    CallPolicy,
    answer_by_policy,
    error_from_event,
    error_from_status,
    error_from_transport,
    lasting_error,
    words_of,
)
from ricordo.llm.special_tokens import break_tokens

# Seconds to wait for the end of the body: servers end it right after the last event.
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
        api_version: str | None = None,
        learned: LearnedModel | None = None,
    ) -> None:
        self.info = info
        self.learned = learned or lessons_of(info)
        """The dialect learned from the server's refusals."""
        self._connections = connections
        self._policy = policy
        self._url = httpx2.URL(call_url(info, "chat/completions", api_version))
        self._dialect = dialect_of(
            info.endpoint_type, info.endpoint or "", info.name, info.provider
        )
        self._headers = call_headers(info.endpoint_type, api_key)

    def answer(self, request: ModelRequest) -> AsyncGenerator[Chunk | ModelReply, None]:
        """Yield chunks if `request.stream` is set, and then the whole reply.

        Args:
            request: The transcript, the tools and the settings of one call.

        Raises:
            ModelError: The call failed, even after the policy's retries and in the other forms of
                the request that the adaptation tried.
        """
        adaptation = Adaptation(self.learned, self._body)
        return answer_by_policy(
            self._policy, request, partial(self._attempt, adaptation), adaptation
        )

    def _body(self, request: ModelRequest, learned: LearnedDialect) -> dict[str, Any]:
        return conform(to_body(request, self.info.name, self._dialect), learned)

    def _post(self, body: dict[str, Any]) -> httpx2.Request:
        if self._dialect.reads_special_tokens:
            texts = (name for name in ("messages", "tools") if name in body)
            body = body | {
                name: orjson.Fragment(break_tokens(orjson.dumps(body[name]))) for name in texts
            }
        # Build it directly, since merging the client's headers and cookies would take a tenth of
        # the time of a call.
        return httpx2.Request("POST", self._url, headers=self._headers, content=orjson.dumps(body))

    async def _attempt(
        self, adaptation: Adaptation, request: ModelRequest
    ) -> AsyncGenerator[Chunk | ModelReply, None]:
        body = adaptation.body(request)
        try:
            response = await self._connections.client().send(self._post(body), stream=True)
            async with aclosing(response):
                content_type = response.headers.get("content-type", "")
                is_json = content_type.startswith("application/json")
                # Some servers stream although the request did not ask for it.
                is_stream = content_type.startswith("text/event-stream")
                is_stream = is_stream or bool(body.get("stream") and not is_json)
                if is_stream and response.status_code == 200:
                    async for event in self._read_events(response, request):
                        if isinstance(event, ModelReply):
                            adaptation.confirm(request)
                        elif not request.stream:
                            # The server only streams this model, but the caller wants the whole
                            # reply alone.
                            continue
                        yield event
                    return
                # This is a whole answer, an error, or the answer of a server that ignored `stream`.
                content = await response.aread()
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            raise error_from_transport(self.info.provider, error) from error
        if response.status_code == 200:
            reply = to_reply(self._completion(content), request, self._dialect)
        elif (rescued := generation_in(content, request)) is not None:
            reply = rescued
        else:
            raise error_from_status(
                self.info.provider, response.status_code, content, response.headers
            )
        if request.stream:
            for chunk in chunks_of(reply):
                yield chunk
        adaptation.confirm(request)
        yield reply

    async def _read_events(
        self, response: httpx2.Response, request: ModelRequest
    ) -> AsyncGenerator[Chunk | ModelReply, None]:
        lines = SseReader()
        builder = ReplyBuilder(self._dialect)
        pieces = response.aiter_bytes()
        try:
            async for event in _events(pieces, lines):
                if (fault := read_fault(event)) is not None:
                    if builder.is_finished:
                        break
                    if (rescued := generation_in(fault, request)) is None:
                        raise error_from_event(self.info.provider, fault)
                    yield rescued
                    return
                for chunk in builder.feed(event):
                    yield chunk
        except httpx2.TransportError:
            if not builder.is_finished:
                raise
        if not (lines.is_done or builder.is_finished):
            raise ModelError(
                "llm_error", f"{self.info.provider} stopped in the middle of its answer. Try again."
            )
        if lines.is_done:
            await _read_to_the_end(pieces)
        yield builder.reply(request)

    def _completion(self, content: bytes) -> dict[str, Any]:
        completion = read_answer(content.removeprefix(b"\xef\xbb\xbf"))
        if not isinstance(completion, dict):
            answer_text, _ = words_of(content)
            message = (
                f"{self.info.endpoint} did not answer with a chat completion. Check its address. "
                "It said: "
            )
            raise lasting_error(message + answer_text[:200])
        envelope = completion.get("data")
        if "choices" not in completion and isinstance(envelope, dict) and "choices" in envelope:
            completion = envelope  # some gateways wrap the completion
        if (fault := read_fault(completion)) is not None:
            raise error_from_event(self.info.provider, fault)
        return completion


def call_headers(endpoint_type: str, api_key: str | None) -> dict[str, str]:
    """Return the headers of a call, with the key in the header that the server reads.

    Args:
        endpoint_type: The kind of server, such as "azure".
        api_key: The key; None for a server without keys.
    """
    headers = {"content-type": "application/json", "user-agent": "ricordo"}
    if api_key and endpoint_type == "azure":
        headers["api-key"] = api_key
    elif api_key:
        headers["authorization"] = f"Bearer {api_key}"
    return headers


def call_url(info: ModelInfo | EmbeddingInfo, path: str, api_version: str | None = None) -> str:
    """Return the address of a model's call.

    Azure has an address for each deployment, unless its newer `/openai/v1` is used.

    Args:
        info: The model, with the address of its server.
        path: The path below the server's address, such as "chat/completions".
        api_version: The value of Azure's `api-version`; None leaves it out. It is never sent to
            other servers.
    """
    base_url = (info.endpoint or "").rstrip("/")
    if info.endpoint_type != "azure":
        return f"{base_url}/{path}"
    if api_version:
        query = f"?api-version={quote(api_version, safe='')}"
    else:
        query = ""
    if base_url.endswith("/v1"):
        return f"{base_url}/{path}{query}"
    return f"{base_url.removesuffix('/openai')}/openai/deployments/{quote(info.name, safe='')}/{path}{query}"


async def _events(
    pieces: AsyncGenerator[bytes, None], lines: SseReader
) -> AsyncGenerator[dict[str, Any], None]:
    async for piece in pieces:
        for event in lines.feed(piece):
            yield event
        if lines.is_done:
            return
    # A last line may lack its newline.
    for event in lines.feed(b"\n"):
        yield event


async def _read_to_the_end(pieces: AsyncGenerator[bytes, None]) -> None:
    # The connection can be reused only if the body was read to its end.
    try:
        async with asyncio.timeout(LAST_BYTES_SECONDS):
            async for _ in pieces:
                pass
    except (TimeoutError, httpx2.TransportError, BoundReached):
        return
