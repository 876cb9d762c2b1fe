"""Courses as their designers write them, in TOML: agents, memory blocks with their fields, and tasks. Every fault has its line."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, cast

from ricordo.domain.block import DEFAULT_LIMIT, Policy, require_label
from ricordo.domain.block_schema import BlockSchema
from ricordo.domain.clock import zone
from ricordo.domain.text import normal_text
from ricordo.errors import Invalid, Unavailable
from ricordo.features.automation.schedules.cron import parse as parse_cron
from ricordo.memory.schemas import BLOCK_KEYS, Lines, read_toml, schema_in, unfit
from ricordo.memory.sections import Problem, refuse

FILE = "agents.toml"
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?")
_NAMING = 'Use small letters, digits and "-", at most 64.'
_LARGEST = 262_144  # bytes of a file
_COURSE = {
    "title": str,
    "description": str,
    "timezone": str,
    "agent": list,
    "block": list,
    "task": list,
}
_AGENT: dict[str, type] = {
    "name": str,
    "title": str,
    "description": str,
    "instructions": str,
    "model": str,
    "tools": list,
}
_AGENT.update(context_window=int, max_steps=int, workspace=str)
_BLOCK = {**BLOCK_KEYS, "label": str, "value": str, "shared": bool, "teachers_see": bool}
_TASK = {
    "name": str,
    "agent": str,
    "instructions": str,
    "cron": str,
    "idle_minutes": int,
    "cooldown_minutes": int,
}
_TASK.update(active_days=int, timezone=str)
Workspace = Literal["none", "isolated", "shared"]
_WORKSPACES = ("none", "isolated", "shared")
_WRITING = {
    "agent": '[[agent]] with a name, as name = "coach"',
    "block": '[[block]] with a label, as label = "student"',
}
_WRITING |= {"task": '[[task]] with a name, as name = "weekly"'}


@dataclass(frozen=True, slots=True)
class CourseAgent:
    """An agent of a course. `tools` are names, None for the usual ones; `line` is where it stands in the file."""

    name: str
    instructions: str
    line: int = 0
    title: str | None = None
    description: str | None = None
    model: str | None = None
    tools: tuple[str, ...] | None = None
    context_window: int | None = None
    max_steps: int | None = None
    workspace: Workspace = "none"


@dataclass(frozen=True, slots=True)
class CourseBlock:
    """A block that every agent of the course sees: the student's own, or with `shared` one text for everybody.

    `schema` says which fields it has; without one it is a text that begins as `value`.
    """

    label: str
    line: int = 0
    title: str | None = None
    description: str | None = None
    value: str = ""
    limit: int = DEFAULT_LIMIT
    policy: Policy = "propose"
    shared: bool = False
    teachers_see: bool = False
    schema: BlockSchema | None = None

    @property
    def schema_name(self) -> str:
        return self.label.replace("/", ".")


@dataclass(frozen=True, slots=True)
class CourseTask:
    """What an agent does for each student by itself: at the times of a cron expression, or once they were away for a while."""

    name: str
    agent: str
    instructions: str
    line: int = 0
    cron: str | None = None
    timezone: str | None = None
    idle_minutes: int | None = None
    cooldown_minutes: int | None = None
    active_days: int | None = None


@dataclass(frozen=True, slots=True)
class Course:
    """A course that was read without a fault. `digest` names its text."""

    name: str
    title: str
    description: str | None
    agents: tuple[CourseAgent, ...]
    blocks: tuple[CourseBlock, ...]
    tasks: tuple[CourseTask, ...]
    text: str = field(repr=False)
    timezone: str | None = None

    @property
    def digest(self) -> str:
        return sha256(self.text.encode()).hexdigest()

    @property
    def where(self) -> str:
        return f"{self.name}/{FILE}"


def parse_course(text: str, name: str) -> Course:
    """The course that a TOML text lays down. Raises Invalid with every problem, its file and its line."""
    where = f"{name}/{FILE}"
    if not _NAME.fullmatch(name):
        raise Invalid(f'"{name[:80]}" cannot be the name of a course. {_NAMING}')
    table, lines = read_toml(text, where), Lines(text)
    problems = unfit(table, _COURSE, lines)
    _require_zone(table, lines, problems)
    agents = _each(table, "agent", lines, problems, _agent)
    blocks = _each(table, "block", lines, problems, _block)
    tasks = _each(table, "task", lines, problems, _task)
    if not table.get("agent"):
        problems.append(Problem(1, f"a course needs an agent. Add {_WRITING['agent']}."))
    for each, what in ((agents, "agent"), (blocks, "block"), (tasks, "task")):
        problems += _twice(
            [(one.label if isinstance(one, CourseBlock) else one.name, one.line) for one in each],
            what,
        )
    known = {agent.name for agent in agents}
    first = agents[0].name if len(agents) == 1 else ""
    tasks = [replace(task, agent=task.agent or first) for task in tasks]
    for task in tasks:
        if task.agent not in known and agents:
            told = f'"agent" must name an agent of this course: {", ".join(sorted(known))}.'
            problems.append(Problem(task.line, told))
    if problems:
        refuse(problems, where)
    title = table.get("title") or name.replace("-", " ").capitalize()
    parts = (tuple(agents), tuple(blocks), tuple(tasks))
    return Course(name, title, table.get("description"), *parts, text, table.get("timezone"))


def _each(
    table: Mapping[str, Any],
    key: str,
    lines: Lines,
    problems: list[Problem],
    read: Callable[[Mapping[str, Any], Lines, int, list[Problem]], Any],
) -> list[Any]:
    found = table.get(key)
    if not isinstance(found, list):
        return []
    made = []
    for place, one in enumerate(found):
        if not isinstance(one, dict):
            problems.append(lines.problem(f"write each as {_WRITING[key]}.", key, place))
        elif made_of := read(one, lines, place, problems):
            made.append(made_of)
    return made


def _agent(
    one: Mapping[str, Any], lines: Lines, place: int, problems: list[Problem]
) -> CourseAgent | None:
    path, before = ("agent", place), len(problems)
    problems += unfit(one, _AGENT, lines, *path)
    _require_name(one, "name", lines, problems, *path)
    if not str(one.get("instructions") or "").strip():
        problems.append(
            lines.problem(
                '"instructions" say what the agent does. Fill them in.', *path, "instructions"
            )
        )
    tools = one.get("tools")
    if isinstance(tools, list) and not all(isinstance(tool, str) for tool in tools):
        problems.append(
            lines.problem(
                '"tools" must be a list of names, as ["conversation_search"].', *path, "tools"
            )
        )
    for key, least, most in (("context_window", 1_000, 10_000_000), ("max_steps", 1, 200)):
        _require_between(one, key, least, most, lines, problems, *path)
    if isinstance(one.get("workspace"), str) and one["workspace"] not in _WORKSPACES:
        problems.append(
            lines.problem(
                f'"workspace" must be one of: {", ".join(_WORKSPACES)}.', *path, "workspace"
            )
        )
    if len(problems) > before:
        return None
    kept = {name: value for name, value in one.items() if name != "tools"}
    return CourseAgent(
        **kept, tools=None if tools is None else tuple(tools), line=lines.of(*path).line
    )


def _block(
    one: Mapping[str, Any], lines: Lines, place: int, problems: list[Problem]
) -> CourseBlock | None:
    path, before = ("block", place), len(problems)
    problems += unfit(one, _BLOCK, lines, *path)
    try:
        label = require_label(str(one.get("label", "")))
    except Invalid as error:
        problems.append(lines.problem(str(error), *path, "label"))
        label = ""
    if one.get("fields") is not None and "value" in one:
        problems.append(
            lines.problem('a block has "fields" or a "value". Keep one of them.', *path, "value")
        )
    # The settings are checked as a schema's; a block without fields is given one for that.
    settings = {
        "policy": one.get("policy"),
        "limit": one.get("limit", DEFAULT_LIMIT),
        "title": one.get("title", ""),
    }
    fields = one.get("fields", {"text": {"kind": "text"}})
    table = {**settings, "description": one.get("description", ""), "fields": fields}
    schema = None
    if len(problems) == before:
        schema, found = schema_in(table, label.replace("/", "."), lines, *path)
        problems += found
    if len(problems) > before or schema is None:
        return None
    if len(str(one.get("value", ""))) > schema.limit:
        problems.append(
            lines.problem(f'"value" is longer than the limit of {schema.limit}.', *path, "value")
        )
    return CourseBlock(
        label,
        lines.of(*path).line,
        one.get("title"),
        one.get("description"),
        str(one.get("value", "")),
        schema.limit,
        cast(Policy, one.get("policy") or "propose"),
        bool(one.get("shared")),
        bool(one.get("teachers_see")),
        schema if "fields" in one else None,
    )


def _task(
    one: Mapping[str, Any], lines: Lines, place: int, problems: list[Problem]
) -> CourseTask | None:
    path, before = ("task", place), len(problems)
    problems += unfit(one, _TASK, lines, *path)
    _require_name(one, "name", lines, problems, *path)
    if not str(one.get("instructions") or "").strip():
        problems.append(
            lines.problem(
                '"instructions" say what is to be done. Fill them in.', *path, "instructions"
            )
        )
    if ("cron" in one) == ("idle_minutes" in one):
        problems.append(
            lines.problem(
                'a task has a "cron" expression or "idle_minutes". Give one of them.', *path
            )
        )
    _require_zone(one, lines, problems, *path)
    if isinstance(one.get("cron"), str) and len(problems) == before:
        try:
            parse_cron(one["cron"], one.get("timezone"))
        except Invalid as error:
            problems.append(lines.problem(str(error), *path, "cron"))
    if "timezone" in one and "cron" not in one:
        problems.append(lines.problem('"timezone" belongs to "cron".', *path, "timezone"))
    if "cooldown_minutes" in one and "idle_minutes" not in one:
        problems.append(
            lines.problem(
                '"cooldown_minutes" belongs to "idle_minutes".', *path, "cooldown_minutes"
            )
        )
    for key in ("idle_minutes", "cooldown_minutes"):
        _require_between(one, key, 1, 525_600, lines, problems, *path)
    _require_between(one, "active_days", 1, 3650, lines, problems, *path)
    if len(problems) > before:
        return None
    return CourseTask(**{"agent": "", **one}, line=lines.of(*path).line)


def _require_name(
    one: Mapping[str, Any], key: str, lines: Lines, problems: list[Problem], *path: str | int
) -> None:
    if not _NAME.fullmatch(str(one.get(key, ""))):
        problems.append(
            lines.problem(f'"{key}" is missing or cannot be used. {_NAMING}', *path, key)
        )


def _require_zone(
    one: Mapping[str, Any], lines: Lines, problems: list[Problem], *path: str | int
) -> None:
    if isinstance(one.get("timezone"), str):
        try:
            zone(one["timezone"])
        except Invalid as error:
            problems.append(lines.problem(str(error), *path, "timezone"))


def _require_between(
    one: Mapping[str, Any],
    key: str,
    least: int,
    most: int,
    lines: Lines,
    problems: list[Problem],
    *path: str | int,
) -> None:
    value = one.get(key)
    if type(value) is int and not least <= value <= most:
        problems.append(lines.problem(f'"{key}" must lie between {least} and {most}.', *path, key))


def _twice(named: Sequence[tuple[str, int]], what: str) -> list[Problem]:
    first: dict[str, int] = {}
    problems = []
    for name, line in named:
        if name in first:
            problems.append(
                Problem(
                    line,
                    f'the {what} "{name}" is in line {first[name]} already. Rename one of the two.',
                )
            )
        first.setdefault(name, line)
    return problems


def read_courses(folder: Path) -> tuple[dict[str, Course], dict[str, str]]:
    """The courses in a folder that can be used, and by name what is wrong with the others. Raises Unavailable.

    Courses that give one label different fields are all refused, each with the places.
    """
    found: dict[str, Course] = {}
    faults: dict[str, str] = {}
    try:
        paths = sorted(folder.glob(f"*/{FILE}"))
    except OSError as error:
        raise Unavailable(
            f"{folder} cannot be read: {error.strerror}. See to its permissions."
        ) from error
    for path in paths:
        name = path.parent.name
        try:
            found[name] = parse_course(read_text(path), name)
        except (Invalid, Unavailable) as error:
            faults[name] = str(error)
    for name, words in conflicts(found.values()).items():
        faults[name] = words
        del found[name]
    return found, faults


def read_text(path: Path) -> str:
    """The text of a course's file. Raises Invalid, Unavailable."""
    where = f"{path.parent.name}/{path.name}"
    try:
        with path.open("rb") as opened:
            content = opened.read(_LARGEST + 1)
    except OSError as error:
        raise Unavailable(
            f"{where} cannot be read: {error.strerror}. See to its permissions."
        ) from error
    if len(content) > _LARGEST:
        raise Invalid(f"{where} is larger than {_LARGEST} bytes. Shorten it.")
    try:
        return normal_text(content.decode("utf-8"))
    except UnicodeDecodeError:
        raise Invalid(f"{where} is not UTF-8 text. Save it as UTF-8.") from None


def conflicts(courses: Iterable[Course]) -> dict[str, str]:
    """What is wrong, by course, where two courses give blocks of one label different fields."""
    first: dict[str, tuple[Course, CourseBlock]] = {}
    told: dict[str, list[str]] = {}
    for course in courses:
        for block in course.blocks:
            if block.shared:  # every course has its own
                continue
            other, same = first.setdefault(block.label, (course, block))
            if other is not course and _fields(block) != _fields(same):
                places = (f"{other.where}: Line {same.line}", f"{course.where}: Line {block.line}")
                words = f'the block "{block.label}" has other fields in {{}}. Give both the same fields, or rename one.'
                told.setdefault(other.name, []).append(f"{places[0]}: {words.format(places[1])}")
                told.setdefault(course.name, []).append(f"{places[1]}: {words.format(places[0])}")
    return {name: "\n".join(dict.fromkeys(lines)) for name, lines in told.items()}


def _fields(block: CourseBlock) -> Any:
    return block.schema.fields if block.schema else None
