"""The bracket format: a `[TAG]` a line with its values. Pure; the blocks define the tags.

Writing and reading are inverse. A line break within a value is written `\\n`. A backslash escapes a backslash and the separator of
the line's values; before anything else it stands for itself.
"""

import re
from collections.abc import Collection, Iterable

from ricordo.errors import Invalid

_TAGGED = re.compile(r"\[([A-Z]+)\] ?(.*)")
_QUOTED = re.compile(r"\\+\[")
# Control characters except tab and line break, and unpaired surrogates: a database or an encoding refuses them.
_UNREADABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


def clean(value: str) -> str:
    """The value as it is written: stripped, with one kind of line break, U+FFFD for what nobody can read. Raises Invalid."""
    return _UNREADABLE.sub("\ufffd", _one_break(value)).strip()


def clean_all(values: Iterable[str]) -> list[str]:
    """Clean the values and drop empty ones. Raises Invalid."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise Invalid(
            f"A list of texts was expected, and this is of type {type(values).__name__}. Put it into a list."
        )
    return [text for value in values if (text := clean(value))]


def escape(value: str, separator: str = "") -> str:
    """Escape a value for a line whose values are separated by `separator`."""
    value = value.replace("\\", "\\\\").replace("\n", "\\n")
    return value.replace(separator, "\\" + separator) if separator else value


def join(values: Iterable[str], separator: str) -> str:
    """Join the values of one tag: `a | b`, `a, b`, `a; b`."""
    between = " | " if separator == "|" else f"{separator} "
    return between.join(escape(value, separator) for value in values)


def split(text: str, separator: str = "") -> list[str]:
    """Split the values of a tag, empty ones included; the inverse of `join`."""
    values: list[str] = []
    signs: list[str] = []
    rest = iter(text)
    for sign in rest:
        if sign == separator:
            values.append(clean("".join(signs)))
            signs = []
        elif sign == "\\":
            signs.append(_unescaped(next(rest, ""), separator))
        else:
            signs.append(sign)
    return [*values, clean("".join(signs))]


def read_lines(text: str, tags: Collection[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Return the values of each tag in order, and all other lines that are not empty. Raises Invalid."""
    found: dict[str, list[str]] = {}
    others: list[str] = []
    for line in map(str.strip, _one_break(text).split("\n")):
        tagged = _TAGGED.match(line)
        if tagged and tagged[1] in tags:
            found.setdefault(tagged[1], []).append(tagged[2])
        elif line:
            others.append(_unquoted(line, tags))
    return found, clean_all(others)


def clean_lines(lines: Iterable[str]) -> list[str]:
    return clean_all(part for line in clean_all(lines) for part in line.split("\n"))


def write_lines(lines: Iterable[str], tags: Collection[str]) -> list[str]:
    """Write lines without a tag; one that looks like a tagged line gets a backslash."""
    return [_quoted(line, tags) for line in lines]


def _one_break(text: str) -> str:
    if not isinstance(text, str):
        raise Invalid(
            f"Memory holds texts, and this is of type {type(text).__name__}. Give a text."
        )
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _unescaped(sign: str, separator: str) -> str:
    if sign == "n":
        return "\n"
    return sign if sign and sign in ("\\", separator) else "\\" + sign


def _is_tagged(line: str, tags: Collection[str]) -> bool:
    tagged = _TAGGED.match(line)
    return bool(tagged and tagged[1] in tags)


def _quoted(line: str, tags: Collection[str]) -> str:
    return "\\" + line if _is_tagged(line.lstrip("\\"), tags) else line


def _unquoted(line: str, tags: Collection[str]) -> str:
    return line[1:] if _QUOTED.match(line) and _is_tagged(line.lstrip("\\"), tags) else line
