"""One agent's message to another: permission, turn, and answer.

The turn runs for the same user, in the user's default conversation with the other agent. The length
of a chain of such turns is limited. An agent may not send a message to the agents before it in the
chain, since they may wait for its answer.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from uuid import NAMESPACE_URL, uuid5

from ricordo.agents.conversations import DEFAULT, open_conversation
from ricordo.agents.deferred import begin_when_free
from ricordo.agents.request import (
    NewMessage,
    TurnDelivery,
    TurnRequest,
)
from ricordo.agents.turn import Answer, collect
from ricordo.domain.event import Event, RunStarted, StepSaved
from ricordo.domain.message import SPEECH_TOOL, Message, TextPart
from ricordo.domain.run import Run
from ricordo.domain.scope import Scope
from ricordo.errors import Invalid, NotFound
from ricordo.features.groups.options import AgentCallSettings
from ricordo.runtime import LiveTurn, Runtime
from ricordo.tools.toolbox import ToolContext

# Wire facts: tests of the retired Letta V1 server match the beginning of a message and the text of
# an empty answer.
_INCOMING = "[Incoming message from agent with ID '{id}' - {how}] {text}"
_NO_RESPONSE = "<no response>"
ANSWERED = "the text that you write in this turn is delivered to that agent as the answer"
ONE_WAY = "it is one-way, so it has no answer"


@asynccontextmanager
async def open_waits(_runtime: Runtime) -> AsyncIterator[dict[str, str]]:
    """Return the feature's part of a runtime: a table of waits between runs.

    It maps each waiting run to the run for which it waits.
    """
    yield {}


def _waits_of(context: ToolContext) -> dict[str, str]:
    waits: dict[str, str] = context.runtime.features["groups"]
    return waits


async def new_request(context: ToolContext, agent_id: str, text: str, how: str) -> TurnRequest:
    """Return the turn in which the other agent reads this message.

    Args:
        context: The tool call that sends the message.
        agent_id: The other agent, as the model wrote its id.
        text: The message.
        how: A clause that says if an answer is possible: `ANSWERED` or `ONE_WAY`.

    Raises:
        Invalid: if the message is empty, or the other agent may not be asked (`require_may_ask`).
        NotFound: if the caller may not use the other agent.
    """
    agent_id = agent_id.strip()
    require_may_ask(context, agent_id)
    if not text.strip():
        raise Invalid("This message is empty. Write what the other agent should know or do.")
    scope = caller_of(context)
    sender = context.state.agent
    conversation_id = await conversation_with(context.runtime, scope, agent_id)
    message = NewMessage(
        "system",
        (TextPart(_INCOMING.format(id=sender.id, how=how, text=text)),),
        otid=_otid(context, agent_id),
        name=sender.name,
        sender_id=sender.id,
        is_untrusted=context.step.is_untrusted(),
        egress=context.clearance.label,
    )
    callers = (*context.step.callers, sender.id)
    return TurnRequest(
        scope,
        agent_id,
        (message,),
        conversation_id=conversation_id,
        delivery=TurnDelivery(callers=callers),
    )


def require_may_ask(context: ToolContext, agent_id: str | None = None) -> None:
    """Raise Invalid if this turn may not ask the other agent.

    Args:
        context: The tool call that asks.
        agent_id: The other agent; with None only the length of the chain is checked.
    """
    chain = (*context.step.callers, context.state.agent.id)
    if agent_id == context.state.agent.id:
        raise Invalid("An agent cannot send a message to itself.")
    if agent_id in chain:
        raise Invalid(
            f"The agent {agent_id} may be waiting for the end of this turn, so you cannot send it a "
            "message. If it waits for an answer, put the message into your answer."
        )
    if len(chain) >= AgentCallSettings().agent_call_depth:
        raise Invalid(
            f"{len(chain)} agents have asked each other in a chain, and longer chains are not "
            "allowed. Answer with what you know."
        )


def caller_of(context: ToolContext) -> Scope:
    """Return the scope of a tool's calls.

    It has the caller's rights, limited to the user of this conversation.
    """
    user_id = context.state.conversation.user_id
    if context.scope.subject_id or not user_id:
        return context.scope
    return replace(context.scope, subject_id=user_id)


async def conversation_with(runtime: Runtime, scope: Scope, agent_id: str) -> str:
    """Return the id of the agent's default conversation with the scope's user.

    Args:
        runtime: The running server.
        scope: The caller; without a user, the conversation without a user is returned.
        agent_id: The agent.

    Raises:
        NotFound: if the caller may not use the agent, or its default conversation is a user's.
    """
    conversation = await open_conversation(runtime, scope, DEFAULT, agent_id)
    # The agent's default conversation may belong to a user, even if the scope has no user.
    if conversation.user_id != scope.subject:
        raise NotFound(f"Agent with ID {agent_id} not found")
    return conversation.id


def _otid(context: ToolContext, agent_id: str) -> str:
    """Return the otid of this call's message to the agent.

    A repeated call sends the same otid. The otid contains the step, since models may reuse call
    ids.
    """
    return str(uuid5(NAMESPACE_URL, f"{context.step.id}/{context.call_id}/{agent_id}"))


async def ask(context: ToolContext, request: TurnRequest) -> list[str]:
    """Return the texts of the agent's answer; the last one explains a failure.

    Args:
        context: The tool call that waits for the answer. Its results become untrusted if the answer
            is.
        request: The turn, from `new_request`.

    Raises:
        Invalid: if the other agent waits for the end of this turn.
        RicordoError: if the turn cannot be started.
    """
    seconds = AgentCallSettings().agent_call_seconds
    new_messages: list[Message] = []
    turn: LiveTurn | None = None
    with _waiting(context) as wait_for:

        def hear(event: Event) -> None:
            if isinstance(event, RunStarted):
                wait_for(event.run.id)
            elif isinstance(event, StepSaved):
                new_messages.extend(event.messages)

        try:
            async with asyncio.timeout(seconds):
                turn = await begin_when_free(
                    context.runtime, request, lambda busy: wait_for(busy.run_id)
                )
                answer = await collect(turn, hear)
        except TimeoutError:
            run_id = _waits_of(context).get(context.step.run_id)
            if turn:
                state = "it is still working on the message"
            else:
                state = "it is busy with another message"
            return [
                *texts_of(context.readable(new_messages)),
                f"<no answer within {seconds:g} seconds: {state} (run {run_id})>",
            ]
        except asyncio.CancelledError:
            if turn:  # stopping a turn also stops the turns that it began
                await turn.cancel()
            raise
        finally:
            context.quoted.is_untrusted |= any(message.is_untrusted for message in new_messages)
    return answer_texts(replace(answer, messages=tuple(context.readable(answer.messages))))


@contextmanager
def _waiting(context: ToolContext) -> Iterator[Callable[[str | None], None]]:
    """Yield a function that records the run for which this turn waits.

    The function raises Invalid if that run waits for this turn, directly or through other runs.
    """
    run_id = context.step.run_id
    waits = _waits_of(context)

    def wait_for(other_run_id: str | None) -> None:
        if other_run_id is None:
            return
        last = other_run_id
        while last in waits and last != run_id:
            last = waits[last]
        if last == run_id:
            raise Invalid(
                "The other agent is waiting for the end of this turn. Answer first, and ask "
                "it later."
            )
        waits[run_id] = other_run_id

    try:
        yield wait_for
    finally:
        waits.pop(run_id, None)


def answer_texts(answer: Answer) -> list[str]:
    """Return the texts of the agent's answer, at least one.

    The last one explains a failure.
    """
    texts = texts_of(answer.messages)
    run = answer.run
    if answer.failure:
        return [*texts, f"<error: {answer.failure.message}>"]
    if run.stop_reason == "cancelled":
        return [*texts, f"<error: its turn was cancelled (run {run.id})>"]
    if run.stop_reason == "requires_approval":
        return [*texts, _waiting_text(answer.messages, run)]
    return texts or [_names_of_calls(answer.messages)]


def texts_of(messages: Sequence[Message]) -> list[str]:
    """Return an agent's texts in these messages, including texts sent by `send_message`."""
    spoken = (message.spoken for message in messages if message.role in ("assistant", "approval"))
    return [text for text in spoken if text.strip()]


def _waiting_text(messages: Sequence[Message], run: Run) -> str:
    names = [
        call.name for message in messages if message.is_waiting for call in message.waiting_calls
    ]
    calls = ", ".join(dict.fromkeys(names)) or "a tool"
    return f"<no answer yet: its call of {calls} waits for an approval (run {run.id})>"


def _names_of_calls(messages: Sequence[Message]) -> str:
    """Return a sentence with the names of the called tools, for an agent that said nothing."""
    calls = Counter(
        call.name for message in messages for call in message.tool_calls if call.name != SPEECH_TOOL
    )
    if not calls:
        return _NO_RESPONSE
    named = ", ".join(
        name if count == 1 else f"{name} ({count} times)" for name, count in calls.items()
    )
    return f"<It answered without text. It called these tools: {named}.>"
