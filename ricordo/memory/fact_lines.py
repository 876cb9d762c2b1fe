"""A block about a person as lines of facts: adding one, correcting one, striking one out. Pure."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ricordo.domain.block import Block
from ricordo.memory.facts import revision_of
from ricordo.search.words import terms

LONGEST_FACT = 400  # characters
# The labels of blocks about the person that the agent talks with, the likeliest first.
PERSON_LABELS = ("human", "user", "student", "person", "profile", "notes")
_BULLET = re.compile(r"^\s*(?:[-*•–]+|\d{1,2}[.)])\s+")
_SHARE = 0.5  # of the words that name a line, so many have to stand in it


@dataclass(frozen=True, slots=True)
class FactEdit:
    """A block's text with one fact changed: the line as it was ("" for a new one) and as it is ("" for none)."""

    value: str
    before: str = ""
    after: str = ""

    @property
    def sentence(self) -> str:
        """The change in words, for the model that asked for it."""
        if not self.before:
            return f"Noted: {self.after}"
        if not self.after:
            return f"Struck out: {self.before}"
        return f"Changed: {self.before} -> {self.after}"


def person_block(blocks: Iterable[Block]) -> Block | None:
    """Return the block about the person that an agent may write to; None where there is none.

    A text that begins with a heading has fields, and takes no lines.
    """
    usable = [
        block for block in blocks if not block.is_read_only and not block.value.startswith("## ")
    ]
    by_label = {_name(block): block for block in reversed(usable)}
    named = next((by_label[label] for label in PERSON_LABELS if label in by_label), None)
    return named or next((block for block in usable if _name(block) != "persona"), None)


def _name(block: Block) -> str:
    return block.shown_label.rsplit("/", 1)[-1].casefold()


def fact_line(text: str) -> str:
    """Return the fact as one line without a bullet, at most `LONGEST_FACT` characters of it."""
    line = " ".join(_BULLET.sub("", text).split())
    return line if len(line) <= LONGEST_FACT else f"{line[: LONGEST_FACT - 1]}…"


def with_fact(value: str, fact: str) -> FactEdit | None:
    """Return the text with the fact in it, in place of the line that it makes untrue; None where it is there already."""
    lines = value.split("\n") if value else []
    line = fact_line(fact)
    if not line or _known(lines, line):
        return None
    if revised := revision_of(lines, line):
        return _with_line(lines, revised.index, revised.line)
    return FactEdit("\n".join([*lines, line]), after=line)


def with_correction(value: str, old: str, new: str) -> FactEdit | None:
    """Return the text with `new` for what `old` names, a line or a piece of one; None where the text says so already.

    Nothing for `new` strikes the line out. Where `old` names no line, `new` is added.
    """
    lines = value.split("\n") if value else []
    old, new = fact_line(old), fact_line(new)
    index = _named(lines, old)
    if index is None:
        return with_fact(value, new) if new else None
    line = lines[index]
    if not new:
        return _with_line(lines, index, "")
    piece = _piece(line, old)
    if piece and piece != line.strip() and len(new.split()) <= len(old.split()) + 2:
        changed = line.replace(piece, new, 1)
    else:
        revised = revision_of([line], new)
        changed = revised.line if revised else new
    return None if _plain(changed) == _plain(line) else _with_line(lines, index, changed)


def _with_line(lines: Sequence[str], index: int, line: str) -> FactEdit:
    kept = [*lines[:index], *([line] if line else []), *lines[index + 1 :]]
    return FactEdit("\n".join(kept), before=lines[index].strip(), after=line.strip())


def _known(lines: Sequence[str], fact: str) -> bool:
    words = f" {_plain(fact)} "
    return any(words in f" {_plain(line)} " for line in lines)


def _named(lines: Sequence[str], old: str) -> int | None:
    """Return the place of the line that the words name: the last that holds them, else the one that shares most of them."""
    holding = [index for index, line in enumerate(lines) if old and _piece(line, old)]
    if holding:
        return holding[-1]
    wanted = set(terms(old))
    shares = [
        (len(wanted & set(terms(line))), index) for index, line in enumerate(lines) if line.strip()
    ]
    best = max(shares, default=(0, 0))
    return best[1] if wanted and best[0] >= max(1, len(wanted) * _SHARE) else None


def _piece(line: str, words: str) -> str:
    """Return the words as the line has them, whatever their capitals are; "" where they are not in it."""
    found = (
        re.search(rf"(?<!\w){re.escape(words.rstrip('.'))}(?!\w)", line, re.IGNORECASE)
        if words
        else None
    )
    return found[0] if found else ""


def _plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.casefold()))
