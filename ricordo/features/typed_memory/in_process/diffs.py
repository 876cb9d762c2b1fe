"""What agents propose, for a program of one's own: kept with the user's memory, decided by her."""

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from ricordo.domain.clock import SECOND
from ricordo.domain.scope import Actor
from ricordo.domain.version import Proposal, ProposalStatus
from ricordo.errors import Conflict, NotFound
from ricordo.features.typed_memory.in_process.storage import GitUserStorage
from ricordo.memory import approval, user_memory
from ricordo.memory.schemas import require_follows
from ricordo.memory.user_memory import ProposalOptions, UserMemory
from ricordo.storage import proposals
from ricordo.storage.paging import Page
from ricordo.storage.proposals import ProposalFilter
from ricordo.storage.store import Transaction

_MOST = 1000


@dataclass(frozen=True, slots=True)
class PendingDiff:
    """A proposed change of one block. A value is None where there is no block before or after it; times are ISO 8601."""

    id: str
    user_id: str
    agent_id: str
    block_label: str
    current_value: str | None
    proposed_value: str | None
    reasoning: str
    confidence: float | None
    status: ProposalStatus
    created_at: str
    reviewed_at: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


class PendingDiffStore:
    """The proposals to one user: made by agents, approved or rejected by her."""

    def __init__(self, user_id: str, storage: GitUserStorage) -> None:
        self.user_id = user_id
        self.storage = storage

    def propose(
        self,
        agent_id: str,
        label: str,
        old_string: str,
        new_string: str,
        *,
        reasoning: str,
        confidence: float | None = None,
    ) -> PendingDiff:
        """Propose to replace a piece of a block. An older proposal of this agent for the block is superseded.

        Raises NotFound, Invalid, Forbidden for a read-only block.
        """
        options = ProposalOptions(reasoning=reasoning, confidence=confidence)

        def work(tx: Transaction) -> Proposal:
            owned = user_memory.open_memory(tx, self.storage.scope, self.user_id)
            agent = Actor("agent", agent_id, agent_id)
            made = user_memory.propose_edit(tx, owned, label, old_string, new_string, agent, options)
            block = user_memory.find(tx, owned, label)
            schema = self.storage.schema(block.schema_ref) if block else None
            require_follows(label, block.value if block else "", made.value or "", schema)
            return made

        return self._diff(self.storage.write(work))

    def list(self, label: str | None = None, status: ProposalStatus | None = "open") -> "list[PendingDiff]":
        """Proposals, newest first: of one block, or of all; with one status, or with any where that is None."""

        def work(tx: Transaction) -> "list[Proposal]":
            owned = self.storage.memory_of(tx, self.user_id)
            if owned is None:
                return []
            which = ProposalFilter(chain_id=owned.chain.id, label=label, status=status)
            return proposals.page(tx, self.storage.scope, Page(limit=_MOST), which)

        return [self._diff(one) for one in self.storage.read(work)]

    def count_pending(self, label: str | None = None) -> int:
        """How many wait for her, in one block or in all."""

        def work(tx: Transaction) -> int:
            owned = self.storage.memory_of(tx, self.user_id)
            counts = proposals.waiting_counts(tx, owned.chain.id) if owned else {}
            return sum(counts.values()) if label is None else counts.get(label, 0)

        return self.storage.read(work)

    def get(self, diff_id: str) -> PendingDiff:
        """One proposal; raises NotFound."""
        return self._diff(self.storage.read(lambda tx: self._hers(tx, diff_id)[1]))

    def approve(self, diff_id: str, body: str | None = None) -> str:
        """Make it the block's next version, or `body` instead; returns that version's id ("" where the block went).

        Raises NotFound, Conflict where it is decided already or meets another change of the same lines.
        """

        def work(tx: Transaction) -> approval.Approved | approval.Conflicted:
            owned, proposal = self._hers(tx, diff_id)
            return approval.approve(tx, self.storage.scope, proposal.id, owned.actor, body=body)

        outcome = self.storage.write(work)
        if isinstance(outcome, approval.Conflicted):
            raise Conflict(outcome.proposal.note or "The block changed in the same lines. Approve it with a text.")
        return (outcome.block.head or b"").hex() if outcome.block else ""

    def reject(self, diff_id: str, reason: str | None = None) -> PendingDiff:
        """Leave the block as it is. Raises NotFound, Conflict where it is decided already."""

        def work(tx: Transaction) -> Proposal:
            owned, proposal = self._hers(tx, diff_id)
            return approval.reject(tx, self.storage.scope, proposal.id, owned.actor, reason=reason)

        return self._diff(self.storage.write(work))

    def _hers(self, tx: Transaction, diff_id: str) -> tuple[UserMemory, Proposal]:
        owned = user_memory.open_memory(tx, self.storage.scope, self.user_id)
        proposal = proposals.get(tx, self.storage.scope, diff_id)
        if proposal.chain_id != owned.chain.id:
            raise NotFound(f"Proposal with ID {diff_id} not found")
        return owned, proposal

    def _diff(self, proposal: Proposal) -> PendingDiff:
        return PendingDiff(
            id=proposal.id,
            user_id=self.user_id,
            agent_id=proposal.author.id,
            block_label=proposal.label,
            current_value=proposal.base_value,
            proposed_value=proposal.value,
            reasoning=proposal.reasoning,
            confidence=proposal.confidence,
            status=proposal.status,
            created_at=_iso(proposal.created_at) or "",
            reviewed_at=_iso(proposal.resolved_at),
        )


def _iso(moment: int | None) -> str | None:
    return None if moment is None else datetime.fromtimestamp(moment / SECOND, UTC).isoformat()
