r"""Canonical text of a block with a schema: a section for each field.

Each section has a heading `## Title` and below it the field's value. Agents see and edit this text.

A value's line that looks like a heading, or like the gap between sections, gets a backslash in
front: `\## Not a heading`. Reading removes one backslash. All other text stays as it is.
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
from ricordo.domain.egress import LabelledSpan
from ricordo.errors import Invalid

# compact: no empty lines; spaced: an empty line between sections; open: also an empty line below
# each heading.
Layout = Literal["compact", "spaced", "open"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)

_PROBLEM_LIMIT = 20
_HEADING = re.compile(r"##(?:[ \t](.*))?", re.DOTALL)
_LIKE_A_HEADING = re.compile(r"\\*##(?:[ \t].*)?", re.DOTALL)
_LIKE_A_BLANK = re.compile(r"\\+\s*")
_ITEM = re.compile(r"[-*+](?:[ \t](.*))?", re.DOTALL)
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_NUMBER = re.compile(r"[+-]?[0-9]{1,400}(?:\.[0-9]{1,400})?(?:[eE][+-]?[0-9]{1,4})?")
_BOOLEANS = {"yes": True, "true": True, "no": False, "false": False}


@dataclass(frozen=True, order=True, slots=True)
class Problem:
    """One sentence about one line; lines count from 1."""

    line: int
    sentence: str

    def __str__(self) -> str:
        return f"Line {self.line}: {self.sentence}"


def refuse(problems: Iterable[Problem], source: str = "") -> NoReturn:
    """Raise Invalid with a line for each problem, in their order.

    Args:
        problems: The problems, of which at most 20 are named.
        source: The name of the text, if it is one of several; it precedes each problem.
    """
    ordered = sorted(set(problems))
    sentences = [
        f"{source}: {problem}" if source else str(problem) for problem in ordered[:_PROBLEM_LIMIT]
    ]
    if len(ordered) > _PROBLEM_LIMIT:
        more = [f"And {len(ordered) - _PROBLEM_LIMIT} more."]
    else:
        more = []
    raise Invalid("\n".join([*sentences, *more]))


@dataclass(frozen=True, slots=True)
class ParsedSections:
    """Fields of a text in their order, problems, and missing or empty required fields.

    A field with a problem is not among `fields`.
    """

    fields: Mapping[str, FieldValue]
    problems: tuple[Problem, ...] = ()
    missing: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class _Section:
    line: int
    heading: str
    lines: list[str]


def starting_text(schema: BlockSchema) -> str:
    """Return the text of a new block: the schema's defaults.

    Args:
        schema: The block's schema. A field without a default gets an empty section.
    """
    return write_sections(
        {
            field.name: field.empty if field.default is None else field.default
            for field in schema.fields
        },
        schema,
    )


def write_sections(
    fields: Mapping[str, FieldValue], schema: BlockSchema, layout: Layout = "compact"
) -> str:
    """Return the text of these values, in their order.

    Args:
        fields: The values by the names of the schema's fields. Each must fit its field.
        schema: The schema, which must have all these fields.
        layout: The empty lines between sections and below headings.
    """
    titles = {field.name: field.title for field in schema.fields}
    sections: list[str] = []
    for name, field_value in fields.items():
        lines = _lines_of(field_value)
        if lines and layout == "open":
            blank = [""]
        else:
            blank = []
        sections.append("\n".join([f"## {titles[name]}", *blank, *lines]))
    return ("\n" if layout == "compact" else "\n\n").join(sections)


def read_sections(text: str, schema: BlockSchema) -> ParsedSections:
    """Read a text's fields by a schema.

    Args:
        text: The block's text, which may violate the schema.
        schema: The block's schema.

    Returns:
        The fields without a problem, and the problems with lines from 1.
    """
    lines = text.split("\n")
    if lines[0].endswith("\r"):
        # We write headings without "\r". If one has it, the whole text comes from a system that
        # uses "\r".
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
    seen_names: set[str] = set()
    by_heading = schema.by_heading()
    headings = ", ".join(f'"## {schema_field.title}"' for schema_field in schema.fields)
    for section in sections:
        field = by_heading.get(heading_key(section.heading))
        if field is None:
            problems.append(
                Problem(
                    section.line,
                    f'"{section.heading[:80]}" is not a field of "{schema.name}". Use one of '
                    f'{headings}, or write "\\##" where the line belongs to the text above it.',
                )
            )
        elif field.name in seen_names:
            problems.append(
                Problem(section.line, f'"{field.title}" occurs twice. Keep one of the two.')
            )
        else:
            seen_names.add(field.name)
            field_value, field_problems = _value(field, section)
            problems += field_problems
            if field_problems:
                continue
            fields[field.name] = field_value
            if field.lacks(field_value):
                missing.append(
                    Problem(section.line, f'"{field.title}" is required and empty. Fill it in.')
                )
    for schema_field in schema.fields:
        if schema_field.required and schema_field.name not in seen_names:
            missing.append(
                Problem(
                    len(lines),
                    f'"{schema_field.title}" is required and missing. '
                    f'Add a line "## {schema_field.title}".',
                )
            )
    return ParsedSections(fields, tuple(problems), tuple(missing))


def layout_of(text: str, schema: BlockSchema, reading: ParsedSections) -> Layout | None:
    """Return the layout of a text.

    Args:
        text: The block's text.
        schema: The block's schema.
        reading: The result of `read_sections` for both.

    Returns:
        The layout; None if every layout would change the text.
    """
    if reading.problems:
        return None
    return next(
        (layout for layout in LAYOUTS if write_sections(reading.fields, schema, layout) == text),
        None,
    )


def _split(lines: Sequence[str]) -> tuple[int | None, list[_Section]]:
    """Return the line of the first text above all headings, and the sections."""
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


def labelled_spans(text: str, schema: BlockSchema) -> list[LabelledSpan]:
    """Return the lines below the headings of fields that have an egress policy.

    Args:
        text: The block's text, which may violate the schema.
        schema: The block's schema.
    """
    by_heading = schema.by_heading()
    spans: list[LabelledSpan] = []
    for section in _split(text.split("\n"))[1]:
        field = by_heading.get(heading_key(section.heading))
        if field and field.egress:
            end = section.line + len(section.lines)
            spans.append(LabelledSpan(field.name, field.egress, section.line, end))
    return spans


def _value(field: SchemaField, section: _Section) -> tuple[FieldValue, list[Problem]]:
    """Read a field's value from its section, or report why it does not fit."""
    lines = section.lines
    start = next((index for index, line in enumerate(lines) if line.strip()), len(lines))
    end = next((index for index in range(len(lines), start, -1) if lines[index - 1].strip()), start)
    first = section.line + 1 + start
    lines = lines[start:end]
    problem_line = first if lines else section.line
    field_value: FieldValue
    if field.kind == "list":
        field_value, problem = _items(lines, field, first)
        if problem:
            return None, [problem]
    elif field.kind in ("string", "text"):
        field_value = "\n".join(_bare(line) for line in lines)
    elif len(lines) > 1:
        return None, [
            Problem(problem_line, f'"{field.title}" must be one line. Remove the other lines.')
        ]
    elif lines:
        field_value = _plain(field.kind, lines[0].strip())
    else:
        field_value = None
    fault = field.fault(field_value)
    return field_value, [Problem(problem_line, f'"{field.title}" {fault}')] if fault else []


def _items(
    lines: Sequence[str], field: SchemaField, first: int
) -> tuple[tuple[str, ...], Problem | None]:
    entries: list[list[str]] = []
    for number, line in enumerate(lines, first):
        if not line.strip():
            continue
        if bullet := _ITEM.fullmatch(line):
            entries.append([bullet[1] or ""])
        elif entries and line.startswith(("  ", "\t")):
            entries[-1].append(line.removeprefix("\t") if line.startswith("\t") else line[2:])
        else:
            sentence = (
                f'"{field.title}" is a list. Begin each item with "- ", and further lines of an '
                "item with two spaces."
            )
            return (), Problem(number, sentence)
    return tuple("\n".join(map(_unmarked, entry)) for entry in entries), None


def _plain(kind: FieldKind, text: str) -> FieldValue:
    """Return the value of a field whose kind is not text.

    A value that cannot be read as that kind is returned as text.
    """
    is_whole = _INTEGER.fullmatch(text) and abs(int(text)) <= LARGEST
    match kind:
        case "boolean":
            return _BOOLEANS.get(text.casefold(), text)
        case "integer" | "number" if is_whole:
            return int(text)
        case "number" if _NUMBER.fullmatch(text):
            return float(text)
        case "date":
            with suppress(ValueError):
                return date.fromisoformat(text)
    return text


def _lines_of(field_value: FieldValue) -> list[str]:
    match field_value:
        case None | "":
            return []
        case bool():
            return ["yes" if field_value else "no"]
        case int() | float():
            return [repr(field_value)]
        case date():
            return [field_value.isoformat()]
        case str():
            lines = [_escaped(line) for line in field_value.split("\n")]
            for edge in {0, len(lines) - 1}:
                lines[edge] = lines[edge] if lines[edge].strip() else "\\" + lines[edge]
            return lines
        case tuple():
            return [line for entry in field_value for line in _entry_lines(entry)]


def _entry_lines(entry: str) -> list[str]:
    if not entry:
        return ["-"]
    first, *others = [_marked(line) for line in entry.split("\n")]
    return [f"- {first}", *(f"  {line}" for line in others)]


def _escaped(line: str) -> str:
    if _LIKE_A_HEADING.fullmatch(line) or _LIKE_A_BLANK.fullmatch(line):
        return "\\" + line
    return line


def _bare(line: str) -> str:
    is_escaped = line.startswith("\\") and (
        _LIKE_A_HEADING.fullmatch(line) or _LIKE_A_BLANK.fullmatch(line)
    )
    if is_escaped:
        return line[1:]
    return line


def _marked(line: str) -> str:
    if not line.strip() or _LIKE_A_BLANK.fullmatch(line):
        return "\\" + line
    return line


def _unmarked(line: str) -> str:
    if _LIKE_A_BLANK.fullmatch(line):
        return line[1:]
    return line
