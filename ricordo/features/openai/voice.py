"""The route for voice of the retired Letta V1 server: streamed chat completions."""

from collections.abc import Mapping
from typing import Any

from fastapi import Response

from ricordo.agents.request import (
    NewMessage,
    TurnOverrides,
    TurnRequest,
)
from ricordo.agents.turn import run_turn
from ricordo.api.call import RequestContext
from ricordo.api.routing import Routes
from ricordo.api.sse import STREAM, sse_response
from ricordo.errors import Invalid
from ricordo.features.openai.answers import completion_chunks, deltas_of
from ricordo.features.openai.chats import ClientChat, continue_call
from ricordo.features.openai.errors import CUT_OFF
from ricordo.features.openai.models import ChatMessage, LenientRequest
from ricordo.features.openai.options import OpenAIApiSettings
from ricordo.features.openai.routes import reader_of
from ricordo.features.openai.turns import ChatTurn, parts_of
from ricordo.storage import agents

router = Routes(prefix="/v1/voice-beta", tags=["openai"], scope="messages")


class VoiceRequest(LenientRequest):
    """A request of a voice client; only the last message is read."""

    messages: Any = None


@router.post("/{agent_id}/chat/completions", response_class=Response, responses=STREAM)
async def create_voice_completion(
    context: RequestContext, agent_id: str, body: VoiceRequest
) -> Response:
    """Stream the answer of a voice agent, in the caller's default conversation."""
    message = _last_message(body.messages)
    await context.store.read(lambda tx: agents.require(tx, context.scope, agent_id))
    continuation = await continue_call(context, ClientChat(agent_id, None, "", [message]))
    request = TurnRequest(
        scope=context.scope,
        agent_id=agent_id,
        messages=(NewMessage("user", parts_of(message)),),
        conversation_id=continuation.conversation_id,
        overrides=TurnOverrides(streams_tokens=True),
    )
    chat_turn = ChatTurn(None, request)
    reader = reader_of(context, chat_turn)
    turn = await run_turn(context.runtime, request)
    stops_when_left = OpenAIApiSettings.current().openai_leaving == "stop"
    deltas = deltas_of(
        turn,
        reader,
        chat_turn.note,
        context.runtime.settings.keepalive,
        stops_when_left=stops_when_left,
    )
    return sse_response(completion_chunks(agent_id, deltas, reader, has_usage=False), CUT_OFF)


def _last_message(messages: Any) -> ChatMessage:
    """Return the last message, which is the user's.

    Raises Invalid; its texts are wire facts.
    """
    if messages is None:
        raise Invalid("The 'messages' field is missing in the request.")
    if not isinstance(messages, list) or not messages:
        raise Invalid("The 'messages' field must be an iterable.")
    last = messages[-1]
    if not isinstance(last, Mapping) or last.get("role") != "user":
        raise Invalid("'messages[-1].role' must be a 'user'")
    if not isinstance(last.get("content"), str):
        raise Invalid("'messages[-1].content' must be a 'string'")
    return ChatMessage(role="user", content=last["content"])
