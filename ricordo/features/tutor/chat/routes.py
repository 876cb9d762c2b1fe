"""A chat as server-sent events: `status`, `tool_call`, `artifact`, `reasoning`, `message`, `error` and `done`."""

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Annotated

import orjson
from fastapi import Response
from fastapi.responses import StreamingResponse
from pydantic import Field

from ricordo.agents.turn import run_turn
from ricordo.api.call import RequestContext, for_user, scope_of_user
from ricordo.api.models.base import HealthResponse, Json
from ricordo.api.routing import Routes, needs
from ricordo.api.server import health as server_health
from ricordo.api.sse import STREAM, sse_response
from ricordo.domain.clock import SECOND
from ricordo.domain.event import Event, StepSaved
from ricordo.domain.message import ToolReturnPart
from ricordo.domain.scope import IMPERSONATE, Scope
from ricordo.errors import Invalid, NotFound
from ricordo.features.knowledge.memories.service import changes_of
from ricordo.features.openai.answers import PING, AnswerReader, data, deltas_of
from ricordo.features.openai.models import ChatMessage, ChatRequest, LenientRequest
from ricordo.features.openai.queries import NamedAgent, agent_of
from ricordo.features.openai.routes import reader_of
from ricordo.features.openai.turns import chat_turn
from ricordo.features.tutor.courses import queries as courses
from ricordo.storage.engine.store import Transaction

router = Routes(tags=["tutor"], scope="messages", open_paths=("/health",))
_FRESH = 2 * SECOND


class TutorChatRequest(LenientRequest):
    """A chat to go on with: all of its messages so far, the last one the student's.

    `model` is a course, an agent's name or its id; it can be left out where there is one course. `user_id` is needed with a
    service's key. With `resume` an answer that was begun for these very messages is taken up again.
    """

    user_id: str | None = Field(None, min_length=1, max_length=255)
    chat_id: str | None = Field(None, max_length=255)
    model: str | None = Field(None, max_length=300)
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=10_000)]
    resume: bool = False


class TutorReader(AnswerReader):
    """Reads a turn as deltas of an answer, and says besides which tools the agent called, and what they made to be shown."""

    has_called = False

    def read(self, event: Event) -> Iterator[Json]:
        """Yield what the event adds to the answer."""
        if isinstance(event, StepSaved):
            self.has_called |= any(message.tool_calls for message in event.messages)
            for message in event.messages:
                yield from ({"tool": call.name} for call in message.tool_calls)
                yield from map(_artifact, message.tool_returns)
        yield from AnswerReader.read(self, event)


@router.get("/health", response_model=HealthResponse)
@needs()
async def health() -> Json:
    """Say that the server is there."""
    return await server_health()


@router.post("/chat/stream", response_class=StreamingResponse, responses=STREAM)
@needs("messages:write")
async def stream(context: RequestContext, body: TutorChatRequest) -> Response:
    """Go on with a chat, and stream the answer. A reader who leaves does not cut it off: `resume` takes it up again."""
    context = await _as_student(context, body.user_id)
    agent = await _agent(context, body.model)
    name = {"chat_id": body.chat_id} if body.chat_id else None
    chat = ChatRequest.model_construct(
        model=agent.model, messages=body.messages, stream=True, metadata=name
    )
    sent = body.model_dump_json(exclude={"resume"}).encode()
    asked = await chat_turn(context, agent, chat, is_retry=body.resume, sent=sent)
    usual = reader_of(context, asked)
    reader = TutorReader(usual.clock, usual.client_tools, usual.page)
    turn = await run_turn(context.runtime, asked.request)
    deltas = deltas_of(
        turn, reader, asked.note, context.runtime.settings.keepalive, stops_when_left=False
    )
    return sse_response(_events(context, deltas, reader, asked.request.conversation_id or ""))


async def _as_student(context: RequestContext, user: str | None) -> RequestContext:
    """The call as this student, who is made where new. Raises Forbidden, and Invalid where nobody is named."""
    scope = context.scope
    if user is not None and scope.subject is None and scope.may(IMPERSONATE):
        acting = await scope_of_user(context.store, scope, user, makes=True)
        return replace(context, scope=acting or scope)
    if user is not None:
        return await for_user(context, user, reads=False)
    if scope.subject is None:
        raise Invalid("Say in user_id who is chatting, or send the key of a user.")
    return context


async def _agent(context: RequestContext, model: str | None) -> NamedAgent:
    """The agent of a course, or the one with this name or id. Raises NotFound, Invalid.

    Courses change seldom: they are read again after some seconds, or where the name is not among them.
    """
    state, place, now = (
        context.request.app.state,
        context.scope.organization_id,
        context.store.clock.now(),
    )
    recent: Mapping[str, tuple[int, Mapping[str, str]]] = getattr(state, "agents_of_courses", {})
    read_at, known = recent.get(place, (0, {}))
    if 0 <= now - read_at <= _FRESH and (found := _of_course(known, model)):
        return found

    def read(tx: Transaction) -> NamedAgent:
        known = _agents_of_courses(tx, context.scope)
        state.agents_of_courses = {**recent, place: (now, known)}
        if found := _of_course(known, model):
            return found
        if model is None:
            names = ", ".join(sorted(known)) or "none yet"
            raise Invalid(
                f"Say in model with which course or agent the chat is. Courses are: {names}."
            )
        return agent_of(tx, context.scope, model)

    try:
        return await context.store.read(read)
    except NotFound:
        raise NotFound(
            f'There is no course and no agent "{(model or "")[:80]}". GET /v1/models lists what there is.'
        ) from None


def _of_course(known: Mapping[str, str], model: str | None) -> NamedAgent | None:
    """The agent that is called so, or the only one there is; the turn finds out whether the caller may use it."""
    if model is None and len(set(known.values())) == 1:
        model = next(iter(known))
    return NamedAgent(known[model], model, 0) if model is not None and model in known else None


def _agents_of_courses(tx: Transaction, scope: Scope) -> Mapping[str, str]:
    """The ids of courses' agents by what they are called."""
    listed = courses.everyone(tx, scope)
    known = {f"{one.name}/{name}": id for one in listed for name, id in one.agents.items()}
    return known | {
        one.name: next(iter(one.agents.values())) for one in listed if len(one.agents) == 1
    }


def _artifact(part: ToolReturnPart) -> Json:
    """Where the document is that a tool of this server made to be shown; untrusted tools do not say what is shown."""
    made = orjson.loads(part.content) if part.is_json and not part.is_untrusted else None
    return {"artifact": made.get("artifact")} if isinstance(made, dict) else {}


async def _events(
    context: RequestContext,
    deltas: AsyncGenerator[Json | None],
    reader: TutorReader,
    conversation_id: str,
) -> AsyncGenerator[bytes]:
    yield data({"type": "status", "content": "Thinking…", "conversation_id": conversation_id})
    async with aclosing(deltas):
        async for delta in deltas:
            if delta is None:
                yield PING
            elif path := delta.get("artifact"):
                yield data({"type": "artifact", "path": path})
            elif tool := delta.get("tool"):
                yield data({"type": "tool_call", "name": tool, "status": "completed"})
            elif words := delta.get("reasoning_content"):
                yield data({"type": "reasoning", "content": words})
            elif words := delta.get("content"):
                yield data({"type": "message", "content": words})
    run = reader.run
    if reader.failed:
        yield data({"type": "error", "message": reader.failed.message, "kind": reader.failed.kind})
    elif run:
        page = f"{str(context.request.base_url).rstrip('/')}/ui/people/{context.scope.subject}"
        filed = (
            await context.store.read(lambda tx: changes_of(tx, context.scope, run.id))
            if reader.has_called
            else ()
        )
        for one in filed:
            words = "Remembered" if one.status == "applied" else "Proposed to remember"
            yield data(
                {"type": "status", "content": f"{words}: {one.label}", "url": page, "id": one.id}
            )
    yield data(
        {"type": "done", "run_id": run.id if run else None, "conversation_id": conversation_id}
    )
