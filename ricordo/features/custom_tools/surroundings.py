"""What a call has around it: who calls, the agent as it was then, and this server's address with a key for as long as it lasts."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ricordo.api.authentication import key_for_call
from ricordo.api.models.base import Json
from ricordo.api.models.memory import BlockResponse
from ricordo.domain.agent import AgentState
from ricordo.domain.block import Block
from ricordo.domain.scope import Scope
from ricordo.settings import Settings

_EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "::1": "[::1]"}  # noqa: S104 - how the server itself is reached then
_OF_AGENT = (
    "id",
    "name",
    "description",
    "system",
    "agent_type",
    "model",
    "embedding",
    "timezone",
    "metadata",
    "created_by",
)


@dataclass(frozen=True, slots=True)
class Caller:
    """For whom a tool runs: the scope, and the agent that calls it, if one does, with its memory."""

    scope: Scope
    state: AgentState | None = None
    blocks: Sequence[Block] = ()

    @property
    def agent(self) -> Json | None:
        """The agent as its tools see it, by the names that clients know; without keys, secrets and sources."""
        if self.state is None:
            return None
        blocks = [BlockResponse.of(block) for block in self.blocks or self.state.blocks]
        fields: dict[str, Any] = {name: getattr(self.state.agent, name) for name in _OF_AGENT}
        tools = [
            {"id": tool.id, "name": tool.name, "description": tool.description}
            for tool in self.state.tools
        ]
        more = {
            "tags": list(self.state.tags),
            "message_ids": list(self.state.conversation.window),
            "tools": tools,
        }
        return {**fields, **more, "blocks": blocks, "memory": {"blocks": blocks}}


@contextmanager
def way_to_server(settings: Settings, caller: Caller, tool: str) -> Iterator[tuple[str, str]]:
    """Yield this server's address as this machine reaches it, and a key that has the caller's scope until the block ends."""
    with key_for_call(settings, caller.scope, tool) as key:
        yield f"http://{_EVERY_ADDRESS.get(settings.host, settings.host)}:{settings.port}", key
