"""Agents: a system prompt, memory, tools and a model, which together keep a conversation."""

from dataclasses import dataclass, field
from typing import Any, Literal

from ricordo.domain.block import Block
from ricordo.domain.compaction import CompactionSettings
from ricordo.domain.conversation import Conversation
from ricordo.domain.message import Message
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
        """The course it teaches, whose blocks of a user it sees; kept among its metadata."""
        course = self.metadata.get("course")
        return course if isinstance(course, str) else None

    @property
    def compaction(self) -> CompactionSettings:
        """How its windows are made smaller; kept among `settings`."""
        return CompactionSettings(**self.settings.get("compaction", {}))


@dataclass(frozen=True, slots=True)
class AgentState:
    """An agent with everything attached to it: what one turn needs and what the wire shows.

    `waiting` is the message whose calls wait for an answer.
    """

    agent: Agent
    conversation: Conversation
    blocks: tuple[Block, ...] = ()
    tools: tuple[Tool, ...] = ()
    archives: tuple[Archive, ...] = ()
    tags: tuple[str, ...] = ()
    waiting: Message | None = None
