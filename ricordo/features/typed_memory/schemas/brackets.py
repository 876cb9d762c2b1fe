r"""The bracket format: one line for each tag, `[TAG]` and its values.

The blocks define the tags. Writing and reading are inverse. A line break within a value is written
`\n`. A backslash escapes a backslash and the separator of the line; before any other character it
is literal.
"""

import re
from collections.abc import Collection, Iterable

from ricordo.errors import Invalid

_TAGGED = re.compile(r"\[([A-Z]+)\] ?(.*)")
_QUOTED = re.compile(r"\\+\[")
# Characters that databases or encodings refuse: control characters except tab and line break, and
# unpaired surrogates.
_UNREADABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


def clean(value: str) -> str:
    """Return the value in the form in which it is written. Raises Invalid.

    It is stripped, has line feeds only, and has U+FFFD for characters that cannot be stored.

    Args:
        value: A text.

    Raises:
        Invalid: It is not text.
    """
    return _UNREADABLE.sub("\ufffd", _with_one_break(value)).strip()


def clean_all(values: Iterable[str]) -> list[str]:
    """Clean the values and drop empty ones.

    Args:
        values: Texts.

    Raises:
        Invalid: They are not a list, or one of them is not text.
    """
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise Invalid(
            f"A list of texts was expected, but this is of type {type(values).__name__}. Put it "
            "into a list."
        )
    return [text for value in values if (text := clean(value))]


def escape(value: str, separator: str = "") -> str:
    """Escape a value for a line whose values are separated by `separator`.

    Args:
        value: A cleaned value.
        separator: One character; "": the line has one value.
    """
    value = value.replace("\\", "\\\\").replace("\n", "\\n")
    return value.replace(separator, "\\" + separator) if separator else value


def join(values: Iterable[str], separator: str) -> str:
    """Join the values of one tag: `a | b`, `a, b`, `a; b`.

    Args:
        values: Cleaned values.
        separator: One character.
    """
    between = " | " if separator == "|" else f"{separator} "
    return between.join(escape(value, separator) for value in values)


def split(text: str, separator: str = "") -> list[str]:
    """Split the values of a tag, empty ones included; the inverse of `join`.

    Args:
        text: The line after its tag.
        separator: One character; "": the line has one value.
    """
    values: list[str] = []
    characters: list[str] = []
    rest = iter(text)
    for character in rest:
        if character == separator:
            values.append(clean("".join(characters)))
            characters = []
        elif character == "\\":
            characters.append(_unescape(next(rest, ""), separator))
        else:
            characters.append(character)
    return [*values, clean("".join(characters))]


def read_lines(text: str, tags: Collection[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Return the values of each tag in order, and the other non-empty lines.

    Args:
        text: The text of a block.
        tags: The tags to read; a line with another tag is one of the other lines.

    Raises:
        Invalid: It is not text.
    """
    by_tag: dict[str, list[str]] = {}
    other_lines: list[str] = []
    for line in map(str.strip, _with_one_break(text).split("\n")):
        match = _TAGGED.match(line)
        if match and match[1] in tags:
            by_tag.setdefault(match[1], []).append(match[2])
        elif line:
            other_lines.append(_unquote(line, tags))
    return by_tag, clean_all(other_lines)


def clean_lines(lines: Iterable[str]) -> list[str]:
    """Clean the lines, and split those with line breaks.

    Args:
        lines: Texts.

    Raises:
        Invalid: They are not a list, or one of them is not text.
    """
    return clean_all(part for line in clean_all(lines) for part in line.split("\n"))


def write_lines(lines: Iterable[str], tags: Collection[str]) -> list[str]:
    """Write lines without a tag.

    A line that looks like a tagged line gets a backslash.

    Args:
        lines: The lines, without line breaks.
        tags: The tags of the block.
    """
    return [_quote(line, tags) for line in lines]


def _with_one_break(text: str) -> str:
    if not isinstance(text, str):
        raise Invalid(
            f"Memory holds texts, but this is of type {type(text).__name__}. Give a text."
        )
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _unescape(character: str, separator: str) -> str:
    if character == "n":
        return "\n"
    return character if character and character in ("\\", separator) else "\\" + character


def _is_tagged(line: str, tags: Collection[str]) -> bool:
    match = _TAGGED.match(line)
    return bool(match and match[1] in tags)


def _quote(line: str, tags: Collection[str]) -> str:
    return "\\" + line if _is_tagged(line.lstrip("\\"), tags) else line


def _unquote(line: str, tags: Collection[str]) -> str:
    return line[1:] if _QUOTED.match(line) and _is_tagged(line.lstrip("\\"), tags) else line
