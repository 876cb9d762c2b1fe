"""Requests of OpenAI's clients as turns; and tasks of Open WebUI, such as titles, which are no turns."""

from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass

from ricordo.agents.budgets import has_budget, require_budget
from ricordo.agents.request import Approval, NewMessage, TurnRequest
from ricordo.api.call import RequestContext
from ricordo.api.messages import sent_again
from ricordo.domain.agent import AgentState
from ricordo.domain.ids import new_id
from ricordo.domain.message import ImagePart, Message, Part, TextPart, ToolReturnPart
from ricordo.domain.model import ModelReply, ModelRequest, ModelSettings, ToolSchema
from ricordo.domain.usage import Expense
from ricordo.errors import Invalid, Unsupported
from ricordo.features.openai_api.answers import AnswerReader
from ricordo.features.openai_api.chats import (
    ChatNotes,
    ChatStates,
    ClientChat,
    continue_after,
    continue_call,
    continue_chat,
)
from ricordo.features.openai_api.models import ChatMessage, ChatRequest, ContentPart, ToolDefinition
from ricordo.features.openai_api.queries import NamedAgent
from ricordo.llm.chat import whole_reply
from ricordo.storage import agents, runs
from ricordo.storage.engine.store import Transaction

CHAT_HEADER, TASK_HEADER, TOOLS_HEADER = "x-openwebui-chat-id", "x-ricordo-task", "x-ricordo-tools"
_TASK = "### Task:"
_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """A turn that answers a chat; `notes` where the client keeps the chat."""

    notes: ChatNotes | None
    request: TurnRequest

    async def note(self, reader: AnswerReader) -> None:
        """Note what was read of the run, where the client keeps its chat."""
        if self.notes:
            await self.notes.read(reader)


async def chat_turn(
    context: RequestContext,
    agent: NamedAgent,
    body: ChatRequest,
    *,
    after: str | None = None,
    is_retry: bool = False,
    sent: bytes | None = None,
) -> ChatTurn:
    """Return the turn that a request asks for, in the conversation of its chat, or `after` the run with this id.

    `sent` is what tells this request from others, its body as it came if nothing is given; with `is_retry`, which OpenAI's clients
    say in a header, an answer to an equal one is taken up again. Raises Invalid, Unsupported, NotFound.
    """
    digest, is_sent_again = await sent_again(context, sent)
    is_retry = is_retry or is_sent_again
    name = context.request.headers.get(CHAT_HEADER) or body.named("chat_id")
    chat = ClientChat(agent.id, name, body.user or "", body.messages, is_retry)
    if body.messages[-1].role not in ("user", "tool"):
        raise Invalid("The last message has to be the user's, or the result of a tool call.")
    tools = client_tools(context, body)
    wanted = body.wanted_tools() if tools else frozenset()
    said = [message for message in body.messages if message.role == "user"]
    parts = {id(message): parts_of(message) for message in said}  # before anything is made
    names = [tool.name for tool in tools]
    states = ChatStates(context.scope, chat)
    is_call = agent.speaks_aloud and not (after or name)
    if is_call:
        place = await continue_call(context, chat)
    else:
        place = await (
            continue_after(context, chat, after, names)
            if after
            else continue_chat(context, chat, states, names)
        )
    notes = ChatNotes(context.store, states, place.is_begun)
    new = body.messages[place.new_from :]
    system = () if place.is_begun else _system_messages(body.messages)
    users = tuple(
        NewMessage("user", parts[id(one)], is_untrusted=one.has_passages)
        for one in new
        if one.role == "user"
    )
    results = tuple(_result(one) for one in new if one.role == "tool") if chat.is_answer else ()
    request = TurnRequest(
        scope=context.scope,
        agent_id=agent.id,
        messages=() if chat.is_answer else (*system, *users),
        approval=Approval(results) if results else None,
        conversation_id=place.conversation_id,
        streams_tokens=body.stream,
        client_tools=tools,
        body_hash=digest,
        is_retry=is_retry,
        also_save=None if is_call else notes.save,
        response_format=body.answer_format(),
        wanted_tools=wanted,
    )
    return ChatTurn(None if is_call else notes, request)


def client_tools(context: RequestContext, body: ChatRequest) -> tuple[ToolSchema, ...]:
    """Return the tools that the client offers to run; none where it, or its connection, says so."""
    if body.tool_choice == "none" or context.request.headers.get(TOOLS_HEADER, "").lower() == "off":
        return ()
    return tuple(_schema(tool) for tool in body.tools or ())


def parts_of(message: ChatMessage) -> tuple[Part, ...]:
    """Return what a message of the user holds. Raises Unsupported for anything but text and pictures."""
    if not isinstance(message.content, list):
        return (TextPart(message.content or ""),)
    return tuple(_part(part) for part in message.content)


def is_task(context: RequestContext, body: ChatRequest) -> bool:
    """Whether Open WebUI asks for a title or the like: by the header that its connection sends, else by the prompt."""
    told = context.request.headers.get(TASK_HEADER)
    if told is not None:
        return bool(told)
    return bool(body.named("task")) or body.messages[-1].text.startswith(_TASK)


async def task_reply(context: RequestContext, agent: NamedAgent, body: ChatRequest) -> ModelReply:
    """Return what the agent's model says to a task, without memory and tools; nothing of it is kept but its cost."""
    runtime = context.runtime

    def load(tx: Transaction) -> AgentState:
        state = agents.load(tx, context.scope, agent.id)
        if has_budget(runtime.settings, state.agent):
            require_budget(tx, runtime.settings, state.agent)
        return state

    state = await context.store.read(load)
    model = (await runtime.organization_providers.of(context.scope.organization_id)).get(
        state.agent.model
    )
    asked = tuple(
        Message(new_id("message"), agent.id, "", "user", parts_of(one), context.store.clock.now())
        for one in body.messages
        if one.role == "user"
    )
    settings = ModelSettings(response_format=body.answer_format())
    reply = await whole_reply(
        model, ModelRequest(asked, settings=settings, user_id=context.scope.subject)
    )
    spent = Expense(
        context.scope.organization_id,
        "other",
        model.info.handle,
        reply.usage,
        agent.id,
        context.scope.subject,
    )
    await context.store.write(lambda tx: runs.add_expense(tx, spent))
    return reply


def _system_messages(sent: Sequence[ChatMessage]) -> tuple[NewMessage, ...]:
    texts = [one.text for one in sent if one.role in ("system", "developer") and one.text.strip()]
    return tuple(NewMessage("system", (TextPart(text),)) for text in texts)


def _result(message: ChatMessage) -> ToolReturnPart:
    if not message.tool_call_id:
        raise Invalid(
            "A message with the role tool needs the tool_call_id of the call that it answers."
        )
    return ToolReturnPart(message.tool_call_id, "", "success", message.text)


def _schema(tool: ToolDefinition) -> ToolSchema:
    given = tool.function
    parameters = {"type": "object", "properties": {}, **(given.parameters or {})}
    return ToolSchema(given.name, given.description or "", parameters)


def _part(part: ContentPart) -> Part:
    if part.type in ("text", "input_text"):
        return TextPart(part.text or "")
    address = part.image_url
    if part.type not in ("image_url", "input_image") or not address:
        raise Unsupported(
            f'Parts of the type "{part.type[:40]}" are not supported. Send text, and pictures as image_url.'
        )
    url, detail = (address, None) if isinstance(address, str) else (address.url, address.detail)
    if not url.startswith("data:"):
        return ImagePart("image/png", url=url, detail=detail)
    head, _, content = url.removeprefix("data:").partition(",")
    media_type = head.removesuffix(";base64")
    if media_type not in _PICTURES or media_type == head:
        raise Invalid(
            f"A picture is sent as data:<type>;base64,<data>, of one of the types {', '.join(_PICTURES)}."
        )
    try:
        b64decode(content, validate=True)
    except ValueError as error:
        raise Invalid(
            f"The data of the picture is not base64 ({error}). Encode the file's bytes."
        ) from error
    return ImagePart(media_type, content, None, detail)
