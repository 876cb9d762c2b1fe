"""Proposals in the form for people: changed lines, and equal proposals joined."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ricordo.domain.version import Proposal
from ricordo.features.web.pages.memory_text import without_day
from ricordo.features.web.pages.queries import WaitingProposal
from ricordo.memory.text import line_changes
from ricordo.memory.unwanted import rule_of
from ricordo.pages.memory_owner import MemoryOwner
from ricordo.pages.reasons import own_reason
from ricordo.pages.titles import title_of

# At most this many changed lines of a suggestion are shown.
_MOST_LINES = 12


@dataclass(frozen=True)
class Suggestion:
    """Equal proposals for one block, newest first.

    `added` and `removed` are the changed lines; None: there are too many to compare.
    """

    members: Sequence[WaitingProposal]
    title: str
    removed: Sequence[str] | None
    added: Sequence[str] | None

    @property
    def first(self) -> Proposal:
        return self.members[0].proposal

    @property
    def owner(self) -> MemoryOwner:
        return self.members[0].owner

    @property
    def ids(self) -> list[str]:
        return [member.proposal.id for member in self.members]

    @property
    def names(self) -> list[str]:
        """Return the names of the authors, each once."""
        return list(dict.fromkeys(member.proposal.author.shown_name for member in self.members))

    @property
    def reason(self) -> str:
        reasons = (
            own_reason(member.proposal.reasoning, member.proposal.label) for member in self.members
        )
        return next((reason for reason in reasons if reason), "")

    @property
    def collides(self) -> bool:
        return any(member.proposal.status == "conflicted" for member in self.members)

    @property
    def is_untrusted(self) -> bool:
        return any(member.proposal.is_untrusted for member in self.members)

    @cached_property
    def rule(self) -> str:
        """Return the first added line, as a rule never to remember things like it."""
        return next((rule for line in self.added or () if (rule := rule_of(line))), "")

    @property
    def hidden_lines(self) -> int:
        return max(0, len(self.added or ()) + len(self.removed or ()) - _MOST_LINES)

    @property
    def shown_lines(self) -> list[tuple[str, str]]:
        """Return the first changed lines with their signs, without days at their start."""
        lines = [("−", line) for line in self.removed or ()]
        lines += [("+", line) for line in self.added or ()]
        return [(sign, without_day(line)[1].strip()) for sign, line in lines[:_MOST_LINES]]


def joined(
    waiting: Iterable[WaitingProposal], titles: Mapping[str, str], *, is_self: bool
) -> list[Suggestion]:
    """Join proposals for one memory that make equal changes, in their order.

    Args:
        waiting: The proposals, the newest first.
        titles: The titles of existing blocks by label. Other blocks get a title from their label.
        is_self: Whether the caller owns the memory, so that titles address the caller.
    """
    groups: dict[object, list[WaitingProposal]] = {}
    for member in waiting:
        groups.setdefault(_key(member), []).append(member)
    suggestions = []
    for members in groups.values():
        proposal = members[0].proposal
        title = title_of(proposal.label, None, members[0].owner.name, is_self=is_self)
        removed, added = _lines(proposal)
        suggestions.append(Suggestion(members, titles.get(proposal.label) or title, removed, added))
    return suggestions


def divided(
    suggestions: Sequence[Suggestion], put_off: Container[str]
) -> tuple[list[Suggestion], list[Suggestion]]:
    """Divide suggestions into current and postponed ones.

    Args:
        suggestions: The suggestions.
        put_off: The ids of the proposals that were postponed.
    """
    later = [suggestion for suggestion in suggestions if suggestion.first.id in put_off]
    now = [suggestion for suggestion in suggestions if suggestion not in later]
    return now, later


def _key(member: WaitingProposal) -> object:
    proposal = member.proposal
    removed, added = _lines(proposal)
    if removed is None or added is None:
        return proposal.id
    return (
        proposal.chain_id,
        proposal.label,
        tuple(rule_of(line).casefold() for line in removed),
        tuple(rule_of(line).casefold() for line in added),
        proposal.value is None,
        proposal.new_label,
    )


def _lines(proposal: Proposal) -> tuple[list[str] | None, list[str] | None]:
    if proposal.value is None:
        return [], []
    base = proposal.base_value or ""
    changes = line_changes(base, proposal.value)
    if changes is None:
        return None, None
    base_lines = base.split("\n")
    removed = [line for change in changes for line in base_lines[change.start : change.end]]
    added = [line for change in changes for line in change.lines]
    return [line for line in removed if line.strip()], [line for line in added if line.strip()]
