"""Threads on the wire, and the shapes of the answers about them."""

from datetime import datetime
from typing import Any

from ricordo.api.wire.agents import settings_to_wire
from ricordo.api.wire.schemas import Json, Shape
from ricordo.api.wire.times import stamp
from ricordo.domain.conversation import Conversation
from ricordo.domain.model import ModelSettings


class ConversationShape(Shape):
    """A thread of an agent, which sees the memory of the user `user_id`.

    `model`, `model_settings` and `context_window_limit` are null where it uses the agent's.
    """

    id: str
    agent_id: str
    summary: str | None
    description: str | None
    in_context_message_ids: list[str]
    isolated_block_ids: list[str]
    model: str | None
    model_settings: Json | None
    context_window_limit: int | None
    archived: bool
    archived_at: datetime | None
    hidden: bool
    last_message_at: datetime | None
    created_at: datetime
    updated_at: datetime
    created_by_id: str | None
    last_updated_by_id: str | None
    user_id: str | None


def conversation_to_wire(thread: Conversation, endpoint_type: str) -> dict[str, Any]:
    """A thread as clients know it; `endpoint_type` is that of the model it uses, by which settings are tagged."""
    own = ModelSettings(**thread.model_settings) if thread.model_settings else None
    return {
        "id": thread.id,
        "agent_id": thread.agent_id,
        "summary": thread.summary,
        "description": thread.description,
        "in_context_message_ids": list(thread.window),
        "isolated_block_ids": [],
        "model": thread.model,
        "model_settings": own and settings_to_wire(own, endpoint_type),
        "context_window_limit": thread.context_window,
        "archived": thread.archived_at is not None,
        "archived_at": stamp(thread.archived_at),
        "hidden": thread.hidden,
        "last_message_at": stamp(thread.last_message_at),
        "created_at": stamp(thread.created_at),
        "updated_at": stamp(thread.updated_at),
        "created_by_id": thread.created_by,
        "last_updated_by_id": None,
        "user_id": thread.user_id,
    }
