"""Conversations: a thread of messages with an agent. The window, the system message and the lease belong to it."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Conversation:
    """One thread. `window` lists the ids of its in-context messages, the system message first.

    `prompt_key` tells from what the stored system message was made (see prompt/assemble.py). The thread with `is_default` is the
    agent's own and hidden from lists; its window is what the wire calls the agent's `message_ids`.
    """

    id: str
    organization_id: str
    agent_id: str
    window: tuple[str, ...] = ()
    is_default: bool = False
    user_id: str | None = None
    summary: str | None = None
    prompt_key: str = ""
    message_count: int = 0
    last_message_at: int | None = None
    last_run_ended_at: int | None = None
    last_run_ms: int | None = None
    last_stop_reason: str | None = None
    created_by: str | None = None
    created_at: int = 0
    updated_at: int = 0
    description: str | None = None
    model: str | None = None
    model_settings: dict[str, Any] = field(default_factory=dict)
    context_window: int | None = None
    token_percent: int | None = None
    hidden: bool = False
    archived_at: int | None = None
    deleted_at: int | None = None
    forked_from: str | None = None
    forked_seq: int | None = None
