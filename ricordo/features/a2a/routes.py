"""A2A 1.0 over JSON-RPC for each agent, at `/v1/agents/{agent_id}/a2a`, with the agent's card."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any

from fastapi import Response
from pydantic import ValidationError

from ricordo import __version__
from ricordo.agents.conversations import cancel_conversation, cancel_run
from ricordo.agents.turn import collect, run_turn
from ricordo.api.call import RequestContext
from ricordo.api.models.messages import MessageFormat
from ricordo.api.routing import Routes
from ricordo.api.sse import encoded, sse_response, with_pauses
from ricordo.api.turn_encoder import TurnEncoder
from ricordo.domain.event import Failed, RunEnded, RunStarted
from ricordo.domain.run import DATABASE_FAILED
from ricordo.domain.text import Json
from ricordo.errors import Conflict, Forbidden, NotFound, RicordoError, Unsupported
from ricordo.features.a2a.models import (
    AgentCard,
    RpcAnswer,
    RpcRequest,
    SendParameters,
    TaskParameters,
)
from ricordo.features.a2a.tasks import (
    Task,
    TaskEnded,
    TaskNotFound,
    find_task,
    task_json,
    task_of,
    turn_of,
)
from ricordo.runtime import LiveTurn
from ricordo.storage import agents
from ricordo.storage.engine.store import Transaction

_PATH = "/v1/agents/{agent_id}/a2a"
router = Routes(prefix=_PATH, tags=["messages"], scope="messages")
_cards = Routes(prefix=_PATH, tags=["agents"], scope="agents")
_SHOWN = MessageFormat(
    types=frozenset({"assistant_message", "tool_call_message"}), shows_summaries=False
)
_PING = b": ping\n\n"
# Codes of the protocol (A2A 1.0, section 9.5) and of JSON-RPC.
_NOT_CANCELABLE = -32002
_NO_PUSH = -32003
_BAD_VERSION = -32009
_NO_METHOD = -32601
_BAD_PARAMETERS = -32602
_INTERNAL = -32603
_CODES: Mapping[type[RicordoError], int] = {
    TaskNotFound: -32001,
    TaskEnded: -32004,
    Conflict: -32004,
    Unsupported: -32005,
    RicordoError: _BAD_PARAMETERS,
}


class _RpcFailure(Exception):
    """A failure with its code of JSON-RPC."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


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
    try:
        method = _method_of(context, body)
        result = await method(context, agent_id, body)
    except (_RpcFailure, RicordoError, ValidationError) as error:
        if isinstance(error, Forbidden) or type(error) is NotFound:
            raise  # the agent or the conversation is not the caller's: the status says so
        return {"jsonrpc": "2.0", "id": body.id, "error": _error_of(error)}
    if isinstance(result, Response):
        return result
    return {"jsonrpc": "2.0", "id": body.id, "result": result}


def _method_of(context: RequestContext, body: RpcRequest) -> "_Method":
    version = context.request.headers.get("a2a-version") or "1.0"
    if version.partition(".")[0] != "1":
        raise _RpcFailure(_BAD_VERSION, f"This is A2A 1.0; you speak {version[:20]}.")
    if "PushNotification" in body.method:
        raise _RpcFailure(_NO_PUSH, "Push notifications are not supported.")
    if body.method not in _METHODS:
        known = ", ".join(_METHODS)
        raise _RpcFailure(_NO_METHOD, f"Unknown method of A2A 1.0. Here are: {known}.")
    return _METHODS[body.method]


def _error_of(error: Exception) -> Json:
    if isinstance(error, _RpcFailure):
        return {"code": error.code, "message": str(error)}
    if isinstance(error, ValidationError):
        fault = error.errors()[0]
        field = ".".join(map(str, fault["loc"]))
        return {"code": _BAD_PARAMETERS, "message": f"{field}: {fault['msg']}"[:300]}
    code = next(code for kind, code in _CODES.items() if isinstance(error, kind))
    return {"code": code, "message": str(error)}


async def _send(context: RequestContext, agent_id: str, body: RpcRequest) -> Json:
    parameters = SendParameters.model_validate(body.params or {})
    request = await turn_of(context, agent_id, parameters.message, streams=False)
    turn = await run_turn(context.runtime, request)
    configuration = parameters.configuration
    if configuration and configuration.return_immediately:
        async with aclosing(turn.events()) as events:
            started = await anext(events)
        if isinstance(started, RunStarted):
            return {"task": (await task_of(context, started.run)).json()}
    answer = await collect(turn)
    task = await task_of(context, answer.run)
    return {"task": task.json(answer.messages)}


async def _stream(context: RequestContext, agent_id: str, body: RpcRequest) -> Response:
    parameters = SendParameters.model_validate(body.params or {})
    request = await turn_of(context, agent_id, parameters.message, streams=True)
    turn = await run_turn(context.runtime, request)
    return _task_stream(context, body, turn)


async def _subscribe(context: RequestContext, agent_id: str, body: RpcRequest) -> Response:
    task = await _task(context, agent_id, body)
    turn = context.runtime.live.get(task.run.id)
    if turn is None or task.run.ended_at is not None:
        raise TaskEnded("The task does not run, so it has no events.")
    return _task_stream(context, body, turn)


async def _get(context: RequestContext, agent_id: str, body: RpcRequest) -> Json:
    return await task_json(context, await _task(context, agent_id, body))


async def _cancel(context: RequestContext, agent_id: str, body: RpcRequest) -> Json:
    task = await _task(context, agent_id, body)
    if task.waiting:
        await cancel_conversation(context.runtime, context.scope, task.run.conversation_id)
    elif task.is_open:
        await cancel_run(context.runtime, context.scope, task.run.id)
    else:
        raise _RpcFailure(_NOT_CANCELABLE, f"The task has ended: it is {task.state}.")
    return await _get(context, agent_id, body)


async def _task(context: RequestContext, agent_id: str, body: RpcRequest) -> Task:
    parameters = TaskParameters.model_validate(body.params or {})
    return await find_task(context, agent_id, parameters.id)


_Method = Callable[[RequestContext, str, RpcRequest], Awaitable[Any]]
_METHODS: Mapping[str, _Method] = {
    "SendMessage": _send,
    "SendStreamingMessage": _stream,
    "GetTask": _get,
    "CancelTask": _cancel,
    "SubscribeToTask": _subscribe,
}


def _task_stream(context: RequestContext, body: RpcRequest, turn: LiveTurn) -> Response:
    error = {"code": _INTERNAL, "message": DATABASE_FAILED}
    cut_off = (encoded({"jsonrpc": "2.0", "id": body.id, "error": error}),)
    return sse_response(_events(context, body, turn), cut_off)


async def _events(
    context: RequestContext, body: RpcRequest, turn: LiveTurn
) -> AsyncGenerator[bytes]:
    """Yield the task, its text in pieces, calls of tools, and its last status.

    A client that leaves does not stop the task: it may subscribe again, or cancel.
    """
    encoder = TurnEncoder(_SHOWN, context.store.clock, has_tokens=True)
    task: Task | None = None
    known: set[str] = set()
    events = with_pauses(turn.events(), context.runtime.settings.keepalive)
    try:
        async for event in events:
            if event is None:
                yield _PING
                continue
            results: list[Json] = []
            if isinstance(event, RunStarted):
                task = await task_of(context, event.run)
                results = [{"task": task.json()}]
            elif isinstance(event, RunEnded | Failed):
                results = [(await task_of(context, event.run)).update()]
            elif task:
                for wire in encoder.encode(event):
                    results += _results_of(task, wire, known)
            for result in results:
                yield encoded({"jsonrpc": "2.0", "id": body.id, "result": result})
    finally:
        await events.aclose()


def _results_of(task: Task, wire: Json, known: set[str]) -> list[Json]:
    """Return the updates for a piece of an answer or of a call.

    `known` are the ids of artifacts and calls that have begun.
    """
    ids = {"taskId": task.id, "contextId": task.context_id}
    if wire.get("message_type") == "assistant_message" and wire["content"]:
        artifact = {"artifactId": wire["id"], "parts": [{"text": wire["content"]}]}
        is_begun = wire["id"] in known
        known.add(wire["id"])
        return [{"artifactUpdate": {**ids, "artifact": artifact, "append": is_begun}}]
    if wire.get("message_type") != "tool_call_message":
        return []
    calls = wire["tool_calls"] if isinstance(wire["tool_calls"], list) else [wire["tool_calls"]]
    updates = []
    for call in calls:
        if call.get("name") and call["tool_call_id"] not in known:
            known.add(call["tool_call_id"])
            status = {"state": "TASK_STATE_WORKING"}
            metadata = {"tool_call": {"id": call["tool_call_id"], "name": call["name"]}}
            updates.append({"statusUpdate": {**ids, "status": status, "metadata": metadata}})
    return updates


router.routes += _cards.routes
