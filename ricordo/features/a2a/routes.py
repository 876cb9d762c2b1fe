"""A2A 1.0 over JSON-RPC for each agent, at `/v1/agents/{agent_id}/a2a`, with the agent's card."""

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing

from fastapi import Response

from ricordo import __version__
from ricordo.agents.conversations import cancel_conversation, cancel_run
from ricordo.agents.task_runs import Task, TaskNotFound, WrongTaskState, find_task, task_of
from ricordo.agents.turn import PastTurn, answer_of, collect, run_turn
from ricordo.api.call import RequestContext
from ricordo.api.json_rpc import (
    INTERNAL,
    Method,
    RpcAnswer,
    RpcFailure,
    RpcRequest,
    call_method,
    error_answer,
    result_answer,
)
from ricordo.api.routing import Routes
from ricordo.api.sse import PING, encoded, sse_response, with_pauses
from ricordo.api.turn_parts import Begun, PartEvent, Piece, TurnParts
from ricordo.domain.event import Failed, RunEnded, RunStarted
from ricordo.domain.run import DATABASE_FAILED
from ricordo.domain.text import Json
from ricordo.errors import Conflict, RicordoError, Unsupported
from ricordo.features.a2a.models import AgentCard, SendParameters, TaskParameters
from ricordo.features.a2a.tasks import ids_of, state_of, task_json, turn_of, update_of
from ricordo.runtime import LiveTurn
from ricordo.storage import agents
from ricordo.storage.engine.store import Transaction

_PATH = "/v1/agents/{agent_id}/a2a"
router = Routes(prefix=_PATH, tags=["messages"], scope="messages")
_cards = Routes(prefix=_PATH, tags=["agents"], scope="agents")
# Codes of the protocol (A2A 1.0, section 9.5).
_NOT_CANCELABLE = -32002
_NO_PUSH = -32003
_BAD_VERSION = -32009
_CODES: Mapping[type[RicordoError], int] = {
    TaskNotFound: -32001,
    WrongTaskState: -32004,
    Conflict: -32004,
    Unsupported: -32005,
}


@_cards.get("/.well-known/agent-card.json", response_model=AgentCard)
def retrieve_a2a_card(tx: Transaction, context: RequestContext, agent_id: str) -> Json:
    """Return the agent's card of A2A: its address, abilities and credentials."""
    state = agents.load_whole(tx, context.scope, agent_id)
    home = str(context.request.base_url).rstrip("/")
    address = f"{home}{_PATH.format(agent_id=agent_id)}"
    description = state.agent.description or f"The agent {state.agent.name}."
    skill = {"id": "talk", "name": state.agent.name, "description": description}
    interface = {"url": address, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    return {
        "name": state.agent.name,
        "description": description,
        "version": __version__,
        "supportedInterfaces": [interface],
        "capabilities": {"streaming": True, "pushNotifications": False},
        "securitySchemes": {"key": {"httpAuthSecurityScheme": {"scheme": "Bearer"}}},
        "securityRequirements": [{"schemes": {"key": {"list": []}}}],
        "defaultInputModes": ["text/plain", "application/json", "image/png", "image/jpeg"],
        "defaultOutputModes": ["text/plain"],
        "skills": [{**skill, "tags": list(state.tags)}],
    }


@router.post("", response_model=RpcAnswer)
async def call_a2a(context: RequestContext, agent_id: str, body: RpcRequest) -> Json | Response:
    """Run a method of A2A: send messages, read, follow and cancel tasks.

    Failures of the protocol are errors of JSON-RPC, with the status 200. An agent or a context that
    the caller may not use is refused as by all routes.
    """
    version = context.request.headers.get("a2a-version") or "1.0"
    if version.partition(".")[0] != "1":
        text = f"This is A2A 1.0; you speak {version[:20]}."
        return error_answer(body, _BAD_VERSION, text)
    if "PushNotification" in body.method:
        return error_answer(body, _NO_PUSH, "Push notifications are not supported.")
    return await call_method(_METHODS, _CODES, context, agent_id, body)


async def _send(context: RequestContext, agent_id: str, body: RpcRequest) -> Json:
    parameters = SendParameters.model_validate(body.params or {})
    request = await turn_of(context, agent_id, parameters.message, streams=False)
    turn = await run_turn(context.runtime, request)
    configuration = parameters.configuration
    if configuration and configuration.return_immediately:
        async with aclosing(turn.events()) as events:
            started = await anext(events)
        if isinstance(started, RunStarted):
            task = await task_of(context.runtime, context.scope, started.run)
            return {"task": task_json(task)}
    answer = await collect(turn)
    task = await task_of(context.runtime, context.scope, answer.run)
    return {"task": task_json(task, answer.messages)}


async def _stream(context: RequestContext, agent_id: str, body: RpcRequest) -> Response:
    parameters = SendParameters.model_validate(body.params or {})
    request = await turn_of(context, agent_id, parameters.message, streams=True)
    turn = await run_turn(context.runtime, request)
    return _task_stream(context, body, turn)


async def _subscribe(context: RequestContext, agent_id: str, body: RpcRequest) -> Response:
    task = await _task(context, agent_id, body)
    run = task.run
    if run.ended_at is not None:
        raise WrongTaskState("The task does not run, so it has no events.")
    # A task that another server runs has only its beginning and its end here.
    past_turn = PastTurn(context.runtime, context.scope, run.id)
    return _task_stream(context, body, context.runtime.live.get(run.id) or past_turn)


async def _get(context: RequestContext, agent_id: str, body: RpcRequest) -> Json:
    task = await _task(context, agent_id, body)
    return task_json(task, await answer_of(context.runtime, task.run))


async def _cancel(context: RequestContext, agent_id: str, body: RpcRequest) -> Json:
    task = await _task(context, agent_id, body)
    if task.waiting:
        await cancel_conversation(context.runtime, context.scope, task.run.conversation_id)
    elif task.is_open:
        await cancel_run(context.runtime, context.scope, task.run.id)
    else:
        raise RpcFailure(_NOT_CANCELABLE, f"The task has ended: it is {state_of(task)}.")
    return await _get(context, agent_id, body)


async def _task(context: RequestContext, agent_id: str, body: RpcRequest) -> Task:
    parameters = TaskParameters.model_validate(body.params or {})
    return await find_task(context.runtime, context.scope, agent_id, parameters.id)


_METHODS: Mapping[str, Method] = {
    "SendMessage": _send,
    "SendStreamingMessage": _stream,
    "GetTask": _get,
    "CancelTask": _cancel,
    "SubscribeToTask": _subscribe,
}


def _task_stream(context: RequestContext, body: RpcRequest, turn: LiveTurn) -> Response:
    cut_off = encoded(error_answer(body, INTERNAL, DATABASE_FAILED))
    return sse_response(_chunks(context, body, turn), [cut_off])


async def _chunks(
    context: RequestContext, body: RpcRequest, turn: LiveTurn
) -> AsyncGenerator[bytes]:
    """Yield the task, its text in pieces, calls of tools, and its last status.

    The task continues when the client leaves. The client may subscribe again, or cancel the task.
    """
    parts = TurnParts(context.store.clock, ("assistant_message", "tool_call_message"))
    task: Task | None = None
    async with aclosing(with_pauses(turn.events(), context.runtime.settings.keepalive)) as events:
        async for event in events:
            if event is None:
                yield PING
                continue
            results: list[Json] = []
            if isinstance(event, RunStarted):
                task = await task_of(context.runtime, context.scope, event.run)
                results = [{"task": task_json(task)}]
            elif isinstance(event, RunEnded | Failed):
                ended = await task_of(context.runtime, context.scope, event.run)
                results = [update_of(ended)]
            elif task:
                results = [update for part in parts.read(event) for update in _updates(task, part)]
            for result in results:
                yield encoded(result_answer(body, result))


def _updates(task: Task, part: PartEvent) -> Iterator[Json]:
    """Yield the update for a piece of an answer, or for the beginning of a call."""
    ids = ids_of(task)
    if isinstance(part, Piece) and part.kind == "text":
        artifact = {"artifactId": part.id, "parts": [{"text": part.text}]}
        yield {"artifactUpdate": {**ids, "artifact": artifact, "append": not part.is_first}}
    if isinstance(part, Begun) and part.kind == "call":
        status = {"state": "TASK_STATE_WORKING"}
        metadata = {"tool_call": {"id": part.id, "name": part.name}}
        yield {"statusUpdate": {**ids, "status": status, "metadata": metadata}}


router.routes += _cards.routes
