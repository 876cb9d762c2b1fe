"""How an agent talks: what it is offered, and what its reply means. A style is a small value; the loop is the same for all."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ricordo.domain.agent import AgentType
from ricordo.domain.message import ToolCallPart
from ricordo.domain.model import ModelReply, ToolChoice, ToolSchema
from ricordo.domain.run import StopReason
from ricordo.domain.tool import Tool
from ricordo.errors import Unsupported
from ricordo.tools.toolbox import schema_of


@dataclass(frozen=True, slots=True)
class Reading:
    """A reply, understood: the calls to run, and why the turn ends after them (None: it goes on)."""

    calls: tuple[ToolCallPart, ...]
    stop: StopReason | None


class Style(Protocol):
    """One way of talking."""

    def present(self, tools: Sequence[Tool]) -> tuple[tuple[ToolSchema, ...], ToolChoice]:
        """The tools as the model is offered them, and whether it must call one."""
        ...

    def read(self, reply: ModelReply) -> Reading:
        """What the reply asks for."""
        ...


@dataclass(frozen=True, slots=True)
class NativeStyle:
    """Plain text speaks to the user and ends the turn; tool calls are run and the model is asked again."""

    def present(self, tools: Sequence[Tool]) -> tuple[tuple[ToolSchema, ...], ToolChoice]:
        """Every tool as it is; the model may call one or not."""
        return tuple(schema_of(tool) for tool in tools), "auto"

    def read(self, reply: ModelReply) -> Reading:
        """Calls go on; text ends, as does an answer that was cut off at its length limit."""
        calls = tuple(part for part in reply.parts if isinstance(part, ToolCallPart))
        if calls:
            return Reading(calls, None)
        return Reading((), "max_tokens_exceeded" if reply.finish == "length" else "end_turn")


_STYLES: dict[AgentType, Style] = {"letta_v1_agent": NativeStyle(), "split_thread_agent": NativeStyle()}


def style_of(agent_type: AgentType) -> Style:
    """The style of this type of agent; raises Unsupported for a type this version does not run."""
    style = _STYLES.get(agent_type)
    if style is None:
        raise Unsupported(f"Agents of type {agent_type} are not supported by this version. Use letta_v1_agent.")
    return style
