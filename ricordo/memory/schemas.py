"""Block schemas as course designers write them, TOML texts and files of a folder, and whether a text follows its block's schema.

A tool's edit may not make a text follow its schema less than it did. A text that its owner let stray from the schema may be edited
freely, since it can be read as it is. TOML is read with the line of what is wrong; the standard library keeps no lines.
"""

import logging
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast, get_args

from ricordo.domain.block import DEFAULT_LIMIT, Policy
from ricordo.domain.block_format import ParsedBlock
from ricordo.domain.block_schema import KINDS, BlockSchema, SchemaField, same_headings
from ricordo.errors import Invalid, NotFound, RicordoError, TooLong, Unavailable
from ricordo.memory.sections import ParsedSections, Problem, read_sections, refuse

log = logging.getLogger(__name__)
# Gives the schema of this name; None where there is none here.
Schemas = Callable[[str], BlockSchema | None]

_REFUSED = (
    'Memory block "{}" has to follow the schema "{}", and with this edit it would not. Nothing was saved. Mend these lines of the '
    "text that you wanted, and try again:\n{}"
)
_MOST_SHOWN = 5
FOLDER = "block_schemas"  # in the data folder
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_LARGEST_FILE = 65_536
LONGEST_TEXT = (
    1_000_000  # characters of a block in a format: one is parsed in two seconds, whatever is in it
)
_LARGEST_LIMIT = 1_000_000_000
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
}
_CALLED = {
    str: "text in quotes",
    int: "a whole number",
    bool: "true or false",
    dict: "a table",
    list: "a list",
}

KeyPath = tuple[str | int, ...]

_MOST_PARTS = 8
_BASIC = r'"[^"\\\n]*(?:\\.[^"\\\n]*)*"'
_LITERAL = r"'[^'\n]*'"
_LONG_BASIC = r'"""[^"\\]*(?:(?:\\.|"{1,2}(?!"))[^"\\]*)*"{3,5}'
_LONG_LITERAL = r"'''[^']*(?:'{1,2}(?!')[^']*)*'{3,5}"
_COMMENT = r"#[^\n]*"
_STRING = re.compile("|".join((_LONG_BASIC, _LONG_LITERAL, _BASIC, _LITERAL)), re.DOTALL)
# What begins with a quote and does not end is no TOML: nothing is read beyond it, and looking for its end again would be slow.
_STRING_OR_COMMENT = re.compile(rf"{_STRING.pattern}|[\"'].*\Z|{_COMMENT}", re.DOTALL)
_BLANK = re.compile(rf"(?:\s+|{_COMMENT})*")
_PART = re.compile(rf"[ \t]*([A-Za-z0-9_-]+|{_BASIC}|{_LITERAL})[ \t]*")
_HEAD = re.compile(
    rf"(?P<open>\[{{0,2}})(?P<key>{_PART.pattern}(?:\.{_PART.pattern})*)(?:\]{{1,2}}|=)"
)
_IN_VALUE = re.compile(rf"{_STRING.pattern}|{_COMMENT}|[\[\]{{}}\n]", re.DOTALL)
_LONG = re.compile("[ \t]*(?:\"\"\"|''')")
# Nothing is tried twice (`++`), as a name can be as long as the text.
_DEEP_KEY = re.compile(
    rf"(?<![A-Za-z0-9_-])[A-Za-z0-9_-]++(?:[ \t]*+\.[ \t]*+[A-Za-z0-9_-]++){{{_MOST_PARTS}}}"
)

_PLACE = re.compile(
    r"(?P<what>.*?) \(at (?:line (?P<line>\d+), column \d+|end of document)\)", re.DOTALL
)
_NO_END = "the text has no end. Put the quotes that it begins with behind it."
_SECOND = "this table occurs twice. Keep one of the two."
_NO_NAME = 'a line must begin with a name. Write it as name = "Alice".'
_HINTS = {
    "Cannot overwrite": "this key occurs twice. Keep one of the two.",
    "Cannot declare": _SECOND,
    "Cannot redefine": _SECOND,
    "Cannot mutate": _SECOND,
    "Expected '='": 'an "=" is missing after the name. Write it as name = "Alice".',
    "Invalid initial character for a key": _NO_NAME,
    "Invalid statement": _NO_NAME,
    "Invalid value": 'this is no value of TOML. Put text in quotes, as in name = "Alice".',
    "Illegal character '\\n'": _NO_END,
    "Expected \"'''\"": _NO_END,
    "Unterminated string": _NO_END,
    "Expected newline or end": "a key can have only one value. Put text in quotes.",
    "Unclosed array": 'the list has no end. Put "]" behind it.',
    "Unescaped '\\'": r"a \ in quotes must be written as \\.",
    "Invalid date": "there is no such day or time. Write it as 2026-05-31.",
}


@dataclass(frozen=True, slots=True)
class TomlPlace:
    """The line of a key, and the last one of its value, from 1; `is_long` where the value is between three quotes."""

    line: int
    last: int
    is_long: bool = False


def read_toml(text: str, where: str = "") -> dict[str, Any]:
    """What a TOML text holds. Raises Invalid that names the line, and `where` in front of it."""
    if line := deep_key(text):
        refuse(
            [
                Problem(
                    line, "the name has too many parts. Use at most eight, with dots between them."
                )
            ],
            where,
        )
    try:
        return tomllib.loads(text)
    except RecursionError:
        refuse([Problem(1, "lists or tables lie too deep in each other. Make it flatter.")], where)
    except tomllib.TOMLDecodeError as error:
        refuse([_toml_problem(str(error), text)], where)
    except ValueError:  # a number of thousands of digits
        found = re.search(r"[0-9a-fA-F_]{1000}", text)
        line = text.count("\n", 0, found.start()) + 1 if found else 1
        refuse([Problem(line, "the number has too many digits. Shorten it.")], where)


def deep_key(text: str) -> int | None:
    """The first line with a key of more than eight parts, if there is one.

    The time that the standard library takes for a key grows with the square of its parts: 10 kB of dots would take two seconds.
    """
    # Strings and comments may hold any dots: only their line breaks stay, and a letter, as a string can be a part of a key.
    bare = _STRING_OR_COMMENT.sub(
        lambda found: ("" if found[0][0] == "#" else "s") + "\n" * found[0].count("\n"), text
    )
    found = _DEEP_KEY.search(bare)
    return bare.count("\n", 0, found.start()) + 1 if found else None


class Lines:
    """The lines of a TOML text that was read without an error, looked up when the first one is asked for."""

    def __init__(self, text: str) -> None:
        self._text = text

    @cached_property
    def _places(self) -> dict[KeyPath, TomlPlace]:
        return places(self._text)

    @cached_property
    def _end(self) -> TomlPlace:
        line = self._text.rstrip().count("\n") + 1
        return TomlPlace(line, line)

    def place(self, *path: str | int) -> TomlPlace:
        """The place of a key; where it is missing, of its nearest parent, and at last the text's end."""
        while path and path not in self._places:
            path = path[:-1]
        return self._places.get(path) or self._end

    def problem(self, sentence: str, *path: str | int) -> Problem:
        return Problem(self.place(*path).line, sentence)

    def line_in(self, text: str, line: int, *path: str | int) -> int:
        """The line in the file of a line of a text that stands at a path; the text's first where they do not correspond."""
        place = self.place(*path)
        # A long text begins below its opening quotes.
        above = place.last - place.line - text.count("\n")
        return place.line + line - 1 + above if above in (0, int(place.is_long)) else place.line


def places(text: str) -> dict[KeyPath, TomlPlace]:
    """Where the keys and tables of a TOML text stand that the standard library can read; tables of an array count from 0."""
    found: dict[KeyPath, TomlPlace] = {}
    arrays: dict[KeyPath, int] = {}  # the number of the last table of each array of tables
    table: KeyPath = ()
    line, at = 1, 0
    while head := _HEAD.match(text, end := _next(text, at)):
        line += text.count("\n", at, end)
        path = () if head["open"] else table
        for part in _PART.findall(head["key"]):
            if path in arrays:  # it means the last table there
                path = (*path, arrays[path])
            path = (*path, tomllib.loads(f"key = {part}")["key"] if part[0] in "\"'" else part)
            found.setdefault(path, TomlPlace(line, line))
        if head["open"] == "[[":
            arrays[path] = arrays.get(path, -1) + 1
            path = (*path, arrays[path])
        if head["open"]:
            found[path] = TomlPlace(line, line)
            table, at = path, head.end()
            continue
        at = _value_end(text, head.end())
        last = line + text.count("\n", end, at)
        found[path] = TomlPlace(line, last, is_long=bool(_LONG.match(text, head.end())))
        line = last
    return found


def _next(text: str, at: int) -> int:
    blank = _BLANK.match(text, at)
    return blank.end() if blank else at


def _value_end(text: str, begin: int) -> int:
    depth = 0
    for token in _IN_VALUE.finditer(text, begin):
        depth += (token[0] in "[{") - (token[0] in "]}")
        if token[0] == "\n" and not depth:
            return token.start()
    return len(text)


def _toml_problem(message: str, text: str) -> Problem:
    match = _PLACE.fullmatch(message)
    what = match["what"] if match else message
    line = int(match["line"]) if match and match["line"] else text.rstrip("\n").count("\n") + 1
    hint = next((hint for beginning, hint in _HINTS.items() if what.startswith(beginning)), None)
    return Problem(line, hint or f"the TOML cannot be read: {what}. Correct it there.")


def parse_schema(text: str, name: str, where: str = "") -> BlockSchema:
    """The schema that a TOML text lays down. Raises Invalid with every problem and its line, `where` in front of each."""
    table, lines = read_toml(text, where), Lines(text)
    problems = unfit(table, BLOCK_KEYS, lines)
    schema, found = schema_in(table, name, lines)
    if schema is None or problems:
        refuse([*problems, *found], where)
    return schema


def schema_in(
    table: Mapping[str, Any], name: str, lines: Lines, *path: str | int
) -> tuple[BlockSchema | None, list[Problem]]:
    """The schema that the table at a path lays down, None where that is none; and what is wrong with its values."""
    policy, limit = table.get("policy"), table.get("limit", DEFAULT_LIMIT)
    problems: list[Problem] = []
    if isinstance(policy, str) and policy not in _POLICIES:
        problems.append(
            lines.problem(f'"policy" must be one of: {", ".join(_POLICIES)}.', *path, "policy")
        )
    if type(limit) is int and not 1 <= limit <= _LARGEST_LIMIT:
        problems.append(
            lines.problem(
                f'"limit" must lie between 1 and {_LARGEST_LIMIT} characters.', *path, "limit"
            )
        )
    tables = table.get("fields")
    fields: list[SchemaField] = []
    for key, value in tables.items() if isinstance(tables, dict) else ():
        if not isinstance(value, dict):
            told = f'"{key}" must be a table. Write it as [fields.{key}].'
            problems.append(lines.problem(told, *path, "fields", key))
            continue
        field, found = _field(key, value, lines, *path)
        problems += found
        fields += [field] if field else []
    if not tables:
        problems.append(
            lines.problem("the schema has no fields. Give it one, as in [fields.name].", *path)
        )
    problems += [
        lines.problem(sentence, *path, "fields", each.name)
        for each, sentence in same_headings(fields)
    ]
    if problems or not fields:
        return None, problems
    title, description = table.get("title") or SchemaField(name).title, table.get("description", "")
    return BlockSchema(
        name, title, tuple(fields), description, cast(Policy | None, policy), limit
    ), []


def read_schema(name: str, folder: Path) -> BlockSchema:
    """The schema in `<folder>/<name>.toml`. Raises NotFound, Invalid, Unavailable."""
    file, where = f"{name}.toml", f"{FOLDER}/{name}.toml"
    if not _NAME.fullmatch(name):
        raise Invalid(
            f'"{name[:80]}" cannot be the name of a block schema. Use letters, digits, "_", "-" and ".", at most 100 of them.'
        )
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (folder / file).open("rb") as opened:
            content = opened.read(_LARGEST_FILE + 1)
    except FileNotFoundError:
        known = ", ".join(schema_names(folder)) or "none yet"
        raise NotFound(
            f'There is no block schema "{name}". Put it into {where} in the data folder, or use one of these: {known}.'
        ) from None
    except OSError as error:
        raise Unavailable(
            f"{where} cannot be read: {error.strerror}. See to its permissions."
        ) from error
    if len(content) > _LARGEST_FILE:
        raise Invalid(f"{where} is larger than {_LARGEST_FILE} bytes. Shorten it.")
    try:
        return parse_schema(content.decode("utf-8").removeprefix("\ufeff"), name, where)
    except UnicodeDecodeError:
        raise Invalid(f"{where} is not UTF-8 text. Save it as UTF-8.") from None


def schema_names(folder: Path) -> list[str]:
    """The names of the schemas in a folder, in alphabetical order; none where the folder is missing. Raises Unavailable."""
    try:
        return sorted(path.stem for path in folder.glob("*.toml") if _NAME.fullmatch(path.stem))
    except OSError as error:
        raise Unavailable(
            f"{FOLDER} cannot be read: {error.strerror}. See to its permissions."
        ) from error


def find_schema(name: str | None, data_dir: Path) -> BlockSchema | None:
    """The schema of this name in a data folder; other systems may have more. Raises Invalid, Unavailable for unreadable ones."""
    folder = data_dir / FOLDER
    return read_schema(name, folder) if name and name in schema_names(folder) else None


def require_schema(name: str, data_dir: Path) -> BlockSchema:
    """The schema of this name in a data folder. Raises Invalid, with the names that there are."""
    found = find_schema(name, data_dir)
    if found is None:
        known = ", ".join(schema_names(data_dir / FOLDER)) or "none yet"
        raise Invalid(
            f'There is no block schema "{name[:80]}". Use one of these: {known}. New ones are files '
            f"{FOLDER}/<name>.toml in the data folder."
        )
    return found


def starting_settings(schema: BlockSchema) -> dict[str, Any]:
    """What a new block of the schema has beside its text, as far as the schema says."""
    settings = {name: getattr(schema, name) for name in ("title", "description", "policy", "limit")}
    return {name: value for name, value in settings.items() if value not in (None, "")}


def read_block(
    read: Callable[[str, BlockSchema | None], ParsedBlock],
    text: str,
    schema_ref: str | None,
    data_dir: Path,
) -> ParsedBlock:
    """What was written of a block with this schema, or with the one that it names. Raises Invalid, TooLong before reading."""
    if len(text) > LONGEST_TEXT:
        raise TooLong(
            f"The text has {len(text)} characters, and in this format {LONGEST_TEXT} are read at most. Send it as JSON."
        )
    parsed = read(text, find_schema(schema_ref, data_dir))
    if parsed.schema_ref in (None, schema_ref):
        return parsed
    return read(text, require_schema(parsed.schema_ref, data_dir))


def schemas_in(data_dir: Path) -> Schemas:
    """The schemas that an operator put into a data folder. One that cannot be read binds nobody, and is logged."""

    def find(name: str) -> BlockSchema | None:
        folder = data_dir / FOLDER
        try:
            return read_schema(name, folder) if name in schema_names(folder) else None
        except RicordoError as error:
            log.warning("a block schema cannot be read", extra={"schema": name, "reason": error})
            return None

    return find


def no_schemas(_name: str) -> BlockSchema | None:
    return None


def require_follows(label: str, before: str, after: str, schema: BlockSchema | None) -> None:
    """Raise Invalid, with the lines that are wrong, where the later text follows the schema less than the earlier one."""
    if schema is None:
        return
    now, then = read_sections(after, schema), read_sections(before, schema)
    if _distance(now) > _distance(then):
        found = sorted(set(now.problems or now.missing))
        more = [f"And {len(found) - _MOST_SHOWN} more."] if len(found) > _MOST_SHOWN else []
        told = "\n".join([*map(str, found[:_MOST_SHOWN]), *more])
        raise Invalid(_REFUSED.format(label, schema.name, told))


def _distance(reading: ParsedSections) -> int:
    """How far a text is from its schema: 0 where it follows it, 1 where required fields are empty, 2 where it does not."""
    return 2 if reading.problems else 1 if reading.missing else 0


def _field(
    name: str, table: Mapping[str, Any], lines: Lines, *path: str | int
) -> tuple[SchemaField | None, list[Problem]]:
    here = (*path, "fields", name)
    problems = unfit(table, _FIELD_KEYS, lines, *here)
    kind = table.get("kind", "string")
    if isinstance(kind, str) and kind not in KINDS:
        problems.append(lines.problem(f'"kind" must be one of: {", ".join(KINDS)}.', *here, "kind"))
    if problems:
        return None, problems
    default = table.get("default")
    field = SchemaField(
        **{
            **table,
            "name": name,
            "default": tuple(default) if isinstance(default, list) else default,
        }
    )
    return field, [lines.problem(sentence, *here, key) for key, sentence in field.faults()]


def unfit(
    table: Mapping[str, Any], keys: Mapping[str, type], lines: Lines, *path: str | int
) -> list[Problem]:
    """A problem for each key that is not known here, or whose value is of another type, or an empty title."""
    problems: list[Problem] = []
    for key, value in table.items():
        if key not in keys:
            problems.append(
                lines.problem(f'"{key}" is not known here. Use: {", ".join(keys)}.', *path, key)
            )
        elif keys[key] is not object and type(value) is not keys[key]:
            problems.append(lines.problem(f'"{key}" must be {_CALLED[keys[key]]}.', *path, key))
        elif (key, value) == ("title", ""):
            problems.append(
                lines.problem('"title" is empty. Fill it in, or remove the line.', *path, key)
            )
    return problems
