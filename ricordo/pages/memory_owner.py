"""The owner of memory, with the page that shows it."""

from dataclasses import dataclass

from ricordo.storage.memory_overviews import ChainOwner


@dataclass(frozen=True, slots=True)
class MemoryOwner(ChainOwner):
    """The owner of a chain's memory; `path` is the page of that memory."""

    @property
    def path(self) -> str:
        return f"/ui/people/{self.id}" if self.kind == "user" else f"/ui/agents/{self.id}/memory"
