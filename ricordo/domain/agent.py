"""Agents: a system prompt, memory, tools and a model, which together keep a conversation."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from ricordo.domain.block import Block, Policy
from ricordo.domain.ids import new_id
from ricordo.domain.message import Message, Part, Role
from ricordo.domain.model import DEFAULT_CONTEXT_WINDOW, ModelSettings
from ricordo.domain.passage import Archive
from ricordo.domain.tool import Tool, ToolRule

AgentType = Literal[
    "memgpt_agent",
    "memgpt_v2_agent",
    "letta_v1_agent",
    "react_agent",
    "workflow_agent",
    "split_thread_agent",
    "sleeptime_agent",
    "voice_convo_agent",
    "voice_sleeptime_agent",
]
CompactionMode = Literal["all", "sliding_window", "self_compact_all", "self_compact_sliding_window"]
# Of the window's tokens; from here on a prompt is made smaller before it is sent (the retired Letta V1 server's default).
TRIGGER = 0.9
# Among an agent's settings: that other agents work on its memory, the agent that one works for, and the group it manages.
ENABLE_SLEEPTIME, SLEEPS_FOR, MANAGES = "enable_sleeptime", "sleeps_for", "manages_group"
# The most messages in its window after a turn, and how many stay there where there are more.
MESSAGE_BUFFER = "message_buffer"
# Files that are open at a time, and characters of each that are shown, by the context window in tokens up to which they hold
# (the retired Letta V1 server's).
_FILE_LIMITS = (
    (8_000, 3, 5_000),
    (32_000, 5, 15_000),
    (128_000, 10, 25_000),
    (200_000, 10, 40_000),
)
_MOST_FILE_LIMITS = (15, 40_000)


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    """An agent's choice; defaults are the retired Letta V1 server's.

    `model` is a handle (None: the agent's own), `model_settings` are as on the wire, `prompt` takes the place of the mode's own,
    `clip_chars` is the longest summary kept, and `sliding_window_percentage` the share of the window that leaves first.
    """

    model: str | None = None
    model_settings: dict[str, Any] = field(default_factory=dict)
    prompt: str | None = None
    prompt_acknowledgement: bool = False
    clip_chars: int | None = 50_000
    mode: CompactionMode = "sliding_window"
    sliding_window_percentage: float = 0.3


@dataclass(frozen=True, slots=True)
class Agent:
    """One agent, without what is attached to it. `system` is the prompt's template; `model` and `embedding` are handles."""

    id: str
    organization_id: str
    name: str
    agent_type: AgentType
    system: str
    model: str
    embedding: str | None = None
    model_settings: ModelSettings = field(default_factory=ModelSettings)
    context_window: int = DEFAULT_CONTEXT_WINDOW
    description: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    tool_rules: tuple[ToolRule, ...] = ()
    timezone: str = "UTC"
    clears_buffer: bool = False
    hidden: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    created_by: str | None = None
    updated_by: str | None = None
    created_at: int = 0
    updated_at: int = 0

    @property
    def course(self) -> str | None:
        course = self.metadata.get("course")
        return course if isinstance(course, str) else None

    @property
    def is_asleep_for(self) -> str | None:
        """The agent on whose memory this one works while that rests; None for all other agents."""
        main: str | None = self.settings.get(SLEEPS_FOR)
        return main

    @property
    def memory_id(self) -> str:
        """The agent whose copies of blocks its users have: itself, or that on whose memory it works."""
        return self.is_asleep_for or self.id

    @property
    def has_sleeptime(self) -> bool:
        """Whether other agents work on its memory after its turns."""
        return bool(self.settings.get(ENABLE_SLEEPTIME))

    @property
    def message_buffer(self) -> tuple[int, int] | None:
        """The most messages in its window after a turn, and how many stay where there are more; None: as many as fit."""
        buffer = self.settings.get(MESSAGE_BUFFER)
        return (buffer[0], buffer[1]) if buffer else None

    @property
    def max_steps(self) -> int | None:
        """How many steps a turn of the agent may take at most, as its course says; None: as each request says."""
        most = (self.settings.get("course") or {}).get("max_steps")
        return most if isinstance(most, int) else None

    @property
    def user_block_policy(self) -> Policy:
        """The policy of blocks that the agent makes for the user it talks with."""
        policy: Policy = self.settings.get("user_block_policy", "propose")
        return policy

    @property
    def max_files_open(self) -> int:
        """How many files the prompt shows open: the agent's choice, or as its context window has room."""
        return int(self.settings.get("max_files_open") or self._file_limits[0])

    @property
    def file_char_limit(self) -> int:
        """How many characters of an open file the prompt shows: the agent's choice, or as its context window has room."""
        return int(self.settings.get("per_file_view_window_char_limit") or self._file_limits[1])

    @property
    def _file_limits(self) -> tuple[int, int]:
        limits = (
            (files, characters)
            for tokens, files, characters in _FILE_LIMITS
            if self.context_window <= tokens
        )
        return next(limits, _MOST_FILE_LIMITS)

    @property
    def compaction(self) -> CompactionSettings:
        return CompactionSettings(**self.settings.get("compaction", {}))

    @property
    def secret_names(self) -> list[str]:
        return sorted(self.settings.get("secrets", {}))


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation with an agent. `window` lists the ids of its in-context messages, the system message first.

    `prompt_key` tells from what the stored system message was made (see prompt/system_prompt.py). That with `is_default` is the
    agent's own and hidden from lists; its window is what the wire calls the agent's `message_ids`. With `has_untold` its next turn
    looks for rejections that the agent has to be told of.
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
    has_untold: bool = False

    def new_message(self, role: Role, parts: Iterable[Part], created_at: int) -> Message:
        """A message of this conversation that no run brings, not yet stored."""
        return Message(
            id=new_id("message"),
            agent_id=self.agent_id,
            conversation_id=self.id,
            role=role,
            parts=tuple(parts),
            created_at=created_at,
            organization_id=self.organization_id,
            user_id=self.user_id,
        )

    @property
    def waits(self) -> bool:
        """Whether calls of its last message may wait for an answer."""
        return self.last_stop_reason == "requires_approval" and bool(self.window)


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A file as the prompt shows it: its view window while it is open, its name while it is closed. `limit` is in characters."""

    name: str
    is_open: bool
    limit: int
    description: str | None = None
    content: str = ""
    id: str = ""


@dataclass(frozen=True, slots=True)
class PromptDirectory:
    """A folder of files that the agent may open. `more` are closed files that the prompt does not name."""

    name: str
    files: tuple[OpenFile, ...] = ()
    description: str | None = None
    instructions: str | None = None
    more: int = 0
    id: str = ""


@dataclass(frozen=True, slots=True)
class AgentState:
    """An agent with everything attached to it: what one turn needs and what the wire shows. `group` is that it manages, as JSON.

    `waiting` is the message whose calls wait for an answer; `user_ids` are those whom the agent is kept to, as far as the caller
    may know. With `has_other_conversations` others than this one hold messages. `directories` and `instructions`, which come
    from a file of the user's, are there where `Runtime.complete` was asked for them.
    """

    agent: Agent
    conversation: Conversation
    blocks: tuple[Block, ...] = ()
    tools: tuple[Tool, ...] = ()
    archives: tuple[Archive, ...] = ()
    tags: tuple[str, ...] = ()
    user_ids: tuple[str, ...] = ()
    has_other_conversations: bool = False
    waiting: Message | None = None
    directories: tuple[PromptDirectory, ...] = ()
    instructions: str = ""
    is_others_instructions: bool = False
    group: dict[str, Any] | None = None

    @property
    def shows_files(self) -> bool:
        """Whether the prompt holds text of files that others may have written, which is untrusted."""
        return self.is_others_instructions or any(
            file.content for directory in self.directories for file in directory.files
        )
