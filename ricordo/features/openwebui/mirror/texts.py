"""Which lines of a text somebody changed in Open WebUI, which writes the others in its own way too.

Its editor of notes writes Markdown anew (`- a` as `*   a`, `*x*` as `_x_`), and what it searches in files has other quotation
marks and line ends. Lines that say the same stay as they were here.
"""

import re
import unicodedata
from collections.abc import Callable
from difflib import SequenceMatcher

_QUOTES = str.maketrans("‘’‚“”„«»", '\'\'\'"""""')
_ESCAPED = re.compile(r"\\([^\w\s])")
_ITEM = re.compile(r"^[-*+•]\s+")
_NUMBERED = re.compile(r"^(\d+)[.)]\s+")
_RULE = re.compile(r"^([-*_])(\s*\1){2,}$")
_UNDERLINES = re.compile(r"(?<!\w)(_{1,2})(?=\S)(.+?)(?<=\S)\1(?!\w)")
_DASHES = re.compile(r"-{3,}")
_INDENT = re.compile(r"^(\s*)[*+-]\s+(?=\S)")
Key = Callable[[str], str]


def plain_key(line: str) -> str:
    """A line of a file as it is compared: the same with other quotation marks, spaces and forms of letters."""
    return " ".join(unicodedata.normalize("NFKC", line).translate(_QUOTES).split())


def markdown_key(line: str) -> str:
    """A line of Markdown as it is compared: the same in the ways in which editors write it."""
    line = _ESCAPED.sub(r"\1", " ".join(unicodedata.normalize("NFC", line).split()))
    if _RULE.match(line):
        return "---"
    line = _NUMBERED.sub(r"\1. ", _ITEM.sub("- ", line))
    line = _UNDERLINES.sub(
        lambda found: f"{'*' * len(found[1])}{found[2]}{'*' * len(found[1])}", line
    )
    return (
        _DASHES.sub("---", "|".join(cell.strip() for cell in line.split("|")))
        .removesuffix("\\")
        .strip()
    )


def says_the_same(one: str, other: str, key: Key) -> bool:
    """Whether two texts differ in nothing but how their lines are written and broken."""
    return _whole(one, key) == _whole(other, key)


def carried_over(before: str, there: str, key: Key) -> str:
    """The text as it is there, with the lines of `before` as they were where they say the same.

    >>> carried_over("- a\\n- b", "*   a\\n    \\n*   c", markdown_key)
    '- a\\n\\n- c'
    """
    if says_the_same(before, there, key):
        return before
    old, new = _lines(before), _lines(there)
    matcher = SequenceMatcher(
        None, [key(line) for line, _ in old], [key(line) for line, _ in new], autojunk=False
    )
    made: list[str] = []
    for tag, start, end, start_new, end_new in matcher.get_opcodes():
        theirs = [(_written(line, key), blanks) for line, blanks in new[start_new:end_new]]
        for line, blanks in old[start:end] if tag == "equal" else theirs:
            made += [*([""] * blanks if made else ()), line]
    return "\n".join(made) + before[len(before.rstrip("\n")) :]


def _lines(text: str) -> list[tuple[str, int]]:
    """The lines that are not blank, each with how many blank ones stand before it."""
    found, blanks = list[tuple[str, int]](), 0
    for line in text.split("\n"):
        if line.strip():
            found.append((line, blanks))
            blanks = 0
        else:
            blanks += 1
    return found


def _whole(text: str, key: Key) -> str:
    return " ".join(key(line) for line, _ in _lines(text))


def _written(line: str, key: Key) -> str:
    """A line that is new, as people write it."""
    return _INDENT.sub(r"\1- ", line.rstrip()) if key is markdown_key else line.rstrip("\r")
