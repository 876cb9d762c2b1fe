"""Agents: a system prompt, memory, tools and a model, used in conversations."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ricordo.domain.block import Block, Policy
from ricordo.domain.egress import LabelledSpan
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
# A prompt that fills more than this share of the window is compacted before it is sent (default of
# the retired Letta V1 server).
TRIGGER = 0.9
# Three keys of an agent's settings. The first is true if other agents work on its memory. The
# second names the agent on whose memory it works, and the third names the group that it manages.
ENABLE_SLEEPTIME = "enable_sleeptime"
SLEEPS_FOR = "sleeps_for"
MANAGES = "manages_group"
# Key of two numbers in an agent's settings: the most messages in its window after a turn, and the
# number of messages that stay if there are more.
MESSAGE_BUFFER = "message_buffer"
# Each row has the tokens of a context window, the number of files that may be open in windows up to
# this size, and the characters that are shown of each file. The values are those of the retired
# Letta V1 server.
_FILE_LIMITS = (
    (8_000, 3, 5_000),
    (32_000, 5, 15_000),
    (128_000, 10, 25_000),
    (200_000, 10, 40_000),
)
_MOST_FILE_LIMITS = (15, 40_000)


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    """An agent's compaction settings; defaults are the retired Letta V1 server's.

    `model` is a handle (None: the agent's model), and `model_settings` are in wire format. `prompt`
    replaces the prompt of the mode. `clip_chars` limits the stored summary.
    `sliding_window_percentage` is the share (0 to 1) of the conversation that is evicted first.
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
    """One agent, without its attachments.

    `system` is the template of the system prompt; `model` and `embedding` are handles. The
    attributes below are read from `metadata` and `settings` when the object is created.

    Attributes:
        course: The name of the agent's course, or None.
        is_asleep_for: The agent on whose memory this agent works in the background, or None.
        has_sleeptime: Other agents work on this agent's memory after its turns.
        message_buffer: Limits on the messages in the window after a turn: the maximum, and the
            number that stays once it is exceeded. None: no limit but the window.
        max_steps: The step limit of a turn, set by the agent's course. None: each request sets it.
    """

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
    course: str | None = field(default=None, init=False, repr=False, compare=False)
    is_asleep_for: str | None = field(default=None, init=False, repr=False, compare=False)
    has_sleeptime: bool = field(default=False, init=False, repr=False, compare=False)
    message_buffer: tuple[int, int] | None = field(
        default=None, init=False, repr=False, compare=False
    )
    max_steps: int | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        settings = self.settings
        course = self.metadata.get("course")
        if isinstance(course, str):
            object.__setattr__(self, "course", course)
        object.__setattr__(self, "is_asleep_for", settings.get(SLEEPS_FOR))
        object.__setattr__(self, "has_sleeptime", bool(settings.get(ENABLE_SLEEPTIME)))
        if buffer := settings.get(MESSAGE_BUFFER):
            object.__setattr__(self, "message_buffer", (buffer[0], buffer[1]))
        max_steps = (settings.get("course") or {}).get("max_steps")
        if isinstance(max_steps, int):
            object.__setattr__(self, "max_steps", max_steps)

    @property
    def memory_id(self) -> str:
        """The agent that owns the users' copies of blocks.

        It is the agent on whose memory this agent works in the background, or this agent itself.
        """
        return self.is_asleep_for or self.id

    @property
    def user_block_policy(self) -> Policy:
        """The policy of blocks that the agent creates for its users."""
        policy: Policy = self.settings.get("user_block_policy", "propose")
        return policy

    @property
    def max_files_open(self) -> int:
        """The most files that are open in the prompt, from the settings or by window size."""
        return int(self.settings.get("max_files_open") or self._file_limits[0])

    @property
    def file_char_limit(self) -> int:
        """The characters shown of an open file, from the settings or by window size."""
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


# The beginning of a later version's description, before the id of the first version.
VERSION_OF = "Another version of "


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation with an agent.

    Times are in microseconds, durations in milliseconds.

    Attributes:
        window: The ids of the messages in context, the system message first.
        is_default: It is the default conversation of its agent. Lists hide it, and its window is
            the agent's `message_ids` in the wire format.
        user_id: The user whose memory it shows; None for shared memory only.
        summary: A title for people, not a summary of a compaction.
        prompt_key: Identifies the inputs of the stored system message (prompt/system_prompt.py).
        model: A handle that replaces the agent's model; `model_settings` has only differences, and
            `context_window` is in tokens.
        token_percent: The provider's token count in percent of our estimate; None if unknown.
        forked_from: The conversation whose messages it shares, up to the `seq` in `forked_seq`.
        has_untold: An owner rejected a proposal of the agent; the next turn tells the agent.
        egress: The label of its egress policy (`domain/egress.py`).
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
    egress: str | None = None

    @property
    def is_of_background_task(self) -> bool:
        """True for the hidden copy of a chat in which a task of the server runs.

        A user's first conversation with an agent is hidden too, but it is no copy. A later version
        of a chat, whose message the user edited, is a hidden copy with a description.
        """
        is_version = (self.description or "").startswith(VERSION_OF)
        return self.hidden and self.forked_from is not None and not is_version

    def new_message(self, role: Role, parts: Iterable[Part], created_at: int) -> Message:
        """Return an unsaved message of this conversation that belongs to no run.

        It has the conversation's egress label, except a system prompt, which each turn renders.

        Args:
            role: The role of the message.
            parts: Its parts, in order.
            created_at: The time of the message in microseconds.
        """
        return Message(
            id=new_id("message"),
            agent_id=self.agent_id,
            conversation_id=self.id,
            role=role,
            parts=tuple(parts),
            created_at=created_at,
            organization_id=self.organization_id,
            user_id=self.user_id,
            egress=None if role == "system" else self.egress,
        )

    @property
    def waits(self) -> bool:
        """True if tool calls of its last message may wait for an approval or a client."""
        return self.last_stop_reason == "requires_approval" and bool(self.window)


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A file in the prompt: with the visible part if it is open, with its name alone if closed.

    `limit` is in characters.
    """

    name: str
    is_open: bool
    limit: int
    description: str | None = None
    content: str = ""
    id: str = ""


@dataclass(frozen=True, slots=True)
class PromptDirectory:
    """A folder of files that the agent may open.

    `more` counts the closed files that the prompt does not name.
    """

    name: str
    files: tuple[OpenFile, ...] = ()
    description: str | None = None
    instructions: str | None = None
    more: int = 0
    id: str = ""
    egress: str | None = None


@dataclass(frozen=True, slots=True)
class PromptSkill:
    """A skill that the agent may open: its name and description, in the prompt.

    `id` is the skill's block, and `egress` the label of its egress policy.
    """

    name: str
    description: str
    id: str = ""
    egress: str | None = None


@dataclass(frozen=True, slots=True)
class AgentState:
    """An agent with all its attachments, for a turn and for the wire format.

    `Runtime.complete` fills in the fields `directories`, `skills`, `instructions`,
    `is_others_instructions`, `shown_texts` and `shown_spans` on request.

    Attributes:
        user_ids: The users that the agent is restricted to, as far as the caller may see them.
        has_other_conversations: Conversations other than this one hold messages.
        message_changes: The number of changes of the agent's stored messages, which is the version
            of their cache.
        waiting: The message whose calls wait for an answer, or None.
        instructions: Instructions from a file of the user.
        is_others_instructions: Others may have written these instructions.
        shown_texts: Texts that the prompt shows instead of the values of read-only blocks, by the
            label of the block.
        shown_spans: The lines of these texts that have egress labels, by the label of the block.
        group: The group that the agent manages, as JSON, or None.
    """

    agent: Agent
    conversation: Conversation
    blocks: tuple[Block, ...] = ()
    tools: tuple[Tool, ...] = ()
    archives: tuple[Archive, ...] = ()
    tags: tuple[str, ...] = ()
    user_ids: tuple[str, ...] = ()
    has_other_conversations: bool = False
    message_changes: int = 0
    waiting: Message | None = None
    directories: tuple[PromptDirectory, ...] = ()
    skills: tuple[PromptSkill, ...] = ()
    instructions: str = ""
    is_others_instructions: bool = False
    shown_texts: Mapping[str, str] = field(default_factory=dict)
    shown_spans: Mapping[str, Sequence[LabelledSpan]] = field(default_factory=dict)
    group: dict[str, Any] | None = None


def effective(state: AgentState) -> AgentState:
    """Return the state with the model, settings and window of the conversation.

    Where the conversation has none, the agent's apply.
    """
    agent = state.agent
    conversation = state.conversation
    if not (conversation.model or conversation.model_settings or conversation.context_window):
        return state
    state = with_model(
        state,
        conversation.model or agent.model,
        conversation.context_window or agent.context_window,
    )
    settings = replace(state.agent.model_settings, **conversation.model_settings)
    return replace(state, agent=replace(state.agent, model_settings=settings))


def with_model(state: AgentState, handle: str, context_window: int) -> AgentState:
    """Return the state with another model.

    Args:
        state: The agent, which is not changed. Its raw settings of a provider are dropped if the
            provider changes.
        handle: The handle of the new model.
        context_window: The tokens of the agent's window with it.
    """
    agent = state.agent
    settings = state.agent.model_settings
    if handle.partition("/")[0] != agent.model.partition("/")[0]:
        # Raw settings of one provider mean nothing to another one, which may refuse them.
        settings = replace(settings, extra={})
    changed = replace(agent, model=handle, model_settings=settings, context_window=context_window)
    return replace(state, agent=changed)


def within_window(state: AgentState, context_window: int) -> AgentState:
    """Return the state with a smaller context window."""
    return replace(state, agent=replace(state.agent, context_window=context_window))
