"""OpenAI's responses in their common part: text and pictures in, text out, whole or streamed, one after another."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import orjson
from fastapi import Response

from ricordo.agents.turn import run_turn
from ricordo.api.call import Here
from ricordo.api.models.base import Json
from ricordo.api.routing import Routes
from ricordo.api.sse import sse_response
from ricordo.domain.clock import SECOND
from ricordo.errors import NotFound
from ricordo.features.openai_api.answers import PING, AnswerReader, deltas_of
from ricordo.features.openai_api.caller import acting
from ricordo.features.openai_api.errors import OpenAIRoute, failure, failure_json
from ricordo.features.openai_api.models import OpenAIAnswer, ResponsesRequest
from ricordo.features.openai_api.queries import agent_of
from ricordo.features.openai_api.routes import reader_of
from ricordo.features.openai_api.turns import chat_turn

router = Routes(prefix="/v1", tags=["openai"], scope="messages")
router.route_class = OpenAIRoute


@router.post("/responses", response_model=OpenAIAnswer)
async def create_response(here: Here, body: ResponsesRequest) -> Json | Response:
    """Let the agent answer, in a new conversation or, with `previous_response_id`, where that response was given."""
    here = await acting(here)
    agent = await here.store.read(lambda tx: agent_of(tx, here.scope, body.model))
    earlier = body.previous_response_id
    if earlier is not None and not earlier.startswith("resp_"):
        raise NotFound(f'There is no response "{earlier[:80]}". Send the id of one that this server gave.')
    after = f"run-{earlier.removeprefix('resp_')}" if earlier else None
    asked = await chat_turn(here, agent, body.as_chat(), after=after)
    reader = reader_of(here, asked)
    turn = await run_turn(here.runtime, asked.request)
    deltas = deltas_of(turn, reader, asked.notes.read, here.runtime.settings.keepalive)
    if body.stream:
        return sse_response(_events(body, deltas, reader))
    async for _ in deltas:
        pass
    return failure(reader.failed) if reader.failed else _response(body, reader, "completed")


async def _events(
    body: ResponsesRequest, deltas: AsyncGenerator[Json | None], reader: AnswerReader
) -> AsyncGenerator[bytes]:
    """The response as server-sent events, as its text comes."""
    number = 0

    def event(kind: str, **fields: object) -> bytes:
        nonlocal number
        number += 1
        return f"event: {kind}\n".encode() + b"data: %b\n\n" % orjson.dumps(
            {"type": kind, "sequence_number": number - 1, **fields}
        )

    async with aclosing(deltas):
        async for delta in deltas:
            if delta is None:
                yield PING
            elif "role" in delta:
                place = {"item_id": _item(reader, "")["id"], "output_index": 0, "content_index": 0}
                yield event("response.created", response=_response(body, reader, "in_progress"))
                begun = {**_item(reader, "in_progress"), "content": []}
                yield event("response.output_item.added", output_index=0, item=begun)
                yield event("response.content_part.added", **place, part=_text(""))
            elif delta.get("content"):
                yield event("response.output_text.delta", **place, delta=delta["content"], logprobs=[])
    if reader.failed:
        error = failure_json(reader.failed)["error"]
        told = {"code": "server_error", "message": error["message"]}
        yield event("response.failed", response={**_response(body, reader, "failed"), "error": told})
        return
    yield event("response.output_text.done", **place, text=reader.text, logprobs=[])
    yield event("response.content_part.done", **place, part=_text(reader.text))
    yield event("response.output_item.done", output_index=0, item=_item(reader, "completed"))
    yield event("response.completed", response=_response(body, reader, "completed"))


def _response(body: ResponsesRequest, reader: AnswerReader, status: str) -> Json:
    run, usage = reader.run, reader.usage()
    tokens = {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": usage["prompt_tokens_details"],
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": usage["completion_tokens_details"],
        "total_tokens": usage["total_tokens"],
    }
    has_ended = status == "completed"
    return {
        "id": "resp_" + (run.id.removeprefix("run-") if run else ""),
        "object": "response",
        "created_at": (run.created_at if run else 0) // SECOND,
        "status": status,
        "model": body.model,
        "output": [_item(reader, "completed")] if has_ended else [],
        "usage": tokens if has_ended else None,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "metadata": body.metadata or {},
        "previous_response_id": body.previous_response_id,
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
        "temperature": None,
        "top_p": None,
    }


def _item(reader: AnswerReader, status: str) -> Json:
    id = "msg_" + (reader.run.id.removeprefix("run-") if reader.run else "")
    return {"id": id, "type": "message", "role": "assistant", "status": status, "content": [_text(reader.text)]}


def _text(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
