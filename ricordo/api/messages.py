"""Talking with an agent: send and get the whole answer, or stream it; list, cancel, begin anew."""

from collections.abc import Callable
from typing import Annotated

from fastapi import Body, Query, Response
from fastapi.responses import StreamingResponse

from ricordo.agents.lifecycle import cancel_runs, reset_messages
from ricordo.agents.turn import collect, run_turn
from ricordo.api.call import Here, Paged, agent_json, answer
from ricordo.api.models.agents import AgentResponse
from ricordo.api.models.messages import AnyMessage, AsyncSendRequest, SendRequest, TurnResponse
from ricordo.api.models.runs import RunResponse
from ricordo.api.routing import Routes
from ricordo.api.stored_streams import begin_recorded
from ricordo.api.turns import STREAM, message_view, stream_turn, turn_request, turn_response
from ricordo.api.wire.messages import MessageView, message_to_wire, messages_to_wire
from ricordo.domain.message import Message
from ricordo.errors import Conflict, NotFound, Unsupported
from ricordo.llm.addresses import require_callable
from ricordo.storage import agents, conversations, messages
from ricordo.storage.store import Transaction

router = Routes(prefix="/v1/agents/{agent_id}", tags=["messages"])


@router.post("/messages", response_model=TurnResponse)
async def send(here: Here, agent_id: str, body: SendRequest) -> Response:
    """Send messages to the agent and wait for its whole answer; with `streaming` it comes as it is made."""
    if body.streaming:
        return await stream(here, agent_id, body)
    if body.stream_tokens or body.background:
        raise Unsupported("Streaming options set without streaming enabled. Set streaming to true, or leave them out.")
    turn = await run_turn(here.runtime, await turn_request(here, agent_id, body))
    return turn_response(await collect(turn), message_view(body))


@router.post("/messages/stream", response_class=StreamingResponse, responses=STREAM)
async def stream(here: Here, agent_id: str, body: SendRequest) -> Response:
    """Send messages to the agent and read its answer as server-sent events."""
    return await stream_turn(here, agent_id, body)


@router.post("/messages/async", response_model=RunResponse)
async def send_async(here: Here, agent_id: str, body: AsyncSendRequest) -> Response:
    """Send messages to the agent and return the run at once; `callback_url` is told when it has ended."""
    if body.callback_url:
        require_callable(body.callback_url, allow_private=here.runtime.settings.allow_private_callbacks)
    callback = {"url": body.callback_url} if body.callback_url else {}
    request = await turn_request(here, agent_id, body, is_background=True, callback=callback)
    return answer(RunResponse.from_run(await begin_recorded(here.runtime, request, message_view(body))))


@router.get("/messages", response_model=list[AnyMessage])
async def list_messages(
    here: Here,
    agent_id: str,
    paging: Paged,
    conversation_id: str | None = None,
    use_assistant_message: bool = True,
    assistant_message_tool_name: str = "send_message",
    assistant_message_tool_kwarg: str = "message",
    include_return_message_types: Annotated[list[str] | None, Query()] = None,
) -> Response:
    """The messages of the agent's own thread, or of another; newest first unless told otherwise."""
    types = frozenset(include_return_message_types) if include_return_message_types is not None else None
    view = MessageView(use_assistant_message, assistant_message_tool_name, assistant_message_tool_kwarg, types)
    page = paging.page(default=100)

    def read(tx: Transaction) -> list[Message]:
        agents.require(tx, here.scope, agent_id)
        thread = conversations.default_id(agent_id) if conversation_id in (None, "default") else str(conversation_id)
        conversation = conversations.get(tx, thread)
        if conversation is None or conversation.agent_id != agent_id:
            raise NotFound(f"Conversation with ID {conversation_id} not found")
        keeps = _keeps_some(view)
        return messages.page_of_kept(tx, here.scope, page, keeps, conversation_id=thread)

    return answer(messages_to_wire(await here.store.read(read), view, newest_first=page.order == "desc"))


@router.post("/messages/cancel", response_model=dict[str, str])
async def cancel(here: Here, agent_id: str, run_ids: Annotated[list[str] | None, Body(embed=True)] = None) -> Response:
    """Cancel the agent's running turns, or those that are named."""
    outcome = await cancel_runs(here.runtime, here.scope, agent_id, run_ids)
    if not outcome:
        raise Conflict("There are no active runs to cancel.")
    return answer({run_id: "cancelled" if done else "failed" for run_id, done in outcome.items()})


@router.patch("/reset-messages", response_model=AgentResponse)
async def reset(here: Here, agent_id: str) -> Response:
    """Delete all messages of the agent's own thread and begin it anew. Memory stays as it is."""
    state = await reset_messages(here.runtime, here.scope, agent_id)
    return answer(agent_json(here, state))


def _keeps_some(view: MessageView) -> Callable[[Message], bool]:
    """Whether a stored message has any piece that the view wants; one that has none would make a page look like the last."""
    return lambda message: bool(message_to_wire(message, view))
