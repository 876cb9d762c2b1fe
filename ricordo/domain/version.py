"""Versions of blocks, and proposals of new ones. A version's id is a git commit id over the tree of its chain's blocks."""

from dataclasses import dataclass
from typing import Literal

from ricordo.errors import Conflict

ProposalStatus = Literal["open", "approved", "rejected", "superseded", "expired", "conflicted"]


@dataclass(frozen=True, slots=True)
class BlockVersion:
    """One version of one block. `value` is None where the version deleted it; `seq` counts the versions of its chain from 1."""

    id: bytes
    chain_id: str
    seq: int
    label: str
    value: str | None
    author: str
    reason: str
    created_at: int
    parents: tuple[bytes, ...] = ()
    run_id: str | None = None
    step_id: str | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """A text that waits for the block's owner. `base` is the version it was made from; `confidence` lies between 0 and 1."""

    id: str
    chain_id: str
    label: str
    base: bytes | None
    value: str
    author: str
    reasoning: str
    created_at: int
    confidence: float | None = None
    status: ProposalStatus = "open"
    step_id: str | None = None
    resolved_at: int | None = None
    resolved_by: str | None = None

    def require_open(self) -> None:
        """Raise Conflict unless it still waits."""
        if self.status != "open":
            raise Conflict(f"The proposal {self.id} is {self.status} already. Read it again.")
