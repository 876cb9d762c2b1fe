"""Searches of messages and passages, and the import of past messages."""

from collections.abc import Sequence
from datetime import UTC, tzinfo
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from ricordo.agents.conversations import open_conversation
from ricordo.agents.history import PastMessage, import_messages
from ricordo.api.call import RequestContext, for_user
from ricordo.api.models.archives import (
    MOST_SKIPPED,
    FoundPassageResponse,
    RelevanceResponse,
    within_item_limit,
)
from ricordo.api.models.base import From, Items, RequestModel, RequestPart, ResponseModel, Timestamp
from ricordo.api.models.messages import StoredMessageFields, ToolCallResponse
from ricordo.api.models.turns import TextContent
from ricordo.api.routing import Routes, needs
from ricordo.domain.clock import parse_date, zone
from ricordo.domain.message import ImagePart, Message, ToolReturnPart
from ricordo.domain.text import Json
from ricordo.errors import Unsupported
from ricordo.llm.pictures import readable_picture
from ricordo.memory.recall import FoundMessage, FoundPassage
from ricordo.search.index import MessageFilter, PassageFilter
from ricordo.storage import agents, archives, conversations
from ricordo.storage.engine.store import Transaction
from ricordo.storage.messages import searchable_text

router = Routes(prefix="/v1", scope="messages")
_SPOKEN: tuple[str, ...] = ("user", "assistant")


class _SearchRequest(RequestModel):
    """The fields of all searches."""

    ignored: ClassVar = {
        "project_id": "Everything is in one project.",
        "template_id": "Results come from all agents, including those that were created from a "
        "template.",
    }

    query: str | None = None
    search_mode: Literal["vector", "fts", "hybrid"] = "hybrid"
    limit: int = Field(50, ge=1, le=100)
    offset: int = Field(0, ge=0, le=MOST_SKIPPED, description="The number of best results to skip.")
    start_date: str | None = None
    end_date: str | None = None
    agent_id: str | None = None
    user_id: str | None = Field(
        None, description="Only results that this user can see: the user's and shared ones."
    )

    def span(self, zone: tzinfo) -> tuple[int | None, int | None]:
        """Return the first and the last timestamp that the request selects.

        Args:
            zone: The time zone of dates that name none.

        Returns:
            Both in microseconds UTC. Each is None if the request has no such date.

        Raises:
            Invalid: A date is malformed.
        """
        if self.start_date:
            start = parse_date(self.start_date, zone, name="start_date")
        else:
            start = None
        if self.end_date:
            end = parse_date(self.end_date, zone, name="end_date", end=True)
        else:
            end = None
        return start, end


class MessageSearchRequest(_SearchRequest):
    """A search of messages."""

    roles: Items[Literal["user", "assistant"]] | None = None
    conversation_id: str | None = None


class StoredMessageSearchRequest(MessageSearchRequest):
    """A search of messages, which may include tool results."""

    roles: Items[Literal["user", "assistant", "tool"]] | None = None  # type: ignore[assignment]


class PassageSearchRequest(_SearchRequest):
    """A search of passages."""

    archive_id: str | None = None
    tags: Items[str] | None = None
    tag_match_mode: Literal["any", "all"] = "any"


def _has_no_user(user_id: str | None) -> bool:
    return user_id is None


def _results(parts: Sequence[ToolReturnPart]) -> list[Json]:
    return [
        {"tool_call_id": part.call_id, "status": part.status, "func_response": part.content}
        for part in parts
    ]


class FoundPictureResponse(ResponseModel):
    """A picture in a message that a search found, with the text that was read in it."""

    is_stored: bool = Field(description="False for a picture at an address on another server.")
    number: int = Field(description="Its position among the pictures of the message, from 0.")
    text: str = Field(
        description="A caption or the text in the picture. The message's author did not write it."
    )


def _is_stored(picture: ImagePart) -> bool:
    readable = readable_picture(picture)
    return readable is not None and readable.data is not None


def _pictures(message: Message) -> list[Json]:
    return [
        {"number": number, "text": picture.text or "", "is_stored": _is_stored(picture)}
        for number, picture in enumerate(message.pictures)
    ]


class FoundMessageResponse(ResponseModel):
    """A message of a user or an agent that a search found."""

    message_type: Annotated[
        Literal["user_message", "assistant_message"],
        From("message.role", lambda role: f"{role}_message"),
    ]
    content: Annotated[str, From("message", searchable_text)]
    message_id: Annotated[str, From("message.id")]
    agent_id: Annotated[str, From("message.agent_id")]
    conversation_id: Annotated[str, From("message.conversation_id")]
    created_at: Annotated[Timestamp, From("message.created_at")]
    shared: Annotated[bool, From("message.user_id", _has_no_user)] = Field(
        description="True if the message is about no user."
    )
    excerpt: str | None = Field(
        None, description="The part of a long message that matches best; null for a short one."
    )
    in_picture: bool = Field(
        description="True if a word of the query is only in the text of a picture."
    )
    pictures: Annotated[list[FoundPictureResponse], From("message", _pictures)]
    relevance: RelevanceResponse


class StoredMessageResponse(StoredMessageFields):
    """A message as it is stored, in one piece."""

    role: Literal["user", "assistant", "tool"]
    content: Annotated[
        list[Json], From("text", lambda text: [{"type": "text", "text": text}] if text else [])
    ]
    tool_calls: list[ToolCallResponse]
    tool_returns: Annotated[list[Json], From(convert=_results)]


class StoredMessageHitResponse(RelevanceResponse):
    """A message that a search found, and its searched text."""

    embedded_text: str
    shared: bool = Field(description="True if the message is about no user.")
    excerpt: str | None = Field(
        None, description="The part of a long message that matches best; null for a short one."
    )
    in_picture: bool = Field(
        description="True if a word of the query is only in the text of a picture."
    )
    message: StoredMessageResponse

    @classmethod
    def of(cls, hit: Any, /, **_fields: Any) -> Json:
        """Return the message with its ranks.

        Args:
            hit: The hit (a `FoundMessage`).
            **_fields: Ignored; all fields come from the hit.
        """
        message = StoredMessageResponse.of(hit.message)
        shared = _has_no_user(hit.message.user_id)
        text = searchable_text(hit.message)
        return super().of(
            hit.relevance,
            embedded_text=text,
            shared=shared,
            excerpt=hit.excerpt,
            in_picture=hit.in_picture,
            message=message,
        )


class PastText(TextContent):
    """A piece of a past message."""

    ignored: ClassVar = {}


class PastMessageRequest(RequestPart):
    """A message from a past conversation."""

    type: Literal["message"] | None = "message"
    role: Literal["user", "assistant"]
    content: str | Items[PastText]
    name: str | None = Field(None, max_length=200)
    created_at: str | None = None
    otid: str | None = Field(None, min_length=1, max_length=200)

    @field_validator("role", mode="before")
    @classmethod
    def _refuse_roles(cls, role: Any) -> Any:
        """Refuse instructions and tool results, with the reason."""
        if role in ("system", "tool"):
            raise ValueError(
                f"messages of the role {role} cannot be imported. The server writes an agent's "
                "system message, and a tool's result needs its call. Leave them out."
            )
        return role

    @field_validator("content")
    @classmethod
    def _require_text(cls, content: str | list[PastText]) -> str | list[PastText]:
        if isinstance(content, str):
            texts = [content]
        else:
            texts = [part.text for part in content]
        if not any(text.strip() for text in texts):
            raise ValueError("the content is empty. Leave the message out.")
        return content

    @property
    def texts(self) -> list[str]:
        if isinstance(self.content, str):
            return [self.content]
        return [part.text for part in self.content]


class ImportRequest(RequestModel):
    """Past messages, oldest first."""

    messages: Annotated[Items[PastMessageRequest], within_item_limit("messages")]
    conversation_id: str | None = None


class ImportResponse(ResponseModel):
    """The ids of imported messages, in the order in which they were sent."""

    message_ids: list[str]


@router.post("/messages/search", response_model=list[FoundMessageResponse], tags=["search"])
@needs("messages:read")
async def search_messages(
    context: RequestContext, body: MessageSearchRequest
) -> Sequence[FoundMessage]:
    """Search the messages of users and agents, of one agent or all, best first.

    Dates without a zone are read in the agent's zone, or in UTC if no agent is named. Without a
    query the newest are returned. A user's messages come before shared ones. If no agent is named,
    agents without messages of the user are skipped.
    """
    return await _messages(context, body)


@router.post(
    "/agents/messages/search", response_model=list[StoredMessageHitResponse], tags=["search"]
)
@needs("messages:read")
async def search_stored_messages(
    context: RequestContext, body: StoredMessageSearchRequest
) -> Sequence[FoundMessage]:
    """Search messages, and return them whole with their ranks.

    Tool results are included if `roles` names "tool".
    """
    return await _messages(context, body)


@router.post("/passages/search", response_model=list[FoundPassageResponse], tags=["search"])
@needs("archives:read", "messages:read")
async def search_passages(
    context: RequestContext, body: PassageSearchRequest
) -> Sequence[FoundPassage]:
    """Search the passages of an archive, of an agent's archives, or of all, best first.

    Without a query the newest are returned.
    """
    context = await for_user(context, body.user_id)

    def filter_of(tx: Transaction) -> PassageFilter:
        zone = _zone(tx, context, body)
        if body.archive_id:
            archives.get(tx, context.scope, body.archive_id)
        if body.agent_id:
            ids = [archive.id for archive in archives.of_agent(tx, body.agent_id)]
            ids = [id for id in ids if body.archive_id in (None, id)]
        elif body.archive_id:
            ids = [body.archive_id]
        else:
            ids = archives.ids(tx, context.scope)
        start, end = body.span(zone)
        return PassageFilter(
            archive_ids=tuple(ids),
            tags=tuple(body.tags or ()),
            all_tags=body.tag_match_mode == "all",
            subject_id=context.scope.subject_id,
            start=start,
            end=end,
        )

    return await context.runtime.recall_for(context.scope, body.agent_id).passages(
        body.query or "", filter_of, body.limit, body.search_mode, body.offset
    )


@router.post("/agents/{agent_id}/messages/import", response_model=ImportResponse, tags=["messages"])
async def import_past(context: RequestContext, agent_id: str, body: ImportRequest) -> Json:
    """Store past messages, oldest first. Searches find them, but they are not in the window.

    If each message has an `otid` the request can be repeated, since stored messages are not stored
    again.
    """
    past = [
        PastMessage(
            message.role, tuple(message.texts), message.name, message.created_at, message.otid
        )
        for message in body.messages
    ]
    conversation = await open_conversation(
        context.runtime, context.scope, body.conversation_id or "default", agent_id
    )
    return {
        "message_ids": await import_messages(
            context.store, context.scope, agent_id, past, conversation.id
        )
    }


def _zone(tx: Transaction, context: RequestContext, body: _SearchRequest) -> tzinfo:
    if body.agent_id:
        return zone(agents.timezone(tx, context.scope, body.agent_id))
    return UTC


async def _messages(context: RequestContext, body: MessageSearchRequest) -> Sequence[FoundMessage]:
    context = await for_user(context, body.user_id)
    conversation_id = body.conversation_id
    if conversation_id == "default":
        if not body.agent_id:
            raise Unsupported(
                'Each agent has a conversation "default". Name the agent in agent_id.'
            )
        default_conversation = await open_conversation(
            context.runtime, context.scope, "default", body.agent_id
        )
        conversation_id = default_conversation.id

    def filter_of(tx: Transaction) -> MessageFilter:
        zone = _zone(tx, context, body)
        if body.agent_id:
            ids = [body.agent_id]
        else:
            ids = agents.ids(tx, context.scope)
        if conversation_id:
            conversation = conversations.get(tx, conversation_id)
        else:
            conversation = None
        if conversation_id and (
            conversation is None or not context.scope.sees(conversation.user_id)
        ):
            # Search nothing, although forks may still share messages of a deleted conversation.
            ids = []
        if conversation:
            shared = conversations.shared_by(tx, conversation)
        else:
            shared = ()
        start, end = body.span(zone)
        roles = tuple(body.roles or _SPOKEN)
        return MessageFilter(
            agent_ids=tuple(ids),
            conversation_id=conversation_id,
            roles=roles,
            subject_id=context.scope.subject_id,
            start=start,
            end=end,
            shared=shared,
            own_first=True,
        )

    return await context.runtime.recall_for(context.scope, body.agent_id).messages(
        body.query or "", filter_of, body.limit, body.search_mode, body.offset
    )
