"""Courses brought into the database: their agents are made or changed as the files say; students' memory stays as it is.

A course is a folder with a file on the server. Its agents are ordinary agents of the first organization, whose blocks are what a
student begins with: the first edit makes the student's own copy, which every course with a block of that label shows from then on.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any

from ricordo.agents.agent_types import chosen_system, traits_of
from ricordo.agents.lifecycle import (
    AgentSpec,
    BlockSpec,
    delete_agent,
    insert_agent,
    new_block,
    prepare,
)
from ricordo.api.models.base import Json
from ricordo.domain.agent import Agent, AgentType
from ricordo.domain.block import Chain
from ricordo.domain.block_schema import BlockSchema, FieldValue, SchemaField
from ricordo.domain.ids import new_id, unique
from ricordo.domain.model import ModelInfo
from ricordo.domain.scope import Actor, Scope
from ricordo.domain.version import ChangeMetadata
from ricordo.errors import Collision, Invalid, NotFound, RicordoError, Unavailable
from ricordo.features.documents.templates.jobs import Migration, rework
from ricordo.features.documents.templates.models import TemplateSaveRequest
from ricordo.features.files.workspaces import TOOLS as WORKSPACE_TOOLS
from ricordo.features.tutor.courses import queries
from ricordo.features.tutor.courses.course_file import (
    FILE,
    Course,
    CourseAgent,
    CourseBlock,
    conflicts,
    parse_course,
    read_courses,
)
from ricordo.features.tutor.courses.options import CourseSettings
from ricordo.features.tutor.courses.queries import StoredCourse
from ricordo.features.typed_memory.formats.service import write_toml
from ricordo.memory.schemas import FOLDER, find_schema
from ricordo.memory.sections import Problem, refuse, starting_text
from ricordo.memory.submission import Submission
from ricordo.memory.user_copies import COPY, FOR_ALL
from ricordo.offload import SMALL, offload
from ricordo.runtime import Runtime
from ricordo.storage import agents, blocks, tools, versions
from ricordo.storage.engine.store import Transaction

# Courses belong to the organization that a server begins with.
SCOPE = Scope()
# In the settings of an agent: the course and the agent of it that this one is.
MARK = "course"
TEACHERS_SEE = "teachers_see"
_MADE = "# Made of courses/{}: change it there.\n"
_AGENT_TYPE: AgentType = "letta_v1_agent"


def folder_of(runtime: Runtime) -> Path:
    """Where the files are: `courses` in the data folder, or where the setting says."""
    return CourseSettings().courses_dir or runtime.settings.data_dir / "courses"


async def apply_all(runtime: Runtime) -> Sequence[StoredCourse]:
    """Bring every course of the folder into the database; what is wrong with a file is kept with its course, and stops no other."""
    found, faults = await offload(lambda: read_courses(folder_of(runtime)), SMALL + 1)
    for name, course in found.items():
        try:
            await apply(runtime, course)
        except RicordoError as error:
            faults[name] = str(error)
    for name, fault in faults.items():
        await runtime.store.write(partial(_note_fault, name=name, fault=fault))
    gone = "Its file is not there any more. Its agents stay until the course is deleted."

    def finish(tx: Transaction) -> Sequence[StoredCourse]:
        for one in queries.everyone(tx, SCOPE):
            if one.name not in found and one.name not in faults:
                _note_fault(tx, one.name, gone)
        return queries.everyone(tx, SCOPE)

    return await runtime.store.write(finish)


async def apply(runtime: Runtime, course: Course) -> StoredCourse:
    """Make or change the agents of one course, all or none. What is applied already costs one read. Raises RicordoError."""

    def find(tx: Transaction) -> tuple[StoredCourse | None, bool]:
        found = queries.find(tx, SCOPE, course.name)
        is_same = found is not None and found.digest == course.digest and found.fault is None
        return found, is_same and all(
            agents.find(tx, SCOPE, id) for id in (found.agents.values() if found else ())
        )

    stored, is_applied = await runtime.store.read(find)
    if stored and is_applied:
        return stored
    await offload(lambda: write_schemas(course, runtime.settings.data_dir), SMALL + 1)
    prepared = [await _prepared(runtime, course, agent) for agent in course.agents]
    with suppress(
        Collision
    ):  # two servers may begin at once: the row is what they wait for each other by
        if stored is None:
            new = StoredCourse(new_id("course"), SCOPE.organization_id, course.name)
            await runtime.store.write(lambda tx: queries.insert(tx, new))
    return await runtime.store.write(lambda tx: _store(tx, runtime, course, prepared))


def _store(
    tx: Transaction,
    runtime: Runtime,
    course: Course,
    prepared: Sequence[tuple[AgentSpec, ModelInfo]],
) -> StoredCourse:
    stored = queries.get(tx, SCOPE, course.name, locks=True)
    began = {one.label: _block(course, one).value for one in blocks_of(stored)}
    ids: dict[str, str] = {}
    for wanted, (spec, info) in zip(course.agents, prepared, strict=True):
        id = stored.agents.get(wanted.name)
        mark = {MARK: {"course": course.name, "agent": wanted.name, "max_steps": wanted.max_steps}}
        mark[MARK] |= {"workspace": wanted.workspace}
        if id and agents.find(tx, SCOPE, id):
            _change(tx, runtime, id, spec, info, mark, began)
            if (
                course.timezone
                and (held := agents.load(tx, SCOPE, id).agent).timezone != course.timezone
            ):
                agents.update(tx, replace(held, timezone=course.timezone), None)
        else:
            made = replace(spec, id=new_id("agent"), settings={**spec.settings, **mark})
            id = insert_agent(tx, runtime, SCOPE, made, info).agent.id
        ids[wanted.name] = id
    applied = replace(
        stored,
        title=course.title,
        description=course.description,
        source=course.text,
        digest=course.digest,
        fault=None,
        # An agent that the file has no more stays, so that nobody's conversations go.
        agents={**stored.agents, **ids},
    )
    queries.change(tx, applied)
    return applied


def _change(
    tx: Transaction,
    runtime: Runtime,
    id: str,
    spec: AgentSpec,
    info: ModelInfo,
    mark: Json,
    began: Mapping[str, str],
) -> None:
    """Make the agent, which is there, what the course says. `began` are the texts its blocks began with as it was applied last."""
    agents.lock(tx, SCOPE, id)
    edit = Submission(Actor("administrator", SCOPE.user_id, "courses"), "Apply the course")
    state = agents.load_whole(tx, SCOPE, id)
    _change_blocks(tx, state.agent, spec.blocks, edit.metadata(""), began)
    options = TemplateSaveRequest(preserve_sources_on_migration=True)
    base = traits_of(spec.agent_type).base_tools if spec.has_base_tools else ()
    names = unique([*base, *spec.tool_names])
    tools.find(tx, SCOPE, names, [])  # raises NotFound for one that is not there
    migration = Migration(SCOPE, replace(spec, blocks=()), info, names, (), edit, options)
    rework(tx, runtime, migration, state, settings=mark, variables={})
    changed = agents.load(tx, SCOPE, id).agent
    if spec.name and changed.name != spec.name:
        agents.update(tx, replace(changed, name=spec.name), None)


def _change_blocks(
    tx: Transaction,
    agent: Agent,
    wanted: Sequence[BlockSpec],
    metadata: ChangeMetadata,
    began: Mapping[str, str],
) -> None:
    """Bring the agent's own blocks to what the course says. A text that the file has not changed stays as people left it."""
    chain = versions.of_owner(tx, SCOPE, "agent", agent.id)
    home = chain or Chain(new_id("chain"), agent.organization_id, "agent", agent.id)
    if chain:
        versions.lock(tx, chain.id)
    attached = blocks.by_ids(tx, SCOPE, [one.id for one in blocks.attached(tx, agent.id)])
    held = {block.label: block for block in attached if block.chain_id == home.id}
    for one in wanted:
        block = held.pop(one.label, None)
        if block is None:
            made = blocks.insert_all(
                tx, [new_block(tx, SCOPE, one, home)], [] if chain else [home], metadata
            )
            chain = home
            blocks.attach(tx, agent.id, made)
            continue
        kept = ("description", "limit", "policy", "shared", "title", "schema_ref", "metadata")
        text = block.value if began.get(one.label) == one.value else one.value
        changed = replace(block, value=text, **{name: getattr(one, name) for name in kept})
        changed.require_fits(text)
        if changed != block:
            blocks.update(tx, block, changed, metadata)
    for block in held.values():
        blocks.remove(tx, block, metadata)


def blocks_of(stored: StoredCourse) -> Sequence[CourseBlock]:
    """The blocks of the course as it was applied last."""
    return parse_course(stored.source, stored.name).blocks if stored.source else ()


async def _prepared(
    runtime: Runtime, course: Course, agent: CourseAgent
) -> tuple[AgentSpec, ModelInfo]:
    """Return an agent's spec and its model. Raises Invalid with the line of the agent."""
    usual = chosen_system(None, traits_of(_AGENT_TYPE).prompt_key, runtime.settings.data_dir)
    spec = AgentSpec(
        name=agent.title
        or (course.name if len(course.agents) == 1 else f"{course.name}/{agent.name}"),
        agent_type=_AGENT_TYPE,
        # What the course says comes after what every agent is told of its memory.
        system=f"{usual}\n\n{agent.instructions.strip()}\n",
        model=agent.model,
        context_window=agent.context_window,
        description=agent.description or course.description,
        metadata={"course": course.name},
        timezone=course.timezone or runtime.settings.timezone,
        blocks=tuple(_block(course, block) for block in course.blocks),
        tool_names=(*(agent.tools or ()), *(WORKSPACE_TOOLS if agent.workspace != "none" else ())),
        has_base_tools=agent.tools is None,
        tags=("course",),
    )
    try:
        return await prepare(runtime, SCOPE, spec)
    except Unavailable:
        raise
    except RicordoError as error:
        refuse([Problem(agent.line, str(error))], course.where)


def _block(course: Course, block: CourseBlock) -> BlockSpec:
    value = starting_text(block.schema) if block.schema else block.value
    metadata: dict[str, Any] = {} if block.shared else {COPY: FOR_ALL}
    if block.teachers_see:
        metadata[TEACHERS_SEE] = course.name
    return BlockSpec(
        block.label,
        value,
        block.description or (block.schema.description if block.schema else None),
        block.limit,
        metadata=metadata,
        policy=block.policy,
        shared=block.shared,
        title=block.title,
        schema_ref=block.schema_name if block.schema else None,
    )


def write_schemas(course: Course, data_dir: Path) -> None:
    """Write the fields of the course's blocks where schemas are. Raises Invalid where others made such a schema, Unavailable."""
    for block in course.blocks:
        if block.schema is None:
            continue
        path = data_dir / FOLDER / f"{block.schema_name}.toml"
        held = find_schema(block.schema_name, data_dir)
        if held and held.fields == block.schema.fields:
            continue
        if held and not path.read_text("utf-8").startswith(_MADE.split("{", 1)[0]):
            told = f'the schema {FOLDER}/{path.name} of the data folder has other fields. Give "{block.label}" the same.'
            refuse([Problem(block.line, told)], course.where)
        text = _MADE.format(course.where) + schema_text(block, block.schema)
        _write(path, text)


def _write(path: Path, text: str) -> None:
    """Put the text into the file, the whole of it or nothing."""
    temporary = path.with_name(f"{path.name}.{token_hex(8)}")  # of this writer alone
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary.write_text(text, "utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise Unavailable(
            f"{path} cannot be written: {error.strerror}. See to its permissions."
        ) from error


def schema_text(block: CourseBlock, schema: BlockSchema) -> str:
    """The block's fields as the TOML of a schema."""
    settings: dict[str, FieldValue] = {
        "title": schema.title,
        "description": block.description or "",
        "policy": block.policy,
        "limit": block.limit,
    }
    text = write_toml({key: value for key, value in settings.items() if value})
    usual = SchemaField("usual")
    for one in schema.fields:
        keys = ("kind", "description", "required", "max_length", "max_items", "default")
        given: dict[str, FieldValue] = {key: getattr(one, key) for key in keys}
        given = {key: value for key, value in given.items() if value != getattr(usual, key)}
        text += f"\n[fields.{one.name}]\n" + write_toml({"title": one.title, **given})
    return text


def _note_fault(tx: Transaction, name: str, fault: str) -> None:
    stored = queries.find(tx, SCOPE, name)
    if stored is None:
        with suppress(Collision):
            queries.insert(
                tx, StoredCourse(new_id("course"), SCOPE.organization_id, name, fault=fault)
            )
    elif stored.fault != fault:
        queries.change(tx, replace(stored, fault=fault))


async def check(runtime: Runtime, name: str, text: str) -> Course:
    """Read a course as it would be applied here, and store nothing. Raises Invalid with everything that is wrong."""

    def read() -> Course:
        course = parse_course(text, name)
        others, _ = read_courses(folder_of(runtime))
        if words := conflicts([*(one for one in others.values() if one.name != name), course]).get(
            name
        ):
            raise Invalid(words)
        return course

    return await offload(read, SMALL + 1)


async def put(runtime: Runtime, name: str, text: str) -> StoredCourse:
    """Write the course's file, and apply it. Raises Invalid, and writes nothing, where it cannot be used."""
    course = await check(runtime, name, text)
    path = folder_of(runtime) / name / FILE
    await offload(lambda: _write(path, text), SMALL + 1)
    return await apply(runtime, course)


async def remove(runtime: Runtime, name: str) -> None:
    """Delete the course's file and its agents, with what was said to them; students' memory stays. Raises NotFound."""
    stored = await runtime.store.read(lambda tx: queries.get(tx, SCOPE, name))
    path = folder_of(runtime) / name / FILE
    await offload(lambda: path.unlink(missing_ok=True), SMALL + 1)
    for id in stored.agents.values():
        with suppress(NotFound):
            await delete_agent(runtime, SCOPE, id)
    await runtime.store.write(lambda tx: queries.remove(tx, stored))
