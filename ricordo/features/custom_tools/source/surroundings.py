"""The surroundings of a call: its caller, its agent, and access to this server."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ricordo.api.models.memory import BlockResponse
from ricordo.domain.agent import AgentState
from ricordo.domain.block import Block
from ricordo.domain.scope import Scope
from ricordo.domain.text import Json
from ricordo.errors import Unsupported
from ricordo.sandbox.service import Sandbox
from ricordo.settings import NO_PORT, Settings

# The address for calls to a server that listens on all addresses.
_LOCAL_ADDRESSES = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "::1": "[::1]"}  # noqa: S104
_AGENT_FIELDS = (
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
    """The scope in which a tool runs, and the calling agent with its memory."""

    scope: Scope
    state: AgentState | None = None
    blocks: Sequence[Block] = ()

    @property
    def agent(self) -> Json | None:
        """The agent in the form that its tools see, without keys, secrets and sources.

        Fields have the names that clients know. None without an agent.
        """
        if self.state is None:
            return None
        blocks = [BlockResponse.of(block) for block in self.blocks or self.state.blocks]
        fields: dict[str, Any] = {name: getattr(self.state.agent, name) for name in _AGENT_FIELDS}
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
def way_to_server(
    sandbox: Sandbox, settings: Settings, caller: Caller, tool: str
) -> Iterator[tuple[str, str]]:
    """Yield this server's local address and a temporary key.

    The key is valid until the block ends, and allows at most what the caller may do.

    Args:
        sandbox: The sandbox, which issues the key.
        settings: The settings of the server, for its host and port.
        caller: The scope of the call.
        tool: The name of the tool, for the key and the error.

    Raises:
        Unsupported: The server has no port, so programs cannot call it.
    """
    if settings.port == NO_PORT:
        raise Unsupported(
            f"The tool {tool} uses `client`, but this server has no address. Start it with "
            "`ricordo serve`."
        )
    with sandbox.keys.issue(caller.scope, tool) as key:
        yield f"http://{_LOCAL_ADDRESSES.get(settings.host, settings.host)}:{settings.port}", key
