"""`POST /v1/agents/{agent_id}/ag-ui`: runs an agent for a user interface that speaks AG-UI."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import Response
from fastapi.responses import StreamingResponse

from ricordo.agents.conversations import open_named_conversation
from ricordo.agents.turn import run_turn
from ricordo.api.call import RequestContext
from ricordo.api.memory_patches import MemoryDocument
from ricordo.api.routing import Routes
from ricordo.api.sse import PING, STREAM, encoded, events_for_client, sse_response
from ricordo.domain.event import Failed, RunEnded, StepSaved
from ricordo.domain.run import DATABASE_FAILED, INTERRUPTED
from ricordo.domain.text import Json
from ricordo.features.ag_ui.events import EventEncoder
from ricordo.features.ag_ui.models import RunAgentRequest
from ricordo.features.ag_ui.turns import turn_of
from ricordo.runtime import LiveTurn

router = Routes(prefix="/v1/agents/{agent_id}/ag-ui", tags=["messages"], scope="messages")
_CUT_OFF = (encoded({"type": "RUN_ERROR", "message": DATABASE_FAILED, "code": INTERRUPTED}),)


@router.post("", response_class=StreamingResponse, responses=STREAM)
async def run_agent(context: RequestContext, agent_id: str, body: RunAgentRequest) -> Response:
    """Run the agent in a thread and stream the events of AG-UI.

    New messages of the client's history are answered. A run that its last reader leaves is
    cancelled.
    """
    conversation = await open_named_conversation(
        context.runtime, context.scope, agent_id, body.thread_id
    )
    request = await turn_of(context, conversation, body)
    # Read the memory before the turn starts, so that every change by the turn is sent as a change.
    memory = MemoryDocument(context, conversation.agent_id, conversation.id)
    state = await _first_state(memory, body)
    turn = await run_turn(context.runtime, request) if request else None
    return sse_response(_events(context, body, turn, memory, state), _CUT_OFF)


async def _events(
    context: RequestContext,
    body: RunAgentRequest,
    turn: LiveTurn | None,
    memory: MemoryDocument,
    state: Json,
) -> AsyncGenerator[bytes]:
    ids = {"threadId": body.thread_id, "runId": body.run_id}
    metadata = {"ricordo": {"conversation_id": memory.conversation_id}}
    yield encoded({"type": "RUN_STARTED", **ids, "metadata": metadata})
    yield encoded(state)
    if turn is None:
        yield encoded({"type": "RUN_FINISHED", **ids, "outcome": {"type": "success"}})
        return
    answered = {message.tool_call_id or "" for message in body.messages or ()}
    encoder = EventEncoder(context.store.clock, body.tool_names, answered)
    keepalive = context.runtime.settings.keepalive
    events = events_for_client(turn, keepalive, may_stop=lambda: not turn.has_readers)
    async with aclosing(events):
        async for event in events:
            if event is None:
                yield PING
                continue
            for wire in encoder.encode(event):
                yield encoded(wire)
            if isinstance(event, StepSaved) and (delta := await memory.changes("/memory")):
                yield encoded({"type": "STATE_DELTA", "delta": delta})
            if isinstance(event, RunEnded | Failed):
                yield encoded(encoder.end(event, ids))


async def _first_state(memory: MemoryDocument, body: RunAgentRequest) -> Json:
    """Return the event with the memory: the whole state, or a part of the client's state.

    The client cannot change the memory by its state, since policies decide about edits.
    """
    texts = await memory.texts()
    if isinstance(body.state, dict) and body.state:
        patch = {"op": "add", "path": "/memory", "value": texts}
        return {"type": "STATE_DELTA", "delta": [patch]}
    return {"type": "STATE_SNAPSHOT", "snapshot": {"memory": texts}}
