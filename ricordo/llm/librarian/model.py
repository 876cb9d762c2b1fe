"""The librarian: what answers where there is no key and no model server. It is no language model, and says so.

It files what it is told and finds it again, by the same tools and loop as any model. It sees only the request, keeps no state,
and gives the same answer to the same request. How it reads, plans and speaks is in the modules beside this one.
"""

import json
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

from ricordo.domain.message import Part, TextPart, ToolCallPart
from ricordo.domain.model import Chunk, ModelInfo, ModelReply, ModelRequest, TextChunk, ToolCallChunk
from ricordo.llm.librarian import sentences as say
from ricordo.llm.librarian.plan import SEARCHES, Call, complete, forced, next_calls
from ricordo.llm.librarian.reading import read
from ricordo.llm.librarian.speech import speak
from ricordo.llm.librarian.view import View, look
from ricordo.llm.tokens import estimated_usage

HANDLE = "ricordo/librarian"
_SPEAK = "send_message"


class Librarian:
    """A ChatModel that files and finds: `ricordo/librarian`."""

    @property
    def info(self) -> ModelInfo:
        """Which model this is."""
        return ModelInfo(handle=HANDLE, provider="ricordo", name="librarian", endpoint_type="openai")

    async def answer(self, request: ModelRequest) -> AsyncIterator[Chunk | ModelReply]:
        """Yield the words one by one where `request.stream` asks for them, and last of all the whole reply."""
        reply = _reply(request)
        if request.stream:
            for chunk in _chunks(reply):
                yield chunk
        yield reply


def _reply(request: ModelRequest) -> ModelReply:
    parts = _parts(request, look(request))
    calls = any(isinstance(part, ToolCallPart) for part in parts)
    reply = ModelReply(parts, finish="tool_calls" if calls else "stop", model="librarian")
    return replace(reply, usage=estimated_usage(request, reply))


def _parts(request: ModelRequest, view: View) -> tuple[Part, ...]:
    intents = read(view.words)
    must_call = request.forced_tool if request.forced_tool in view.tools else None
    if must_call and must_call != _SPEAK:
        planned = [call for call in next_calls(view, intents) if call.tool == must_call]
        return _called(view, planned[:1] or [forced(view, must_call, view.words)])
    if not must_call and request.tool_choice != "none" and not view.has_spoken:
        calls = next_calls(view, intents)
        if calls:
            return _called(view, calls)
    if not must_call and request.tool_choice == "required" and view.tools and _SPEAK not in view.tools:
        # A rule wants a call, and none of these speaks: one that only looks, where there is one.
        wanted = view.offers(*SEARCHES) or next(iter(view.tools))
        call = forced(view, wanted, view.words)
        return _called(view, [replace(call, arguments={**call.arguments, "request_heartbeat": False})])
    if view.has_spoken and not must_call:
        return (TextPart(say.ALREADY_SPOKEN),)
    words = speak(view, intents)
    if must_call or (request.tool_choice == "required" and _SPEAK in view.tools):
        return _called(view, [Call(_SPEAK, {"message": words})])
    return (TextPart(words),)


def _called(view: View, calls: list[Call]) -> tuple[Part, ...]:
    whole = (complete(call, view.tools[call.tool]) for call in calls)
    # The last message's id makes these ids new in every step, and the same when a step is tried again.
    return tuple(
        ToolCallPart(f"call_{view.key}{index}", call.tool, json.dumps(dict(call.arguments), ensure_ascii=False))
        for index, call in enumerate(whole)
    )


def _chunks(reply: ModelReply) -> Iterator[Chunk]:
    index = 0
    for part in reply.parts:
        if isinstance(part, TextPart):
            yield from (TextChunk(piece) for piece in re.findall(r"\s*\S+\s*", part.text))
        elif isinstance(part, ToolCallPart):
            yield ToolCallChunk(index, part.arguments, part.call_id, part.name)
            index += 1
