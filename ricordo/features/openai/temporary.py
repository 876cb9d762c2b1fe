"""Temporary chats of Open WebUI, which are answered but not stored.

The agent answers from its prompt and the user's memory. It gets no tools, since tools could write.
No message, fact or proposal is stored, only the cost of the answer.
"""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace

from ricordo.agents.conversations import (
    system_message,
)
from ricordo.agents.step_decisions import CUT_OFF, WITHHELD
from ricordo.api.call import RequestContext
from ricordo.domain.agent import (
    AgentState,
    effective,
)
from ricordo.domain.egress import Clearance
from ricordo.domain.event import Event, Failed, ReasoningDelta, RunEnded, RunStarted, TextDelta
from ricordo.domain.ids import new_id
from ricordo.domain.message import Message, TextPart
from ricordo.domain.model import ModelReply, ModelRequest, ReasoningChunk, TextChunk
from ricordo.domain.run import Run, StopReason
from ricordo.errors import Invalid, ModelError
from ricordo.features.openai.clearance import chat_clearance
from ricordo.features.openai.models import ChatMessage, ChatRequest
from ricordo.features.openai.queries import NamedAgent
from ricordo.features.openai.turns import parts_of_chat, reply_account, state_within_budget
from ricordo.llm.chat import ChatModel, chunks_of
from ricordo.llm.egress import ask
from ricordo.llm.tokens import message_tokens
from ricordo.storage.engine.store import Transaction

_NOTICE = (
    "This chat is temporary: nothing that is said in it is kept, and you have no tools in it. Do "
    "not promise to remember anything."
)
# One of this many equal parts of the window is left for the answer.
_ANSWER_SHARE = 4


@dataclass(slots=True)
class TemporaryTurn:
    """An answer to a temporary chat, as events. Only its cost is stored."""

    context: RequestContext
    model: ChatModel
    request: ModelRequest
    run: Run
    clearance: Clearance

    async def events(self) -> AsyncGenerator[Event]:
        """Yield the events of the answer, in the form of a turn's events."""
        yield RunStarted(self.run)
        step_id = new_id("step")
        message_id = new_id("message")
        reply = ModelReply(())
        payer = reply_account(self.context, self.run.agent_id)
        try:
            async for piece in ask(self.model, self.request, self.clearance, payer):
                chunks = [piece]
                if isinstance(piece, ModelReply):
                    reply = piece
                    self.run = replace(self.run, usage=piece.usage + piece.discarded)
                    await payer.record(self.model.info.handle, piece.usage)
                    chunks = [] if self.request.stream else list(chunks_of(piece))
                for chunk in chunks:
                    if isinstance(chunk, TextChunk):
                        yield TextDelta(self.run.id, step_id, message_id, 0, chunk.text)
                    elif isinstance(chunk, ReasoningChunk):
                        yield ReasoningDelta(self.run.id, step_id, message_id, 0, chunk.text)
        except ModelError as error:
            yield Failed(self._ended("llm_api_error"), error.kind, str(error))
        else:
            yield self._end_after(reply)

    async def cancel(self) -> None:
        """Do nothing, since the call to the model ends with the generator of events."""

    def _end_after(self, reply: ModelReply) -> RunEnded | Failed:
        """Return the last event after this whole reply."""
        if reply.finish == "content_filter" and not reply.has_text:
            return Failed(self._ended("llm_api_error"), "llm_bad_request", WITHHELD)
        if reply.finish != "length":
            return RunEnded(self._ended("end_turn"))
        run = self._ended("max_tokens_exceeded")
        return RunEnded(run) if reply.has_text else Failed(run, "llm_empty_response", CUT_OFF)

    def _ended(self, reason: StopReason) -> Run:
        return self.run.ended(reason, self.context.store.clock.now())


async def temporary_turn(
    context: RequestContext, agent: NamedAgent, body: ChatRequest
) -> TemporaryTurn:
    """Return the turn that answers a temporary chat.

    Args:
        context: The call.
        agent: The agent that answers.
        body: The request, with the whole chat. Tools in it are ignored.

    Raises:
        Invalid: if the last message is not the user's, or its picture cannot be read.
        NotFound: if there is no such agent or model.
        Unsupported: if a new message has parts that are not supported.
        BudgetSpent: if the agent's budget or the common one is used up.
    """
    if body.messages[-1].role != "user":
        raise Invalid("The last message of a temporary chat must have the role user.")
    runtime = context.runtime
    scope = context.scope

    def read(tx: Transaction) -> tuple[AgentState, Message, Clearance]:
        state = state_within_budget(tx, context, agent.id)
        conversation = replace(state.conversation, user_id=scope.subject, window=())
        state = effective(replace(state, conversation=conversation))
        system, _ = system_message(tx, runtime, state)
        return state, system, chat_clearance(tx, context, state)

    state, system, clearance = await context.store.read(read)
    providers = await runtime.organization_providers.of(scope.organization_id)
    now = context.store.clock.now()
    run = Run(
        new_id("run"), scope.organization_id, agent.id, "", user_id=scope.subject, created_at=now
    )
    settings = state.agent.model_settings
    if (response_format := body.answer_format()) is not None:
        settings = replace(settings, response_format=response_format)
    request = ModelRequest(
        _fitting(system, body.messages, run, state.agent.context_window),
        settings=settings,
        stream=body.stream,
        user_id=scope.user_id,
    )
    # The user's new message may go to any model, since the user sends it now.
    clearance.exempt = frozenset({request.messages[-1].id})
    return TemporaryTurn(context, providers.get(state.agent.model), request, run, clearance)


def _fitting(
    system: Message, chat: Sequence[ChatMessage], run: Run, context_window: int
) -> tuple[Message, ...]:
    """Return the prompt and the last messages of the chat that fit into the window.

    The newest message is included even if it does not fit.
    """
    instructions = [message.text for message in chat if message.role in ("system", "developer")]
    system = system.with_text("\n\n".join([system.text, *instructions, _NOTICE]))
    room = context_window - context_window // _ANSWER_SHARE - message_tokens(system)
    messages: list[Message] = []
    parts = parts_of_chat(chat)
    for chat_message in reversed(chat):
        if chat_message.role == "user":
            message = run.new_message("user", parts[id(chat_message)], run.created_at)
        elif chat_message.role == "assistant" and chat_message.text.strip():
            message = run.new_message("assistant", (TextPart(chat_message.text),), run.created_at)
        else:
            continue
        room -= message_tokens(message)
        if messages and room < 0:
            break
        messages.append(message)
    return (system, *reversed(messages))
