"""Requests of OpenAI's clients as turns, and tasks of Open WebUI.

A task, such as a title for a chat, is not a turn.
"""

from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ricordo.agents.request import (
    Approval,
    NewMessage,
    TurnDelivery,
    TurnOverrides,
    TurnRequest,
)
from ricordo.api.call import RequestContext
from ricordo.api.messages import sent_again
from ricordo.api.models.histories import CLIENT_ROLES, first_new
from ricordo.domain.agent import AgentState
from ricordo.domain.egress import Clearance
from ricordo.domain.ids import new_id
from ricordo.domain.message import PICTURE_TYPES, ImagePart, Message, Part, TextPart, ToolReturnPart
from ricordo.domain.model import ModelReply, ModelRequest, ModelSettings, ToolSchema
from ricordo.errors import Invalid, Unsupported
from ricordo.features.openai.answers import AnswerReader
from ricordo.features.openai.chats import (
    ChatNotes,
    ChatStates,
    ClientChat,
    Continuation,
    continue_after,
    continue_call,
    continue_chat,
)
from ricordo.features.openai.clearance import chat_clearance, labels_of_messages
from ricordo.features.openai.models import ChatMessage, ChatRequest, ContentPart, ToolDefinition
from ricordo.features.openai.queries import NamedAgent
from ricordo.features.openai.shown_answers import answer_key
from ricordo.llm.egress import whole_reply
from ricordo.storage import agents
from ricordo.storage.budgets import has_budget, require_budget
from ricordo.storage.engine.store import Transaction
from ricordo.storage.model_costs import ReplyAccount

CHAT_HEADER = "x-openwebui-chat-id"
# Open WebUI begins the ids of temporary chats with these (checked with 0.12.4).
_TEMPORARY = ("temporary:", "local:")
TASK_HEADER = "x-ricordo-task"
TOOLS_HEADER = "x-ricordo-tools"
_TASK = "### Task:"


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """A turn that answers a chat, with `notes` if the client keeps the chat."""

    notes: ChatNotes | None
    request: TurnRequest

    async def note(self, reader: AnswerReader) -> None:
        """Record the run that answers the chat, if the client stores the chat.

        Args:
            reader: The reader of the turn's answer, when the run has started or ended.
        """
        if self.notes:
            await self.notes.read(reader)


def _results_of_tools(messages: Sequence[ChatMessage]) -> Approval | None:
    """Return the results of the client's tools among these messages."""
    results = tuple(_tool_return(message) for message in messages if message.role == "tool")
    if results:
        return Approval(results)
    return None


async def chat_turn(
    context: RequestContext,
    agent: NamedAgent,
    body: ChatRequest,
    *,
    after: str | None = None,
    is_retry: bool = False,
    sent: bytes | None = None,
) -> ChatTurn:
    """Return the turn for a request, in the chat's conversation or after a run.

    Args:
        context: The call.
        agent: The agent that answers.
        body: The request as a chat.
        after: The id of the run after which to continue.
        is_retry: Whether the client marks the request as a retry in a header. A retry gets the
            answer to the earlier equal request.
        sent: The bytes that distinguish this request from others, by default its body.

    Raises:
        Invalid: if the chat cannot be continued like this.
        Unsupported: if a new message has parts that are not supported.
        NotFound: if the run or agent does not exist.
    """
    digest, is_sent_again = await sent_again(context, sent)
    is_retry = is_retry or is_sent_again
    name = chat_name(context, body)
    if is_temporary(name):
        raise Unsupported(
            "A temporary chat can only use POST /v1/chat/completions and POST /chat/stream, "
            "because other routes store chats."
        )
    chat = ClientChat(agent.id, name, body.user or "", body.messages, is_retry)
    if body.messages[-1].role not in ("user", "tool"):
        raise Invalid("The last message must have the role user, or be the result of a tool call.")
    tools = client_tools(context, body)
    if tools:
        required_tools = body.wanted_tools()
    else:
        required_tools = frozenset()
    # Parse all messages first, so that a fault is found before anything is stored.
    parts = parts_of_chat(body.messages)
    names = [tool.name for tool in tools]
    states = ChatStates(context.scope, chat)
    is_call = agent.speaks_aloud and not (after or name)
    if is_call:
        continuation = await continue_call(context, chat)
    elif after:
        continuation = await continue_after(context, chat, after, names)
    else:
        continuation = await continue_chat(context, chat, states, names)
    notes = ChatNotes(context.store, states, continuation.is_begun)
    new_messages = body.messages[continuation.new_from :]
    system = () if continuation.is_begun else _system_messages(body.messages)
    labels: Mapping[str, str] = {}
    if continuation.shown or any(message.role == "assistant" for message in new_messages):
        labels = await context.store.read(lambda tx: labels_of_messages(tx, context, agent.id))
    turn_messages = [
        _with_label(message, labels)
        for message in _turn_messages(context, continuation, new_messages, parts)
    ]
    approval = _results_of_tools(new_messages) if chat.is_answer else None
    request = TurnRequest(
        scope=context.scope,
        agent_id=agent.id,
        messages=() if chat.is_answer else (*system, *turn_messages),
        approval=approval,
        conversation_id=continuation.conversation_id,
        overrides=TurnOverrides(
            streams_tokens=body.stream,
            client_tools=tools,
            response_format=body.answer_format(),
            wanted_tools=required_tools,
        ),
        delivery=TurnDelivery(
            body_hash=digest, is_retry=is_retry, also_save=None if is_call else notes.save
        ),
    )
    return ChatTurn(None if is_call else notes, request)


def _turn_messages(
    context: RequestContext,
    continuation: Continuation,
    new_messages: Sequence[ChatMessage],
    parts: Mapping[int, tuple[Part, ...]],
) -> list[NewMessage]:
    """Return the turn's messages: the user's, and answers that are missing in the conversation.

    `parts` are the parts of users' messages, by object id.
    """
    turn_messages: list[NewMessage] = []
    if continuation.shown:
        turn_messages.append(_as_client_shows(context, continuation.shown))
    for message in new_messages:
        if message.role == "user":
            is_untrusted = message.has_passages
            turn_messages.append(NewMessage("user", parts[id(message)], is_untrusted=is_untrusted))
        elif message.role == "assistant" and message.text.strip():
            is_own = answer_key(message.text) in continuation.own_answers
            if is_own:
                turn_messages.append(NewMessage("assistant", (TextPart(message.text),)))
            else:
                turn_messages.append(_as_client_shows(context, message.text))
    return turn_messages


def _with_label(message: NewMessage, labels: Mapping[str, str]) -> NewMessage:
    """Return an answer that the client sent back, with its egress label."""
    if message.role != "assistant":
        return message
    text = "".join(part.text for part in message.parts if isinstance(part, TextPart))
    return replace(message, egress=labels.get(answer_key(text)))


def _as_client_shows(context: RequestContext, text: str) -> NewMessage:
    """Return an answer that the client shows but the agent did not give.

    The caller's user as the sender distinguishes it from the agent's answers.
    """
    return NewMessage("assistant", (TextPart(text),), sender_id=context.scope.user_id)


def chat_name(context: RequestContext, body: ChatRequest) -> str | None:
    """Return the id that the client gives the chat, from Open WebUI's header or the body."""
    return context.request.headers.get(CHAT_HEADER) or body.named("chat_id")


def is_temporary(name: str | None) -> bool:
    """Return whether this is the id of a temporary chat of Open WebUI, which must not be stored.

    Args:
        name: The chat's id in the client; None for a chat without one.
    """
    return name is not None and name.startswith(_TEMPORARY)


def client_tools(context: RequestContext, body: ChatRequest) -> tuple[ToolSchema, ...]:
    """Return the tools that the client offers to run.

    Args:
        context: The call, whose connection may switch tools off by a header.
        body: The request, which may switch tools off too.
    """
    if body.tool_choice == "none" or context.request.headers.get(TOOLS_HEADER, "").lower() == "off":
        return ()
    return tuple(_schema(tool) for tool in body.tools or ())


def parts_of(message: ChatMessage) -> tuple[Part, ...]:
    """Return the parts of a user's message.

    Raises:
        Unsupported: for parts other than text and pictures.
        Invalid: for a picture of another type, or with broken data.
    """
    if not isinstance(message.content, list):
        return (TextPart(message.content or ""),)
    return tuple(_part(part) for part in message.content)


def parts_of_chat(messages: Sequence[ChatMessage]) -> dict[int, tuple[Part, ...]]:
    """Return the parts of the user's messages, by the object id of the message.

    A client sends its whole chat each time. In a message before the last answer, a text replaces
    each part that cannot be read, so that the chat can continue.

    Args:
        messages: The whole chat, oldest message first.

    Raises:
        Unsupported: for other parts than text and pictures in a new message.
        Invalid: for a picture in a new message that cannot be read.
    """
    new_from = first_new([message.role in CLIENT_ROLES for message in messages])
    parts: dict[int, tuple[Part, ...]] = {}
    for index, message in enumerate(messages):
        if message.role != "user":
            continue
        if index < new_from and isinstance(message.content, list):
            parts[id(message)] = tuple(_part_or_note(part) for part in message.content)
        else:
            parts[id(message)] = parts_of(message)
    return parts


def is_task(context: RequestContext, body: ChatRequest) -> bool:
    """Return True if Open WebUI asks for a title or something similar.

    Args:
        context: The call. A header of the connection decides, if it is there.
        body: The request. Without the header, its `task` or the beginning of its last message
            decides.
    """
    header = context.request.headers.get(TASK_HEADER)
    if header is not None:
        return bool(header)
    return bool(body.named("task")) or body.messages[-1].text.startswith(_TASK)


async def task_reply(context: RequestContext, agent: NamedAgent, body: ChatRequest) -> ModelReply:
    """Return the model's reply to a task, without memory and tools.

    Only its cost is stored.

    Args:
        context: The call.
        agent: The agent whose model replies, within the agent's budget.
        body: The task as a chat, of which only the user's messages are sent.

    Raises:
        NotFound: if there is no such agent or model.
        Invalid: if a picture of a new message cannot be read.
        Unsupported: if a new message has parts that are not supported.
        ModelError: if the model fails, or the budget is used up (BudgetSpent).
    """

    def read(tx: Transaction) -> tuple[AgentState, Clearance]:
        state = state_within_budget(tx, context, agent.id)
        return state, chat_clearance(tx, context, state)

    state, clearance = await context.store.read(read)
    providers = await context.runtime.organization_providers.of(context.scope.organization_id)
    model = providers.get(state.agent.model)
    now = context.store.clock.now()
    messages = tuple(
        Message(new_id("message"), agent.id, "", role="user", parts=parts, created_at=now)
        for parts in parts_of_chat(body.messages).values()
    )
    settings = ModelSettings(response_format=body.answer_format())
    return await whole_reply(
        model,
        ModelRequest(messages, settings=settings, user_id=context.scope.subject),
        clearance,
        reply_account(context, agent.id),
    )


def state_within_budget(tx: Transaction, context: RequestContext, agent_id: str) -> AgentState:
    """Return the agent for an answer outside a turn.

    Raises:
        NotFound: if there is no such agent.
        BudgetSpent: if the agent's budget or the common one is used up.
    """
    settings = context.runtime.settings
    state = agents.load(tx, context.scope, agent_id)
    if has_budget(settings, state.agent):
        require_budget(tx, settings, state.agent)
    return state


def reply_account(context: RequestContext, agent_id: str) -> ReplyAccount:
    """Return the account that pays for an answer without a turn.

    Args:
        context: The call, whose organization and user bear the cost.
        agent_id: The agent that answers.
    """
    return ReplyAccount(
        context.store,
        context.scope.organization_id,
        agent_id=agent_id,
        user_id=context.scope.subject,
    )


def _system_messages(messages: Sequence[ChatMessage]) -> tuple[NewMessage, ...]:
    texts = [
        message.text
        for message in messages
        if message.role in ("system", "developer") and message.text.strip()
    ]
    return tuple(NewMessage("system", (TextPart(text),)) for text in texts)


def _tool_return(message: ChatMessage) -> ToolReturnPart:
    if not message.tool_call_id:
        raise Invalid(
            "A message with the role tool needs the tool_call_id of the call that it answers."
        )
    return ToolReturnPart(message.tool_call_id, "", "success", message.text)


def _schema(tool: ToolDefinition) -> ToolSchema:
    function = tool.function
    parameters = {"type": "object", "properties": {}, **(function.parameters or {})}
    return ToolSchema(function.name, function.description or "", parameters)


def _part_or_note(part: ContentPart) -> Part:
    """Return the part, or a text that names its type if it cannot be read."""
    try:
        return _part(part)
    except (Invalid, Unsupported):
        return TextPart(f'(A part of the type "{part.type[:40]}", which cannot be read here.)')


def _part(part: ContentPart) -> Part:
    if part.type in ("text", "input_text"):
        return TextPart(part.text or "")
    address = part.image_url
    if part.type not in ("image_url", "input_image") or not address:
        raise Unsupported(
            f'Parts of the type "{part.type[:40]}" are not supported. Send text, and pictures as '
            "image_url."
        )
    if isinstance(address, str):
        url = address
        detail = None
    else:
        url = address.url
        detail = address.detail
    if not url.startswith("data:"):
        return ImagePart("image/png", url=url, detail=detail)
    head, _, content = url.removeprefix("data:").partition(",")
    media_type = head.removesuffix(";base64")
    if media_type not in PICTURE_TYPES or media_type == head:
        raise Invalid(
            "A picture is sent as data:<type>;base64,<data>, of one of the types "
            f"{', '.join(PICTURE_TYPES)}."
        )
    try:
        b64decode(content, validate=True)
    except ValueError as error:
        raise Invalid(
            f"The data of the picture is not base64 ({error}). Encode the file's bytes."
        ) from error
    return ImagePart(media_type, content, None, detail)
