"""The librarian: what answers where there is no key and no model server. It is no language model, and says so.

It files what it is told, corrects, finds, lists and forgets, by the same tools and loop as any model. It sees only the request,
keeps no state, and gives the same answer to the same request.
"""

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from ricordo.domain.message import Part, TextPart, ToolCallPart
from ricordo.domain.model import Chunk, ModelInfo, ModelReply, ModelRequest
from ricordo.features.librarian.answers import spoken_answer
from ricordo.features.librarian.grammar import Intent, read
from ricordo.features.librarian.plan import SEARCHES, PlannedCall, complete, forced, planned_calls
from ricordo.features.librarian.view import SEND, LibrarianView, view_of
from ricordo.llm.chat import chunks_of
from ricordo.llm.tokens import estimated_usage


class Librarian:
    """A ChatModel that files and finds: `ricordo/librarian`."""

    info = ModelInfo("ricordo/librarian", "ricordo", "librarian", "openai")

    async def answer(self, request: ModelRequest) -> AsyncIterator[Chunk | ModelReply]:
        """Yield the words one by one where `request.stream` asks for them, and last of all the whole reply."""
        view = view_of(request)
        parts = _parts(request, view, read(view.words))
        calls = any(isinstance(part, ToolCallPart) for part in parts)
        reply = ModelReply(parts, finish="tool_calls" if calls else "stop", model="librarian")
        reply = replace(reply, usage=estimated_usage(request, reply))
        if request.stream:
            for chunk in chunks_of(reply, by_word=True):
                yield chunk
        yield reply


def _parts(request: ModelRequest, view: LibrarianView, intents: Sequence[Intent]) -> tuple[Part, ...]:
    must_call = request.forced_tool if request.forced_tool in view.tools else None
    may_call = request.tool_choice != "none" and not view.made(SEND)
    speaks_by_tool = must_call == SEND or (request.tool_choice == "required" and SEND in view.tools)
    if must_call and must_call != SEND:
        planned = [call for call in planned_calls(view, intents) if call.tool == must_call]
        return _called(view, planned[:1] or [forced(view, must_call)])
    if not must_call and may_call and (calls := planned_calls(view, intents)):
        return _called(view, calls)
    if not must_call and request.tool_choice == "required" and view.tools and SEND not in view.tools:
        # A rule wants a call, and none of these speaks: one that only looks, where there is one.
        call = forced(view, view.offers(*SEARCHES) or next(iter(view.tools)))
        return _called(view, [PlannedCall(call.tool, {**call.arguments, "request_heartbeat": False})])
    if view.made(SEND) and not must_call:
        return (TextPart("That is all."),)
    words = spoken_answer(view, intents)
    return _called(view, [PlannedCall(SEND, {"message": words})]) if speaks_by_tool else (TextPart(words),)


def _called(view: LibrarianView, calls: Sequence[PlannedCall]) -> tuple[Part, ...]:
    whole = (complete(call, view.tools[call.tool]) for call in calls)
    # The last message's id makes these ids new in every step, and the same when a step is tried again.
    return tuple(
        ToolCallPart(f"call_{view.key}{index}", call.tool, json.dumps(dict(call.arguments), ensure_ascii=False))
        for index, call in enumerate(whole)
    )
