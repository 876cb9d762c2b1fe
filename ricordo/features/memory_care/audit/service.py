"""The audit of memory: junk, duplicates, unsupported lines, secrets, untrusted content, and growth. It only reads.

A line is supported where most of its words occur in what users said, in the conversation of the step that added it, up to that
time. What a person wrote or approved needs no support. Dates, times and other numbers support a line where users said them, and do
not count against it where not: agents write "today" as a date.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar

from ricordo.domain.block import Block
from ricordo.domain.passage import Passage
from ricordo.domain.redaction import redact
from ricordo.domain.scope import Scope
from ricordo.domain.version import BlockVersion
from ricordo.memory.blame import blame
from ricordo.memory.edit_guard import repeated
from ricordo.prompt.memory import disarm
from ricordo.search.dates import MONTHS, WEEKDAYS
from ricordo.search.words import fold, query_terms, terms
from ricordo.storage import archives, blocks, history, messages
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction

T = TypeVar("T", Block, Passage)
Kind = Literal["junk", "duplicate", "near-duplicate", "unsupported", "secret", "untrusted"]
KINDS: tuple[Kind, ...] = (
    "junk",
    "duplicate",
    "near-duplicate",
    "unsupported",
    "secret",
    "untrusted",
)
# The share of a line's words that users must have said.
_SUPPORTED = 0.5
_LEAST_WORDS = 2
_MOST_SAID = 500  # messages of a conversation that are read
_SHOWN = 80
_NOTHING = re.compile(
    r"(?i)^[\W_]*(?:todo|tbd|n/?a|none|null|nil|unknown|undefined|empty|placeholder|lorem ipsum.*|\[?(?:insert|fill in)\b.*)?"
    r"[\W_]*$"
)
_OF_A_MODEL = re.compile(
    r"^\s*\d+→|</?think>|<\|\w+\|>|\"status\":\s*\"(?:OK|Failed)\"|\"?request_heartbeat\"?\s*:|^\s*[{\[]\"(?:type|role|name)\":"
    r"|(?i:\bas an ai (?:language )?model\b|\bi (?:have )?(?:updated|saved) (?:your|the|my) memory\b)"
)
_TOKEN = re.compile(r"[^\W_]+(?:-feira)?")
_BY_NUMBERS = {
    *MONTHS,
    "am",
    "pm",
    "uhr",
    "utc",
    "gmt",
    "h",
}  # parts of a date or time where a number is beside them
_HEADING = re.compile(r"^\s*(?:#{1,6}\s.*|\[[A-Z_ ]+\]\s*|[\w ]{1,40}:\s*|---+\s*|```.*)$")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to look at: a line of a block (from 1; 0 is the whole block), or a passage by its id; `reason` explains it."""

    kind: Kind
    owner: str
    place: str
    line: int
    text: str
    reason: str


@dataclass(frozen=True, slots=True)
class Growth:
    """How a block grew: its characters when it was made and now, and its number of versions."""

    owner: str
    label: str
    policy: str
    began: int
    characters: int
    limit: int
    versions: int

    @property
    def per_version(self) -> float:
        """Characters gained a version."""
        return (self.characters - self.began) / max(1, self.versions - 1)


@dataclass(frozen=True, slots=True)
class Audit:
    """How much was read, and what was found."""

    blocks: int
    lines: int
    passages: int
    counts: dict[Kind, int]
    findings: tuple[Finding, ...]
    growth: tuple[Growth, ...]


def audit(tx: Transaction, scope: Scope, only: str | None = None) -> Audit:
    """Check all blocks and passages of the organization, or the blocks of one chain."""
    findings: list[Finding] = []
    growth: list[Growth] = []
    lines = count = 0
    said: dict[str, set[str]] = {}
    by_chain: dict[str, list[Block]] = {}
    for block in _pages(
        lambda page: blocks.page(tx, scope, page, blocks.BlockFilter(chain_id=only))
    ):
        by_chain.setdefault(block.chain_id, []).append(block)
    owners = blocks.owners(tx, scope) if only is None else {}
    for chain_id, group in by_chain.items():
        owner = " ".join(owners.get(chain_id, ()))
        for place, block in enumerate(group):
            count += 1
            lines += len(_lines(block.value))
            findings += _of_block(block, owner)
            findings += _repeats(block, group[:place], owner)
            findings += _unsupported(tx, scope, block, owner, said)
            growth.append(_growth(tx, block, owner))
    passages = 0
    for archive_id in archives.ids(tx, scope) if only is None else ():
        seen: dict[str, str] = {}
        for passage in _pages(partial(archives.page_of_passages, tx, [archive_id])):
            passages += 1
            findings += _of_passage(passage, seen)
    counts: Counter[Kind] = Counter(one.kind for one in findings)
    growth.sort(key=lambda one: one.characters / max(1, one.limit), reverse=True)
    return Audit(
        count,
        lines,
        passages,
        {kind: counts[kind] for kind in KINDS},
        tuple(findings),
        tuple(growth),
    )


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
            "untrusted", owner, block.label, 0, _short(block.value), "holds untrusted content"
        )
    for number, line in _lines(block.value):
        yield from _of_text(line, owner, block.label, number, block.label)


def _of_text(
    text: str, owner: str, place: str, line: int = 0, label: str = ""
) -> Iterator[Finding]:
    if "\n" not in text and (reason := junk_in(text, label)):
        yield Finding("junk", owner, place, line, _short(text), reason)
    if kinds := redact(text).kinds:
        yield Finding("secret", owner, place, line, _short(text), ", ".join(kinds))


def junk_in(line: str, label: str = "") -> str | None:
    """Return reason a line is junk; None where it is not."""
    if _NOTHING.match(line):
        return None if _HEADING.match(line) else "says nothing"
    if _OF_A_MODEL.search(line):
        return "left by a model or a tool"
    if disarm(line, "value", "description", "metadata", *([label] if label else [])) != line:
        return "a forged tag"
    return None


def _repeats(block: Block, before: Sequence[Block], owner: str) -> Iterator[Finding]:
    """Find lines that occur further up in the block, or in a block before it."""
    texts = {one.label: one.value for one in before}
    kept: list[str] = []
    for number, line in _lines(block.value):
        others = {**texts, block.label: "\n".join(kept)}
        for known in repeated("", "", line, others)[:1]:
            kind: Kind = "duplicate" if known.is_same else "near-duplicate"
            where = (
                f"line {known.line} of {known.label}"
                if known.label != block.label
                else "a line above it"
            )
            yield Finding(kind, owner, block.label, number, _short(line), f"same as {where}")
        kept.append(line)


def _unsupported(
    tx: Transaction, scope: Scope, block: Block, owner: str, said: dict[str, set[str]]
) -> Iterator[Finding]:
    for one in blame(tx, block.chain_id, block.label):
        words, version = set(query_terms(one.text)), one.version
        if version.author.kind != "agent" or version.approved_by:
            continue
        if len(words) < _LEAST_WORDS or _HEADING.match(one.text):
            continue
        if version.step_id is None and version.run_id is None:
            reason = "its version names no step"
        else:
            before = _said_before(tx, scope, version, said)
            words -= _of_dates(one.text, words) - before
            if len(words) < _LEAST_WORDS or len(words & before) >= _SUPPORTED * len(words):
                continue
            reason = "no user said anything like it before"
        yield Finding("unsupported", owner, block.label, one.number, _short(one.text), reason)


def _of_dates(line: str, words: set[str]) -> set[str]:
    """Return those of a line's words that are numbers, or belong to a date or time."""
    tokens = [fold(token) for token in _TOKEN.findall(unicodedata.normalize("NFKC", line))]
    found = {word for word in words if word[0].isdigit()}
    for before, token, after in zip(["", *tokens], tokens, [*tokens[1:], ""], strict=False):
        is_beside = before[:1].isdigit() or after[:1].isdigit()
        if token in WEEKDAYS or (is_beside and token in _BY_NUMBERS):
            found.update(terms(token))
    return found


def _said_before(
    tx: Transaction, scope: Scope, version: BlockVersion, cached: dict[str, set[str]]
) -> set[str]:
    """Return the words that users had said in the conversation before the version was made."""
    key = version.step_id or version.run_id or ""
    if key not in cached:
        cached[key] = set()
        of_run = messages.of_run(tx, version.run_id) if version.run_id else []
        if of_run:
            conversation_id, end = of_run[0].conversation_id, version.created_at
            wanted = Page(limit=_MOST_SAID, order="desc", before=None)
            for message in [
                *messages.page(tx, scope, wanted, conversation_id=conversation_id, role="user"),
                *of_run,
            ]:
                if message.role == "user" and message.created_at <= end and not message.is_event:
                    cached[key].update(terms(message.text))
    return cached[key]


def _growth(tx: Transaction, block: Block, owner: str) -> Growth:
    """Read how the block grew since its first version."""
    count, first = 0, None
    before: int | None = None
    while page := history.page(tx, block.chain_id, label=block.label, limit=200, before=before):
        count += len(page)
        first = page[-1]
        before = first.number
    began = history.text_at(tx, block.chain_id, block.label, first) if first else None
    return Growth(
        owner,
        block.label,
        block.rule,
        len(began or ""),
        len(block.value),
        block.limit,
        max(count, 1),
    )


def _of_passage(passage: Passage, seen: dict[str, str]) -> Iterator[Finding]:
    owner, shown = f"archive {passage.archive_id}", _short(passage.text)
    key = " ".join(passage.text.casefold().split())
    if key in seen:
        yield Finding("duplicate", owner, passage.id, 0, shown, f"same as {seen[key]}")
    seen.setdefault(key, passage.id)
    if passage.is_untrusted:
        yield Finding("untrusted", owner, passage.id, 0, shown, "holds untrusted content")
    yield from _of_text(passage.text, owner, passage.id)


def _short(text: str) -> str:
    line = " ".join(redact(text).text.split())
    return line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"
