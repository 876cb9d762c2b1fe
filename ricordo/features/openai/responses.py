"""OpenAI's responses in their common part: text and pictures in, text out.

They are whole or streamed. Functions in the request are tools that the client runs. A call is an
item of the output, and its result is an item of the next input.
"""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Literal

import orjson
from fastapi import Response

from ricordo.agents.turn import run_turn
from ricordo.api.call import RequestContext
from ricordo.api.sse import PING, sse_response
from ricordo.domain.text import Json
from ricordo.errors import NotFound
from ricordo.features.openai.answers import AnswerReader, deltas_of
from ricordo.features.openai.caller import acting
from ricordo.features.openai.errors import CUT_OFF, OpenAIRoutes, failure, failure_json
from ricordo.features.openai.models import OpenAIAnswer, ResponsesRequest
from ricordo.features.openai.options import OpenAIApiSettings
from ricordo.features.openai.queries import agent_of
from ricordo.features.openai.routes import reader_of
from ricordo.features.openai.turns import chat_turn

router = OpenAIRoutes(prefix="/v1", tags=["openai"], scope="messages")


@router.post("/responses", response_model=OpenAIAnswer)
async def create_response(context: RequestContext, body: ResponsesRequest) -> Json | Response:
    """Let the agent answer, in a new conversation or after an earlier response."""
    context = await acting(context)
    agent = await context.store.read(lambda tx: agent_of(tx, context.scope, body.model))
    earlier = body.previous_response_id
    if earlier is not None and not earlier.startswith("resp_"):
        raise NotFound(
            f'There is no response "{earlier[:80]}". Send the id of a response of this server.'
        )
    if earlier:
        after = f"run-{earlier.removeprefix('resp_')}"
    else:
        after = None
    turn_plan = await chat_turn(context, agent, body.as_chat(), after=after)
    reader = reader_of(context, turn_plan)
    turn = await run_turn(context.runtime, turn_plan.request)
    stops_when_left = OpenAIApiSettings.current().openai_leaving == "stop"
    keepalive = context.runtime.settings.keepalive
    deltas = deltas_of(turn, reader, turn_plan.note, keepalive, stops_when_left=stops_when_left)
    if body.stream:
        return sse_response(_events(body, deltas, reader), CUT_OFF)
    async for _ in deltas:
        pass
    if reader.failed:
        return failure(reader.failed)
    return _response(body, reader, _final_status(reader))


async def _events(
    body: ResponsesRequest, deltas: AsyncGenerator[Json | None], reader: AnswerReader
) -> AsyncGenerator[bytes]:
    """Yield the response as server-sent events while its text arrives."""
    events = _EventWriter(reader)
    async with aclosing(deltas):
        async for delta in deltas:
            if delta is None:
                yield PING
            elif "role" in delta:
                response = _response(body, reader, "in_progress")
                yield events.event("response.created", response=response)
            elif delta.get("content"):
                if not events.has_text:
                    yield events.begin_text()
                yield events.text_event("output_text.delta", delta=delta["content"], logprobs=[])
    if reader.failed:
        error = failure_json(reader.failed)["error"]
        wire_error = {"code": "server_error", "message": error["message"]}
        response = {**_response(body, reader, "failed"), "error": wire_error}
        yield events.event("response.failed", response=response)
        return
    output_items = _output(reader)
    if output_items[0]["type"] == "message":
        if not events.has_text:
            yield events.begin_text()
        yield events.text_event("output_text.done", text=reader.text, logprobs=[])
        yield events.text_event("content_part.done", part=_text(reader.text))
        yield events.event("response.output_item.done", output_index=0, item=output_items[0])
    for index, output_item in enumerate(output_items):
        if output_item["type"] == "function_call":
            for chunk in events.call_events(index, output_item):
                yield chunk
    status = _final_status(reader)
    yield events.event(f"response.{status}", response=_response(body, reader, status))


class _EventWriter:
    """Writes the events of one response, and numbers them."""

    def __init__(self, reader: AnswerReader) -> None:
        self._reader = reader
        self._number = 0
        self.has_text = False

    def event(self, kind: str, **fields: object) -> bytes:
        """Return an event as server-sent bytes, with the next number.

        Args:
            kind: The event's type, such as "response.created".
            **fields: The other fields of the event, as JSON.
        """
        fields = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return f"event: {kind}\n".encode() + b"data: %b\n\n" % orjson.dumps(fields)

    def begin_text(self) -> bytes:
        self.has_text = True
        empty_item = {**_item(self._reader, "in_progress"), "content": []}
        added = self.event("response.output_item.added", output_index=0, item=empty_item)
        return added + self.text_event("content_part.added", part=_text(""))

    def text_event(self, kind: str, **fields: object) -> bytes:
        """Return an event of the response's text, which is the first part of its first item."""
        item_id = _item(self._reader, "")["id"]
        return self.event(
            f"response.{kind}", item_id=item_id, output_index=0, content_index=0, **fields
        )

    def call_events(self, index: int, call: Json) -> Iterator[bytes]:
        """Yield the events of a function call, which is sent whole."""
        position = {"item_id": call["id"], "output_index": index}
        empty_call = {**call, "arguments": "", "status": "in_progress"}
        yield self.event("response.output_item.added", output_index=index, item=empty_call)
        yield self.event(
            "response.function_call_arguments.delta", **position, delta=call["arguments"]
        )
        yield self.event(
            "response.function_call_arguments.done",
            **position,
            name=call["name"],
            arguments=call["arguments"],
        )
        yield self.event("response.output_item.done", output_index=index, item=call)


def _final_status(reader: AnswerReader) -> Literal["completed", "incomplete"]:
    """Return the status of a response that has not failed."""
    return "incomplete" if reader.finish_reason == "length" else "completed"


def _response(body: ResponsesRequest, reader: AnswerReader, status: str) -> Json:
    usage = reader.usage()
    tokens = {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": usage["prompt_tokens_details"],
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": usage["completion_tokens_details"],
        "total_tokens": usage["total_tokens"],
    }
    has_ended = status in ("completed", "incomplete")
    return {
        "id": f"resp_{reader.run_suffix}",
        "object": "response",
        "created_at": reader.created_seconds,
        "status": status,
        "model": body.model,
        "output": _output(reader) if has_ended else [],
        "usage": tokens if has_ended else None,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": body.instructions,
        "metadata": body.metadata or {},
        "previous_response_id": body.previous_response_id,
        "parallel_tool_calls": bool(body.tools),
        "tool_choice": body.tool_choice or "auto",
        "tools": [tool.model_dump() for tool in body.tools or ()],
        "text": {"format": (body.text.format if body.text else None) or {"type": "text"}},
        "temperature": None,
        "top_p": None,
    }


def _output(reader: AnswerReader) -> list[Json]:
    """Return the agent's text, and the calls for the client to run."""
    call_items = [
        {
            "id": f"fc_{call.call_id}",
            "type": "function_call",
            "status": "completed",
            "call_id": call.call_id,
            "name": call.name,
            "arguments": call.arguments,
        }
        for call in reader.calls
    ]
    if reader.text or not call_items:
        return [_item(reader, _final_status(reader)), *call_items]
    return call_items


def _item(reader: AnswerReader, status: str) -> Json:
    return {
        "id": f"msg_{reader.run_suffix}",
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [_text(reader.text)],
    }


def _text(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
