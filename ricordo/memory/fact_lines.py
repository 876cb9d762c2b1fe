"""A person's block as lines of facts: add, correct or remove one fact. Pure."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ricordo.domain.block import Block
from ricordo.memory.facts import revision_of
from ricordo.memory.line_likeness import says_sentence, subject_terms

LONGEST_FACT = 400  # characters
# Usual labels of the block about the person with whom the agent talks, the most usual first.
PERSON_LABELS = ("human", "user", "student", "person", "profile", "notes")
_BULLET = re.compile(r"^\s*(?:[-*•–]+|\d{1,2}[.)])\s+")
_SHARE = 0.5  # the share of the given words, without stop words, that a line must contain


@dataclass(frozen=True, slots=True)
class FactEdit:
    """A block's text with one fact changed.

    `before` is the old line, "" if the line is new; `after` is the new line, "" if the line is
    removed.
    """

    value: str
    before: str = ""
    after: str = ""

    @property
    def sentence(self) -> str:
        """Describe the change for the model that made it."""
        if not self.before:
            return f"Noted: {self.after}"
        if not self.after:
            return f"Struck out: {self.before}"
        return f"Changed: {self.before} -> {self.after}"


def person_block(blocks: Iterable[Block]) -> Block | None:
    """Return the block about the person that the agent may change, or None.

    Without a block with a usual label, it is the first one other than the persona. A text that
    begins with a heading has fields, so no line can be added to it.

    Args:
        blocks: The agent's blocks, in order.
    """
    usable = [
        block for block in blocks if not block.is_read_only and not block.value.startswith("## ")
    ]
    by_label = {_name(block): block for block in reversed(usable)}
    named = next((by_label[label] for label in PERSON_LABELS if label in by_label), None)
    return named or next((block for block in usable if _name(block) != "persona"), None)


def is_about_person(block: Block) -> bool:
    """Return whether the block's label says that it is about the person.

    Args:
        block: The block; its text is not read.
    """
    return _name(block) in PERSON_LABELS


def _name(block: Block) -> str:
    return block.shown_label.rsplit("/", 1)[-1].casefold()


def fact_line(text: str) -> str:
    """Return the fact as one line without a bullet, cut to 400 characters.

    Args:
        text: A fact, as a model or a person wrote it.
    """
    line = " ".join(_BULLET.sub("", text).split())
    if len(line) <= LONGEST_FACT:
        return line
    return f"{line[: LONGEST_FACT - 1]}…"


def with_fact(text: str, fact: str) -> FactEdit | None:
    """Return the text with the fact added; None if the text has it already, or it is empty.

    The fact replaces a line that it makes untrue, or the value in this line.

    Args:
        text: The block's text.
        fact: The new fact, which becomes one line.
    """
    lines = text.split("\n") if text else []
    line = fact_line(fact)
    if not line or _has_fact(lines, line):
        return None
    if revised := revision_of(lines, line):
        return _with_line(lines, revised.index, revised.line)
    return FactEdit("\n".join([*lines, line]), after=line)


def with_correction(text: str, old: str, new: str) -> FactEdit | None:
    """Return the text with `new` in place of `old`.

    Args:
        text: The block's text.
        old: A line or a piece of one. If it names no line, `new` is added.
        new: The corrected fact or piece; empty to remove the line.

    Returns:
        The edit; None if the text has the new fact already, or there is no line to remove.
    """
    lines = text.split("\n") if text else []
    old = fact_line(old)
    new = fact_line(new)
    index = _find_line(lines, old)
    if index is None:
        if new:
            return with_fact(text, new)
        return None
    line = lines[index]
    if not new:
        return _with_line(lines, index, "")
    piece = _piece(line, old)
    if piece and piece != line.strip() and len(new.split()) <= len(old.split()) + 2:
        changed = line.replace(piece, new, 1)
    else:
        revised = revision_of([line], new)
        changed = revised.line if revised else new
    if _plain(changed) == _plain(line):
        return None
    return _with_line(lines, index, changed)


def _with_line(lines: Sequence[str], index: int, line: str) -> FactEdit:
    new_lines = [*lines[:index], *([line] if line else []), *lines[index + 1 :]]
    return FactEdit("\n".join(new_lines), before=lines[index].strip(), after=line.strip())


def _has_fact(lines: Sequence[str], fact: str) -> bool:
    plain_fact = _plain(fact)
    return any(
        _plain(line) == plain_fact or says_sentence(" ".join(line.split()), fact) for line in lines
    )


def _find_line(lines: Sequence[str], old: str) -> int | None:
    """Return the index of the line that the given words refer to.

    That is the last line that contains these words, or else the line that shares most of them. A
    line that shares fewer than half of them does not count, and words such as "my" never do.
    """
    old_terms = subject_terms(old)
    if not old_terms:
        same = [index for index, line in enumerate(lines) if old and _plain(line) == _plain(old)]
        return same[-1] if same else None
    holding = [index for index, line in enumerate(lines) if _piece(line, old)]
    if holding:
        return holding[-1]
    shares = [
        (len(old_terms & subject_terms(line)), index)
        for index, line in enumerate(lines)
        if line.strip()
    ]
    best = max(shares, default=(0, 0))
    if best[0] >= max(1, len(old_terms) * _SHARE):
        return best[1]
    return None


def _piece(line: str, phrase: str) -> str:
    """Return the words in the line's spelling; "" if the line lacks them."""
    if not phrase:
        return ""
    match = re.search(rf"(?<!\w){re.escape(phrase.rstrip('.'))}(?!\w)", line, re.IGNORECASE)
    if match:
        return match[0]
    return ""


def _plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.casefold()))
