"""A chat as server-sent events.

The events are `status`, `tool_call`, `artifact`, `reasoning`, `message`, `error` and `done`.
"""

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from fastapi import Response
from fastapi.responses import StreamingResponse
from pydantic import Field

from ricordo.agents.turn import run_turn
from ricordo.api.call import RequestContext, for_user, scope_of_user
from ricordo.api.models.base import HealthResponse
from ricordo.api.models.histories import FilledHistory
from ricordo.api.routing import Routes, needs
from ricordo.api.server import health as server_health
from ricordo.api.sse import PING, STREAM, sse_response
from ricordo.domain.clock import SECOND
from ricordo.domain.event import (
    Event,
    Failed,
    MessageRestarted,
    RunEnded,
    StepSaved,
    ToolCallDelta,
)
from ricordo.domain.hidden_text import with_marks
from ricordo.domain.message import ToolReturnPart
from ricordo.domain.scope import APPROVE, IMPERSONATE, Scope
from ricordo.domain.text import Json
from ricordo.errors import Invalid, NotFound
from ricordo.features.knowledge.memories.service import Filing, changes_of
from ricordo.features.openai.answers import AnswerReader, data, deltas_of, no_note
from ricordo.features.openai.models import ChatMessage, ChatRequest, LenientRequest
from ricordo.features.openai.queries import NamedAgent, agent_of
from ricordo.features.openai.routes import reader_of
from ricordo.features.openai.temporary import temporary_turn
from ricordo.features.openai.turns import chat_name, chat_turn, is_temporary
from ricordo.features.tutor.courses import queries as courses
from ricordo.features.tutor.courses.applying import named_agents
from ricordo.storage.engine.store import Transaction

router = Routes(tags=["tutor"], scope="messages", open_paths=("/health",))
_FRESH = 2 * SECOND
_STATUS_LENGTH = 100  # characters of a change that its status event shows


class TutorChatRequest(LenientRequest):
    """A chat to continue: all its messages, the last one by the student.

    `model` is a course, or an agent's name or id; it may be omitted if all courses together have
    only one agent.
    `user_id` is needed with a service's key; `user_name` is then the name by which people know the
    student, instead of the id. `resume` continues the answer that was started for the same
    messages. A chat whose `chat_id` begins with `temporary:` or `local:` is answered but not kept.
    """

    user_id: str | None = Field(None, min_length=1, max_length=255)
    user_name: str | None = Field(None, max_length=255)
    chat_id: str | None = Field(None, max_length=255)
    model: str | None = Field(None, max_length=300)
    messages: FilledHistory[ChatMessage]
    resume: bool = False


@dataclass(slots=True)
class TutorReader(AnswerReader):
    """Reads a turn as deltas of an answer, with its tool calls and artifacts.

    A call counts as running from its first piece on. It ends with its result, with the run, or when
    the model restarts its message.
    """

    has_called: bool = False
    _names: dict[str, str] = field(default_factory=dict)  # names of running calls, by their ids

    def read(self, event: Event) -> Iterator[Json]:
        """Yield the event's deltas of the answer."""
        if isinstance(event, ToolCallDelta) and event.name:
            yield from self._begin(event.call_id, event.name)
        elif isinstance(event, StepSaved):
            for message in event.messages:
                for call in message.tool_calls:
                    yield from self._begin(call.call_id, call.name)
                for part in message.tool_returns:
                    yield from self._end(part.call_id, is_ok=part.status == "success")
                    yield _artifact(part)
        elif isinstance(event, MessageRestarted | RunEnded | Failed):
            for call_id in list(self._names):
                yield from self._end(call_id, is_ok=False)
        yield from AnswerReader.read(self, event)

    def _begin(self, call_id: str, name: str) -> Iterator[Json]:
        self.has_called = True
        if call_id not in self._names:
            self._names[call_id] = name
            yield {"tool": {"id": call_id, "name": name, "status": "running"}}

    def _end(self, call_id: str, *, is_ok: bool) -> Iterator[Json]:
        if name := self._names.pop(call_id, None):
            status = "completed" if is_ok else "failed"
            yield {"tool": {"id": call_id, "name": name, "status": status}}


@router.get("/health", response_model=HealthResponse)
@needs()
async def health() -> Json:
    """Return the health of the server."""
    return await server_health()


@router.post("/chat/stream", response_class=StreamingResponse, responses=STREAM)
@needs("messages:write")
async def stream(context: RequestContext, body: TutorChatRequest) -> Response:
    """Continue a chat, and stream the answer.

    A lost connection does not end the answer: `resume` streams it again.
    """
    context = await _as_student(context, body.user_id, body.user_name or "")
    agent = await _agent(context, body.model)
    name = {"chat_id": body.chat_id} if body.chat_id else None
    chat = ChatRequest.model_construct(
        model=agent.model, messages=body.messages, stream=True, metadata=name
    )
    if is_temporary(chat_name(context, chat)):
        return await _stream_temporary(context, agent, chat)
    content = body.model_dump_json(exclude={"resume"}).encode()
    new_turn = await chat_turn(context, agent, chat, is_retry=body.resume, sent=content)
    answer_reader = reader_of(context, new_turn)
    reader = TutorReader(answer_reader.clock, answer_reader.client_tools, answer_reader.page)
    turn = await run_turn(context.runtime, new_turn.request)
    deltas = deltas_of(
        turn, reader, new_turn.note, context.runtime.settings.keepalive, stops_when_left=False
    )
    conversation_id = new_turn.request.conversation_id or ""
    return sse_response(_events(context, deltas, reader, conversation_id))


async def _stream_temporary(
    context: RequestContext, agent: NamedAgent, chat: ChatRequest
) -> Response:
    """Stream the answer to a chat that is not kept."""
    turn = await temporary_turn(context, agent, chat)
    reader = TutorReader(context.store.clock, (), "")
    keepalive = context.runtime.settings.keepalive
    deltas = deltas_of(turn, reader, no_note, keepalive, stops_when_left=False)
    return sse_response(_events(context, deltas, reader, ""))


async def _as_student(
    context: RequestContext, user: str | None, person_name: str
) -> RequestContext:
    """Return the context of this student.

    A new student is created, if the caller's key may act for users. `person_name` is the name that
    the student has at the calling service, if known.

    Raises Forbidden, NotFound for an unknown student, and Invalid without a user.
    """
    scope = context.scope
    if user is not None and scope.subject is None and scope.may(IMPERSONATE):
        acting = await scope_of_user(
            context.store, scope, user, makes=True, person_name=person_name
        )
        return replace(context, scope=acting or scope)
    if user is not None:
        return await for_user(context, user, reads=False)
    if scope.subject is None:
        raise Invalid(
            "This key belongs to no user. Name the user in user_id, or send a user's key."
        )
    return context


async def _agent(context: RequestContext, model: str | None) -> NamedAgent:
    """Return the agent of a course, or the agent with this name or id.

    Courses seldom change, so they are cached for some seconds and read again for an unknown name.
    Raises NotFound, Invalid.
    """
    state = context.request.app.state
    organization_id = context.scope.organization_id
    now = context.store.clock.now()
    cached: Mapping[str, tuple[int, Mapping[str, str]]] = getattr(state, "agents_of_courses", {})
    read_at, agent_ids = cached.get(organization_id, (0, {}))
    agent = _of_course(agent_ids, model)
    if agent and 0 <= now - read_at <= _FRESH:
        return agent

    def read(tx: Transaction) -> NamedAgent:
        agent_ids = _agents_of_courses(tx, context.scope)
        state.agents_of_courses = {**cached, organization_id: (now, agent_ids)}
        if agent := _of_course(agent_ids, model):
            return agent
        if model is None:
            names = ", ".join(sorted(agent_ids)) or "none yet"
            raise Invalid(f"Name the course or agent of the chat in model. Courses are: {names}.")
        return agent_of(tx, context.scope, model)

    try:
        return await context.store.read(read)
    except NotFound:
        raise NotFound(
            f'There is no course and no agent "{(model or "")[:80]}". GET /v1/models lists them.'
        ) from None


def _of_course(agent_ids: Mapping[str, str], model: str | None) -> NamedAgent | None:
    """Return the course's agent with this name; without a name, the only agent of all courses.

    The turn itself checks that the caller may use the agent.
    """
    if model is None and len(set(agent_ids.values())) == 1:
        model = next(iter(agent_ids))
    if model is None or model not in agent_ids:
        return None
    return NamedAgent(agent_ids[model], model, 0)


def _agents_of_courses(tx: Transaction, scope: Scope) -> Mapping[str, str]:
    """Return the ids of courses' agents by name.

    If a course has only one agent, that agent also has the course's name.
    """
    agent_ids: dict[str, str] = {}
    stored_courses = courses.all_courses(tx, scope)
    for course in stored_courses:
        for name, agent_id in named_agents(course).items():
            agent_ids[f"{course.name}/{name}"] = agent_id
    for course in stored_courses:
        if len(named := named_agents(course)) == 1:
            agent_ids[course.name] = next(iter(named.values()))
    return agent_ids


def _artifact(part: ToolReturnPart) -> Json:
    """Return the delta with the path of the document that a tool of this server made.

    It is empty for other results. Untrusted tools cannot show documents.
    """
    if part.is_untrusted:
        return {}
    document = part.decoded()
    return {"artifact": document.get("artifact")} if isinstance(document, dict) else {}


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
                yield data({"type": "tool_call", **tool})
            elif text := delta.get("reasoning_content"):
                yield data({"type": "reasoning", "content": text})
            elif text := delta.get("content"):
                yield data({"type": "message", "content": text})
    run = reader.run
    if reader.failed:
        yield data({"type": "error", "message": reader.failed.message, "kind": reader.failed.kind})
    elif run and reader.has_called:
        for change in await context.store.read(lambda tx: changes_of(tx, context.scope, run.id)):
            yield data(_change_json(context, change))
    yield data(
        {"type": "done", "run_id": run.id if run else None, "conversation_id": conversation_id}
    )


def _change_json(context: RequestContext, change: Filing) -> Json:
    """Return the status event of a change of memory, or of a proposal that waits.

    Hidden text is shown as marks. `may_decide` is set for a proposal that the caller's key may
    approve and reject for the student.
    """
    is_applied = change.status == "applied"
    verb = "Remembered" if is_applied else "Proposed to remember"
    added = with_marks(change.added)
    removed = with_marks(change.removed)
    lines = (added or removed).split("\n")
    text = lines[0].strip()
    if len(text) > _STATUS_LENGTH:
        text = f"{text[:_STATUS_LENGTH]}…"
    elif len(lines) > 1:
        text = f"{text} …"
    if not added:
        verb = "Forgot" if is_applied else "Proposed to forget"
    base = str(context.request.base_url).rstrip("/")
    return {
        "type": "status",
        "content": f"{verb}: {text}",
        "url": f"{base}/ui/people/{context.scope.subject}",
        "id": change.id,
        "status": change.status,
        "label": change.label,
        "added": added,
        "removed": removed,
        "reason": with_marks(change.reason),
        "may_decide": not is_applied and context.scope.may(APPROVE),
    }
