"""The TOML file of a course: agents, memory blocks and tasks.

A block can have fields. Every fault of the text names its line.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from ricordo.domain.block import DEFAULT_LIMIT, Policy, require_label
from ricordo.domain.block_schema import BlockSchema
from ricordo.domain.clock import zone
from ricordo.domain.cron import parse as parse_cron
from ricordo.domain.text import normal_text
from ricordo.errors import Invalid, Unavailable
from ricordo.features.tutor.courses.options import CourseSettings
from ricordo.features.tutor.courses.skills import (
    LONGEST_LINE,
    MOST_IN_LIST,
    MOST_SKILLS,
    CourseSkill,
    prerequisite_problems,
)
from ricordo.memory.schemas import BLOCK_KEYS, Lines, read_toml, schema_in, unfit
from ricordo.memory.sections import Problem, refuse
from ricordo.settings import Settings

T = TypeVar("T")
FILE = "agents.toml"
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?")
_NAMING = 'Use small letters, digits and "-", at most 64.'
_MAX_FILE_BYTES = 262_144
_COURSE: dict[str, type] = {
    "title": str,
    "description": str,
    "timezone": str,
    "agent": list,
    "block": list,
    "task": list,
    "skill": list,
    "skill_policy": str,
    "retention_days": int,
    "guardians_see": bool,
}
_AGENT: dict[str, type] = {
    "name": str,
    "title": str,
    "description": str,
    "instructions": str,
    "model": str,
    "tools": list,
    "folders": list,
    "context_window": int,
    "max_steps": int,
    "workspace": str,
}
_BLOCK = {
    **BLOCK_KEYS,
    "label": str,
    "was": str,
    "value": str,
    "shared": bool,
    "teachers_see": bool,
}
_TASK: dict[str, type] = {
    "name": str,
    "agent": str,
    "instructions": str,
    "tools": list,
    "system": str,
    "max_steps": int,
    "cron": str,
    "idle_minutes": int,
    "cooldown_minutes": int,
    "active_days": int,
    "timezone": str,
    "only_if_due": bool,
}
_SKILL: dict[str, type] = {
    "name": str,
    "title": str,
    "description": str,
    "prerequisites": list,
    "examples": list,
    "misconceptions": list,
}
# The label of the block in which agents of a course with skills see the student's state.
LEARNER_STATE = "learner_state"
SkillPolicy = Literal["propose", "direct"]
_SKILL_POLICIES = ("propose", "direct")
Workspace = Literal["none", "isolated", "shared"]
_WORKSPACES = ("none", "isolated", "shared")
# The lists of a skill, each with an example for the sentence that asks for a list.
_SKILL_LISTS = {
    "prerequisites": "decimals",
    "examples": "1/2 + 1/3",
    "misconceptions": "adds the denominators",
}
_EXAMPLES = {
    "agent": '[[agent]] with a name, as name = "coach"',
    "block": '[[block]] with a label, as label = "student"',
    "task": '[[task]] with a name, as name = "weekly"',
    "skill": '[[skill]] with a name, as name = "fractions"',
}


@dataclass(frozen=True, slots=True)
class CourseAgent:
    """An agent of a course.

    `tools` are names (None: a tutor's usual tools); `folders` are names of folders with files to
    read. `notes_skills` is set if the course has skills. `line` is the agent's line in the file.
    """

    name: str
    instructions: str
    line: int = 0
    title: str | None = None
    description: str | None = None
    model: str | None = None
    tools: tuple[str, ...] | None = None
    folders: tuple[str, ...] = ()
    context_window: int | None = None
    max_steps: int | None = None
    workspace: Workspace = "none"
    notes_skills: bool = False
    # The line numbers of the agent's keys, and of the names in its lists, such as ("tools",
    # "web_search").
    places: Mapping[tuple[str, ...], int] = field(default_factory=dict, repr=False, compare=False)

    def line_of(self, *key: str) -> int:
        """Return the line of a key or of a name in its list, else of the agent.

        Args:
            *key: The key, and for a list also the name in it, such as "tools", "web_search".
        """
        return self.places.get(key) or self.places.get(key[:1]) or self.line


@dataclass(frozen=True, slots=True)
class CourseBlock:
    """A block that every agent of the course sees.

    Each student gets a copy of it at the first edit; a `shared` block has one text for everybody.
    `schema` contains its fields; without one it is a text that starts as `value`. `was` is its
    former label, and `former_fields` maps names of fields to former names. With `is_view` it has no
    stored text: prompts fill it with the student's skills.
    """

    label: str
    was: str | None = None
    former_fields: Mapping[str, str] = field(default_factory=dict)
    line: int = 0
    title: str | None = None
    description: str | None = None
    value: str = ""
    limit: int = DEFAULT_LIMIT
    policy: Policy = "propose"
    shared: bool = False
    teachers_see: bool = False
    schema: BlockSchema | None = None
    is_view: bool = False

    @property
    def schema_name(self) -> str:
        return self.label.replace("/", ".")

    @property
    def fields(self) -> Any:
        return self.schema.fields if self.schema else None


_STATE_BLOCK = CourseBlock(
    label=LEARNER_STATE,
    description=(
        "The student's skills in the course, with evidence and due reviews. Only note_evidence "
        "and propose_mastery change it."
    ),
    policy="read_only",
    is_view=True,
)


@dataclass(frozen=True, slots=True)
class CourseTask:
    """A task that an agent does for each student without a request.

    It runs at the times of a cron expression, or after the student was away for `idle_minutes`.
    During the task, `system` is added to the agent's prompt, and `tools` replace the agent's tools
    (None: the agent's). With `only_if_due` it runs only for students with reviews that are due.
    """

    name: str
    agent: str
    instructions: str
    line: int = 0
    system: str | None = None
    tools: tuple[str, ...] | None = None
    max_steps: int | None = None
    cron: str | None = None
    timezone: str | None = None
    idle_minutes: int | None = None
    cooldown_minutes: int | None = None
    active_days: int | None = None
    only_if_due: bool = False
    places: Mapping[tuple[str, ...], int] = field(default_factory=dict, repr=False, compare=False)

    def line_of(self, *key: str) -> int:
        """Return the line of a key or of a name in its list, else of the task.

        Args:
            *key: The key, and for a list also the name in it, such as "tools", "web_search".
        """
        return self.places.get(key) or self.places.get(key[:1]) or self.line


@dataclass(frozen=True, slots=True)
class Course:
    """A course whose file has no fault.

    `digest` is the hash of its text. `skill_policy` is the policy for agents' notes about skills.
    The notes are stored for `retention_days` (None: without limit). If `guardians_see` is set, the
    guardians of students see the levels.
    """

    name: str
    title: str
    description: str | None
    agents: tuple[CourseAgent, ...]
    blocks: tuple[CourseBlock, ...]
    tasks: tuple[CourseTask, ...]
    text: str = field(repr=False)
    timezone: str | None = None
    skills: tuple[CourseSkill, ...] = ()
    skill_policy: SkillPolicy = "propose"
    retention_days: int | None = None
    guardians_see: bool = False

    @property
    def digest(self) -> str:
        return sha256(self.text.encode()).hexdigest()

    @property
    def file_name(self) -> str:
        return f"{self.name}/{FILE}"


@dataclass(frozen=True, slots=True)
class _Entry:
    """A table of the file, with the list that collects problems."""

    table: Mapping[str, Any]
    lines: Lines
    problems: list[Problem]
    path: tuple[str | int, ...] = ()

    @property
    def line(self) -> int:
        return self.lines.of(*self.path).line

    def add_problem(self, sentence: str, *path: str | int) -> None:
        self.problems.append(self.lines.problem(sentence, *self.path, *path))

    def require_keys(self, types: Mapping[str, type]) -> None:
        self.problems.extend(unfit(self.table, types, self.lines, *self.path))

    def require_name(self) -> None:
        if not _NAME.fullmatch(str(self.table.get("name", ""))):
            self.add_problem(f'"name" is missing or cannot be used. {_NAMING}', "name")

    def require_instructions(self, sentence: str) -> None:
        if not str(self.table.get("instructions") or "").strip():
            self.add_problem(sentence, "instructions")

    def require_names(self, key: str, example: str) -> None:
        names = self.table.get(key)
        if isinstance(names, list) and not all(isinstance(name, str) for name in names):
            self.add_problem(f'"{key}" must be a list of names, as ["{example}"].', key)

    def require_zone(self) -> None:
        if isinstance(self.table.get("timezone"), str):
            try:
                zone(self.table["timezone"])
            except Invalid as error:
                self.add_problem(str(error), "timezone")

    def require_between(self, key: str, low: int, high: int) -> None:
        number = self.table.get(key)
        if type(number) is int and not low <= number <= high:
            self.add_problem(f'"{key}" must lie between {low} and {high}.', key)


def parse_course(text: str, name: str) -> Course:
    """Read a course from the TOML text of its file.

    Args:
        text: The text in normal form.
        name: The course's name, which is that of the file's folder.

    Raises:
        Invalid: if the text has faults. The message has a line for each fault, with its position.
    """
    file_name = f"{name}/{FILE}"
    if not _NAME.fullmatch(name):
        sentence = f'"{name[:80]}" cannot be the name of a course. {_NAMING}'
        refuse([Problem(1, sentence)], file_name)
    table = read_toml(text, file_name)
    problems: list[Problem] = []
    entry = _Entry(table, Lines(text), problems)
    entry.require_keys(_COURSE)
    entry.require_zone()
    agents = _entries(entry, "agent", _agent)
    blocks = _entries(entry, "block", _block)
    tasks = _entries(entry, "task", _task)
    skills = _skills(entry)
    if not table.get("agent"):
        problems.append(Problem(1, f"a course needs an agent. Add {_EXAMPLES['agent']}."))
    problems += _duplicates([(agent.name, agent.line) for agent in agents], "agent")
    problems += _duplicates([(block.label, block.line) for block in blocks], "block")
    problems += _duplicates([(task.name, task.line) for task in tasks], "task")
    problems += _former_label_problems(blocks)
    only_agent = agents[0].name if len(agents) == 1 else ""
    tasks = [replace(task, agent=task.agent or only_agent) for task in tasks]
    problems += _agent_problems(tasks, agents)
    problems += _due_problems(tasks, skills)
    if problems:
        refuse(problems, file_name)
    if skills:
        agents = [replace(agent, notes_skills=True) for agent in agents]
        blocks.append(_STATE_BLOCK)
    return Course(
        name=name,
        title=table.get("title") or name.replace("-", " ").capitalize(),
        description=table.get("description"),
        agents=tuple(agents),
        blocks=tuple(blocks),
        tasks=tuple(tasks),
        text=text,
        timezone=table.get("timezone"),
        skills=tuple(skills),
        skill_policy=cast(SkillPolicy, table.get("skill_policy") or "propose"),
        retention_days=table.get("retention_days"),
        guardians_see=table.get("guardians_see") is True,
    )


def _entries(course: _Entry, key: str, read: Callable[[_Entry], T | None]) -> list[T]:
    """Read each table of an array, and leave out those with problems."""
    tables = course.table.get(key)
    if not isinstance(tables, list):
        return []
    entries = []
    for index, table in enumerate(tables):
        if not isinstance(table, dict):
            course.add_problem(f"write each as {_EXAMPLES[key]}.", key, index)
            continue
        entry = read(_Entry(table, course.lines, course.problems, (key, index)))
        if entry is not None:
            entries.append(entry)
    return entries


def _skills(course: _Entry) -> list[CourseSkill]:
    """Read the skills, and the course's settings for all skills."""
    table = course.table
    course.require_between("retention_days", 1, 3650)
    policy = table.get("skill_policy")
    if isinstance(policy, str) and policy not in _SKILL_POLICIES:
        sentence = f'"skill_policy" must be one of: {", ".join(_SKILL_POLICIES)}.'
        course.add_problem(sentence, "skill_policy")
    skills = _entries(course, "skill", _skill)
    if len(skills) > MOST_SKILLS:
        course.add_problem(f"a course has at most {MOST_SKILLS} skills. Remove some.", "skill")
    course.problems.extend(_duplicates([(skill.name, skill.line) for skill in skills], "skill"))
    names = [table.get("name") for table in _tables(table.get("skill"))]
    if len(skills) == len(names):  # otherwise a skill with a fault would seem unknown
        course.problems.extend(prerequisite_problems(skills))
    return skills


def _tables(value: object) -> list[dict[str, Any]]:
    return [table for table in value if isinstance(table, dict)] if isinstance(value, list) else []


def _due_problems(tasks: Sequence[CourseTask], skills: Sequence[CourseSkill]) -> list[Problem]:
    """Return a problem for each task that waits for reviews in a course without skills."""
    sentence = '"only_if_due" needs a [[skill]] in this course. Add one, or remove the line.'
    return [
        Problem(task.line_of("only_if_due"), sentence)
        for task in tasks
        if task.only_if_due and not skills
    ]


def _former_label_problems(blocks: Sequence[CourseBlock]) -> list[Problem]:
    """Return a problem for each former label that a block has now, or that two blocks had."""
    labels = {block.label for block in blocks}
    problems = [
        Problem(block.line, f'"was" must name a label that no block has now: "{block.was}".')
        for block in blocks
        if block.was in labels
    ]
    former = [(block.was, block.line) for block in blocks if block.was]
    return problems + _duplicates(former, "former label")


def _agent_problems(tasks: Sequence[CourseTask], agents: Sequence[CourseAgent]) -> list[Problem]:
    """Return a problem for each task of an unknown agent."""
    if not agents:
        return []
    names = {agent.name for agent in agents}
    sentence = f'"agent" must name an agent of this course: {", ".join(sorted(names))}.'
    return [Problem(task.line, sentence) for task in tasks if task.agent not in names]


def _agent(entry: _Entry) -> CourseAgent | None:
    table = entry.table
    problem_count = len(entry.problems)
    entry.require_keys(_AGENT)
    entry.require_name()
    entry.require_instructions('"instructions" say what the agent does. Fill them in.')
    tools = table.get("tools")
    folders = table.get("folders")
    entry.require_names("tools", "conversation_search")
    entry.require_names("folders", "Reading list")
    if table.get("model") == "":
        entry.add_problem('"model" is empty. Fill it in, or remove the line.', "model")
    entry.require_between("context_window", 1_000, 10_000_000)
    entry.require_between("max_steps", 1, 200)
    if isinstance(table.get("workspace"), str) and table["workspace"] not in _WORKSPACES:
        entry.add_problem(f'"workspace" must be one of: {", ".join(_WORKSPACES)}.', "workspace")
    if len(entry.problems) > problem_count:
        return None
    settings = {key: table[key] for key in table if key not in ("tools", "folders")}
    return CourseAgent(
        **settings,
        tools=None if tools is None else tuple(tools),
        folders=tuple(folders or ()),
        line=entry.line,
        places=_places(entry, tools=tools or (), folders=folders or ()),
    )


def _places(entry: _Entry, **lists: Sequence[str]) -> dict[tuple[str, ...], int]:
    """Return the lines of an entry's keys, and of the names in these lists."""
    places: dict[tuple[str, ...], int] = {
        (key,): entry.lines.of(*entry.path, key).line for key in entry.table
    }
    for key, names_in_list in lists.items():
        for name in names_in_list:
            places[key, name] = entry.lines.line_of_item(name, *entry.path, key)
    return places


def _block(entry: _Entry) -> CourseBlock | None:
    table = entry.table
    problem_count = len(entry.problems)
    entry.require_keys(_BLOCK)
    label = ""
    if table.get("label") == LEARNER_STATE:
        entry.add_problem(f'"{LEARNER_STATE}" shows the skills of a course. Rename it.', "label")
    for key in ("was", "label") if "was" in table else ("label",):
        try:
            label = require_label(str(table.get(key, "")))
        except Invalid as error:
            entry.add_problem(str(error), key)
    if table.get("fields") is not None and "value" in table:
        entry.add_problem('a block has "fields" or a "value". Keep one of them.', "value")
    if len(entry.problems) > problem_count:
        return None
    fields, former_fields = _former_fields(entry)
    schema, schema_problems = schema_in(
        _schema_table({**table, "fields": fields} if fields else table),
        label.replace("/", "."),
        entry.lines,
        *entry.path,
    )
    entry.problems.extend(schema_problems)
    if len(entry.problems) > problem_count:
        return None
    if schema is None or schema_problems:
        return None
    value = str(table.get("value", ""))
    if len(value) > schema.limit:
        entry.add_problem(f'"value" is longer than the limit of {schema.limit}.', "value")
    return CourseBlock(
        label=label,
        was=table.get("was"),
        former_fields=former_fields,
        line=entry.line,
        title=table.get("title"),
        description=table.get("description"),
        value=value,
        limit=schema.limit,
        policy=cast(Policy, table.get("policy") or "propose"),
        shared=bool(table.get("shared")),
        teachers_see=bool(table.get("teachers_see")),
        schema=schema if "fields" in table else None,
    )


def _former_fields(entry: _Entry) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the block's fields without "was", and a map from new to former names."""
    tables = entry.table.get("fields")
    if not isinstance(tables, dict):
        return {}, {}
    fields: dict[str, Any] = {}
    former_names: dict[str, str] = {}
    for name, table in tables.items():
        fields[name] = table
        if not isinstance(table, dict) or "was" not in table:
            continue
        fields[name] = {key: setting for key, setting in table.items() if key != "was"}
        former = table["was"]
        if not isinstance(former, str) or former in tables or former in former_names.values():
            sentence = '"was" must be the former name of this field alone, which no field has now.'
            entry.add_problem(sentence, "fields", name, "was")
        else:
            former_names[name] = former
    return fields, former_names


def _schema_table(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the block's settings in the form of a schema, to check them as a schema.

    A block without fields gets a field for this check.
    """
    return {
        "policy": table.get("policy"),
        "limit": table.get("limit", DEFAULT_LIMIT),
        "title": table.get("title", ""),
        "description": table.get("description", ""),
        "fields": table.get("fields", {"text": {"kind": "text"}}),
    }


def _task(entry: _Entry) -> CourseTask | None:
    table = entry.table
    problem_count = len(entry.problems)
    entry.require_keys(_TASK)
    entry.require_name()
    entry.require_instructions('"instructions" say what is to be done. Fill them in.')
    if ("cron" in table) == ("idle_minutes" in table):
        entry.add_problem('a task has a "cron" expression or "idle_minutes". Give one of them.')
    entry.require_zone()
    if isinstance(table.get("cron"), str) and len(entry.problems) == problem_count:
        try:
            parse_cron(table["cron"], table.get("timezone"))
        except Invalid as error:
            entry.add_problem(str(error), "cron")
    if "timezone" in table and "cron" not in table:
        entry.add_problem('"timezone" belongs to "cron".', "timezone")
    if "cooldown_minutes" in table and "idle_minutes" not in table:
        entry.add_problem('"cooldown_minutes" belongs to "idle_minutes".', "cooldown_minutes")
    for key in ("idle_minutes", "cooldown_minutes"):
        entry.require_between(key, 1, 525_600)
    entry.require_between("active_days", 1, 3650)
    entry.require_between("max_steps", 1, 200)
    entry.require_names("tools", "conversation_search")
    if len(entry.problems) > problem_count:
        return None
    tools = table.get("tools")
    settings = {"agent": "", **table, "tools": None if tools is None else tuple(tools)}
    return CourseTask(**settings, line=entry.line, places=_places(entry, tools=tools or ()))


def _skill(entry: _Entry) -> CourseSkill | None:
    table = entry.table
    problem_count = len(entry.problems)
    entry.require_keys(_SKILL)
    entry.require_name()
    lists = {}
    for key, example in _SKILL_LISTS.items():
        entry.require_names(key, example)
        texts = table.get(key)
        lists[key] = texts if isinstance(texts, list) else []
        if len(lists[key]) > MOST_IN_LIST:
            entry.add_problem(f'"{key}" has at most {MOST_IN_LIST} entries. Remove some.', key)
        if any(isinstance(text, str) and not _is_line(text) for text in lists[key]):
            sentence = f'"{key}" needs lines of 1 to {LONGEST_LINE} characters. Shorten or fill in.'
            entry.add_problem(sentence, key)
    if len(entry.problems) > problem_count:
        return None
    return CourseSkill(
        name=table["name"],
        line=entry.line,
        title=table.get("title"),
        description=table.get("description"),
        prerequisites=tuple(lists["prerequisites"]),
        examples=tuple(lists["examples"]),
        misconceptions=tuple(lists["misconceptions"]),
        places=_places(entry, prerequisites=lists["prerequisites"]),
    )


def _is_line(text: str) -> bool:
    """Return True if a text is one line of an allowed length."""
    return bool(text.strip()) and len(text) <= LONGEST_LINE and len(text.splitlines()) == 1


def _duplicates(named_lines: Sequence[tuple[str, int]], noun: str) -> list[Problem]:
    """Return a problem for each name that an earlier line already has."""
    first_lines: dict[str, int] = {}
    problems = []
    for name, line in named_lines:
        if name in first_lines:
            sentence = (
                f'the {noun} "{name}" is in line {first_lines[name]} already. '
                "Rename one of the two."
            )
            problems.append(Problem(line, sentence))
        first_lines.setdefault(name, line)
    return problems


def read_courses(
    folder: Path, new_texts: Mapping[str, str] | None = None
) -> tuple[dict[str, Course], dict[str, str]]:
    """Return a folder's courses by name, and the faults of unreadable ones.

    If courses give one label different fields or policies, all these courses are refused, each with
    the locations.

    Args:
        folder: The folder with a folder for each course. If it is missing, there are no courses.
        new_texts: Texts by course name that replace the files, or None. A name without a file is a
            new course.

    Raises:
        Unavailable: the folder cannot be read.
    """
    courses: dict[str, Course] = {}
    faults: dict[str, str] = {}
    try:
        # `glob` would return nothing for a folder that it may not read.
        paths = [path / FILE for path in folder.iterdir()]
    except FileNotFoundError:
        paths = []
    except OSError as error:
        raise Unavailable(
            f"{folder} cannot be read: {error.strerror}. Check its permissions."
        ) from error
    readers: dict[str, Callable[[], str]] = {
        path.parent.name: partial(read_text, path) for path in paths if _may_exist(path)
    }
    for name, text in (new_texts or {}).items():
        readers[name] = partial(normal_text, text)
    for name, read in sorted(readers.items()):
        try:
            courses[name] = parse_course(read(), name)
        except (Invalid, Unavailable) as error:
            faults[name] = str(error)
    for name, fault in conflicts(courses.values()).items():
        faults[name] = fault
        del courses[name]
    return courses, faults


def _may_exist(path: Path) -> bool:
    """Return False if there is surely no file; its folder may be unreadable."""
    try:
        return path.exists()
    except OSError:
        return True


def state_of(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Return each course's file with its time and size, which change when the file changes.

    Args:
        folder: The folder with a folder for each course. Unreadable files are left out.

    Returns:
        For each file its path, its time in nanoseconds, and its size in bytes, by path.
    """
    states = []
    for path in sorted(folder.glob(f"*/{FILE}")):
        with suppress(OSError):
            status = path.stat()
            states.append((str(path), status.st_mtime_ns, status.st_size))
    return tuple(states)


def read_text(path: Path) -> str:
    """Return the text of a course's file in normal form.

    Args:
        path: The path of the file.

    Raises:
        Invalid: The file is too large, or is not UTF-8.
        Unavailable: The file cannot be read.
    """
    file_name = f"{path.parent.name}/{path.name}"
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise Unavailable(
            f"{file_name} cannot be read: {error.strerror}. Check its permissions."
        ) from error
    if len(content) > _MAX_FILE_BYTES:
        last_line = content.count(b"\n") + 1
        refuse(
            [Problem(last_line, f"here the file exceeds {_MAX_FILE_BYTES} bytes. Shorten it.")],
            file_name,
        )
    try:
        return normal_text(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        refuse([Problem(line, "this is not UTF-8 text. Save the file as UTF-8.")], file_name)


def conflicts(courses: Iterable[Course]) -> dict[str, str]:
    """Return faults by course: labels that conflict with blocks of another course.

    The other course gives the label other fields or another policy, or still uses a former label.

    Args:
        courses: All courses of the server; those without a fault are left out of the result.
    """
    first_blocks: dict[str, tuple[Course, CourseBlock]] = {}
    faults: dict[str, list[str]] = {}
    courses = list(courses)
    for course, block, other, same in _taken_labels(courses):
        faults.setdefault(course.name, []).append(
            f'{course.file_name}: Line {block.line}: the label "{block.was}" is still in '
            f"{other.file_name}: Line {same.line}. Rename it there too."
        )
    for course in courses:
        for block in course.blocks:
            if block.shared:  # each course has a separate text
                continue
            other, same = first_blocks.setdefault(block.label, (course, block))
            if other is course:
                continue
            if block.fields != same.fields:
                difference = "other fields"
            elif block.policy != same.policy:
                difference = "another policy"
            else:
                continue
            location = f"{course.file_name}: Line {block.line}"
            other_location = f"{other.file_name}: Line {same.line}"
            faults.setdefault(other.name, []).append(
                _conflict(block.label, difference, other_location, location)
            )
            faults.setdefault(course.name, []).append(
                _conflict(block.label, difference, location, other_location)
            )
    return {name: "\n".join(dict.fromkeys(lines)) for name, lines in faults.items()}


def _taken_labels(
    courses: Sequence[Course],
) -> Iterator[tuple[Course, CourseBlock, Course, CourseBlock]]:
    """Yield blocks whose former label another course still uses, with that course's block."""
    for course in courses:
        for block in course.blocks:
            for other in courses if block.was and not block.shared else ():
                for same in other.blocks:
                    if other is not course and same.label == block.was and not same.shared:
                        yield course, block, other, same


def _conflict(label: str, difference: str, location: str, other_location: str) -> str:
    noun = "fields" if difference == "other fields" else "policy"
    return (
        f'{location}: the block "{label}" has {difference} in {other_location}. '
        f"Give both the same {noun}, or rename one."
    )


def findings(settings: Settings) -> list[str]:
    """Return the findings for `ricordo doctor`: faulty files, and the names of sound courses.

    Args:
        settings: The server's settings, with the data folder.

    Returns:
        Lines for people; those of faults begin with "!".
    """
    folder = CourseSettings().courses_dir
    if folder and not folder.is_dir():
        return [f"!There is no folder {folder}. Create it, or correct RICORDO_COURSES_DIR."]
    try:
        courses, faults = read_courses(folder or settings.data_dir / "courses")
    except Unavailable as error:
        return [f"!{error}"]
    lines = [f"!{line}" for fault in faults.values() for line in fault.splitlines()]
    if courses:
        lines.append(f"courses: {', '.join(courses)} (tools and models: ricordo course check)")
    return lines
