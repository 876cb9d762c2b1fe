"""The share of a user's memory that has faults, for blocks and for facts.

Faults are junk, duplicates, lines without a source, pairs of lines that contradict each other, and
outdated lines. Features add their texts by `Feature.audits`.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from ricordo.domain.block import Block
from ricordo.domain.clock import DAY, to_micros
from ricordo.domain.scope import Scope
from ricordo.features.memory_care.audit.findings import Finding, Kind, Source, short
from ricordo.memory.facts import Fact, facts_in, revision_of
from ricordo.search.dates import named_times
from ricordo.storage import users
from ricordo.storage.engine.store import Transaction

# The fault of each kind of finding.
FAULTS: dict[Kind, str] = {
    "junk": "junk",
    "duplicate": "duplicates",
    "near-duplicate": "duplicates",
    "unsupported": "unsupported",
    "contradiction": "contradictions",
    "stale": "stale",
}
_DATED = re.compile(r"^\W{0,5}(\d{4}-\d\d-\d\d): ([^\n]*)$")
# Phrases that name a future time: plans and appointments.
_PLAN = re.compile(
    r"\b(?:will|going to|plans?|planning|exam|appointment|deadline|due|meeting|flight|trip|wedding|starts?"
    r"|werde|prüfung|termin|frist|reise|vais|examen|rendez-vous|voy a|cita|viaje|esame|appuntamento|viaggio)\b",
    re.IGNORECASE,
)
_AHEAD = re.compile(
    r"\b(?:today|tonight|tomorrow|this week|next week|heute|morgen|diese woche|nächste woche|aujourd['’]hui|demain"
    r"|la semaine prochaine|hoy|mañana|la próxima semana|oggi|domani|la prossima settimana)\b",
    re.IGNORECASE,
)
_YEAR = re.compile(r"\b(?:19|20)\d\d\b")
# After this many days, a relative day such as "next week" has passed.
_DAYS_AHEAD = 14
_LATER_LINES = 50
_COMPARISONS = 20_000


@dataclass(frozen=True, slots=True)
class Tally:
    """The number of one user's texts in one source, and the number with each fault."""

    owner: str
    name: str
    source: Source
    items: int
    junk: int = 0
    duplicates: int = 0
    unsupported: int = 0
    contradictions: int = 0
    stale: int = 0

    @property
    def worst_share(self) -> float:
        counts = (self.junk, self.duplicates, self.unsupported, self.contradictions, self.stale)
        return max(counts) / max(1, self.items)


@dataclass(frozen=True, slots=True)
class AuditedTexts:
    """The texts of a source: their number for each owner, and the findings."""

    items: Counter[str]
    findings: Sequence[Finding]


# An audit function; it takes a transaction, a scope, and an owner's id (None for all owners).
AuditSource = Callable[[Transaction, Scope, str | None], AuditedTexts]


def owner_of(user_id: str) -> str:
    """Return the name under which the audit shows the owner of a user's memory.

    Args:
        user_id: The user.
    """
    return f"user {user_id}"


def tallies_of(
    tx: Transaction, lines: Counter[str], others: Counter[str], findings: Iterable[Finding]
) -> tuple[Tally, ...]:
    """Return the counts for each user: first of lines in blocks, then of facts.

    Args:
        tx: The transaction.
        lines: The number of lines in blocks by owner. Owners other than users are left out.
        others: The number of facts by owner, each named as by `owner_of`.
        findings: The findings about both. Kinds that are not in `FAULTS` are left out.
    """
    found: dict[tuple[str, Source, str], set[tuple[str, int]]] = {}
    for finding in findings:
        if fault := FAULTS.get(finding.kind):
            key = (finding.owner, finding.source, fault)
            found.setdefault(key, set()).add((finding.place, finding.line))
    sources: tuple[tuple[Source, Counter[str]], ...] = (("block", lines), ("fact", others))
    owners = sorted(owner for owner in lines | others if owner.startswith("user "))
    ids = [owner.removeprefix("user ") for owner in owners]
    names = {user.id: user.name for user in users.ROWS.by_ids(tx, ids)} if ids else {}
    tallies = []
    for source, items in sources:
        for owner, id in zip(owners, ids, strict=True):
            if items[owner]:
                counts = {
                    fault: len(found.get((owner, source, fault), ())) for fault in FAULTS.values()
                }
                tallies.append(Tally(owner, names.get(id, id), source, items[owner], **counts))
    return tuple(tallies)


def contradictions(blocks: Sequence[Block], owner: str) -> Iterator[Finding]:
    """Yield lines that a later line of the same owner contradicts, each once.

    The time grows with the number of lines, not with its square: each line is compared with the
    next `_LATER_LINES` lines that state the same kind of fact about the same subject, and all lines
    together at most `_COMPARISONS` times.

    Args:
        blocks: All blocks of the owner, in order.
        owner: The owner for the findings, as in `Finding.owner`.
    """
    lines = [
        (block.label, number, said_in(line)[1])
        for block in blocks
        for number, line in enumerate(block.value.split("\n"), 1)
        if line.strip()
    ]
    slots: dict[tuple[str, str], list[int]] = {}
    for index, (_, _, text) in enumerate(lines):
        for slot in {_slot(fact) for fact in facts_in(text)}:
            slots.setdefault(slot, []).append(index)
    pairs = {
        (first, second)
        for members in slots.values()
        for place, first in enumerate(members)
        for second in members[place + 1 : place + 1 + _LATER_LINES]
    }
    contradicted: set[int] = set()
    for first, second in sorted(pairs)[:_COMPARISONS]:
        if first not in contradicted and revision_of([lines[first][2]], lines[second][2]):
            contradicted.add(first)
            label, number, text = lines[first]
            reason = f"line {lines[second][1]} of {lines[second][0]} says otherwise"
            yield Finding("contradiction", owner, label, number, short(text), reason)


def _slot(fact: Fact) -> tuple[str, str]:
    return fact.subject, fact.kind


def said_in(line: str) -> tuple[int | None, str]:
    """Return the day of a dated line, in microseconds UTC, and the rest of the line.

    Args:
        line: A line of a block, which may begin with a date such as "2026-05-01: ".

    Returns:
        The day, or None without a date; and the text, after a date without quotes around it, else
        without marks of lists.
    """
    match = _DATED.match(line)
    if match is None:
        return None, line.strip(" -*•\t")
    try:
        day = datetime.fromisoformat(match[1]).replace(tzinfo=UTC)
    except ValueError:
        return None, match[2].strip(' "')
    return to_micros(day), match[2].strip(' "')


def is_past(line: str, written_at: int, now: int) -> bool:
    """Return whether a line names a time that has passed since the line was written.

    Args:
        line: A line of a block, which may begin with its date.
        written_at: The time of the line's version in microseconds, for a line without a date.
        now: The present time in microseconds.
    """
    said_at, text = said_in(line)
    said_at = said_at or written_at
    if _AHEAD.search(text):
        return now - said_at > _DAYS_AHEAD * DAY
    if not _PLAN.search(text):
        return False
    ends = [end for _, end in named_times(text, said_at)]
    if not ends:
        return False
    end = max(ends)
    if end <= said_at and not _YEAR.search(text):
        end += 365 * DAY  # a date without a year means its next occurrence
    return said_at < end < now - DAY
