"""The canonical text of a block that has a schema: a section `## Title` a field, its value below. What agents see and edit.

A line of a value that would be taken for a heading, or for the empty space between sections, gets a backslash in front:
`\\## Not a heading`. Reading takes one backslash away again. All other text stands as it is.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from typing import Literal, NoReturn, get_args

from ricordo.domain.block_schema import (
    LARGEST,
    BlockSchema,
    FieldKind,
    FieldValue,
    SchemaField,
    heading_key,
)
from ricordo.errors import Invalid

# compact: nothing between sections; spaced: an empty line; open: one below each heading, too.
Layout = Literal["compact", "spaced", "open"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)

_MOST_PROBLEMS = 20
_HEADING = re.compile(r"##(?:[ \t](.*))?", re.DOTALL)
_LIKE_A_HEADING = re.compile(r"\\*##(?:[ \t].*)?", re.DOTALL)
_LIKE_A_BLANK = re.compile(r"\\+\s*")
_ITEM = re.compile(r"[-*+](?:[ \t](.*))?", re.DOTALL)
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_NUMBER = re.compile(r"[+-]?[0-9]{1,400}(?:\.[0-9]{1,400})?(?:[eE][+-]?[0-9]{1,4})?")
_BOOLEANS = {"yes": True, "true": True, "no": False, "false": False}


@dataclass(frozen=True, order=True, slots=True)
class Problem:
    """One sentence about one line, counted from 1."""

    line: int
    sentence: str

    def __str__(self) -> str:
        return f"Line {self.line}: {self.sentence}"


def refuse(problems: Iterable[Problem], where: str = "") -> NoReturn:
    """Raise Invalid with a line for each problem, in their order; `where` names the text, if it is one of several."""
    ordered = sorted(set(problems))
    told = [
        f"{where}: {problem}" if where else str(problem) for problem in ordered[:_MOST_PROBLEMS]
    ]
    more = [f"And {len(ordered) - _MOST_PROBLEMS} more."] if len(ordered) > _MOST_PROBLEMS else []
    raise Invalid("\n".join([*told, *more]))


@dataclass(frozen=True, slots=True)
class ParsedSections:
    """A text field by field in its order, what does not follow the schema, and what is required and missing."""

    fields: Mapping[str, FieldValue]
    problems: tuple[Problem, ...] = ()
    missing: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class _Section:
    line: int
    heading: str
    lines: list[str]


def starting_text(schema: BlockSchema) -> str:
    return write_sections(
        {each.name: each.empty if each.default is None else each.default for each in schema.fields},
        schema,
    )


def write_sections(
    fields: Mapping[str, FieldValue], schema: BlockSchema, layout: Layout = "compact"
) -> str:
    """The text that says these values, in their order. Every name must be one of the schema's, and every value fit its field."""
    titles = {each.name: each.title for each in schema.fields}
    sections: list[str] = []
    for name, value in fields.items():
        lines = _lines_of(value)
        blank = [""] if lines and layout == "open" else []
        sections.append("\n".join([f"## {titles[name]}", *blank, *lines]))
    return ("\n" if layout == "compact" else "\n\n").join(sections)


def read_sections(text: str, schema: BlockSchema) -> ParsedSections:
    """What a text says by a schema. Lines count from 1; fields with a problem are left out."""
    lines = text.split("\n")
    if lines[0].endswith("\r"):
        # Headings are written without it, so all of the text came from where lines end so.
        lines = [line.removesuffix("\r") for line in lines]
    before, sections = _split(lines)
    problems: list[Problem] = []
    missing: list[Problem] = []
    if before:
        problems.append(
            Problem(
                before, 'there is text before the first heading. Put it below a line "## Title".'
            )
        )
    fields: dict[str, FieldValue] = {}
    headed: set[str] = set()
    by_heading = schema.by_heading()
    known = ", ".join(f'"## {each.title}"' for each in schema.fields)
    for section in sections:
        field = by_heading.get(heading_key(section.heading))
        if field is None:
            problems.append(
                Problem(
                    section.line,
                    f'"{section.heading[:80]}" is no field of "{schema.name}". Use one of {known}, '
                    'or write "\\##" where the line belongs to the text above it.',
                )
            )
        elif field.name in headed:
            problems.append(
                Problem(section.line, f'"{field.title}" occurs twice. Keep one of the two.')
            )
        else:
            headed.add(field.name)
            value, found = _value(field, section)
            problems += found
            if found:
                continue
            fields[field.name] = value
            if field.lacks(value):
                missing.append(
                    Problem(section.line, f'"{field.title}" is required and empty. Fill it in.')
                )
    for each in schema.fields:
        if each.required and each.name not in headed:
            missing.append(
                Problem(
                    len(lines),
                    f'"{each.title}" is required and missing. Add a line "## {each.title}".',
                )
            )
    return ParsedSections(fields, tuple(problems), tuple(missing))


def layout_of(text: str, schema: BlockSchema, reading: ParsedSections) -> Layout | None:
    """How a text is laid out, None where its values, written in any layout, would give another text."""
    if reading.problems:
        return None
    return next(
        (layout for layout in LAYOUTS if write_sections(reading.fields, schema, layout) == text),
        None,
    )


def _split(lines: Sequence[str]) -> tuple[int | None, list[_Section]]:
    """The line of the first text that stands above all headings, and the sections."""
    before: int | None = None
    sections: list[_Section] = []
    for number, line in enumerate(lines, 1):
        if heading := _HEADING.fullmatch(line):
            sections.append(_Section(number, (heading[1] or "").strip(), []))
        elif sections:
            sections[-1].lines.append(line)
        elif line.strip() and before is None:
            before = number
    return before, sections


def _value(field: SchemaField, section: _Section) -> tuple[FieldValue, list[Problem]]:
    lines = section.lines
    start = next((place for place, line in enumerate(lines) if line.strip()), len(lines))
    end = next((place for place in range(len(lines), start, -1) if lines[place - 1].strip()), start)
    first, lines = section.line + 1 + start, lines[start:end]
    where = first if lines else section.line
    value: FieldValue
    if field.kind == "list":
        value, problem = _items(lines, field, first)
        if problem:
            return None, [problem]
    elif field.kind in ("string", "text"):
        value = "\n".join(_bare(line) for line in lines)
    elif len(lines) > 1:
        return None, [
            Problem(where, f'"{field.title}" must be one line. Take the other lines out.')
        ]
    else:
        value = _plain(field.kind, lines[0].strip()) if lines else None
    fault = field.fault(value)
    return value, [Problem(where, f'"{field.title}" {fault}')] if fault else []


def _items(
    lines: Sequence[str], field: SchemaField, first: int
) -> tuple[tuple[str, ...], Problem | None]:
    items: list[list[str]] = []
    for number, line in enumerate(lines, first):
        if not line.strip():
            continue
        if item := _ITEM.fullmatch(line):
            items.append([item[1] or ""])
        elif items and line.startswith(("  ", "\t")):
            items[-1].append(line.removeprefix("\t") if line.startswith("\t") else line[2:])
        else:
            sentence = f'"{field.title}" is a list. Begin each item with "- ", and further lines of an item with two spaces.'
            return (), Problem(number, sentence)
    return tuple("\n".join(_unmarked(line) for line in item) for item in items), None


def _plain(kind: FieldKind, words: str) -> FieldValue:
    """The value of a field that is no text; the words themselves where they say none of its kind."""
    is_whole = _INTEGER.fullmatch(words) and abs(int(words)) <= LARGEST
    match kind:
        case "boolean":
            return _BOOLEANS.get(words.casefold(), words)
        case "integer" | "number" if is_whole:
            return int(words)
        case "number" if _NUMBER.fullmatch(words):
            return float(words)
        case "date":
            with suppress(ValueError):
                return date.fromisoformat(words)
    return words


def _lines_of(value: FieldValue) -> list[str]:
    match value:
        case None | "":
            return []
        case bool():
            return ["yes" if value else "no"]
        case int() | float():
            return [repr(value)]
        case date():
            return [value.isoformat()]
        case str():
            lines = [_escaped(line) for line in value.split("\n")]
            for edge in {0, len(lines) - 1}:
                lines[edge] = lines[edge] if lines[edge].strip() else "\\" + lines[edge]
            return lines
        case tuple():
            return [line for item in value for line in _item_lines(item)]


def _item_lines(item: str) -> list[str]:
    if not item:
        return ["-"]
    first, *others = [_marked(line) for line in item.split("\n")]
    return [f"- {first}", *(f"  {line}" for line in others)]


def _escaped(line: str) -> str:
    return "\\" + line if _LIKE_A_HEADING.fullmatch(line) or _LIKE_A_BLANK.fullmatch(line) else line


def _bare(line: str) -> str:
    is_escaped = line.startswith("\\") and (
        _LIKE_A_HEADING.fullmatch(line) or _LIKE_A_BLANK.fullmatch(line)
    )
    return line[1:] if is_escaped else line


def _marked(line: str) -> str:
    return "\\" + line if not line.strip() or _LIKE_A_BLANK.fullmatch(line) else line


def _unmarked(line: str) -> str:
    return line[1:] if _LIKE_A_BLANK.fullmatch(line) else line
