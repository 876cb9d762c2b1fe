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
from ricordo.features.librarian.grammar import read
from ricordo.features.librarian.plan import SEARCHES, PlannedCall, complete, planned_calls
from ricordo.features.librarian.view import SEND, LibrarianView, view_of
from ricordo.llm.chat import chunks_of
from ricordo.llm.tokens import estimated_usage


class Librarian:
    """A ChatModel that files and finds: `ricordo/librarian`."""

    info = ModelInfo("ricordo/librarian", "ricordo", "librarian", "openai")

    async def answer(self, request: ModelRequest) -> AsyncIterator[Chunk | ModelReply]:
        """Yield the words one by one where `request.stream` asks for them, and last of all the whole reply."""
        view = view_of(request)
        answer = _answer(request, view)
        parts: tuple[Part, ...] = (TextPart(answer),) if isinstance(answer, str) else _called(view, answer)
        reply = ModelReply(parts, finish="stop" if isinstance(answer, str) else "tool_calls", model="librarian")
        reply = replace(reply, usage=estimated_usage(request, reply))
        if request.stream:
            for chunk in chunks_of(reply, by_word=True):
                yield chunk
        yield reply


def _answer(request: ModelRequest, view: LibrarianView) -> str | Sequence[PlannedCall]:
    """Return the words to say, or the calls to make."""
    intents = read(view.words)
    forced = request.forced_tool if request.forced_tool in view.tools else None
    planned = [] if request.tool_choice == "none" or view.made(SEND) else planned_calls(view, intents)
    if calls := [call for call in planned if forced in (None, call.tool)]:
        return calls if forced is None else calls[:1]
    is_asked = forced is not None
    if request.tool_choice == "required" and view.tools and not view.made(SEND):
        # A rule wants a call: one that speaks, else one that only looks.
        forced = forced or next((name for name in (SEND, *SEARCHES) if name in view.tools), next(iter(view.tools)))
    if forced is None:
        return "That is all." if view.made(SEND) else spoken_answer(view, intents)
    words = spoken_answer(view, intents) if forced == SEND else view.words
    texts = dict.fromkeys(("query", "content", "new_string", "message"), words)
    return [complete(PlannedCall(forced, {**texts, "request_heartbeat": is_asked}), view.tools[forced])]


def _called(view: LibrarianView, calls: Sequence[PlannedCall]) -> tuple[Part, ...]:
    # The last message's id makes these ids new in every step, and the same when a step is tried again.
    return tuple(
        ToolCallPart(f"call_{view.key}{index}", call.tool, json.dumps(dict(call.arguments), ensure_ascii=False))
        for index, call in enumerate(calls)
    )
