"""A block as people see and edit it: Markdown and TOML, both ways without loss.

The canonical text, which agents see, is the truth. Markdown is that text below a front matter. TOML shows the fields where the
text follows the block's schema, and otherwise the text as it stands. Both say so where a text does not follow its schema.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any, Literal, cast

from ricordo.domain.block import require_label
from ricordo.domain.block_format import BlockFormat, ParsedBlock
from ricordo.domain.block_schema import (
    RESERVED,
    BlockSchema,
    FieldKind,
    FieldValue,
    SchemaField,
    same_headings,
)
from ricordo.errors import Invalid
from ricordo.memory import sections
from ricordo.memory.schemas import Lines, read_toml

# Whether a text follows its schema: wholly, but for required fields that are still empty, or not at all.
Form = Literal["complete", "incomplete", "free"]
_MARKED: tuple[Form, ...] = ("incomplete", "free")  # what `format` can say

_ESCAPES = {
    '"': '\\"',
    "\\": "\\\\",
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\f": "\\f",
    "\r": "\\r",
}
_NEEDS_ESCAPE = re.compile(r'["\\\x00-\x1f\x7f]')
# In a text of several lines, line breaks and tabs stand as they are. Of three quotes in a row the third is escaped, and the last
# one of the text, as the closing quotes come behind it.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_NEEDS_LONG_ESCAPE = re.compile(rf'\\|{_CONTROL.pattern}|(?<="")"|"\Z')
_WIDEST = 100

_KINDS: dict[type, FieldKind] = {
    bool: "boolean",
    str: "text",
    int: "integer",
    float: "number",
    date: "date",
}
_FENCE = "---"
_PAIR = re.compile(r"([A-Za-z_]+):(.*)")
# Labels that look like words stand without quotes; programs that read YAML take the others for something else.
_WORDS = re.compile(
    r"(?!(?:yes|no|on|off|true|false|null|y|n)\Z)[^\W\d](?:[\w/ .-]*[\w/.-])?", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class ParsedText(ParsedBlock):
    """What was written, with the values of its fields. Free if it follows no schema, with fields only where TOML names them."""

    fields: Mapping[str, FieldValue] = field(default_factory=dict)
    form: Form = "free"


def to_markdown(block_label: str, text: str, schema: BlockSchema | None) -> str:
    """The text below a front matter with the block's label and schema, and with a `format` where it does not follow the schema."""
    label = (
        block_label
        if _WORDS.fullmatch(block_label)
        else json.dumps(block_label, ensure_ascii=False)
    )
    form = _form(sections.read_sections(text, schema)) if schema else "complete"
    marked = [f"format: {form}"] if form in _MARKED else []
    if schema:
        marked.insert(0, f"schema: {schema.name}")
    return "\n".join([_FENCE, f"block: {label}", *marked, _FENCE, text]) + "\n"


def from_markdown(text: str, schema: BlockSchema | None) -> ParsedText:
    """What `to_markdown` wrote and people may have edited, by the schema that it names. Raises Invalid with all lines."""
    text = text.removeprefix("\ufeff")
    head, below, problems = _front_matter(text)
    if problems:
        sections.refuse(problems)
    first_line = len(head) + 3 if head else 1
    named = head.get("schema")
    if schema is not None and named not in (None, schema.name):
        schema = None
    parsed = _checked(
        head.get("block"), below, schema, head.get("format"), lambda line: line + first_line - 1
    )
    return replace(parsed, schema_ref=named)


def to_toml(label: str, text: str, schema: BlockSchema | None) -> str:
    """The label and the fields; without a schema, and where fields could not give the same text back, the label and a `body`."""
    shown: dict[str, FieldValue] = {"block": label}
    if schema is None:
        return write_toml({**shown, "body": text})
    reading = sections.read_sections(text, schema)
    layout, form = sections.layout_of(text, schema, reading), _form(reading)
    if form in _MARKED:
        shown["format"] = form
    if layout is None or not reading.fields:
        return write_toml({**shown, "body": text})
    if layout != sections.LAYOUTS[0]:
        shown["layout"] = layout
    return write_toml({**shown, **reading.fields})


def from_toml(text: str, schema: BlockSchema | None) -> ParsedText:
    """What `to_toml` wrote and people may have edited; fields without schema become sections. Raises Invalid with all lines."""
    text = text.removeprefix("\ufeff")
    table, lines = read_toml(text), Lines(text)
    fields = {key: value for key, value in table.items() if key not in RESERVED}
    if problems := _odd_words(table, fields, lines):
        sections.refuse(problems)
    label, form = table.get("block"), table.get("format")
    if "body" in table:
        return _checked(
            label,
            table["body"],
            schema,
            form,
            lambda line: lines.line_in(table["body"], line, "body"),
        )
    meant = schema or _as_written(fields, lines)
    values, problems, missing = _values(fields, meant, lines)
    if problems := problems + ([] if form == "incomplete" else missing):
        sections.refuse(problems)
    written = sections.write_sections(
        values, meant, cast(sections.Layout, table.get("layout", sections.LAYOUTS[0]))
    )
    return ParsedText(
        label,
        written,
        values,
        "free" if schema is None else "incomplete" if missing else "complete",
    )


def _form(reading: sections.ParsedSections) -> Form:
    return "free" if reading.problems else "incomplete" if reading.missing else "complete"


def _checked(
    label: str | None,
    text: str,
    schema: BlockSchema | None,
    marked: str | None,
    line_of: Callable[[int], int],
) -> ParsedText:
    """The text with its fields, unless it follows the schema less than it is marked to; `line_of` places its lines."""
    if schema is None:
        return ParsedText(label, text)
    reading = sections.read_sections(text, schema)
    form = _form(reading)
    allowed = _MARKED[: _MARKED.index(cast(Form, marked)) + 1] if marked else ()
    if form != "complete" and form not in allowed:
        problems = reading.problems + (() if "incomplete" in allowed else reading.missing)
        sections.refuse(sections.Problem(line_of(each.line), each.sentence) for each in problems)
    return ParsedText(label, text, {} if form == "free" else reading.fields, form)


def _front_matter(text: str) -> tuple[dict[str, str], str, list[sections.Problem]]:
    """The front matter, the text below it, and what is wrong with the former. A last line break ends the file, not the text."""
    lines = text.split("\n")
    is_there = (
        len(lines) > 1 and lines[0].rstrip() == _FENCE and bool(_PAIR.fullmatch(lines[1].rstrip()))
    )
    if lines[0].endswith("\r") and (is_there or text.count("\r\n") == text.count("\n")):
        # We write no such line ends: the editor changed all of them.
        text = text.replace("\r\n", "\n")
        lines = text.split("\n")
    if not is_there:
        return {}, text.removesuffix("\n"), []
    head: dict[str, str] = {}
    problems: list[sections.Problem] = []
    for number, line in enumerate(lines[1:], 2):
        if line.rstrip() == _FENCE:
            return head, "\n".join(lines[number:]).removesuffix("\n"), problems
        pair = _PAIR.fullmatch(line.rstrip())
        key, value = (pair[1], pair[2].strip()) if pair else (line.strip()[:80], "")
        if key in head:
            problems.append(sections.Problem(number, f'"{key}" occurs twice. Keep one of the two.'))
        elif key == "block":
            problems += _label_problem(value := _unquoted(value), number)
        elif key == "schema":
            value = _unquoted(value)
        elif key != "format":
            problems.append(
                sections.Problem(
                    number,
                    f'"{key}" is not known here. Use block, schema and format, or put it below the second ---.',
                )
            )
        elif value not in _MARKED:
            problems.append(
                sections.Problem(
                    number,
                    f'"format" can be {" or ".join(_MARKED)}. Write one, or take the line out.',
                )
            )
        head[key] = value
    return head, "", [sections.Problem(1, "the front matter has no end. Put a line --- below it.")]


def _unquoted(value: str) -> str:
    if value.startswith('"'):
        try:
            return str(json.loads(value))
        except ValueError:
            return value
    is_quoted = len(value) > 1 and value.startswith("'") and value.endswith("'")
    return value[1:-1].replace("''", "'") if is_quoted else value


def _label_problem(label: str, line: int) -> list[sections.Problem]:
    try:
        require_label(label)
    except Invalid as error:
        return [sections.Problem(line, str(error))]
    return []


def _odd_words(
    table: Mapping[str, Any], fields: Mapping[str, Any], lines: Lines
) -> list[sections.Problem]:
    """What is wrong with the keys of a TOML that are not fields, and with what stands beside them."""
    problems: list[sections.Problem] = []
    for key in ("block", "body"):
        if not isinstance(table.get(key, ""), str):
            problems.append(lines.problem(f'"{key}" must be text. Put it in quotes.', key))
        elif key == "block" and key in table:
            problems += _label_problem(table[key], lines.of(key).line)
    for key, words in (
        ("format", _MARKED if "body" in table else _MARKED[:1]),
        ("layout", sections.LAYOUTS),
    ):
        if table.get(key, words[0]) not in words:
            problems.append(
                lines.problem(
                    f'"{key}" must be {" or ".join(words)} here. Or take the line out.', key
                )
            )
    if "body" in table:
        beside = [key for key in table if key in fields or key == "layout"]
        problems += [
            lines.problem(f'"{key}" cannot be used with "body". Keep one of the two.', key)
            for key in beside
        ]
    elif not fields:
        problems.append(
            lines.problem(
                'there are neither fields nor a "body". Write body = "" to empty the block.'
            )
        )
    return problems


def _values(
    fields: Mapping[str, Any], schema: BlockSchema, lines: Lines
) -> tuple[dict[str, FieldValue], list[sections.Problem], list[sections.Problem]]:
    """The values of a TOML by a schema, in their order, what is wrong with them, and what is required and missing."""
    values: dict[str, FieldValue] = {}
    problems: list[sections.Problem] = []
    by_name = {each.name: each for each in schema.fields}
    for name, written in fields.items():
        each = by_name.get(name)
        if each is None:
            known = ", ".join(one.name for one in schema.fields)
            problems.append(
                lines.problem(
                    f'"{name}" is no field of "{schema.name}". Use one of: {known}.', name
                )
            )
            continue
        values[name] = (
            tuple(written)
            if isinstance(written, list)
            else each.empty
            if written == ""
            else written
        )
        if fault := each.fault(values[name]):
            problems.append(lines.problem(f'"{name}" {fault}', name))
    missing = []
    for name in [each.name for each in schema.fields if each.lacks(values.get(each.name))]:
        if name in fields:
            missing.append(lines.problem(f'"{name}" is required and empty. Fill it in.', name))
        else:
            missing.append(
                lines.problem(
                    f'"{name}" is required and missing. Add a line that begins with {name} ='
                )
            )
    return values, problems, missing


def _as_written(fields: Mapping[str, Any], lines: Lines) -> BlockSchema:
    """The schema that a TOML of fields would have, so that one can be read where none is known. Raises Invalid."""
    found: list[SchemaField] = []
    problems: list[sections.Problem] = []
    for name, value in fields.items():
        is_list = isinstance(value, list) and all(isinstance(item, str) for item in value)
        kind = "list" if is_list else _KINDS.get(type(value))  # a time is a date to isinstance
        if kind is None:
            problems.append(
                lines.problem(
                    f'"{name}" must be text, a list of texts, a number, true, false or a day.', name
                )
            )
            continue
        found.append(SchemaField(name, kind))
        problems += [lines.problem(sentence, name) for _, sentence in found[-1].faults()]
    problems += [lines.problem(sentence, each.name) for each, sentence in same_headings(found)]
    if problems:
        sections.refuse(problems)
    return BlockSchema("block", "Block", tuple(found))


def write_toml(values: Mapping[str, FieldValue]) -> str:
    """A TOML text with one key a value, in their order; an empty value of any kind is written as ""."""
    return "".join(f"{key} = {_toml_value(value)}\n" for key, value in values.items())


def _toml_value(value: FieldValue) -> str:
    match value:
        case None:
            return '""'
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case date():
            return value.isoformat()
        case str():
            return _long(value) if "\n" in value else _short(value)
        case tuple():
            items = [_short(item) for item in value]
            line = f"[{', '.join(items)}]"
            return (
                line
                if len(line) <= _WIDEST
                else "[\n" + "".join(f"    {item},\n" for item in items) + "]"
            )


def _short(text: str) -> str:
    return f'"{_NEEDS_ESCAPE.sub(_escaped, text)}"'


def _long(text: str) -> str:
    # The line break right behind the opening quotes is not part of the text.
    if "'''" in text or text.endswith("'") or _CONTROL.search(text):
        return f'"""\n{_NEEDS_LONG_ESCAPE.sub(_escaped, text)}"""'
    return f"'''\n{text}'''"


def _escaped(found: re.Match[str]) -> str:
    sign = found.group()
    return _ESCAPES.get(sign, f"\\u{ord(sign):04x}")


FORMATS = (
    BlockFormat("markdown", "text/markdown", to_markdown, from_markdown),
    BlockFormat("toml", "application/toml", to_toml, from_toml),
)
