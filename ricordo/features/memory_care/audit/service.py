"""Audit memory for junk, duplicates, unsupported lines, secrets and growth.

The audit only reads. A line is supported if users said at least half of its words before it was
added. Only messages of the run that added it, and the last 500 users' messages before the line in
the same conversation, count. A line that a person wrote or approved needs no support. Dates, times
and other numbers count only if users said them, since agents write "today" as a date.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from ricordo.domain.block import Block
from ricordo.domain.passage import Passage
from ricordo.domain.redaction import redact
from ricordo.domain.scope import Scope
from ricordo.domain.version import BlockVersion
from ricordo.features.memory_care.audit import hygiene
from ricordo.features.memory_care.audit.findings import KINDS, Finding, Kind, Source, short
from ricordo.features.memory_care.audit.hygiene import AuditSource, Tally
from ricordo.memory.blame import blame
from ricordo.memory.edits import repeated
from ricordo.prompt.system_prompt import disarm
from ricordo.search.dates import MONTHS, WEEKDAYS
from ricordo.search.words import fold, query_terms, terms
from ricordo.storage import archives, blocks, history, messages
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction

T = TypeVar("T", Block, Passage)
# The share of a line's words that users must have said.
_SUPPORTED = 0.5
_LEAST_WORDS = 2
_MOST_MESSAGES = 500  # the most users' messages of a conversation that are read for a line
_NOTHING = re.compile(
    r"(?i)^[\W_]*(?:todo|tbd|n/?a|none|null|nil|unknown|undefined|empty|placeholder|"
    r"lorem ipsum.*|\[?(?:insert|fill in)\b.*)?[\W_]*$"
)
_OF_A_MODEL = re.compile(
    r"^\s*\d+→|</?think>|<\|\w+\|>|\"status\":\s*\"(?:OK|Failed)\"|\"?request_heartbeat\"?\s*:"
    r"|^\s*[{\[]\"(?:type|role|name)\":"
    r"|(?i:\bas an ai (?:language )?model\b|\bi (?:have )?(?:updated|saved) (?:your|the|my)"
    r" memory\b)"
)
_TOKEN = re.compile(r"[^\W_]+(?:-feira)?")
# Words that belong to a date or a time when they stand next to a number.
_BY_NUMBERS = {*MONTHS, "am", "pm", "uhr", "utc", "gmt", "h"}
_HEADING = re.compile(r"^\s*(?:#{1,6}\s.*|\[[A-Z_ ]+\]\s*|[\w ]{1,40}:\s*|---+\s*|```.*)$")


@dataclass(frozen=True, slots=True)
class Growth:
    """The growth of a block.

    It has the number of characters in the first version and now, and the number of versions.
    """

    owner: str
    label: str
    policy: str
    began: int
    characters: int
    limit: int
    versions: int

    @property
    def per_version(self) -> float:
        """Return the characters gained per version."""
        return (self.characters - self.began) / max(1, self.versions - 1)


@dataclass(frozen=True, slots=True)
class Audit:
    """The counts of the audited texts, and the findings."""

    blocks: int
    lines: int
    passages: int
    counts: dict[Kind, int]
    findings: tuple[Finding, ...]
    growth: tuple[Growth, ...]
    tallies: tuple[Tally, ...] = ()


def audit(
    tx: Transaction, scope: Scope, only: str | None = None, sources: Sequence[AuditSource] = ()
) -> Audit:
    """Audit all blocks and passages of the organization, and the texts of these sources.

    Args:
        tx: The transaction.
        scope: The organization.
        only: The id of a chain: only its blocks are audited, and no passages; None for everything.
        sources: Audits of features. They are always called for all owners.
    """
    findings: list[Finding] = []
    growth: list[Growth] = []
    lines: Counter[str] = Counter()
    count = 0
    said_words: dict[str, set[str]] = {}
    by_chain: dict[str, list[Block]] = {}
    for block in _pages(
        lambda page: blocks.page(tx, scope, page, blocks.BlockFilter(chain_id=only))
    ):
        by_chain.setdefault(block.chain_id, []).append(block)
    owners = blocks.owners(tx, scope) if only is None else {}
    for chain_id, group in by_chain.items():
        owner = " ".join(owners.get(chain_id, ()))
        for index, block in enumerate(group):
            count += 1
            lines[owner] += len(_lines(block.value))
            findings += _of_block(block, owner)
            findings += _repeats(block, group[:index], owner)
            findings += _unsupported(tx, scope, block, owner, said_words)
            growth.append(_growth(tx, block, owner))
        findings += hygiene.contradictions(group, owner)
    others: Counter[str] = Counter()
    for source in sources:
        texts = source(tx, scope, None)
        others += texts.items
        findings += texts.findings
    passages = 0
    for archive_id in archives.ids(tx, scope) if only is None else ():
        earlier: dict[str, str] = {}
        for passage in _pages(partial(archives.page_of_passages, tx, [archive_id])):
            passages += 1
            findings += _of_passage(passage, earlier)
    counts: Counter[Kind] = Counter(finding.kind for finding in findings)
    growth.sort(key=_usage, reverse=True)
    return Audit(
        blocks=count,
        lines=lines.total(),
        passages=passages,
        counts={kind: counts[kind] for kind in KINDS},
        findings=tuple(findings),
        growth=tuple(growth),
        tallies=hygiene.tallies_of(tx, lines, others, findings),
    )


def _usage(growth: Growth) -> float:
    return growth.characters / max(1, growth.limit)


def _pages(read: Callable[[Page], Sequence[T]]) -> Iterator[T]:
    after: str | None = None
    while page := read(Page(limit=500, order="asc", after=after)):
        yield from page
        after = page[-1].id


def _lines(text: str) -> list[tuple[int, str]]:
    return [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def _of_block(block: Block, owner: str) -> Iterator[Finding]:
    if block.is_untrusted:
        yield Finding(
            "untrusted",
            owner,
            block.label,
            line=0,
            text=short(block.value),
            reason="holds untrusted content",
        )
    for number, line in _lines(block.value):
        yield from _of_text(line, owner, block.label, line=number, label=block.label)


def _of_text(
    text: str, owner: str, place: str, *, line: int = 0, label: str = ""
) -> Iterator[Finding]:
    source: Source = "block" if label else "passage"
    finding = partial(Finding, owner=owner, place=place, line=line, text=short(text), source=source)
    if "\n" not in text and (reason := junk_in(text, label)):
        yield finding("junk", reason=reason)
    if kinds := redact(text).kinds:
        yield finding("secret", reason=", ".join(kinds))


def junk_in(line: str, label: str = "") -> str | None:
    """Return the reason why a line is junk; None if it is not.

    Args:
        line: One line of text.
        label: The label of its block, which the line must not contain as a tag; "" without a block.
    """
    if _NOTHING.match(line):
        if _HEADING.match(line):
            return None
        return "says nothing"
    if _OF_A_MODEL.search(line):
        return "left over from a model's or tool's output"
    if disarm(line, "value", "description", "metadata", *([label] if label else [])) != line:
        return "a forged tag"
    return None


def _repeats(block: Block, before: Sequence[Block], owner: str) -> Iterator[Finding]:
    """Yield lines that occur, or nearly occur, earlier in the block or in an earlier block."""
    texts = {earlier.label: earlier.value for earlier in before}
    lines_above: list[str] = []
    for number, line in _lines(block.value):
        others = {**texts, block.label: "\n".join(lines_above)}
        for match in repeated("", "", line, others)[:1]:
            origin = "a line above it"
            if match.label != block.label:
                origin = f"line {match.line} of {match.label}"
            kind: Kind = "duplicate"
            reason = f"same as {origin}"
            if not match.is_same:
                kind = "near-duplicate"
                reason = f"nearly the same as {origin}"
            yield Finding(kind, owner, block.label, line=number, text=short(line), reason=reason)
        lines_above.append(line)


def _unsupported(
    tx: Transaction, scope: Scope, block: Block, owner: str, said_words: dict[str, set[str]]
) -> Iterator[Finding]:
    for line in blame(tx, block.chain_id, block.label):
        terms_of_line = set(query_terms(line.text))
        version = line.version
        if hygiene.is_past(line.text, version.created_at, tx.clock.now()):
            yield Finding(
                "stale",
                owner,
                block.label,
                line.number,
                short(line.text),
                "names a time that has passed",
            )
        if version.author.kind != "agent" or version.approved_by:
            continue
        if len(terms_of_line) < _LEAST_WORDS or _HEADING.match(line.text):
            continue
        if version.step_id is None and version.run_id is None:
            reason = "its version names no step"
        else:
            said_before = _said_before(tx, scope, version, said_words)
            terms_of_line -= _of_dates(line.text, terms_of_line) - said_before
            support = len(terms_of_line & said_before)
            if len(terms_of_line) < _LEAST_WORDS or support >= _SUPPORTED * len(terms_of_line):
                continue
            reason = "no user said anything like it before"
        yield Finding(
            "unsupported",
            owner,
            block.label,
            line=line.number,
            text=short(line.text),
            reason=reason,
        )


def _of_dates(line: str, line_words: set[str]) -> set[str]:
    """Return the words of a line that are numbers or parts of a date."""
    tokens = [fold(token) for token in _TOKEN.findall(unicodedata.normalize("NFKC", line))]
    date_words = {word for word in line_words if word[0].isdigit()}
    for before, token, after in zip(["", *tokens], tokens, [*tokens[1:], ""], strict=False):
        is_by_number = before[:1].isdigit() or after[:1].isdigit()
        if token in WEEKDAYS or (is_by_number and token in _BY_NUMBERS):
            date_words.update(terms(token))
    return date_words


def _said_before(
    tx: Transaction, scope: Scope, version: BlockVersion, cached: dict[str, set[str]]
) -> set[str]:
    """Return the words that users said in the conversation before this version."""
    key = version.step_id or version.run_id or ""
    if key not in cached:
        cached[key] = set()
        if version.run_id:
            of_run = messages.of_run(tx, version.run_id)
        else:
            of_run = []
        if of_run:
            of_users = messages.page(
                tx,
                scope,
                Page(limit=_MOST_MESSAGES, order="desc"),
                messages.is_until(version.created_at),
                conversation_id=of_run[0].conversation_id,
                role="user",
            )
            for message in [*of_users, *of_run]:
                is_before = message.created_at <= version.created_at
                if message.role == "user" and is_before and not message.is_event:
                    cached[key].update(terms(message.text))
    return cached[key]


def _growth(tx: Transaction, block: Block, owner: str) -> Growth:
    """Return the growth of the block since its first version."""
    count = 0
    first: BlockVersion | None = None
    before: int | None = None
    while page := history.page(tx, block.chain_id, label=block.label, limit=200, before=before):
        count += len(page)
        first = page[-1]
        before = first.number
    if first:
        first_text = history.text_at(tx, block.chain_id, block.label, first)
    else:
        first_text = None
    return Growth(
        owner=owner,
        label=block.label,
        policy=block.rule,
        began=len(first_text or ""),
        characters=len(block.value),
        limit=block.limit,
        versions=max(count, 1),
    )


def _of_passage(passage: Passage, earlier: dict[str, str]) -> Iterator[Finding]:
    owner = f"archive {passage.archive_id}"
    finding = partial(
        Finding,
        owner=owner,
        place=passage.id,
        line=0,
        text=short(passage.text),
        source="passage",
    )
    key = " ".join(passage.text.casefold().split())
    if key in earlier:
        yield finding("duplicate", reason=f"same as {earlier[key]}")
    earlier.setdefault(key, passage.id)
    if passage.is_untrusted:
        yield finding("untrusted", reason="holds untrusted content")
    yield from _of_text(passage.text, owner, passage.id)
