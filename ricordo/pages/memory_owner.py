"""The owner of memory, with the page that shows it."""

from dataclasses import dataclass

from ricordo.storage.memory_overviews import ChainOwner


@dataclass(frozen=True, slots=True)
class MemoryOwner(ChainOwner):
    """The owner of a chain's memory; `path` is the page of that memory.

    A block that no user and no agent has shows the list of agents, since it has no such page.
    """

    @property
    def path(self) -> str:
        if self.kind == "user":
            return f"/ui/people/{self.id}"
        return f"/ui/agents/{self.id}/memory" if self.kind == "agent" else "/ui/agents"
