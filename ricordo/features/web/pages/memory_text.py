"""A block's text in a form for people: lines of Markdown, or the fields of its schema.

The functions are pure.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from ricordo.domain.block_schema import BlockSchema, FieldValue, heading_key
from ricordo.errors import Invalid
from ricordo.memory.sections import read_sections

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

_DAY = re.compile(r"(?P<mark>\s*(?:[-*+]\s+)?)(?P<day>\d{4}-\d{2}-\d{2}):\s+")
_HEADING = re.compile(r"#{1,6}[ \t]+(?P<title>\S.*)")
_FENCES = ("fence", "code_block", "table_open", "blockquote_open", "html_block", "hr")


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Lines of a text that people read and change together; lines count from 1.

    `title` is the heading of a schema's field, and `hint` its description. `day` is a date at the
    start of the text, as YYYY-MM-DD; `text` is the text after it. `has_gap` is set if the piece
    follows an empty line.
    """

    first: int
    last: int
    text: str
    title: str = ""
    hint: str = ""
    day: str = ""
    has_gap: bool = False
    field: str = ""

    @property
    def lines(self) -> str:
        """Return the lines in the form of addresses and forms."""
        return f"{self.first}-{self.last}"


def pieces_of(text: str, schema: BlockSchema | None = None) -> list[TextPiece]:
    """Return the pieces of a text: its fields if it follows a schema, else its Markdown.

    Args:
        text: The block's text.
        schema: The block's schema; None for a block without one.
    """
    lines = text.split("\n")
    if schema and not read_sections(text, schema).problems:
        return _fields(lines, schema)
    pieces = []
    position = 0
    for first, end in [*_ranges(text, lines), (len(lines), len(lines))]:
        # Add lines between the ranges, such as definitions of links, which the parser does not
        # report.
        ranges = [(index, index + 1) for index in range(position, first)]
        for begin, after in [*ranges, (first, end)]:
            last = max((index for index in range(begin, after) if lines[index].strip()), default=-1)
            if last >= 0:
                has_gap = begin > 0 and not lines[begin - 1].strip()
                piece_text = "\n".join(lines[begin : last + 1])
                pieces.append(_piece(begin, last + 1, piece_text, has_gap=has_gap))
        position = end
    return pieces


def lines_named(lines: str) -> tuple[int, int]:
    """Read the lines of an address or a form.

    Args:
        lines: The numbers of the first and the last line, such as "3-4".

    Raises:
        Invalid: if the text has another form.
    """
    match = re.fullmatch(r"([1-9]\d{0,8})-([1-9]\d{0,8})", lines)
    if match is None or int(match[2]) < int(match[1]):
        raise Invalid("This line cannot be found. Load the page again.")
    return int(match[1]), int(match[2])


def with_lines(text: str, first: int, last: int, new_text: str | None) -> str:
    """Return the text with these lines replaced by others.

    Args:
        text: The text.
        first: The number of the first line to replace, from 1.
        last: The number of the last line to replace.
        new_text: The new lines; None removes the lines.

    Raises:
        Invalid: if the text has no such lines.
    """
    lines = text.split("\n")
    if last > len(lines):
        raise Invalid("The text is shorter now. Load the page again.")
    new_lines = [] if new_text is None else new_text.rstrip("\n").split("\n")
    return "\n".join([*lines[: first - 1], *new_lines, *lines[last:]])


def without_day(text: str) -> tuple[str, str]:
    """Return a day at the start of a line, and the rest of the line.

    The day is "" if there is none. A bullet before it stays in the rest.

    Args:
        text: The line, such as "- 2026-05-01: Likes tea". Further lines stay in the rest.
    """
    match = _DAY.match(text)
    if match is None:
        return "", text
    return match["day"], match["mark"] + text[match.end() :]


@dataclass(frozen=True, slots=True)
class PanelLine:
    """A line of a block next to a chat: `raw` as stored, and its parts in a form for people."""

    raw: str
    text: str
    day: str = ""
    is_heading: bool = False


def panel_lines(text: str) -> list[PanelLine]:
    """Return the lines of a text, with headings and days separate from the rest.

    Args:
        text: The text of a block, or its beginning.
    """
    lines = []
    for raw in text.split("\n"):
        if heading := _HEADING.match(raw):
            lines.append(
                PanelLine(raw, heading["title"].rstrip().rstrip("#").rstrip(), is_heading=True)
            )
            continue
        day, rest = without_day(raw)
        lines.append(PanelLine(raw, rest, day))
    return lines


def field_text(value: FieldValue) -> str:
    """Return a field's value in the form in which a form shows it.

    Args:
        value: The value of a schema's field; a list becomes one line for each entry.
    """
    if isinstance(value, tuple):
        return "\n".join(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)


def _piece(begin: int, end: int, text: str, *, has_gap: bool = False) -> TextPiece:
    day, rest = without_day(text)
    return TextPiece(begin + 1, end, rest.lstrip("-*+ ") if day else rest, day=day, has_gap=has_gap)


def _fields(lines: Sequence[str], schema: BlockSchema) -> list[TextPiece]:
    by_heading = schema.by_heading()
    starts = [index for index, line in enumerate(lines) if re.match(r"##(?:[ \t]|\Z)", line)]
    pieces = []
    for begin, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        field = by_heading[heading_key(lines[begin][2:].strip())]
        value = "\n".join(
            line[1:] if line.startswith("\\") else line for line in lines[begin + 1 : end]
        )
        is_day = field.kind == "date" and bool(value.strip())
        pieces.append(
            TextPiece(
                begin + 1,
                end,
                value.strip("\n"),
                day=value.strip() if is_day else "",
                title=field.title,
                hint=field.description,
                field=field.name,
            )
        )
    return pieces


def _ranges(text: str, lines: Sequence[str]) -> list[tuple[int, int]]:
    """Return the ranges of the pieces as indexes: the first line, and the line after the last."""
    ranges: list[tuple[int, int]] = []
    for token in _parser().parse(text):
        if token.map is None:
            continue
        begin, end = token.map
        end = min(end, len(lines))
        is_item = token.level == 1 and token.type == "list_item_open"
        if is_item or (token.level == 0 and token.type in (*_FENCES, "heading_open")):
            ranges.append((begin, end))
        elif token.level == 0 and token.type == "paragraph_open":
            ranges += [(index, index + 1) for index in range(begin, end)]
    return ranges


@cache
def _parser() -> "MarkdownIt":
    from markdown_it import MarkdownIt  # takes 30 ms, and only pages of memory need it

    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": 20})
    return parser.enable(["table"])
