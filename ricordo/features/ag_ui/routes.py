"""`POST /v1/agents/{agent_id}/ag-ui`: runs an agent for a user interface that speaks AG-UI."""

import asyncio
from collections.abc import AsyncGenerator, Mapping

from fastapi import Response
from fastapi.responses import StreamingResponse

from ricordo.agents.turn import run_turn
from ricordo.api.call import RequestContext
from ricordo.api.routing import Routes
from ricordo.api.sse import STREAM, encoded, sse_response, with_pauses
from ricordo.domain.event import Failed, RunEnded, StepSaved
from ricordo.domain.run import DATABASE_FAILED, INTERRUPTED
from ricordo.domain.text import Json
from ricordo.features.ag_ui.events import EventEncoder
from ricordo.features.ag_ui.models import RunAgentRequest
from ricordo.features.ag_ui.turns import ThreadRun, thread_run
from ricordo.runtime import LiveTurn
from ricordo.storage import agents

router = Routes(prefix="/v1/agents/{agent_id}/ag-ui", tags=["messages"], scope="messages")
_PING = b": ping\n\n"
_CUT_OFF = (encoded({"type": "RUN_ERROR", "message": DATABASE_FAILED, "code": INTERRUPTED}),)


@router.post("", response_class=StreamingResponse, responses=STREAM)
async def run_agent(context: RequestContext, agent_id: str, body: RunAgentRequest) -> Response:
    """Run the agent in a thread and stream the events of AG-UI.

    New messages of the client's history are answered. A run that its last reader leaves is
    cancelled.
    """
    run = await thread_run(context, agent_id, body)
    turn = await run_turn(context.runtime, run.request) if run.request else None
    return sse_response(_events(context, agent_id, body, run, turn), _CUT_OFF)


async def _events(
    context: RequestContext,
    agent_id: str,
    body: RunAgentRequest,
    run: ThreadRun,
    turn: LiveTurn | None,
) -> AsyncGenerator[bytes]:
    ids = {"threadId": body.thread_id, "runId": body.run_id}
    conversation = {"ricordo": {"conversation_id": run.conversation_id}}
    yield encoded({"type": "RUN_STARTED", **ids, "metadata": conversation})
    memory = SharedMemory(context, agent_id, run.conversation_id)
    yield encoded(await memory.first_event(body))
    if turn is None:
        yield encoded({"type": "RUN_FINISHED", **ids, "outcome": {"type": "success"}})
        return
    tools = {tool.name for tool in body.tools or ()}
    answered = {message.tool_call_id or "" for message in body.messages or ()}
    encoder = EventEncoder(context.store.clock, tools, answered)
    events = with_pauses(turn.events(), context.runtime.settings.keepalive)
    has_ended = False
    try:
        async for event in events:
            if event is None:
                yield _PING
                continue
            has_ended = isinstance(event, RunEnded | Failed)
            for wire in encoder.encode(event):
                yield encoded(wire)
            if isinstance(event, StepSaved):
                for wire in await memory.changes():
                    yield encoded(wire)
            if isinstance(event, RunEnded | Failed):
                yield encoded(encoder.end(event, ids))
    finally:
        await events.aclose()
        if not (has_ended or turn.has_readers):
            # The turn keeps a reference to the task, so it is not collected.
            asyncio.ensure_future(turn.cancel())  # noqa: RUF006


class SharedMemory:
    """The state that the client sees: `memory`, the text of each block that the agent sees.

    It is empty for callers who may not read memory. The client cannot change it: edits of memory
    have policies, which its state does not know.
    """

    def __init__(self, context: RequestContext, agent_id: str, conversation_id: str) -> None:
        self._context = context
        self._agent_id = agent_id
        self._conversation_id = conversation_id
        self._texts: Mapping[str, str] = {}

    async def first_event(self, body: RunAgentRequest) -> Json:
        """Return the memory as the whole state, or as a part of the client's state."""
        self._texts = await self._read()
        if isinstance(body.state, dict) and body.state:
            patch = {"op": "add", "path": "/memory", "value": dict(self._texts)}
            return {"type": "STATE_DELTA", "delta": [patch]}
        return {"type": "STATE_SNAPSHOT", "snapshot": {"memory": dict(self._texts)}}

    async def changes(self) -> list[Json]:
        """Return the event for what changed since the last one; none if nothing did."""
        before = self._texts
        self._texts = await self._read()
        patches: list[Json] = [
            {"op": "add", "path": _path(label), "value": text}
            for label, text in self._texts.items()
            if before.get(label) != text
        ]
        removed = before.keys() - self._texts.keys()
        patches += [{"op": "remove", "path": _path(label)} for label in sorted(removed)]
        return [{"type": "STATE_DELTA", "delta": patches}] if patches else []

    async def _read(self) -> Mapping[str, str]:
        scope = self._context.scope
        if not scope.may("memory:read"):
            return {}
        state = await self._context.store.read(
            lambda tx: agents.load(tx, scope, self._agent_id, self._conversation_id)
        )
        return {block.shown_label: block.value for block in state.blocks if not block.hidden}


def _path(label: str) -> str:
    """Return the JSON pointer to a block (RFC 6901)."""
    return "/memory/" + label.replace("~", "~0").replace("/", "~1")
