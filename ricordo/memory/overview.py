"""Overview of a context window: its sections, and their sizes in tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

from ricordo.domain.agent import AgentState
from ricordo.domain.message import Message
from ricordo.domain.model import ToolSchema
from ricordo.llm.tokens import text_tokens, tool_tokens, transcript_tokens
from ricordo.prompt.system_prompt import Sections, sections


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens by section; what a section lacks is 0."""

    base: int
    memory_blocks: int
    memory_metadata: int
    tool_usage_rules: int
    directories: int
    summary: int
    tools: int
    messages: int

    @property
    def total(self) -> int:
        return sum(getattr(self, name) for name in self.__slots__)


@dataclass(frozen=True, slots=True)
class Overview:
    """A context window: `limit` is its size in tokens, `summary` replaces messages that left it, if any did."""

    limit: int
    tokens: Tokens
    parts: Sections
    summary: str | None
    messages: tuple[Message, ...]
    tools: tuple[ToolSchema, ...]
    recall_count: int
    passage_count: int


def overview(state: AgentState, window: Sequence[Message], tools: Sequence[ToolSchema]) -> Overview:
    """Return the context window of the state's conversation: `window` holds its messages, `tools` what the model is offered.

    Counts are our own estimate, corrected by what the provider counted last (`Conversation.token_percent`), as compaction has it.
    """
    system = window[0] if window and window[0].role == "system" else None
    rest = window[1:] if system else window
    summary = rest[0] if rest and rest[0].role == "summary" else None
    said = rest[1:] if summary else rest
    parts = sections(system.text) if system else Sections(base=state.agent.system)
    percent = state.conversation.token_percent or 100

    def scaled(count: int) -> int:
        return -(-count * percent // 100)

    return Overview(
        limit=state.conversation.context_window or state.agent.context_window,
        tokens=Tokens(
            **{name: scaled(text_tokens(getattr(parts, name))) for name in Sections.__slots__},
            summary=scaled(transcript_tokens([summary])) if summary else 0,
            tools=scaled(tool_tokens(tools)),
            messages=scaled(transcript_tokens(said)),
        ),
        parts=parts,
        summary=summary.text if summary else None,
        messages=tuple(window),
        tools=tuple(tools),
        recall_count=state.conversation.message_count,
        passage_count=sum(archive.passage_count for archive in state.archives),
    )
