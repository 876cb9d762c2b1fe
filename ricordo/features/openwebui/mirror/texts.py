"""Distinguish a user's edits of a text from changes that Open WebUI itself makes.

Open WebUI's note editor rewrites Markdown (`- a` as `*   a`, `*x*` as `_x_`). The texts that it
extracts from files have other quotation marks and line ends. A line with an unchanged meaning keeps
our form.
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
    """Return a line of a file with its quotes, spaces and letter forms normalized.

    Args:
        line: One line.
    """
    return " ".join(unicodedata.normalize("NFKC", line).translate(_QUOTES).split())


def markdown_key(line: str) -> str:
    """Return a line of Markdown in one form for all editors.

    Args:
        line: One line of a note.
    """
    line = _ESCAPED.sub(r"\1", " ".join(unicodedata.normalize("NFC", line).split()))
    if _RULE.match(line):
        return "---"
    line = _NUMBERED.sub(r"\1. ", _ITEM.sub("- ", line))
    line = _UNDERLINES.sub(_with_asterisks, line)
    cells = "|".join(cell.strip() for cell in line.split("|"))
    return _DASHES.sub("---", cells).removesuffix("\\").strip()


def _with_asterisks(emphasis: re.Match[str]) -> str:
    marks = "*" * len(emphasis[1])
    return f"{marks}{emphasis[2]}{marks}"


def says_the_same(text: str, other: str, key: Key) -> bool:
    """Return True for texts that differ only in the form of their lines.

    Blank lines and line breaks do not count.

    Args:
        text: A text.
        other: The text that it is compared with.
        key: `plain_key` for files, `markdown_key` for notes.
    """
    return _whole(text, key) == _whole(other, key)


def carried_over(before: str, edited: str, key: Key) -> str:
    r"""Return the edited text, with unchanged lines in their form in `before`.

    >>> carried_over("- a\n- b", "*   a\n    \n*   c", markdown_key)
    '- a\n\n- c'

    Args:
        before: The text before the edit, in our form. Its line breaks at the end are used.
        edited: The text as Open WebUI returns it.
        key: `plain_key` for files, `markdown_key` for notes.
    """
    if says_the_same(before, edited, key):
        return before
    old_lines = _lines(before)
    new_lines = _lines(edited)
    matcher = SequenceMatcher(
        None,
        [key(line) for line, _ in old_lines],
        [key(line) for line, _ in new_lines],
        autojunk=False,
    )
    lines: list[str] = []
    for tag, old_start, old_end, new_start, new_end in matcher.get_opcodes():
        if tag == "equal":
            section = old_lines[old_start:old_end]
        else:
            section = [
                (_normal_line(line, key), blanks) for line, blanks in new_lines[new_start:new_end]
            ]
        for line, blanks in section:
            if lines:
                lines += [""] * blanks
            lines.append(line)
    return "\n".join(lines) + before[len(before.rstrip("\n")) :]


def _lines(text: str) -> list[tuple[str, int]]:
    """Return the lines that have text, each with the number of blank lines before it."""
    lines: list[tuple[str, int]] = []
    blanks = 0
    for line in text.split("\n"):
        if line.strip():
            lines.append((line, blanks))
            blanks = 0
        else:
            blanks += 1
    return lines


def _whole(text: str, key: Key) -> str:
    return " ".join(key(line) for line, _ in _lines(text))


def _normal_line(line: str, key: Key) -> str:
    """Return a new line in the form that people usually write."""
    return _INDENT.sub(r"\1- ", line.rstrip()) if key is markdown_key else line.rstrip("\r")
