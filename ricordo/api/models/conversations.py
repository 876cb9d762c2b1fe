"""Request and response models of conversations."""

from dataclasses import dataclass
from datetime import UTC
from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import Field

from ricordo.agents.conversations import ConversationSpec
from ricordo.api.models.base import MAX_COUNT, AuthorFields, From, Json, RequestModel, TextPiece, Timestamp
from ricordo.api.models.models import ModelSettingsRequest, settings_response
from ricordo.api.models.turns import SendRequest
from ricordo.domain.agent import Conversation
from ricordo.domain.clock import parse_timestamp
from ricordo.domain.model import ModelSettings
from ricordo.errors import Unsupported
from ricordo.storage.conversations import ConversationFilter, OrderBy
from ricordo.storage.engine.repository import Page

_IS_ARCHIVED = {"unarchived": False, "archived": True, "all": None}


class ConversationFields(RequestModel):
    """What both a new conversation and a change of one may have."""

    summary: str | None = None
    description: str | None = None
    model: str | None = None
    model_settings: ModelSettingsRequest | None = None
    context_window_limit: int | None = Field(None, ge=4096, le=MAX_COUNT)
    archived: bool | None = None
    hidden: bool | None = None
    isolated_block_labels: list[str] | None = None

    def own_settings(self) -> dict[str, Any]:
        return self.model_settings.changes() if self.model_settings else {}

    def refuse_unsupported(self) -> None:
        """Raise Unsupported where the request asks for something this version does not do."""
        if self.isolated_block_labels:
            raise Unsupported(
                "isolated_block_labels is not supported: all conversations of an agent share its blocks. Leave it out."
            )


class ConversationRequest(ConversationFields):
    """A conversation to create; with `user_id` it sees that user's memory, else that of the user the agent was made for."""

    user_id: str | None = Field(None, min_length=1, max_length=255)

    def spec(self) -> ConversationSpec:
        """Return the conversation to create."""
        self.refuse_unsupported()
        return ConversationSpec(
            summary=self.summary,
            description=self.description,
            model=self.model,
            model_settings=self.own_settings(),
            context_window=self.context_window_limit,
            is_hidden=bool(self.hidden),
            is_archived=bool(self.archived),
            user=self.user_id,
        )


class ConversationUpdate(ConversationFields):
    """What changes of a conversation. A field that is left out stays, and null takes the agent's own again."""

    last_message_at: str | None = None

    def changes(self, now: int) -> dict[str, Any]:
        """Return the columns that change. `now` is in microseconds UTC; raises Invalid, Unsupported."""
        self.refuse_unsupported()
        sent = self.model_fields_set
        values: dict[str, Any] = {
            name: getattr(self, name) for name in ("summary", "description", "model") if name in sent
        }
        if "model_settings" in sent:
            values["model_settings"] = self.own_settings()
        if "context_window_limit" in sent:
            values["context_window"] = self.context_window_limit
        if "last_message_at" in sent:
            last = self.last_message_at
            values["last_message_at"] = last and parse_timestamp(last, UTC, name="last_message_at")
        if self.hidden is not None:
            values["hidden"] = self.hidden
        if self.archived is not None:
            values["archived_at"] = now if self.archived else None
        return values


class ConversationSendRequest(SendRequest):
    """Messages for a conversation, and how the answer is wanted: as a stream, unless it says otherwise."""

    agent_id: str | None = None
    streaming: bool = True


class RecompileRequest(RequestModel):
    """Which agent's own conversation is meant."""

    agent_id: str | None = None
    compaction_settings: dict[str, Any] | None = None

    def refuse_unsupported(self) -> None:
        """Raise Unsupported where the request asks for something this version does not do."""
        if self.compaction_settings:
            raise Unsupported("Recompiling a prompt compacts nothing: compaction_settings has no effect. Leave it out.")


@dataclass(frozen=True, slots=True)
class ConversationQuery:
    """Which conversations are wanted, and in which order."""

    agent_id: str | None = None
    archive_status: Literal["unarchived", "archived", "all"] = "unarchived"
    archived: Annotated[bool | None, Query(description="The shorter way to say `archive_status`.")] = None
    summary_search: TextPiece = None
    before: Annotated[str | None, Query(description="Only items before the one with this id.")] = None
    after: Annotated[str | None, Query(description="Only items after the one with this id.")] = None
    limit: Annotated[int, Query(ge=1, le=1000, description="How many items at most.")] = 50
    order: Annotated[Literal["asc", "desc"], Query(description="Oldest or newest first.")] = "desc"
    order_by: Annotated[OrderBy, Query(description="By which time.")] = "last_message_at"

    def page(self) -> Page:
        return Page(self.limit, self.before, self.after, self.order)

    def filter(self) -> ConversationFilter:
        is_archived = _IS_ARCHIVED[self.archive_status] if self.archived is None else self.archived
        return ConversationFilter(self.agent_id, is_archived, self.summary_search, self.order_by)


class ConversationResponse(AuthorFields):
    """A conversation with an agent, which sees the memory of the user `user_id`.

    `model`, `model_settings` and `context_window_limit` are null where it uses the agent's.
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

    @classmethod
    def from_conversation(cls, conversation: Conversation, endpoint_type: str) -> Json:
        """Return a conversation; `endpoint_type` is that of its model, by which settings are tagged."""
        own = ModelSettings(**conversation.model_settings) if conversation.model_settings else None
        return cls.of(conversation, model_settings=own and settings_response(own, endpoint_type))
