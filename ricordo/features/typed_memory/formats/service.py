"""A block in the forms that people edit: Markdown and TOML, without loss.

The canonical text, which agents see, is authoritative. Markdown is that text below a front matter.
TOML shows the fields if the text follows the block's schema, otherwise the unchanged text. Both
formats mark a text that does not follow its schema.
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
from ricordo.domain.toml_text import write_toml
from ricordo.errors import Invalid
from ricordo.memory import sections
from ricordo.memory.schemas import Lines, read_toml

# "complete": the text follows its schema. "incomplete": required fields are still empty. "free":
# the text does not follow the schema, or there is none.
Form = Literal["complete", "incomplete", "free"]
_MARKED: tuple[Form, ...] = ("incomplete", "free")  # values of `format`

_KINDS: dict[type, FieldKind] = {
    bool: "boolean",
    str: "text",
    int: "integer",
    float: "number",
    date: "date",
}
_FENCE = "---"
_PAIR = re.compile(r"([A-Za-z_]+):(.*)")
# Labels of this form need no quotes. YAML readers would misread other labels.
_WORDS = re.compile(
    r"(?!(?:yes|no|on|off|true|false|null|y|n)\Z)[^\W\d](?:[\w/ .-]*[\w/.-])?", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class ParsedText(ParsedBlock):
    """A parsed block with the values of its fields.

    The form is "free" if the text follows no schema. Then `fields` has only fields that its TOML
    names.
    """

    fields: Mapping[str, FieldValue] = field(default_factory=dict)
    form: Form = "free"


def to_markdown(block_label: str, text: str, schema: BlockSchema | None) -> str:
    """Write the text below a front matter with the block's label and schema.

    The front matter has a `format` if the text does not follow the schema.

    Args:
        block_label: The label, which is quoted if YAML could misread it.
        text: The canonical text, which is written unchanged.
        schema: The schema that the block names; None for a block without one.
    """
    label = block_label
    if not _WORDS.fullmatch(block_label):
        label = json.dumps(block_label, ensure_ascii=False)
    lines = [_FENCE, f"block: {label}"]
    if schema:
        lines.append(f"schema: {schema.name}")
        form = _form(sections.read_sections(text, schema))
        if form in _MARKED:
            lines.append(f"format: {form}")
    return "\n".join([*lines, _FENCE, text]) + "\n"


def from_markdown(text: str, schema: BlockSchema | None) -> ParsedText:
    """Parse a text from `to_markdown` that people may have edited.

    Args:
        text: The text. One without a front matter is the block's text alone.
        schema: The block's schema. It is not used if the text names another schema.

    Raises:
        Invalid: with a sentence for each faulty line.
    """
    text = text.removeprefix("\ufeff")
    head, below, problems = _front_matter(text)
    if problems:
        sections.refuse(problems)
    first_line = 1
    if head:
        first_line = len(head) + 3
    schema_name = head.get("schema")
    if schema is not None and schema_name not in (None, schema.name):
        schema = None
    parsed = _checked(
        head.get("block"),
        below,
        schema,
        marked=head.get("format"),
        line_of=lambda line: line + first_line - 1,
    )
    return replace(parsed, schema_ref=schema_name)


def to_toml(label: str, text: str, schema: BlockSchema | None) -> str:
    """Write the label and the fields as TOML.

    Without a schema, or if fields could not reproduce the text, the label and a `body` are written.

    Args:
        label: The block's label.
        text: The canonical text.
        schema: The schema that the block names; None for a block without one.
    """
    entries: dict[str, FieldValue] = {"block": label}
    if schema is None:
        return write_toml({**entries, "body": text})
    reading = sections.read_sections(text, schema)
    layout = sections.layout_of(text, schema, reading)
    form = _form(reading)
    if form in _MARKED:
        entries["format"] = form
    if layout is None or not reading.fields:
        return write_toml({**entries, "body": text})
    if layout != sections.LAYOUTS[0]:
        entries["layout"] = layout
    return write_toml({**entries, **reading.fields})


def from_toml(text: str, schema: BlockSchema | None) -> ParsedText:
    """Parse a text from `to_toml` that people may have edited.

    Args:
        text: The TOML.
        schema: The block's schema. Without one, fields become sections.

    Raises:
        Invalid: with a sentence for each faulty line.
    """
    text = text.removeprefix("\ufeff")
    table = read_toml(text)
    lines = Lines(text)
    fields = {key: entry for key, entry in table.items() if key not in RESERVED}
    if problems := _problems_of_keys(table, fields, lines):
        sections.refuse(problems)
    label = table.get("block")
    form = table.get("format")
    if "body" in table:
        return _checked(
            label,
            table["body"],
            schema,
            marked=form,
            line_of=lambda line: lines.line_in(table["body"], line, "body"),
        )
    used_schema = schema or _inferred_schema(fields, lines)
    field_values, problems, missing = _read_fields(fields, used_schema, lines)
    if form != "incomplete":
        problems += missing
    if problems:
        sections.refuse(problems)
    layout = cast(sections.Layout, table.get("layout", sections.LAYOUTS[0]))
    block_text = sections.write_sections(field_values, used_schema, layout)
    parsed_form: Form = "complete"
    if schema is None:
        parsed_form = "free"
    elif missing:
        parsed_form = "incomplete"
    return ParsedText(label, block_text, field_values, parsed_form)


def _form(reading: sections.ParsedSections) -> Form:
    if reading.problems:
        return "free"
    return "incomplete" if reading.missing else "complete"


def _checked(
    label: str | None,
    text: str,
    schema: BlockSchema | None,
    *,
    marked: str | None,
    line_of: Callable[[int], int],
) -> ParsedText:
    """Return the text with its fields.

    `marked` is its `format`, and `line_of` maps a line of the text to a line of the file. Raises
    Invalid if the text follows the schema less than its mark allows.
    """
    if schema is None:
        return ParsedText(label, text)
    reading = sections.read_sections(text, schema)
    form = _form(reading)
    allowed: tuple[Form, ...] = ()
    if marked:
        allowed = _MARKED[: _MARKED.index(cast(Form, marked)) + 1]
    if form != "complete" and form not in allowed:
        problems = reading.problems
        if "incomplete" not in allowed:
            problems += reading.missing
        sections.refuse(
            sections.Problem(line_of(problem.line), problem.sentence) for problem in problems
        )
    return ParsedText(label, text, {} if form == "free" else reading.fields, form)


def _front_matter(text: str) -> tuple[dict[str, str], str, list[sections.Problem]]:
    """Return the front matter, the text below it, and the front matter's problems.

    A last line break ends the file, not the text.
    """
    lines = text.split("\n")
    has_front_matter = (
        len(lines) > 1 and lines[0].rstrip() == _FENCE and bool(_PAIR.fullmatch(lines[1].rstrip()))
    )
    if lines[0].endswith("\r") and (has_front_matter or text.count("\r\n") == text.count("\n")):
        # We never write CRLF, so an editor has changed all line ends.
        text = text.replace("\r\n", "\n")
        lines = text.split("\n")
    if not has_front_matter:
        return {}, text.removesuffix("\n"), []
    head: dict[str, str] = {}
    problems: list[sections.Problem] = []
    for number, line in enumerate(lines[1:], 2):
        if line.rstrip() == _FENCE:
            return head, "\n".join(lines[number:]).removesuffix("\n"), problems
        pair = _PAIR.fullmatch(line.rstrip())
        key = line.strip()[:80]
        entry = ""
        if pair:
            key = pair[1]
            entry = pair[2].strip()
        if key in head:
            problems.append(sections.Problem(number, f'"{key}" occurs twice. Keep one of the two.'))
        elif key == "block":
            entry = _unquoted(entry)
            problems += _label_problem(entry, number)
        elif key == "schema":
            entry = _unquoted(entry)
        elif key != "format":
            problems.append(
                sections.Problem(
                    number,
                    f'"{key}" is not known here. Use block, schema and format, or put it below '
                    "the second ---.",
                )
            )
        elif entry not in _MARKED:
            problems.append(
                sections.Problem(
                    number,
                    f'"format" can be {" or ".join(_MARKED)}. Write one, or take the line out.',
                )
            )
        head[key] = entry
    return head, "", [sections.Problem(1, "the front matter has no end. End it with a line ---.")]


def _unquoted(entry: str) -> str:
    if entry.startswith('"'):
        try:
            return str(json.loads(entry))
        except ValueError:
            return entry
    is_quoted = len(entry) > 1 and entry.startswith("'") and entry.endswith("'")
    return entry[1:-1].replace("''", "'") if is_quoted else entry


def _label_problem(label: str, line: int) -> list[sections.Problem]:
    try:
        require_label(label)
    except Invalid as error:
        return [sections.Problem(line, str(error))]
    return []


def _problems_of_keys(
    table: Mapping[str, Any], fields: Mapping[str, Any], lines: Lines
) -> list[sections.Problem]:
    """Return the problems of a TOML's reserved keys.

    They include keys that exclude each other.
    """
    problems: list[sections.Problem] = []
    for key in ("block", "body"):
        if not isinstance(table.get(key, ""), str):
            problems.append(lines.problem(f'"{key}" must be text. Put it in quotes.', key))
        elif key == "block" and key in table:
            problems += _label_problem(table[key], lines.of(key).line)
    for key, allowed in (
        ("format", _MARKED if "body" in table else _MARKED[:1]),
        ("layout", sections.LAYOUTS),
    ):
        if table.get(key, allowed[0]) not in allowed:
            problems.append(
                lines.problem(
                    f'"{key}" must be {" or ".join(allowed)} here. Or take the line out.', key
                )
            )
    if "body" in table:
        excluded = [key for key in table if key in fields or key == "layout"]
        problems += [
            lines.problem(f'"{key}" cannot be used with "body". Keep one of the two.', key)
            for key in excluded
        ]
    elif not fields:
        problems.append(
            lines.problem(
                'there are neither fields nor a "body". Write body = "" to empty the block.'
            )
        )
    return problems


def _read_fields(
    fields: Mapping[str, Any], schema: BlockSchema, lines: Lines
) -> tuple[dict[str, FieldValue], list[sections.Problem], list[sections.Problem]]:
    """Return the values of a TOML's fields by a schema, problems, and missing fields."""
    field_values: dict[str, FieldValue] = {}
    problems: list[sections.Problem] = []
    by_name = {schema_field.name: schema_field for schema_field in schema.fields}
    for name, written in fields.items():
        schema_field = by_name.get(name)
        if schema_field is None:
            problems.append(
                lines.problem(
                    f'"{name}" is not a field of "{schema.name}". Use one of: '
                    f"{', '.join(by_name)}.",
                    name,
                )
            )
            continue
        if isinstance(written, list):
            field_values[name] = tuple(written)
        else:
            field_values[name] = schema_field.empty if written == "" else written
        if fault := schema_field.fault(field_values[name]):
            problems.append(lines.problem(f'"{name}" {fault}', name))
    missing = []
    for name, schema_field in by_name.items():
        if not schema_field.lacks(field_values.get(name)):
            continue
        if name in fields:
            missing.append(lines.problem(f'"{name}" is required and empty. Fill it in.', name))
        else:
            missing.append(
                lines.problem(
                    f'"{name}" is required and missing. Add a line that begins with {name} ='
                )
            )
    return field_values, problems, missing


def _inferred_schema(fields: Mapping[str, Any], lines: Lines) -> BlockSchema:
    """Infer a schema from the fields of a TOML that names none. Raises Invalid."""
    schema_fields: list[SchemaField] = []
    problems: list[sections.Problem] = []
    for name, written in fields.items():
        is_list = isinstance(written, list) and all(isinstance(entry, str) for entry in written)
        # Compare the exact type, since a datetime is also a date.
        kind = "list" if is_list else _KINDS.get(type(written))
        if kind is None:
            problems.append(
                lines.problem(
                    f'"{name}" must be text, a list of texts, a number, true, false or a day.', name
                )
            )
            continue
        schema_fields.append(SchemaField(name, kind))
        problems += [lines.problem(sentence, name) for _, sentence in schema_fields[-1].faults()]
    problems += [
        lines.problem(sentence, schema_field.name)
        for schema_field, sentence in same_headings(schema_fields)
    ]
    if problems:
        sections.refuse(problems)
    return BlockSchema("block", "Block", tuple(schema_fields))


FORMATS = (
    BlockFormat("markdown", "text/markdown", to_markdown, from_markdown),
    BlockFormat("toml", "application/toml", to_toml, from_toml),
)
