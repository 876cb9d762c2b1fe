"""What typed memory asks of a client: an agent's blocks by label, and its passages. `letta_client.Letta` is one.

Another kind, such as one that works on an opened store in this process, offers the same methods with the same meaning. For a block
that the agent does not have, `retrieve` raises NotFound, or an error whose `status_code` is 404.
"""

from collections.abc import Sequence
from typing import Any, Protocol


class BlockText(Protocol):
    """A block, of which the text is read."""

    value: str


class PassageText(Protocol):
    """A passage, of which the text is read."""

    text: str


class Hit(Protocol):
    """A passage that was found."""

    content: str


class Hits(Protocol):
    """Passages that were found, the best first."""

    @property
    def results(self) -> Sequence[Hit]:
        """The passages."""


class BlockDoor(Protocol):
    """An agent's core memory."""

    def retrieve(self, block_label: str, /, *, agent_id: str) -> BlockText:
        """The block with this label."""

    def update(self, block_label: str, /, *, agent_id: str, value: str) -> BlockText:
        """Make `value` the block's text."""


class PassageDoor(Protocol):
    """An agent's archival memory."""

    def create(self, agent_id: str, /, *, text: str) -> Sequence[PassageText]:
        """Archive a text."""

    def list(self, agent_id: str, /, *, search: str, limit: int, ascending: bool) -> Sequence[PassageText]:
        """Passages that hold the piece `search`, by age."""

    def search(self, agent_id: str, /, *, query: str, top_k: int) -> Hits:
        """The passages that match the query best."""


class AgentDoor(Protocol):
    """Agents and their memory."""

    @property
    def blocks(self) -> BlockDoor:
        """Core memory."""

    @property
    def passages(self) -> PassageDoor:
        """Archival memory."""

    # Its many options are the client's own business; an agent has an `id`.
    def create(self, *args: Any, **options: Any) -> Any:
        """Make an agent with a `name`, with `memory_blocks` of label and value, and with the options of the client."""


class MemoryClient(Protocol):
    """The client."""

    @property
    def agents(self) -> AgentDoor:
        """Agents and their memory."""
