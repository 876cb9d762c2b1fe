"""Declined changes: an agent does not repeat a proposal that the owner rejected lately.

Two changes count as the same if their wording is equal or nearly equal. Lines that differ in a
number or a negation count as different.
"""

from collections.abc import Iterable, Sequence

from ricordo.domain.clock import DAY, to_datetime
from ricordo.domain.version import ChangeMetadata, Proposal
from ricordo.errors import Conflict
from ricordo.memory.edits import added_lines
from ricordo.memory.line_likeness import has_words, says_same
from ricordo.storage import proposals
from ricordo.storage.engine.store import Transaction

DECLINED_DAYS = 30
DECLINED = (
    'The owner declined this change of memory block "{}" on {}, so it was not proposed again. '
    "Do not propose it in other words either, unless the user asks for it: then give the user's "
    "words as the quote."
)
_COMPARED_LINES = 200


class Declined(Conflict):
    """The owner lately declined the same change by this agent."""


def require_not_declined(
    tx: Transaction, chain_id: str, label: str, texts: tuple[str, str | None], by: ChangeMetadata
) -> None:
    """Raise Declined if an agent's change repeats its rejected proposals.

    The agent may propose it again if it quotes words of the user, from this turn, that ask for it.

    Args:
        tx: The transaction.
        chain_id: The block's chain.
        label: The block's label.
        texts: The texts before and after the change; the second one is None for a deletion.
        by: The author of the change. Only agents are refused.
    """
    if by.author.kind != "agent" or by.is_quoted:
        return
    since = tx.clock.now() - DECLINED_DAYS * DAY
    rejected = proposals.rejected_by(tx, chain_id, label, by.author, since)
    if not rejected:
        return
    proposal = _declining(rejected, *texts)
    if proposal and proposal.resolved_at:
        raise Declined(DECLINED.format(label, f"{to_datetime(proposal.resolved_at):%Y-%m-%d}"))


def _declining_removal(
    rejected: Iterable[Proposal], removed_lines: Sequence[str]
) -> Proposal | None:
    """Return the rejected proposal that only removed the same lines."""
    if not removed_lines:
        return None
    for proposal in rejected:
        base = proposal.base_value or ""
        is_removal = proposal.value is not None and not _lines(base, proposal.value)
        if is_removal and _lines(proposal.value or "", base) == removed_lines:
            return proposal
    return None


def _declining(rejected: list[Proposal], before: str, after: str | None) -> Proposal | None:
    if after is None:
        return next((proposal for proposal in rejected if proposal.value is None), None)
    new_lines = _lines(before, after)
    if not new_lines:
        return _declining_removal(rejected, _lines(after, before))
    declined_lines = [
        (line, proposal)
        for proposal in rejected
        if proposal.value is not None
        for line in _lines(proposal.base_value or "", proposal.value)
    ][:_COMPARED_LINES]
    matches = [
        next((proposal for other, proposal in declined_lines if says_same(line, other)), None)
        for line in new_lines
    ]
    return matches[0] if all(matches) else None


def _lines(before: str, after: str) -> list[str]:
    return _spoken(added_lines(before, after))[:_COMPARED_LINES]


def _spoken(lines: Iterable[str]) -> list[str]:
    return [line.strip() for line in lines if has_words(line)]
