"""Block schemas that course designers write, and checks of texts against them.

Schemas are TOML texts and files of a folder. After a tool's edit, the text must follow the schema
at least as well as before. There are three grades: it follows the schema, it lacks required fields,
or it has other faults. So a text that has faults already may be edited freely. Errors in TOML name
the line, which this module finds, since the standard library does not report it for every error.
"""

import logging
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast, get_args

from ricordo.domain.block import DEFAULT_LIMIT, Policy
from ricordo.domain.block_format import ParsedBlock
from ricordo.domain.block_schema import KINDS, BlockSchema, SchemaField, same_headings
from ricordo.domain.egress import label_of
from ricordo.errors import Invalid, NotFound, RicordoError, TooLong, Unavailable
from ricordo.memory.sections import ParsedSections, Problem, read_sections, refuse

log = logging.getLogger(__name__)
# Returns the schema of this name; None if it does not exist.
Schemas = Callable[[str], BlockSchema | None]

_EDIT_REFUSED = (
    'Memory block "{}" has to follow the schema "{}", and with this edit it would not. '
    "Nothing was saved. Correct these lines of your text, and try again:\n{}"
)
_PROBLEM_LIMIT = 5
FOLDER = "block_schemas"  # in the data folder
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_FILE_LIMIT = 65_536
# The most characters of a block in a format. Any text of this length is parsed in two seconds.
LONGEST_TEXT = 1_000_000
_LIMIT_BOUND = 1_000_000_000
_POLICIES: tuple[Policy, ...] = get_args(Policy)
BLOCK_KEYS = {"title": str, "description": str, "policy": str, "limit": int, "fields": dict}
_FIELD_KEYS = {
    "kind": str,
    "title": str,
    "description": str,
    "required": bool,
    "max_length": int,
    "max_items": int,
    "default": object,
    "egress": list,
}
_TYPE_NAMES = {
    str: "text in quotes",
    int: "a whole number",
    bool: "true or false",
    dict: "a table",
    list: "a list",
}

KeyPath = tuple[str | int, ...]

_PART_LIMIT = 8
_BASIC = r'"[^"\\\n]*(?:\\.[^"\\\n]*)*"'
_LITERAL = r"'[^'\n]*'"
_LONG_BASIC = r'"""[^"\\]*(?:(?:\\.|"{1,2}(?!"))[^"\\]*)*"{3,5}'
_LONG_LITERAL = r"'''[^']*(?:'{1,2}(?!')[^']*)*'{3,5}"
_COMMENT = r"#[^\n]*"
_STRING = re.compile("|".join((_LONG_BASIC, _LONG_LITERAL, _BASIC, _LITERAL)), re.DOTALL)
# A quote without an end is not TOML. Stop there, since searching for its end again would be slow.
_STRING_OR_COMMENT = re.compile(rf"{_STRING.pattern}|[\"'].*\Z|{_COMMENT}", re.DOTALL)
_BLANK = re.compile(rf"(?:\s+|{_COMMENT})*")
_PART = re.compile(rf"[ \t]*([A-Za-z0-9_-]+|{_BASIC}|{_LITERAL})[ \t]*")
_HEAD = re.compile(
    rf"(?P<open>\[{{0,2}})(?P<key>{_PART.pattern}(?:\.{_PART.pattern})*)(?:\]{{1,2}}|=)"
)
_IN_VALUE = re.compile(rf"{_STRING.pattern}|{_COMMENT}|[\[\]{{}}\n]", re.DOTALL)
_LONG = re.compile("[ \t]*(?:\"\"\"|''')")
# Possessive repeats (`++`) avoid backtracking, since a name can be as long as the text.
_DEEP_KEY = re.compile(
    rf"(?<![A-Za-z0-9_-])[A-Za-z0-9_-]++(?:[ \t]*+\.[ \t]*+[A-Za-z0-9_-]++){{{_PART_LIMIT}}}"
)

_PLACE = re.compile(
    r"(?P<what>.*?) \(at (?:line (?P<line>\d+), column \d+|end of document)\)", re.DOTALL
)
_NOT_CLOSED = "the text has no end. Close it with the quotes with which it begins."
_TABLE_TWICE = "this table occurs twice. Keep one of the two."
_NO_NAME = 'a line must begin with a name. Write it as name = "Alice".'
_HINTS = {
    "Cannot overwrite": "this key occurs twice. Keep one of the two.",
    "Cannot declare": _TABLE_TWICE,
    "Cannot redefine": _TABLE_TWICE,
    "Cannot mutate": _TABLE_TWICE,
    "Expected '='": 'an "=" is missing after the name. Write it as name = "Alice".',
    "Invalid initial character for a key": _NO_NAME,
    "Invalid statement": _NO_NAME,
    "Invalid value": 'this is not a TOML value. Put text in quotes, such as name = "Alice".',
    "Illegal character '\\n'": _NOT_CLOSED,
    "Expected \"'''\"": _NOT_CLOSED,
    "Unterminated string": _NOT_CLOSED,
    "Expected newline or end": "a key can have only one value. Put text in quotes.",
    "Unclosed array": 'the list has no end. Put "]" behind it.',
    "Unescaped '\\'": r"a \ in quotes must be written as \\.",
    "Invalid date": "there is no such day or time. Write it as 2026-05-31.",
}


@dataclass(frozen=True, slots=True)
class TomlLines:
    """The first and last line of a key and its value, from 1.

    `is_long` is set if the value is between three quotes.
    """

    line: int
    last: int
    is_long: bool = False


def read_toml(text: str, source: str = "") -> dict[str, Any]:
    """Parse a TOML text.

    Args:
        text: The TOML.
        source: The name with which an error's text starts; empty for none.

    Raises:
        Invalid: if it cannot be read. The text names the line.
    """
    if line := deep_key(text):
        refuse(
            [
                Problem(
                    line, "the name has too many parts. Use at most eight, with dots between them."
                )
            ],
            source,
        )
    try:
        return tomllib.loads(text)
    except RecursionError:
        sentence = "lists or tables are nested too deeply. Nest fewer of them."
        refuse([Problem(_deepest_line(text), sentence)], source)
    except tomllib.TOMLDecodeError as error:
        refuse([_toml_problem(str(error), text)], source)
    except ValueError:  # a number with thousands of digits
        match = re.search(r"[0-9a-fA-F_]{1000}", text)
        if match:
            line = text.count("\n", 0, match.start()) + 1
        else:
            line = 1
        refuse([Problem(line, "the number has too many digits. Shorten it.")], source)


def _deepest_line(text: str) -> int:
    """Return the first line at which the most brackets and braces are open."""
    depth = deepest = position = 0
    for token in _IN_VALUE.finditer(text):
        depth += (token[0] in "[{") - (token[0] in "]}")
        if depth > deepest:
            deepest = depth
            position = token.start()
    return text.count("\n", 0, position) + 1


def deep_key(text: str) -> int | None:
    """Return the first line with a key of more than eight parts, or None.

    The standard library's time for a key grows with the square of the number of its parts. So 10 kB
    of dots would take two seconds.
    """
    # Dots in strings and comments do not count. Replace each string by one letter, since it can be
    # part of a key. Drop comments, but keep all line breaks.
    bare = _STRING_OR_COMMENT.sub(
        lambda match: ("" if match[0][0] == "#" else "s") + "\n" * match[0].count("\n"), text
    )
    match = _DEEP_KEY.search(bare)
    if match:
        return bare.count("\n", 0, match.start()) + 1
    return None


class Lines:
    """The lines of a valid TOML text, computed at the first use."""

    def __init__(self, text: str) -> None:
        self._text = text

    @cached_property
    def _places(self) -> dict[KeyPath, TomlLines]:
        return key_lines(self._text)

    @cached_property
    def _end(self) -> TomlLines:
        line = self._text.rstrip().count("\n") + 1
        return TomlLines(line, line)

    def of(self, *path: str | int) -> TomlLines:
        """Return the lines of a key.

        If it is missing, return those of its nearest parent, or of the end.

        Args:
            *path: The keys that lead to it; a number is a table of an array, from 0.
        """
        while path and path not in self._places:
            path = path[:-1]
        return self._places.get(path) or self._end

    def problem(self, sentence: str, *path: str | int) -> Problem:
        return Problem(self.of(*path).line, sentence)

    def line_of_item(self, item: str, *path: str | int) -> int:
        """Return the line of a text in a list, else the list's first line.

        Args:
            item: The text of the list's item.
            *path: The keys that lead to the list.
        """
        value_lines = self.of(*path)
        rows = self._text.split("\n")[value_lines.line - 1 : value_lines.last]
        for number, row in enumerate(rows, value_lines.line):
            if f'"{item}"' in row or f"'{item}'" in row:
                return number
        return value_lines.line

    def line_in(self, text: str, line: int, *path: str | int) -> int:
        """Return the line of the file for a line within a value's text.

        If they do not correspond, return the value's first line.

        Args:
            text: The value.
            line: The number of a line in the value, from 1.
            *path: The keys that lead to the value.
        """
        value_lines = self.of(*path)
        # A text between three quotes begins below its opening quotes.
        above = value_lines.last - value_lines.line - text.count("\n")
        if above in (0, int(value_lines.is_long)):
            return value_lines.line + line - 1 + above
        return value_lines.line


def key_lines(text: str) -> dict[KeyPath, TomlLines]:
    """Map the keys and tables of a valid TOML text to their lines.

    The tables of an array are numbered from 0.
    """
    lines_by_path: dict[KeyPath, TomlLines] = {}
    arrays: dict[KeyPath, int] = {}  # the number of the last table of each array of tables
    table: KeyPath = ()
    line = 1
    position = 0
    while head := _HEAD.match(text, end := _skip_blank(text, position)):
        line += text.count("\n", position, end)
        path = () if head["open"] else table
        for part in _PART.findall(head["key"]):
            if path in arrays:  # the key belongs to the last table of the array
                path = (*path, arrays[path])
            path = (*path, tomllib.loads(f"key = {part}")["key"] if part[0] in "\"'" else part)
            lines_by_path.setdefault(path, TomlLines(line, line))
        if head["open"] == "[[":
            arrays[path] = arrays.get(path, -1) + 1
            path = (*path, arrays[path])
        if head["open"]:
            lines_by_path[path] = TomlLines(line, line)
            table = path
            position = head.end()
            continue
        position = _value_end(text, head.end())
        last = line + text.count("\n", end, position)
        lines_by_path[path] = TomlLines(line, last, is_long=bool(_LONG.match(text, head.end())))
        line = last
    return lines_by_path


def _skip_blank(text: str, position: int) -> int:
    blank = _BLANK.match(text, position)
    if blank:
        return blank.end()
    return position


def _value_end(text: str, begin: int) -> int:
    depth = 0
    for token in _IN_VALUE.finditer(text, begin):
        depth += (token[0] in "[{") - (token[0] in "]}")
        if token[0] == "\n" and not depth:
            return token.start()
    return len(text)


def _toml_problem(message: str, text: str) -> Problem:
    match = _PLACE.fullmatch(message)
    sentence = match["what"] if match else message
    if match and match["line"]:
        line = int(match["line"])
    else:
        line = text.rstrip("\n").count("\n") + 1
    hint = next(
        (hint for beginning, hint in _HINTS.items() if sentence.startswith(beginning)), None
    )
    return Problem(line, hint or f"the TOML cannot be read: {sentence}. Correct that line.")


def parse_schema(text: str, name: str, source: str = "") -> BlockSchema:
    """Return the schema that a TOML text defines.

    Args:
        text: The TOML.
        name: The schema's name, which is not in the text.
        source: The file, which precedes each problem; empty for a text without a file.

    Raises:
        Invalid: with the first problem of the TOML, or up to 20 problems of the schema, and their
            lines.
    """
    table = read_toml(text, source)
    lines = Lines(text)
    problems = unfit(table, BLOCK_KEYS, lines)
    schema, schema_problems = schema_in(table, name, lines)
    if schema is None or problems:
        refuse([*problems, *schema_problems], source)
    return schema


def schema_in(
    table: Mapping[str, Any], name: str, lines: Lines, *path: str | int
) -> tuple[BlockSchema | None, list[Problem]]:
    """Return the schema in the table at a path, and the table's problems.

    Args:
        table: The table. Its keys and their types are checked by `unfit`.
        name: The schema's name.
        lines: The lines of the whole text, which problems name.
        *path: The keys that lead to the table; no keys for the whole text.

    Returns:
        The schema, None if there are problems, and the problems.
    """
    policy = table.get("policy")
    limit = table.get("limit", DEFAULT_LIMIT)
    problems: list[Problem] = []
    if isinstance(policy, str) and policy not in _POLICIES:
        problems.append(
            lines.problem(f'"policy" must be one of: {", ".join(_POLICIES)}.', *path, "policy")
        )
    if type(limit) is int and not 1 <= limit <= _LIMIT_BOUND:
        problems.append(
            lines.problem(
                f'"limit" must lie between 1 and {_LIMIT_BOUND} characters.', *path, "limit"
            )
        )
    tables = table.get("fields")
    fields: list[SchemaField] = []
    for key, field_table in tables.items() if isinstance(tables, dict) else ():
        if not isinstance(field_table, dict):
            sentence = f'"{key}" must be a table. Write it as [fields.{key}].'
            problems.append(lines.problem(sentence, *path, "fields", key))
            continue
        field, field_problems = _field(key, field_table, lines, *path)
        problems += field_problems
        fields += [field] if field else []
    if not tables:
        problems.append(
            lines.problem("the schema has no fields. Give it one, as in [fields.name].", *path)
        )
    problems += [
        lines.problem(sentence, *path, "fields", schema_field.name)
        for schema_field, sentence in same_headings(fields)
    ]
    if problems or not fields:
        return None, problems
    title = table.get("title") or SchemaField(name).title
    description = table.get("description", "")
    return BlockSchema(
        name=name,
        title=title,
        fields=tuple(fields),
        description=description,
        policy=cast(Policy | None, policy),
        limit=limit,
    ), []


def read_schema(name: str, folder: Path) -> BlockSchema:
    """Return the schema in `<folder>/<name>.toml`.

    Args:
        name: The schema's name. It may not leave the folder.
        folder: The folder of schemas, which is created if it is missing.

    Raises:
        NotFound: if there is no such file.
        Invalid: if the name or the schema is faulty.
        Unavailable: if the file cannot be read.
    """
    file = f"{name}.toml"
    file_path = f"{FOLDER}/{name}.toml"
    if not _NAME.fullmatch(name):
        raise Invalid(
            f'"{name[:80]}" cannot be the name of a block schema. '
            'Use letters, digits, "_", "-" and ".", at most 100 of them. '
            'Begin with a letter, a digit or "_".'
        )
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (folder / file).open("rb") as stream:
            content = stream.read(_FILE_LIMIT + 1)
    except FileNotFoundError:
        known_names = ", ".join(schema_names(folder)) or "none yet"
        raise NotFound(
            f'There is no block schema "{name}". Put it into {file_path} in the data folder, or '
            f"use one of these: {known_names}."
        ) from None
    except OSError as error:
        raise Unavailable(
            f"{file_path} cannot be read: {error.strerror}. Check its permissions."
        ) from error
    if len(content) > _FILE_LIMIT:
        raise Invalid(f"{file_path} is larger than {_FILE_LIMIT} bytes. Shorten it.")
    try:
        return parse_schema(content.decode("utf-8").removeprefix("\ufeff"), name, file_path)
    except UnicodeDecodeError:
        raise Invalid(f"{file_path} is not UTF-8 text. Save it as UTF-8.") from None


def schema_names(folder: Path) -> list[str]:
    """Return the names of the schemas in a folder, in alphabetical order.

    There are none if the folder is missing. Raises Unavailable.
    """
    try:
        # `glob` would return nothing for a folder that it may not read.
        return sorted(
            path.stem
            for path in folder.iterdir()
            if path.suffix == ".toml" and _NAME.fullmatch(path.stem)
        )
    except FileNotFoundError:
        return []
    except OSError as error:
        raise Unavailable(
            f"{FOLDER} cannot be read: {error.strerror}. Check its permissions."
        ) from error


def find_schema(name: str | None, data_dir: Path) -> BlockSchema | None:
    """Return the schema of this name in a data folder, if it exists.

    Args:
        name: The schema's name; None for no schema. Other systems may know further schemas.
        data_dir: The data folder.

    Raises:
        Invalid: if the schema is faulty.
        Unavailable: if it cannot be read.
    """
    folder = data_dir / FOLDER
    if name and name in schema_names(folder):
        return read_schema(name, folder)
    return None


def require_schema(name: str, data_dir: Path) -> BlockSchema:
    """Return the schema of this name in a data folder.

    Args:
        name: The schema's name.
        data_dir: The data folder.

    Raises:
        Invalid: if there is no such schema, or it is faulty. The first case lists the existing
            names.
        Unavailable: if it cannot be read.
    """
    schema = find_schema(name, data_dir)
    if schema is None:
        known_names = ", ".join(schema_names(data_dir / FOLDER)) or "none yet"
        raise Invalid(
            f'There is no block schema "{name[:80]}". Use one of these: {known_names}. '
            "New ones are files "
            f"{FOLDER}/<name>.toml in the data folder."
        )
    return schema


def starting_settings(schema: BlockSchema) -> dict[str, Any]:
    """Return the settings that a schema gives a new block."""
    settings = {name: getattr(schema, name) for name in ("title", "description", "policy", "limit")}
    return {name: value for name, value in settings.items() if value not in (None, "")}


def read_block(
    read: Callable[[str, BlockSchema | None], ParsedBlock],
    text: str,
    schema_ref: str | None,
    data_dir: Path,
) -> ParsedBlock:
    """Parse a block's text in a format, by the schema that applies.

    Args:
        read: The parser of the format.
        text: The text in that format.
        schema_ref: The block's present schema, which applies if the text names none; None without
            one.
        data_dir: The data folder, which has the schemas.

    Raises:
        TooLong: if the text has more than a million characters.
        Invalid: if the text is faulty, or names an unknown schema.
        Unavailable: if the schema cannot be read.
    """
    if len(text) > LONGEST_TEXT:
        raise TooLong(
            f"The text has {len(text)} characters, and this format allows {LONGEST_TEXT} at most. "
            "Send it as JSON."
        )
    parsed = read(text, find_schema(schema_ref, data_dir))
    if parsed.schema_ref in (None, schema_ref):
        return parsed
    return read(text, require_schema(parsed.schema_ref, data_dir))


def enforced_schema(data_dir: Path, name: str) -> BlockSchema | None:
    """Return the schema of this name in a data folder, if there is one.

    An unreadable schema is logged and not enforced.

    Args:
        data_dir: The data folder.
        name: The schema's name.
    """
    folder = data_dir / FOLDER
    try:
        if name in schema_names(folder):
            return read_schema(name, folder)
    except RicordoError as error:
        log.warning("a block schema cannot be read", extra={"schema": name, "reason": error})
    return None


def schemas_in(data_dir: Path) -> Schemas:
    """Return a lookup of the schemas in a data folder."""
    return partial(enforced_schema, data_dir)


def no_schemas(_name: str) -> BlockSchema | None:
    return None


def require_follows(label: str, before: str, after: str, schema: BlockSchema | None) -> None:
    """Raise Invalid if the later text follows the schema less than the earlier text.

    The error lists the first five problems.

    Args:
        label: The block's label for the error.
        before: The text before the edit.
        after: The text after the edit.
        schema: The block's schema. Without one, every edit is allowed.
    """
    if schema is None:
        return
    sections_after = read_sections(after, schema)
    sections_before = read_sections(before, schema)
    if _distance(sections_after) > _distance(sections_before):
        problems = sorted(set(sections_after.problems or sections_after.missing))
        if len(problems) > _PROBLEM_LIMIT:
            more = [f"And {len(problems) - _PROBLEM_LIMIT} more."]
        else:
            more = []
        lines = "\n".join([*map(str, problems[:_PROBLEM_LIMIT]), *more])
        raise Invalid(_EDIT_REFUSED.format(label, schema.name, lines))


def _distance(reading: ParsedSections) -> int:
    """Return the text's distance from its schema.

    0 if it follows the schema, 1 if required fields are empty or missing, 2 if it has problems.
    """
    if reading.problems:
        return 2
    if reading.missing:
        return 1
    return 0


def _field(
    name: str, table: Mapping[str, Any], lines: Lines, *path: str | int
) -> tuple[SchemaField | None, list[Problem]]:
    field_path = (*path, "fields", name)
    problems = unfit(table, _FIELD_KEYS, lines, *field_path)
    kind = table.get("kind", "string")
    if isinstance(kind, str) and kind not in KINDS:
        problems.append(
            lines.problem(f'"kind" must be one of: {", ".join(KINDS)}.', *field_path, "kind")
        )
    if problems:
        return None, problems
    default = table.get("default")
    try:
        egress = label_of(table["egress"]) if "egress" in table else None
    except (Invalid, AttributeError) as error:  # an entry that is not text has no `strip`
        sentence = str(error) if isinstance(error, Invalid) else '"egress" must be a list of names.'
        return None, [lines.problem(sentence, *field_path, "egress")]
    field = SchemaField(
        **{
            **table,
            "name": name,
            "egress": egress,
            "default": tuple(default) if isinstance(default, list) else default,
        }
    )
    return field, [lines.problem(sentence, *field_path, key) for key, sentence in field.faults()]


def similar_name(name: str, names: Iterable[str]) -> str:
    """Return the question "Did you mean …?" for a similar name; "" if no name is similar.

    It starts with a space.

    Args:
        name: The unknown name.
        names: The known names.
    """
    similar = get_close_matches(name[:100].lower(), names, n=1, cutoff=0.7)
    return f' Did you mean "{similar[0]}"?' if similar else ""


def unfit(
    table: Mapping[str, Any], keys: Mapping[str, type], lines: Lines, *path: str | int
) -> list[Problem]:
    """Return the problems of a table's keys: unknown, of a wrong type, or with an empty title.

    Args:
        table: The table.
        keys: The known keys with their types; `object` allows any type.
        lines: The lines of the whole text, which problems name.
        *path: The keys that lead to the table; no keys for the whole text.
    """
    problems: list[Problem] = []
    for key, key_value in table.items():
        if key not in keys:
            sentence = f'"{key}" is not known here.{similar_name(key, keys)}'
            problems.append(lines.problem(f"{sentence} Use: {', '.join(keys)}.", *path, key))
        elif keys[key] is not object and type(key_value) is not keys[key]:
            problems.append(lines.problem(f'"{key}" must be {_TYPE_NAMES[keys[key]]}.', *path, key))
        elif (key, key_value) == ("title", ""):
            problems.append(
                lines.problem('"title" is empty. Fill it in, or remove the line.', *path, key)
            )
    return problems
