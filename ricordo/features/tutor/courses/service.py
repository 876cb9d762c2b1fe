"""Apply courses to the database: create and change their agents, and keep students' memory.

A course is a folder with a file on the server. Its agents are ordinary agents of the first
organization. Their blocks are the texts that a student begins with: the first edit makes the
student's own copy, which every course with a block of that label shows from then on.
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
from ricordo.domain.agent import Agent, AgentType
from ricordo.domain.block import Chain
from ricordo.domain.block_schema import BlockSchema, FieldValue, SchemaField
from ricordo.domain.ids import new_id, unique
from ricordo.domain.model import ModelInfo
from ricordo.domain.scope import Actor, Scope
from ricordo.domain.text import Json
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

# Courses belong to the first organization of a server.
SCOPE = Scope()
# In an agent's settings: its course, and its name in the course's file.
MARK = "course"
TEACHERS_SEE = "teachers_see"
_SCHEMA_HEADER = "# Made of courses/{}: change it there.\n"
_AGENT_TYPE: AgentType = "letta_v1_agent"
_BLOCK_SETTINGS = (
    "description",
    "limit",
    "policy",
    "shared",
    "title",
    "schema_ref",
    "metadata",
)
_FIELD_KEYS = ("kind", "description", "required", "max_length", "max_items", "default")


def folder_of(runtime: Runtime) -> Path:
    """Return the folder of the courses: the setting's, or `courses` in the data folder."""
    return CourseSettings().courses_dir or runtime.settings.data_dir / "courses"


async def apply_all(runtime: Runtime) -> Sequence[StoredCourse]:
    """Apply every course of the folder to the database.

    The fault of a file is stored with its course, and does not stop the others.
    """
    courses, faults = await offload(lambda: read_courses(folder_of(runtime)), SMALL + 1)
    for name, course in courses.items():
        try:
            await apply(runtime, course)
        except RicordoError as error:
            faults[name] = str(error)
    for name, fault in faults.items():
        await runtime.store.write(partial(_note_fault, name=name, fault=fault))
    fault_of_missing = (
        "Its file is not there any more. Its agents stay until the course is deleted."
    )

    def finish(tx: Transaction) -> Sequence[StoredCourse]:
        for stored in queries.everyone(tx, SCOPE):
            if stored.name not in courses and stored.name not in faults:
                _note_fault(tx, stored.name, fault_of_missing)
        return queries.everyone(tx, SCOPE)

    return await runtime.store.write(finish)


async def apply(runtime: Runtime, course: Course) -> StoredCourse:
    """Create or change the agents of one course, all or none.

    A course that is applied already costs one read. Raises RicordoError.
    """

    def find(tx: Transaction) -> tuple[StoredCourse | None, bool]:
        stored = queries.find(tx, SCOPE, course.name)
        if stored is None or stored.digest != course.digest or stored.fault is not None:
            return stored, False
        agent_ids = stored.agents.values()
        return stored, all(agents.find(tx, SCOPE, agent_id) for agent_id in agent_ids)

    stored, is_applied = await runtime.store.read(find)
    if stored and is_applied:
        return stored
    await offload(lambda: write_schemas(course, runtime.settings.data_dir), SMALL + 1)
    prepared = [await _prepared(runtime, course, agent) for agent in course.agents]
    if stored is None:
        new = StoredCourse(new_id("course"), SCOPE.organization_id, course.name)
        # Two servers may apply it at once: each waits for the lock of the row in `_store`.
        with suppress(Collision):
            await runtime.store.write(lambda tx: queries.insert(tx, new))
    return await runtime.store.write(lambda tx: _store(tx, runtime, course, prepared))


def _store(
    tx: Transaction,
    runtime: Runtime,
    course: Course,
    prepared: Sequence[tuple[AgentSpec, ModelInfo]],
) -> StoredCourse:
    stored = queries.get(tx, SCOPE, course.name, locks=True)
    applied_texts = {block.label: _block(course, block).value for block in blocks_of(stored)}
    agent_ids: dict[str, str] = {}
    for course_agent, (spec, info) in zip(course.agents, prepared, strict=True):
        agent_id = stored.agents.get(course_agent.name)
        mark = {
            MARK: {
                "course": course.name,
                "agent": course_agent.name,
                "max_steps": course_agent.max_steps,
                "workspace": course_agent.workspace,
            }
        }
        if agent_id and agents.find(tx, SCOPE, agent_id):
            _change(
                tx,
                runtime,
                agent_id,
                spec=spec,
                info=info,
                mark=mark,
                applied_texts=applied_texts,
            )
            _change_timezone(tx, agent_id, course.timezone)
        else:
            new_spec = replace(spec, id=new_id("agent"), settings={**spec.settings, **mark})
            agent_id = insert_agent(tx, runtime, SCOPE, new_spec, info).agent.id
        agent_ids[course_agent.name] = agent_id
    applied = replace(
        stored,
        title=course.title,
        description=course.description,
        source=course.text,
        digest=course.digest,
        fault=None,
        # An agent that the file no longer names stays, so that no conversation is lost.
        agents={**stored.agents, **agent_ids},
    )
    queries.change(tx, applied)
    return applied


def _change_timezone(tx: Transaction, agent_id: str, timezone: str | None) -> None:
    if not timezone:
        return
    agent = agents.load(tx, SCOPE, agent_id).agent
    if agent.timezone != timezone:
        agents.update(tx, replace(agent, timezone=timezone), None)


def _change(
    tx: Transaction,
    runtime: Runtime,
    agent_id: str,
    *,
    spec: AgentSpec,
    info: ModelInfo,
    mark: Json,
    applied_texts: Mapping[str, str],
) -> None:
    """Change an existing agent to the spec of the course.

    `applied_texts` are the starting texts of its blocks when the course was applied last.
    """
    agents.lock(tx, SCOPE, agent_id)
    edit = Submission(Actor("administrator", SCOPE.user_id, "courses"), "Apply the course")
    state = agents.load_whole(tx, SCOPE, agent_id)
    _change_blocks(
        tx,
        state.agent,
        spec.blocks,
        metadata=edit.metadata(""),
        applied_texts=applied_texts,
    )
    options = TemplateSaveRequest(preserve_sources_on_migration=True)
    base = traits_of(spec.agent_type).base_tools if spec.has_base_tools else ()
    names = unique([*base, *spec.tool_names])
    tools.find(tx, SCOPE, names, [])  # raises NotFound for a missing tool
    migration = Migration(
        scope=SCOPE,
        spec=replace(spec, blocks=()),
        info=info,
        tool_names=names,
        folder_ids=(),
        edit=edit,
        options=options,
    )
    rework(tx, runtime, migration, state=state, settings=mark, variables={})
    changed = agents.load(tx, SCOPE, agent_id).agent
    if spec.name and changed.name != spec.name:
        agents.update(tx, replace(changed, name=spec.name), None)


def _change_blocks(
    tx: Transaction,
    agent: Agent,
    specs: Sequence[BlockSpec],
    *,
    metadata: ChangeMetadata,
    applied_texts: Mapping[str, str],
) -> None:
    """Change the agent's own blocks to the specs of the course.

    A text that the file has not changed stays as people left it.
    """
    chain = versions.of_owner(tx, SCOPE, "agent", agent.id)
    own_chain = chain or Chain(new_id("chain"), agent.organization_id, "agent", agent.id)
    new_chains = [] if chain else [own_chain]
    if chain:
        versions.lock(tx, chain.id)
    block_ids = [block.id for block in blocks.attached(tx, agent.id)]
    attached = blocks.by_ids(tx, SCOPE, block_ids)
    own_blocks = {block.label: block for block in attached if block.chain_id == own_chain.id}
    for spec in specs:
        block = own_blocks.pop(spec.label, None)
        if block is None:
            unsaved = new_block(tx, SCOPE, spec, own_chain)
            stored = blocks.insert_all(tx, [unsaved], new_chains, metadata)
            new_chains = []
            blocks.attach(tx, agent.id, stored)
            continue
        settings = {name: getattr(spec, name) for name in _BLOCK_SETTINGS}
        is_same_text = applied_texts.get(spec.label) == spec.value
        text = block.value if is_same_text else spec.value
        changed = replace(block, value=text, **settings)
        changed.require_fits(text)
        if changed != block:
            blocks.update(tx, block, changed, metadata)
    for block in own_blocks.values():
        blocks.remove(tx, block, metadata)


def blocks_of(stored: StoredCourse) -> Sequence[CourseBlock]:
    """Return the blocks of the course as it was applied last."""
    return parse_course(stored.source, stored.name).blocks if stored.source else ()


async def _prepared(
    runtime: Runtime, course: Course, agent: CourseAgent
) -> tuple[AgentSpec, ModelInfo]:
    """Return an agent's spec and its model.

    Raises Invalid with the line of the agent.
    """
    system = chosen_system(None, traits_of(_AGENT_TYPE).prompt_key, runtime.settings.data_dir)
    name = course.name if len(course.agents) == 1 else f"{course.name}/{agent.name}"
    workspace_tools = () if agent.workspace == "none" else WORKSPACE_TOOLS
    spec = AgentSpec(
        name=agent.title or name,
        agent_type=_AGENT_TYPE,
        # The course's instructions follow the system prompt of all agents.
        system=f"{system}\n\n{agent.instructions.strip()}\n",
        model=agent.model,
        context_window=agent.context_window,
        description=agent.description or course.description,
        metadata={"course": course.name},
        timezone=course.timezone or runtime.settings.timezone,
        blocks=tuple(_block(course, block) for block in course.blocks),
        tool_names=(*(agent.tools or ()), *workspace_tools),
        has_base_tools=agent.tools is None,
        tags=("course",),
    )
    try:
        return await prepare(runtime, SCOPE, spec)
    except Unavailable:
        raise
    except RicordoError as error:
        refuse([Problem(agent.line, str(error))], course.file_name)


def _block(course: Course, block: CourseBlock) -> BlockSpec:
    metadata: dict[str, Any] = {} if block.shared else {COPY: FOR_ALL}
    if block.teachers_see:
        metadata[TEACHERS_SEE] = course.name
    spec = BlockSpec(
        label=block.label,
        value=block.value,
        description=block.description,
        limit=block.limit,
        metadata=metadata,
        policy=block.policy,
        shared=block.shared,
        title=block.title,
    )
    if block.schema is None:
        return spec
    return replace(
        spec,
        value=starting_text(block.schema),
        description=block.description or block.schema.description,
        schema_ref=block.schema_name,
    )


def write_schemas(course: Course, data_dir: Path) -> None:
    """Write the fields of the course's blocks as schemas of the data folder.

    Raises:
        Invalid: a schema of that name, which no course wrote, has other fields.
        Unavailable: a file cannot be written.
    """
    for block in course.blocks:
        if block.schema is None:
            continue
        path = data_dir / FOLDER / f"{block.schema_name}.toml"
        schema = find_schema(block.schema_name, data_dir)
        if schema and schema.fields == block.schema.fields:
            continue
        is_of_course = schema and path.read_text("utf-8").startswith(
            _SCHEMA_HEADER.split("{", 1)[0]
        )
        if schema and not is_of_course:
            sentence = (
                f"the schema {FOLDER}/{path.name} of the data folder has other fields. "
                f'Give "{block.label}" the same.'
            )
            refuse([Problem(block.line, sentence)], course.file_name)
        header = _SCHEMA_HEADER.format(course.file_name)
        _write(path, header + schema_text(block, block.schema))


def _write(path: Path, text: str) -> None:
    """Replace the file's text in one step: all of it or nothing."""
    # The random name belongs to this writer alone.
    temporary = path.with_name(f"{path.name}.{token_hex(8)}")
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
    """Return the block's fields as the TOML of a schema."""
    settings: dict[str, FieldValue] = {
        "title": schema.title,
        "description": block.description or "",
        "policy": block.policy,
        "limit": block.limit,
    }
    text = write_toml({key: setting for key, setting in settings.items() if setting})
    default_field = SchemaField("default")
    for schema_field in schema.fields:
        table: dict[str, FieldValue] = {"title": schema_field.title}
        for key in _FIELD_KEYS:
            setting = getattr(schema_field, key)
            if setting != getattr(default_field, key):
                table[key] = setting
        text += f"\n[fields.{schema_field.name}]\n{write_toml(table)}"
    return text


def _note_fault(tx: Transaction, name: str, fault: str) -> None:
    stored = queries.find(tx, SCOPE, name)
    if stored is None:
        new = StoredCourse(new_id("course"), SCOPE.organization_id, name, fault=fault)
        with suppress(Collision):
            queries.insert(tx, new)
    elif stored.fault != fault:
        queries.change(tx, replace(stored, fault=fault))


async def check(runtime: Runtime, name: str, text: str) -> Course:
    """Read a course as it would be applied, and store nothing.

    Raises Invalid with every fault.
    """

    def read() -> Course:
        course = parse_course(text, name)
        courses, _ = read_courses(folder_of(runtime))
        others = [other for other in courses.values() if other.name != name]
        fault = conflicts([*others, course]).get(name)
        if fault:
            raise Invalid(fault)
        return course

    return await offload(read, SMALL + 1)


async def put(runtime: Runtime, name: str, text: str) -> StoredCourse:
    """Write the course's file and apply it.

    Raises Invalid for a course that cannot be used; then nothing is written.
    """
    course = await check(runtime, name, text)
    path = folder_of(runtime) / name / FILE
    await offload(lambda: _write(path, text), SMALL + 1)
    return await apply(runtime, course)


async def remove(runtime: Runtime, name: str) -> None:
    """Delete the course's file and its agents with their conversations.

    Students' memory stays. Raises NotFound.
    """
    stored = await runtime.store.read(lambda tx: queries.get(tx, SCOPE, name))
    path = folder_of(runtime) / name / FILE
    await offload(lambda: path.unlink(missing_ok=True), SMALL + 1)
    for agent_id in stored.agents.values():
        with suppress(NotFound):
            await delete_agent(runtime, SCOPE, agent_id)
    await runtime.store.write(lambda tx: queries.remove(tx, stored))
