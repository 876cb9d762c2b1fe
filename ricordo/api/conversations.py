"""Routes of conversations: create, list, change, fork, compact and delete, and their messages.

A conversation is named by its id, or by `default` with `agent_id`. Older clients also use the
agent's id alone.
"""

from dataclasses import dataclass
from datetime import UTC
from typing import Annotated, Any, ClassVar, Literal

from fastapi import Depends, Query, Response
from pydantic import Field

from ricordo.agents.conversations import (
    DEFAULT,
    cancel_conversation,
    change_conversation,
    create_conversation,
    fork_conversation,
    open_conversation,
    recompile_system,
    stop_and_delete,
)
from ricordo.agents.request import (
    TurnDelivery,
    TurnRequest,
)
from ricordo.agents.turn import INVALID_REQUEST, collect, run_turn
from ricordo.api.call import Paged, RequestContext, note
from ricordo.api.errors import model_failure
from ricordo.api.messages import (
    Types,
    keeps_some,
    outcome_json,
    stream_turn,
    turn_request,
    turn_response,
    types_of,
)
from ricordo.api.models.base import (
    MAX_COUNT,
    AuthorFields,
    From,
    Items,
    NoteResponse,
    RequestModel,
    TextPiece,
    Timestamp,
)
from ricordo.api.models.compaction import CompactRequest, CompactResponse
from ricordo.api.models.messages import AnyMessage, MessageFormat, message_responses
from ricordo.api.models.models import ModelSettingsRequest, settings_response
from ricordo.api.models.turns import SendRequest, TurnResponse
from ricordo.api.routing import Routes
from ricordo.domain.agent import Conversation
from ricordo.domain.clock import parse_timestamp
from ricordo.domain.message import CompactionPart, Message
from ricordo.domain.model import ModelSettings
from ricordo.domain.scope import Scope
from ricordo.domain.text import Json
from ricordo.errors import Invalid, NotFound
from ricordo.storage import agents, conversations
from ricordo.storage.conversations import ConversationFilter, OrderBy
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/v1", tags=["conversations"], scope="messages")
_compaction = Routes(prefix="/v1", tags=["messages"], scope="messages")
_ONE = "/conversations/{conversation_id}"
_IS_ARCHIVED = {"unarchived": False, "archived": True, "all": None}
AgentId = Annotated[str | None, Query(description='The agent of the conversation "default".')]


class IsolationFields(RequestModel):
    """Refuses a field that asks for separate blocks of a conversation.

    Otherwise the conversation would silently share the agent's blocks.
    """

    unsupported = ("isolated_block_labels",)
    reasons = {  # noqa: RUF012 - a class variable of the base
        "isolated_block_labels": "isolated_block_labels is not supported: an agent's "
        "conversations share its blocks, except for the copies that each user gets. To separate "
        "memory, create the conversation with a user_id, or create another agent."
    }

    isolated_block_labels: Items[str] | None = None


class ConversationFields(IsolationFields):
    """The fields of a new conversation and of a change."""

    summary: str | None = None
    description: str | None = None
    model: str | None = None
    model_settings: ModelSettingsRequest | None = None
    context_window_limit: int | None = Field(None, ge=1000, le=MAX_COUNT)
    archived: bool | None = None
    hidden: bool | None = None

    def changes(self, now: int) -> dict[str, Any]:
        """Return the sent fields as columns of a conversation.

        Args:
            now: The time in microseconds UTC; an archived conversation gets it.

        Raises:
            Unsupported: The request asks for separate blocks of a conversation.
        """
        self.refuse_unsupported()
        names = self.model_fields_set
        columns: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("summary", "description", "model")
            if name in names
        }
        if "model_settings" in names:
            if self.model_settings:
                columns["model_settings"] = self.model_settings.changes()
            else:
                columns["model_settings"] = {}
        if "context_window_limit" in names:
            columns["context_window"] = self.context_window_limit
        if self.hidden is not None:
            columns["hidden"] = self.hidden
        if self.archived is not None:
            columns["archived_at"] = now if self.archived else None
        return columns


class ConversationRequest(ConversationFields):
    """A conversation to create.

    It sees the memory of `user_id`; by default, of the caller's user, or else of the user for whom
    the agent was created.
    """

    user_id: str | None = Field(None, min_length=1, max_length=255)


class ConversationUpdate(ConversationFields):
    """The changes of a conversation.

    An omitted field keeps its value. Null removes a value, so that the agent's value applies if
    there is one. For `archived` and `hidden`, null changes nothing.
    """

    last_message_at: str | None = None

    def changes(self, now: int) -> dict[str, Any]:
        """Return the sent fields as columns, with the time of the last message.

        Args:
            now: The time in microseconds UTC; an archived conversation gets it.

        Raises:
            Unsupported: The request asks for separate blocks of a conversation.
            Invalid: The time is malformed, or could not be shown in every time zone.
        """
        last = self.last_message_at
        columns = super().changes(now)
        if "last_message_at" in self.model_fields_set:
            columns["last_message_at"] = None
            if last is not None:
                columns["last_message_at"] = parse_timestamp(last, UTC, name="last_message_at")
        return columns


class ForkRequest(IsolationFields):
    """The options of a fork; options in the query take precedence."""

    message_id: str | None = None
    hidden: bool = False


class ConversationSendRequest(SendRequest):
    """Messages for a conversation; the answer is streamed by default."""

    agent_id: str | None = None
    streaming: bool = True


class RecompileRequest(RequestModel):
    """The agent whose default conversation is recompiled."""

    ignored: ClassVar = {"compaction_settings": "Recompiling a prompt compacts nothing."}

    agent_id: str | None = None


@dataclass(frozen=True, slots=True)
class ConversationQuery:
    """The selection and order of conversations."""

    agent_id: str | None = None
    archive_status: Literal["unarchived", "archived", "all"] = "unarchived"
    archived: Annotated[bool | None, Query(description="Short form of `archive_status`.")] = None
    summary_search: TextPiece = None
    user_id: Annotated[
        str | None, Query(description="Only conversations about this user, by id or name.")
    ] = None
    before: Annotated[str | None, Query(description="Only items before the one with this id.")] = (
        None
    )
    after: Annotated[str | None, Query(description="Only items after the one with this id.")] = None
    limit: Annotated[int, Query(ge=1, le=1000, description="The most items to return.")] = 50
    order: Annotated[Literal["asc", "desc"], Query(description="Oldest or newest first.")] = "desc"
    order_by: Annotated[OrderBy, Query(description="The time to sort by.")] = "last_message_at"

    def page(self) -> Page:
        return Page(self.limit, self.before, self.after, self.order)

    def filter(self, scope: Scope) -> ConversationFilter:
        """Return the filter that these query parameters select.

        Args:
            scope: The caller, already narrowed to the user in `user_id`, if the request names one.
        """
        if self.archived is None:
            is_archived = _IS_ARCHIVED[self.archive_status]
        else:
            is_archived = self.archived
        user_id = scope.subject if self.user_id else None
        return ConversationFilter(
            self.agent_id, is_archived, self.summary_search, self.order_by, user_id
        )


class ConversationResponse(AuthorFields):
    """A conversation with an agent, which sees the memory of the user `user_id`.

    `model`, `model_settings` and `context_window_limit` are null if the agent's values apply.
    """

    id: str
    agent_id: str
    summary: str | None
    description: str | None
    in_context_message_ids: Annotated[list[str], From("window")]
    isolated_block_ids: Annotated[list[str], Field(default=[])]
    model: str | None
    model_settings: Json | None
    context_window_limit: Annotated[int | None, From("context_window")]
    archived: Annotated[bool, From("archived_at", bool)]
    archived_at: Timestamp | None
    hidden: bool
    last_message_at: Timestamp | None
    created_at: Timestamp
    updated_at: Timestamp
    user_id: str | None


ConversationFields.take_back(ConversationResponse)


@router.post("/conversations/", response_model=ConversationResponse)
async def create(
    context: RequestContext, agent_id: str, body: ConversationRequest | None = None
) -> Json:
    """Create another conversation of the agent, with the same memory and tools."""
    request = body or ConversationRequest()
    columns = request.changes(context.store.clock.now())
    conversation = await create_conversation(
        context.runtime, context.scope, agent_id, columns, request.user_id
    )
    return await _response(context, conversation)


@router.get("/conversations/", response_model=list[ConversationResponse])
def list_conversations(
    tx: Transaction, context: RequestContext, query: Annotated[ConversationQuery, Depends()]
) -> list[Json]:
    """List conversations without default and hidden ones.

    By default, the list has unarchived conversations, sorted by the time of their last message.
    """
    if query.agent_id:
        agents.require(tx, context.scope, query.agent_id)
    return [
        _json(tx, context, conversation)
        for conversation in conversations.page(
            tx, context.scope, query.page(), query.filter(context.scope)
        )
    ]


@router.get(_ONE, response_model=ConversationResponse)
async def retrieve(context: RequestContext, conversation_id: str, agent_id: AgentId = None) -> Json:
    """Return one conversation."""
    return await _response(context, await _open(context, conversation_id, agent_id))


@router.patch(_ONE, response_model=ConversationResponse)
async def modify(
    context: RequestContext,
    conversation_id: str,
    body: ConversationUpdate,
    agent_id: AgentId = None,
) -> Json:
    """Change a conversation.

    Omitted fields keep their values. The next turn uses the new values.
    """
    conversation = await _open(context, conversation_id, agent_id)
    changes = body.changes(context.store.clock.now())
    return await _response(
        context, await change_conversation(context.runtime, context.scope, conversation.id, changes)
    )


@router.delete(_ONE, response_model=NoteResponse)
async def delete(context: RequestContext, conversation_id: str, agent_id: AgentId = None) -> Json:
    """Delete a conversation, even while a turn runs in it.

    Its forks keep the messages that they share with it.
    """
    conversation = await _open(context, conversation_id, agent_id)
    await stop_and_delete(context.runtime, context.scope, conversation.id)
    return note(f"Conversation id={conversation.id} successfully deleted")


@router.post(_ONE + "/fork", response_model=ConversationResponse)
async def fork(
    context: RequestContext,
    conversation_id: str,
    body: ForkRequest | None = None,
    agent_id: AgentId = None,
    message_id: str | None = None,
    hidden: bool | None = None,
) -> Json:
    """Create a conversation that continues this one, from its window or up to a message.

    The two conversations share the earlier messages, which are not copied.
    """
    request = body or ForkRequest()
    request.refuse_unsupported()
    conversation = await _open(context, conversation_id, agent_id)
    forked = await fork_conversation(
        context.runtime,
        context.scope,
        conversation.id,
        message_id=message_id or request.message_id,
        is_hidden=request.hidden if hidden is None else hidden,
    )
    return await _response(context, forked)


@router.post(_ONE + "/recompile", response_model=str)
async def recompile(
    context: RequestContext,
    conversation_id: str,
    body: RecompileRequest | None = None,
    dry_run: bool = False,
    agent_id: AgentId = None,
) -> str:
    """Rebuild the conversation's system message and return it.

    With `dry_run` it is not saved.
    """
    request = body or RecompileRequest()
    conversation = await _open(context, conversation_id, request.agent_id or agent_id)
    return await recompile_system(context.runtime, context.scope, conversation.id, is_dry=dry_run)


@router.post("/agents/{agent_id}/recompile", response_model=str)
async def recompile_own(context: RequestContext, agent_id: str, dry_run: bool = False) -> str:
    """Rebuild the system message of the agent's default conversation and return it.

    With `dry_run` it is not saved.
    """
    conversation = await _open(context, DEFAULT, agent_id)
    return await recompile_system(context.runtime, context.scope, conversation.id, is_dry=dry_run)


@router.post(_ONE + "/cancel", response_model=dict[str, str])
async def cancel(
    context: RequestContext, conversation_id: str, agent_id: AgentId = None
) -> dict[str, str]:
    """Cancel the running turn of the conversation."""
    conversation = await _open(context, conversation_id, agent_id)
    return outcome_json(await cancel_conversation(context.runtime, context.scope, conversation.id))


@router.post(_ONE + "/messages", response_model=TurnResponse)
async def send(
    context: RequestContext, conversation_id: str, body: ConversationSendRequest
) -> Response:
    """Send messages to the conversation and read the answer as server-sent events.

    Without `streaming`, wait for the complete answer.
    """
    body.require_streaming()
    conversation = await _open(context, conversation_id, body.agent_id)
    if body.streaming:
        return await stream_turn(context, conversation.agent_id, body, conversation.id)
    turn = await run_turn(
        context.runtime, await turn_request(context, conversation.agent_id, body, conversation.id)
    )
    return turn_response(await collect(turn), body)


@router.get(_ONE + "/messages", response_model=list[AnyMessage])
async def list_messages(
    context: RequestContext,
    conversation_id: str,
    paging: Paged,
    agent_id: AgentId = None,
    include_return_message_types: Types = None,
    group_id: str | None = None,
) -> list[Json]:
    """List the messages of the conversation, by default newest first.

    They include the messages that it shares with its origin.
    """
    view = MessageFormat(types=types_of(include_return_message_types))
    page = paging.page(default=100)
    has_piece = keeps_some(view)

    def keeps(message: Message) -> bool:
        return group_id in (None, message.group_id) and has_piece(message)

    conversation = await _open(context, conversation_id, agent_id)
    rows = await context.store.read(
        lambda tx: conversations.page_of_history(tx, context.scope, conversation, page, keeps)
    )
    return message_responses(rows, view)


@_compaction.post("/agents/{agent_id}/summarize", response_model=CompactResponse)
async def compact_own(
    context: RequestContext, agent_id: str, body: CompactRequest | None = None
) -> Response | Json:
    """Summarize the older part of the agent's default conversation.

    The messages stay in its history.
    """
    return await _compact(context, DEFAULT, agent_id, body or CompactRequest())


@_compaction.post("/conversations/{conversation_id}/compact", response_model=CompactResponse)
async def compact(
    context: RequestContext,
    conversation_id: str,
    body: CompactRequest | None = None,
    agent_id: str | None = None,
) -> Response | Json:
    """Summarize the older part of a conversation.

    The messages stay in its history.
    """
    request = body or CompactRequest()
    return await _compact(context, conversation_id, request.agent_id or agent_id, request)


router.routes += _compaction.routes


async def _open(context: RequestContext, name: str, agent_id: str | None) -> Conversation:
    return await open_conversation(context.runtime, context.scope, name, agent_id)


async def _response(context: RequestContext, conversation: Conversation) -> Json:
    return await context.store.read(lambda tx: _json(tx, context, conversation))


def _json(tx: Transaction, context: RequestContext, conversation: Conversation) -> Json:
    if not conversation.model_settings:
        return ConversationResponse.of(conversation, model_settings=None)
    model = conversation.model or agents.load(tx, context.scope, conversation.agent_id).agent.model
    models = context.runtime.organization_providers.known(context.scope.organization_id)
    try:
        kind = models.get(model).info.endpoint_type
    except NotFound:
        kind = "openai"  # the model's provider is no longer configured
    settings = settings_response(ModelSettings(**conversation.model_settings), kind)
    return ConversationResponse.of(conversation, model_settings=settings)


async def _compact(
    context: RequestContext, conversation_id: str, agent_id: str | None, body: CompactRequest
) -> Response | Json:
    conversation = await _open(context, conversation_id, agent_id)
    state = await context.store.read(
        lambda tx: agents.load(tx, context.scope, conversation.agent_id)
    )
    settings = state.agent.compaction
    if body.compaction_settings:
        settings = body.compaction_settings.settings(settings)
    request = TurnRequest(
        context.scope,
        conversation.agent_id,
        conversation_id=conversation.id,
        compaction=settings,
        delivery=TurnDelivery(purpose="compaction"),
    )
    turn = await collect(await run_turn(context.runtime, request))
    if turn.failure:
        if turn.failure.kind == INVALID_REQUEST:
            raise Invalid(turn.failure.message)
        return model_failure(turn.failure.kind, turn.failure.message, turn.failure.detail)
    summary = turn.messages[-1]
    part = next(part for part in summary.parts if isinstance(part, CompactionPart))
    return CompactResponse.of(part, summary=summary.text)
