"""Versions of blocks, and proposals of new versions.

A version's id is a git commit id over the tree of its chain's blocks.
"""

from dataclasses import dataclass
from typing import Literal

from ricordo.domain.block import Chain, Policy
from ricordo.domain.hidden_text import has_hidden_text
from ricordo.domain.scope import Actor
from ricordo.errors import Conflict, Forbidden

ProposalStatus = Literal["open", "approved", "rejected", "superseded", "expired", "conflicted"]
PolicyDecision = Literal["apply", "propose", "refuse"]


@dataclass(frozen=True, slots=True)
class ChangeMetadata:
    """Metadata of a change, stored with its version.

    Attributes:
        reason: The reason, which the history shows.
        is_untrusted: The step had read untrusted content.
        is_quoted: The agent quoted words of the user, from this turn, that ask for the change.
        approved_by: The owner who accepted the change of `author`: who approved the proposal, or
            pushed or pulled the commit. None without one.
        made_at: The time of the change at a remote (microseconds), if known.
    """

    author: Actor
    reason: str = ""
    run_id: str | None = None
    step_id: str | None = None
    is_untrusted: bool = False
    is_quoted: bool = False
    approved_by: str | None = None
    proposal_id: str | None = None
    made_at: int | None = None

    def is_owners_of(self, chain: Chain) -> bool:
        """Return True if the author owns the chain or acts with an owner's right.

        Policies do not bind owners. A user's chain is owned by that user alone. Any other chain is
        owned by all people and services that may write agents.
        """
        kind = self.author.kind
        if self.approved_by is not None or kind == "administrator":
            return True
        if chain.owner_kind == "user":
            return kind == "user" and self.author.id == chain.owner_id
        return kind in ("user", "service")

    def policy_decision(self, policy: Policy, chain: Chain | None) -> PolicyDecision:
        """Return the policy's decision about the change (decision 0017).

        Args:
            policy: The policy of the block that is changed.
            chain: The chain of the block, for its owner. None: the author does not count as an
                owner.
        """
        if chain and self.is_owners_of(chain):
            return "apply"
        match policy:
            case "direct":
                return "apply"
            case "guarded":
                if self.is_untrusted:
                    return "propose"
                return "apply"
            case "explicit":
                if self.is_quoted:
                    return "apply"
                return "propose"
            case "propose":
                return "propose"
            case "read_only":
                return "refuse"

    def require(self, label: str, policy: Policy, chain: Chain | None) -> None:
        """Raise Forbidden if the policy does not allow the change directly.

        This is the last check, in the store itself.

        Args:
            label: The label of the block, for the error.
            policy: The policy of the block that is changed.
            chain: The chain of the block, for its owner. None: the author does not count as an
                owner.

        Raises:
            Forbidden: The change would have to be proposed, or is not allowed at all.
        """
        decision = self.policy_decision(policy, chain)
        if decision == "refuse":
            advice = "it. Ask its owner."
        else:
            advice = "it directly. Propose the change instead."
        if decision != "apply":
            raise Forbidden(
                f'Block "{label}" has the policy {policy}: {self.author.kind} {self.author.id} may '
                f"not change {advice}"
            )


@dataclass(frozen=True, slots=True)
class BlockVersion:
    """One version of one block.

    Attributes:
        id: The id of a git commit (20 raw bytes). Versions from one git commit share their id.
        number: The position in its chain, from 1.
        blob: The id of its text; None: the version deleted the block.
        created_at: The time in microseconds.
        parents: The ids of the git commits before it.
        old_label: The label before the version, if it renamed the block.
    """

    id: bytes
    chain_id: str
    number: int
    label: str
    blob: bytes | None
    author: Actor
    reason: str
    created_at: int
    parents: tuple[bytes, ...] = ()
    old_label: str | None = None
    approved_by: str | None = None
    proposal_id: str | None = None
    run_id: str | None = None
    step_id: str | None = None
    is_untrusted: bool = False


@dataclass(frozen=True, slots=True)
class Proposal:
    """A change that waits for the block's owner, or is already decided.

    Times are in microseconds.

    Attributes:
        base: The version that it changes; None for a new block.
        base_value: The text of that version.
        value: The new text; None deletes the block.
        reasoning: The author's reason.
        confidence: A number from 0 to 1, or None.
        new_label: Another label for the block, or None.
        note: The reason of a rejection, a withdrawal or an expiry with the block, or the
            description of a conflict.
        result: The version that an approval created.
        is_untold: The agent has not been told yet of a rejection with a reason.
        is_repeated: The same proposal was waiting already; this is not stored.
        egress: The label of the egress policy of a new block; None for a change of a block.
    """

    id: str
    organization_id: str
    chain_id: str
    label: str
    base: bytes | None
    base_value: str | None
    value: str | None
    author: Actor
    reasoning: str
    created_at: int
    confidence: float | None = None
    new_label: str | None = None
    description: str | None = None
    status: ProposalStatus = "open"
    run_id: str | None = None
    step_id: str | None = None
    is_untrusted: bool = False
    expires_at: int | None = None
    resolved_at: int | None = None
    resolved_by: str | None = None
    note: str | None = None
    result: bytes | None = None
    superseded_by: str | None = None
    is_untold: bool = False
    is_repeated: bool = False
    egress: str | None = None

    @property
    def has_hidden_text(self) -> bool:
        """True if it adds characters that are not shown."""
        texts = (self.value, self.description, self.new_label)
        known_texts = [self.base_value or ""]
        return any(has_hidden_text(text, known_texts) for text in texts)

    @property
    def waits(self) -> bool:
        return self.status in ("open", "conflicted")

    def require_waiting(self) -> None:
        """Raise Conflict if it no longer waits."""
        if not self.waits:
            if self.status == "expired" and self.note:
                reason = f" ({self.note})"
            else:
                reason = ""
            raise Conflict(
                f"The proposal {self.id} is {self.status} already{reason}. Read it again."
            )
