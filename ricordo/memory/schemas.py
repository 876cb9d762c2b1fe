"""Block schemas as course designers write them, TOML texts and files of a folder, and whether a text follows its block's schema.

A tool's edit may not make a text follow its schema less than it did. A text that its owner let stray from the schema may be edited
freely, since it can be read as it is.
"""

import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast, get_args

from ricordo.domain.block import DEFAULT_LIMIT, Policy
from ricordo.domain.block_schema import KINDS, BlockSchema, FieldKind, FieldValue, SchemaField, same_headings
from ricordo.errors import Invalid, NotFound, RicordoError, Unavailable
from ricordo.memory.sections import ParsedSections, Problem, read_sections, refuse
from ricordo.memory.toml import Lines, read_toml

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
_LARGEST_LIMIT = 1_000_000_000
_EMPTY_TITLE = '"title" is empty. Fill it in, or remove the line.'
_POLICIES: tuple[Policy, ...] = get_args(Policy)
_BLOCK_KEYS = {"title": str, "description": str, "policy": str, "limit": int, "fields": dict}
_FIELD_KEYS = {
    "kind": str,
    "title": str,
    "description": str,
    "required": bool,
    "max_length": int,
    "max_items": int,
    "default": object,
}
_CALLED = {str: "text in quotes", int: "a whole number", bool: "true or false", dict: "a table"}


def parse_schema(text: str, name: str, where: str = "") -> BlockSchema:
    """The schema that a TOML text lays down. Raises Invalid with every problem and its line, `where` in front of each."""
    table = read_toml(text, where)
    return schema_of(table, name, Lines(text), where=where)


def schema_of(
    table: Mapping[str, Any], name: str, lines: Lines, *, at: tuple[str | int, ...] = (), where: str = ""
) -> BlockSchema:
    """The schema in one table of a TOML text, which stands there `at` a path. Raises Invalid as `parse_schema` does."""
    problems = _unfit(table, _BLOCK_KEYS, lines, at)
    policy, limit = table.get("policy"), table.get("limit", DEFAULT_LIMIT)
    if isinstance(policy, str) and policy not in _POLICIES:
        problems.append(lines.problem(f'"policy" must be one of: {", ".join(_POLICIES)}.', *at, "policy"))
    if type(limit) is int and not 1 <= limit <= _LARGEST_LIMIT:
        problems.append(lines.problem(f'"limit" must lie between 1 and {_LARGEST_LIMIT} characters.', *at, "limit"))
    if table.get("title") == "":
        problems.append(lines.problem(_EMPTY_TITLE, *at, "title"))
    tables = table.get("fields")
    fields: list[SchemaField] = []
    for key, value in tables.items() if isinstance(tables, dict) else ():
        path = (*at, "fields", key)
        if not isinstance(value, dict):
            problems.append(lines.problem(f'"{key}" must be a table. Write it as [fields.{key}].', *path))
            continue
        field, found = _field(key, value, lines, path)
        problems += found
        fields += [field] if field else []
    if not tables:
        problems.append(lines.problem("the schema has no fields. Give it one, as in [fields.name].", *at))
    problems += [lines.problem(sentence, *at, "fields", each.name) for each, sentence in same_headings(fields)]
    if problems:
        refuse(problems, where)
    title, description = table.get("title") or SchemaField(name).title, table.get("description", "")
    return BlockSchema(name, title, tuple(fields), description, cast(Policy | None, policy), limit)


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
        raise Unavailable(f"{where} cannot be read: {error.strerror}. See to its permissions.") from error
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
        raise Unavailable(f"{FOLDER} cannot be read: {error.strerror}. See to its permissions.") from error


def schemas_in(data_dir: Path) -> Schemas:
    """The schemas that an operator put into a data folder. One that cannot be read binds nobody, and is logged."""

    def find(name: str) -> BlockSchema | None:
        folder = data_dir / FOLDER
        try:
            return read_schema(name, folder) if name in schema_names(folder) else None
        except RicordoError as error:
            log.warning("a block schema cannot be read", extra={"schema": name, "reason": str(error)})
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
    name: str, table: Mapping[str, Any], lines: Lines, path: tuple[str | int, ...]
) -> tuple[SchemaField | None, list[Problem]]:
    problems = _unfit(table, _FIELD_KEYS, lines, path)
    kind = table.get("kind", "string")
    if isinstance(kind, str) and kind not in KINDS:
        problems.append(lines.problem(f'"kind" must be one of: {", ".join(KINDS)}.', *path, "kind"))
    if table.get("title") == "":
        problems.append(lines.problem(_EMPTY_TITLE, *path, "title"))
    if problems:
        return None, problems
    field = SchemaField(
        name=name,
        kind=cast(FieldKind, kind),
        title=table.get("title", ""),
        description=table.get("description", ""),
        required=table.get("required", False),
        max_length=table.get("max_length"),
        max_items=table.get("max_items"),
        default=_default(table.get("default")),
    )
    return field, [lines.problem(sentence, *path, key) for key, sentence in field.faults()]


def _default(value: object) -> FieldValue:
    return tuple(value) if isinstance(value, list) else cast(FieldValue, value)


def _unfit(
    table: Mapping[str, Any], keys: Mapping[str, type], lines: Lines, path: tuple[str | int, ...]
) -> list[Problem]:
    """A problem for each key that is not known here, or whose value is of another type."""
    problems: list[Problem] = []
    for key, value in table.items():
        if key not in keys:
            problems.append(lines.problem(f'"{key}" is not known here. Use: {", ".join(keys)}.', *path, key))
        elif keys[key] is not object and type(value) is not keys[key]:
            problems.append(lines.problem(f'"{key}" must be {_CALLED[keys[key]]}.', *path, key))
    return problems
