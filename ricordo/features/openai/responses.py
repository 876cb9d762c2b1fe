"""OpenAI's responses in their common part: text and pictures in, text out.

They come whole or streamed, one after another. Functions of the client are tools that the client
runs: a call is an item of the output, and its result comes in as an item.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import orjson
from fastapi import Response

from ricordo.agents.turn import run_turn
from ricordo.api.call import RequestContext
from ricordo.api.sse import sse_response
from ricordo.domain.text import Json
from ricordo.errors import NotFound
from ricordo.features.openai.answers import PING, AnswerReader, deltas_of
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
            f'There is no response "{earlier[:80]}". Send the id of one that this server gave.'
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
    return _response(body, reader, "completed")


async def _events(
    body: ResponsesRequest, deltas: AsyncGenerator[Json | None], reader: AnswerReader
) -> AsyncGenerator[bytes]:
    """Yield the response as server-sent events, while its text comes."""
    number = 0

    def event(kind: str, **fields: object) -> bytes:
        nonlocal number
        number += 1
        return f"event: {kind}\n".encode() + b"data: %b\n\n" % orjson.dumps(
            {"type": kind, "sequence_number": number - 1, **fields}
        )

    has_text = False

    def begin_text() -> bytes:
        nonlocal has_text
        has_text = True
        empty_item = {**_item(reader, "in_progress"), "content": []}
        added = event("response.output_item.added", output_index=0, item=empty_item)
        return added + event("response.content_part.added", **text_position(), part=_text(""))

    def text_position() -> Json:
        return {"item_id": _item(reader, "")["id"], "output_index": 0, "content_index": 0}

    async with aclosing(deltas):
        async for delta in deltas:
            if delta is None:
                yield PING
            elif "role" in delta:
                yield event("response.created", response=_response(body, reader, "in_progress"))
            elif delta.get("content"):
                if not has_text:
                    yield begin_text()
                yield event(
                    "response.output_text.delta",
                    **text_position(),
                    delta=delta["content"],
                    logprobs=[],
                )
    if reader.failed:
        error = failure_json(reader.failed)["error"]
        wire_error = {"code": "server_error", "message": error["message"]}
        yield event(
            "response.failed", response={**_response(body, reader, "failed"), "error": wire_error}
        )
        return
    output_items = _output(reader)
    if output_items[0]["type"] == "message":
        if not has_text:
            yield begin_text()
        yield event("response.output_text.done", **text_position(), text=reader.text, logprobs=[])
        yield event("response.content_part.done", **text_position(), part=_text(reader.text))
        yield event("response.output_item.done", output_index=0, item=output_items[0])
    for index, output_item in enumerate(output_items):
        if output_item["type"] == "function_call":
            call_position = {"item_id": output_item["id"], "output_index": index}
            empty_call = {**output_item, "arguments": "", "status": "in_progress"}
            yield event("response.output_item.added", output_index=index, item=empty_call)
            yield event(
                "response.function_call_arguments.delta",
                **call_position,
                delta=output_item["arguments"],
            )
            call_fields = {"name": output_item["name"], "arguments": output_item["arguments"]}
            yield event("response.function_call_arguments.done", **call_position, **call_fields)
            yield event("response.output_item.done", output_index=index, item=output_item)
    yield event("response.completed", response=_response(body, reader, "completed"))


def _response(body: ResponsesRequest, reader: AnswerReader, status: str) -> Json:
    usage = reader.usage()
    tokens = {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": usage["prompt_tokens_details"],
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": usage["completion_tokens_details"],
        "total_tokens": usage["total_tokens"],
    }
    has_ended = status == "completed"
    return {
        "id": f"resp_{reader.run_suffix}",
        "object": "response",
        "created_at": reader.created_seconds,
        "status": status,
        "model": body.model,
        "output": _output(reader) if has_ended else [],
        "usage": tokens if has_ended else None,
        "error": None,
        "incomplete_details": None,
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
        return [_item(reader, "completed"), *call_items]
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
