"""The turn that a run of AG-UI requests.

A client sends its whole history with each run. A user's message is recognized by a digest of its id
and content, which is stored as its `otid`. So no message is stored twice, and a repeated run gets
the answer of the first run.
"""

from collections.abc import Iterator

from ricordo.agents.conversations import cancel_conversation, waiting_message
from ricordo.agents.programs import approval_of, new_in_history, repeatable_otid
from ricordo.agents.request import NewMessage, TurnOverrides, TurnRequest
from ricordo.api.call import RequestContext
from ricordo.domain.agent import Conversation
from ricordo.domain.message import ImagePart, Part
from ricordo.features.ag_ui.models import AgUiMessage, RunAgentRequest


async def turn_of(
    context: RequestContext, conversation: Conversation, body: RunAgentRequest
) -> TurnRequest | None:
    """Return the turn for the new messages, results and decisions in the request.

    It is None if the request contains nothing new. Calls of the client's tools that wait for
    results are cancelled if a new message comes instead.

    Args:
        context: The caller's context.
        conversation: The conversation that the thread of the request names.
        body: The request, with the whole history of the thread.

    Raises:
        Forbidden: The caller may not cancel calls in this conversation.
    """
    waiting = await waiting_message(context.runtime, conversation)
    new_messages = await new_in_history(context.runtime, conversation.id, _history(body))
    approval = approval_of(waiting, _answers(body), body.tool_names)
    if approval is None and not new_messages:
        return None
    waiting_tools = {call.name for call in waiting.waiting_calls} if waiting else set()
    if approval is None and waiting_tools and waiting_tools <= body.tool_names:
        # The user sent a message instead of results, so no result will come for these calls.
        await cancel_conversation(context.runtime, context.scope, conversation.id)
    return TurnRequest(
        scope=context.scope,
        agent_id=conversation.agent_id,
        messages=tuple(new_messages),
        approval=approval,
        conversation_id=conversation.id,
        overrides=TurnOverrides(
            instructions=body.instructions,
            client_tools=tuple(tool.schema_for_model for tool in body.tools or ()),
            streams_tokens=True,
        ),
    )


def _history(body: RunAgentRequest) -> Iterator[NewMessage | None]:
    """Yield the user's messages, and None for each answer of the agent."""
    for index, message in enumerate(body.messages or ()):
        if message.role == "assistant":
            yield None
        elif message.role == "user" and message.parts:
            yield NewMessage("user", message.parts, otid=_otid(index, message))


def _otid(index: int, message: AgUiMessage) -> str:
    """Return the `otid` of a user's message: a digest of its id (or index) and its parts."""
    pictures = [part.url or part.data for part in message.parts if isinstance(part, ImagePart)]
    return repeatable_otid("ag-ui", [message.id or index, message.text, pictures])


def _answers(body: RunAgentRequest) -> dict[str, Part]:
    """Return results of the client's tools and decisions, by the id of the call."""
    results = {
        message.tool_call_id or "": message.result
        for message in body.messages or ()
        if message.role == "tool"
    }
    return {**results, **{answer.interrupt_id: answer.decision for answer in body.resume or ()}}
