"""A course's agents in the database: create them, and change them to a new file."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any

from ricordo.agents.agent_types import TRAITS, chosen_system
from ricordo.agents.lifecycle import AgentSpec, BlockSpec, insert_agent, new_block, prepare
from ricordo.domain.agent import Agent, AgentType
from ricordo.domain.block import Block, Chain
from ricordo.domain.block_schema import described, heading_key
from ricordo.domain.ids import new_id, unique
from ricordo.domain.job import Job
from ricordo.domain.model import DEFAULT_CONTEXT_WINDOW, ModelInfo
from ricordo.domain.scope import Actor, Scope
from ricordo.domain.text import Json
from ricordo.domain.version import ChangeMetadata
from ricordo.errors import Collision, Conflict, Invalid, RicordoError, TooLong, Unavailable
from ricordo.features.documents.templates.jobs import Migration, rework
from ricordo.features.documents.templates.models import TemplateSaveRequest
from ricordo.features.files.folders import queries as folders
from ricordo.features.files.workspaces import TOOLS as WORKSPACE_TOOLS
from ricordo.features.tutor.courses import queries
from ricordo.features.tutor.courses.course_file import (
    Course,
    CourseAgent,
    CourseBlock,
    CourseTask,
    parse_course,
)
from ricordo.features.tutor.courses.prompt import SKILL_TOOLS, TUTOR_TOOLS, prompt_for
from ricordo.features.tutor.courses.queries import StoredCourse
from ricordo.memory.course_blocks import COPY, COURSE_TAG, FOR_ALL
from ricordo.memory.schemas import similar_name
from ricordo.memory.sections import Problem, refuse, starting_text
from ricordo.memory.submission import Submission
from ricordo.memory.user_memory import require_free
from ricordo.runtime import Runtime
from ricordo.storage import agents, blocks, jobs, tools, versions
from ricordo.storage.engine.store import Overtaken, Transaction

# Courses belong to the first organization of a server.
SCOPE = Scope()
# The key in an agent's settings that names the course and the agent in its file.
MARK = "course"
TEACHERS_SEE = "teachers_see"
# A key in a block's metadata. It names the course whose teachers may see the block if the user
# agrees.
TEACHERS_ASK = "teachers_ask"
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
# The kind of the job that lets the remaining users' blocks follow a course, and the number of
# blocks of one transaction.
FOLLOW = "courses.follow"
FOLLOWED_AT_ONCE = 100
_ATTEMPTS = 100  # a killed attempt may still have changed many blocks
# The number of a changed block of the course, and the seq of the last user's block that followed.
Position = tuple[int, int]
PreparedAgents = Sequence[tuple[AgentSpec, ModelInfo]]


async def prepare_course(
    runtime: Runtime, course: Course
) -> tuple[PreparedAgents, Sequence[Problem]]:
    """Return the specs of a course's agents, with their models, and all problems on this server.

    Args:
        runtime: The running server; providers may be asked for their models.
        course: The course, whose file has no fault.

    Returns:
        The specs, without agents that cannot be prepared, and the problems with their lines.
    """
    prepared = []
    problems: list[Problem] = []
    for agent in course.agents:
        try:
            spec, info = await prepare(runtime, SCOPE, _spec(runtime, course, agent))
        except RicordoError as error:
            problems.append(Problem(agent.line_of("model"), str(error)))
            continue
        prepared.append((spec, info))
        limit = info.context_window
        if limit != DEFAULT_CONTEXT_WINDOW and (agent.context_window or 0) > limit:
            sentence = f'"context_window" is above that of the model {info.handle}: {limit}.'
            problems.append(Problem(agent.line_of("context_window"), sentence))

    def find_problems(tx: Transaction) -> list[Problem]:
        return [
            *_missing_tools(tx, course),
            *_missing_folders(tx, course),
            *_block_problems(tx, course),
        ]

    return prepared, [*problems, *await runtime.store.read(find_problems)]


def _missing_tools(tx: Transaction, course: Course) -> Iterator[Problem]:
    """Yield a problem for each tool that this server does not have."""
    named: list[CourseAgent | CourseTask] = [*course.agents, *course.tasks]
    for entry in named:
        names = unique(entry.tools or ())
        stored = tools.by_names(tx, SCOPE, names)
        for name in names:
            if name in stored:
                continue
            every_name = tools.names(tx, SCOPE)
            sentence = (
                f'there is no tool "{name}".{similar_name(name, every_name)}'
                f"{tools.replacement([name])}"
            )
            yield Problem(entry.line_of("tools", name), sentence)


def _missing_folders(tx: Transaction, course: Course) -> Iterator[Problem]:
    """Yield a problem for each folder that this server does not have."""
    for agent in course.agents:
        for name in unique(agent.folders):
            if not _folder_ids(tx, [name]):
                sentence = (
                    f'there is no folder "{name}". Make it on the page Files, with its files.'
                )
                yield Problem(agent.line_of("folders", name), sentence)


def _folder_ids(tx: Transaction, names: Sequence[str]) -> list[str]:
    """Return the ids of the organization's folders with these names."""
    found_folders = [folders.find_folder(tx, SCOPE.organization_id, name, None) for name in names]
    return unique([folder.id for folder in found_folders if folder])


def _set_folders(
    tx: Transaction,
    runtime: Runtime,
    agent_id: str,
    *,
    names: Sequence[str],
    old_names: Sequence[str],
) -> None:
    """Attach the folders that the file names, and detach those that it no longer names.

    Folders that people attached remain.
    """
    folder_ids = _folder_ids(tx, names)
    old_ids = _folder_ids(tx, old_names)
    attached_ids = [folder.id for folder in folders.folders_of_agent(tx, SCOPE, agent_id)]
    others = [id for id in attached_ids if id not in old_ids]
    if [*folder_ids, *others] != attached_ids:
        runtime.set_folders(tx, SCOPE, agent_id, unique([*folder_ids, *others]))


def _block_problems(tx: Transaction, course: Course) -> Iterator[Problem]:
    """Yield a problem for each block that cannot be stored."""
    chain = Chain(new_id("chain"), SCOPE.organization_id, "agent", "")
    for block in course.blocks:
        try:
            new_block(tx, SCOPE, spec_of_block(course, block), chain)
        except RicordoError as error:
            yield Problem(block.line, str(error))


@contextmanager
def _located(course: Course, line: int) -> Iterator[None]:
    """Add the line of the course's file to an error inside the `with` block."""
    try:
        yield
    except (Unavailable, Collision, Overtaken):
        raise  # the store repeats a transaction that was overtaken
    except RicordoError as error:
        if str(error).startswith(f"{course.file_name}: "):
            raise  # it names a more exact line
        refuse([Problem(line, str(error))], course.file_name)


def _spec(runtime: Runtime, course: Course, agent: CourseAgent) -> AgentSpec:
    """Return the spec of a new agent of the course."""
    tool_names = tools_of(agent)
    prompt_key = TRAITS[_AGENT_TYPE].prompt_key
    system = prompt_for(
        chosen_system(None, prompt_key, runtime.settings.data_dir),
        tool_names,
        has_files=bool(agent.folders),
    )
    name = course.name if len(course.agents) == 1 else f"{course.name}/{agent.name}"
    return AgentSpec(
        name=agent.title or name,
        agent_type=_AGENT_TYPE,
        # The course's instructions follow the system prompt of all agents.
        system=f"{system}\n\n{agent.instructions.strip()}\n",
        model=agent.model,
        context_window=agent.context_window,
        description=agent.description or course.description,
        metadata={"course": course.name},
        timezone=course.timezone or runtime.settings.timezone,
        blocks=tuple(spec_of_block(course, block) for block in course.blocks),
        tool_names=tool_names,
        has_base_tools=False,
        tags=(COURSE_TAG,),
    )


def store_course(
    tx: Transaction,
    runtime: Runtime,
    course: Course,
    prepared: Sequence[tuple[AgentSpec, ModelInfo]],
) -> StoredCourse:
    """Bring the course's agents, blocks and record in line with its file.

    Args:
        tx: The transaction.
        runtime: The running server.
        course: The course. A record of its name exists.
        prepared: The specs of all its agents, in their order, from `prepare_course` without
            problems.

    Returns:
        The stored record after the change.

    Raises:
        NotFound: The course has no record.
        Invalid: A block or an agent cannot be stored; the message names the file and the line.
        Conflict: Another transaction changed a user's block, or the database refused a name.
    """
    stored = queries.get(tx, SCOPE, course.name, locks=True)
    applied_texts = {block.label: spec_of_block(course, block).value for block in blocks_of(stored)}
    old_course = applied_course(stored.source, stored.name)
    old_folders = {agent.name: agent.folders for agent in old_course.agents} if old_course else {}
    if old_course:
        follow_blocks(tx, course, old_course)
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
        with _located(course, course_agent.line):
            if agent_id and agents.find(tx, SCOPE, agent_id):
                _change(
                    tx,
                    runtime,
                    agent_id,
                    course=course,
                    spec=spec,
                    info=info,
                    mark=mark,
                    applied_texts=applied_texts,
                )
                _change_timezone(tx, agent_id, course.timezone)
            else:
                new_spec = replace(spec, id=new_id("agent"), settings={**spec.settings, **mark})
                agent_id = insert_agent(tx, runtime, SCOPE, new_spec, info).agent.id
            _set_folders(
                tx,
                runtime,
                agent_id,
                names=course_agent.folders,
                old_names=old_folders.get(course_agent.name, ()),
            )
        agent_ids[course_agent.name] = agent_id
    _retire(tx, [id for name, id in stored.agents.items() if name not in agent_ids])
    applied = replace(
        stored,
        title=course.title,
        description=course.description,
        source=course.text,
        digest=course.digest,
        fault=None,
        # An agent that is no longer in the file stays, so that no conversation is lost.
        agents={**stored.agents, **agent_ids},
    )
    queries.change(tx, applied)
    return applied


def _retire(tx: Transaction, agent_ids: Sequence[str]) -> None:
    """Hide the agents that are no longer in the file; their conversations remain."""
    for agent_id in agent_ids:
        agents.lock(tx, SCOPE, agent_id)
        agent = agents.find(tx, SCOPE, agent_id)
        if agent and not agent.hidden:
            agents.update(tx, replace(agent, hidden=True), None)


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
    course: Course,
    spec: AgentSpec,
    info: ModelInfo,
    mark: Json,
    applied_texts: Mapping[str, str],
) -> None:
    """Change an existing agent to the spec of the course.

    `applied_texts` are the starting texts of its blocks at the time when the course was last
    applied.
    """
    agents.lock(tx, SCOPE, agent_id)
    edit = Submission(Actor("administrator", SCOPE.user_id, "courses"), "Apply the course")
    state = agents.load_whole(tx, SCOPE, agent_id)
    _change_blocks(
        tx,
        state.agent,
        course,
        metadata=edit.metadata(""),
        applied_texts=applied_texts,
    )
    options = TemplateSaveRequest(preserve_sources_on_migration=True)
    names = unique(spec.tool_names)
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
    current = replace(changed, name=spec.name or changed.name, hidden=False)
    if current != changed:
        agents.update(tx, current, None)


def _change_blocks(
    tx: Transaction,
    agent: Agent,
    course: Course,
    *,
    metadata: ChangeMetadata,
    applied_texts: Mapping[str, str],
) -> None:
    """Change the agent's blocks to the specs of the course.

    A text is changed only if the file changed it, so people's edits remain.
    """
    chain = versions.of_owner(tx, SCOPE, "agent", agent.id)
    own_chain = chain or Chain(new_id("chain"), agent.organization_id, "agent", agent.id)
    new_chains = [] if chain else [own_chain]
    if chain:
        versions.lock(tx, chain.id)
    block_ids = [block.id for block in blocks.attached(tx, agent.id)]
    attached = blocks.by_ids(tx, SCOPE, block_ids)
    own_blocks = {block.label: block for block in attached if block.chain_id == own_chain.id}
    for course_block in course.blocks:
        spec = spec_of_block(course, course_block)
        block = own_blocks.pop(spec.label, None) or own_blocks.pop(course_block.was or "", None)
        if block is None:
            unsaved = new_block(tx, SCOPE, spec, own_chain)
            stored = blocks.insert_all(tx, [unsaved], new_chains, metadata)
            new_chains = []
            blocks.attach(tx, agent.id, stored)
            continue
        settings = {name: getattr(spec, name) for name in _BLOCK_SETTINGS}
        is_same_text = applied_texts.get(block.label) == spec.value
        text = block.value if is_same_text else spec.value
        changed = replace(block, label=spec.label, value=text, **settings)
        with _located(course, course_block.line):
            changed.require_fits(text)
        if changed != block:
            blocks.update(tx, block, changed, metadata)
    for block in own_blocks.values():
        blocks.remove(tx, block, metadata)


def follow_blocks(tx: Transaction, course: Course, old_course: Course) -> None:
    """Apply the course's changes to users' blocks with the course's labels.

    Titles, descriptions, limits, schemas, and renamed labels and fields follow the course. A
    setting that the block's owner has changed stays as it is. The first blocks are changed at once,
    and a job changes the others in portions.

    Args:
        tx: The transaction.
        course: The course in its new form.
        old_course: The course as it was last applied.

    Raises:
        Overtaken: Another transaction changed one of the blocks.
    """
    key = f"{FOLLOW}:{course.name}"
    open_jobs = jobs.open_of_kinds(tx, SCOPE.organization_id, [FOLLOW])
    position: Position | None = (0, 0)
    # An earlier change comes first: each block follows all changes in their order.
    if not any(job.key == key for job in open_jobs):
        position = follow_some(tx, course, old_course, (0, 0))
    if position is not None:
        payload = {
            "name": course.name,
            "source": course.text,
            "old_source": old_course.text,
            "position": position,
        }
        job = Job(FOLLOW, SCOPE.organization_id, payload, key=key, most_attempts=_ATTEMPTS)
        jobs.add(tx, job)


def follow_some(
    tx: Transaction, course: Course, old_course: Course, position: Position
) -> Position | None:
    """Let a portion of users' blocks follow the course.

    Args:
        tx: The transaction.
        course: The course in its new form.
        old_course: The course as it was last applied before.
        position: The position at which the portion begins; (0, 0) for the first.

    Returns:
        The position of the next portion; None if there is none.

    Raises:
        Overtaken: Another transaction changed one of the blocks.
    """
    changes = _changed_blocks(course, old_course)
    edit = Submission(Actor("administrator", SCOPE.user_id, "courses"), "Apply the course")
    index, after = position
    room = FOLLOWED_AT_ONCE
    while index < len(changes):
        course_block, old_block = changes[index]
        rows = blocks.page_of_users(tx, SCOPE, old_block.label, after, room + 1)
        spec, old_spec = spec_of_block(course, course_block), spec_of_block(old_course, old_block)
        for seq, block in rows[:room]:
            changed = _followed(block, course_block, old_block, spec=spec, old_spec=old_spec)
            _store_followed(tx, block, changed, edit.metadata(""))
            after = seq
        if len(rows) > room:
            return index, after
        room -= len(rows)
        index += 1
        after = 0
    return None


def _changed_blocks(course: Course, old_course: Course) -> list[tuple[CourseBlock, CourseBlock]]:
    """Return the blocks that students' blocks have to follow, each with its former form."""
    old_blocks = {
        block.label: block for block in old_course.blocks if not (block.shared or block.is_view)
    }
    pairs = (
        (block, old_blocks.get(block.label) or old_blocks.get(block.was or ""))
        for block in course.blocks
        if not block.shared
    )
    return [(block, old) for block, old in pairs if old and not _is_same(block, old)]


def _store_followed(
    tx: Transaction, block: Block, changed: Block, metadata: ChangeMetadata
) -> None:
    """Store a user's changed block; its label stays if the new one is not free.

    A block that would become too long is left as it is.
    """
    if changed == block:
        return
    try:
        if changed.label != block.label:
            require_free(tx, block, changed.label)
        blocks.update(tx, block, changed, metadata)
    except Overtaken:
        raise
    except TooLong:
        return
    except Conflict:  # the user may also have a label that differs only in case
        if changed.label != block.label:
            _store_followed(tx, block, replace(changed, label=block.label), metadata)


def _is_same(course_block: CourseBlock, old_block: CourseBlock) -> bool:
    """Return True if nothing that students' blocks follow has changed."""

    def followed(block: CourseBlock) -> CourseBlock:
        return replace(block, line=0, policy="propose", value="")

    return followed(course_block) == followed(old_block)


def _followed(
    block: Block,
    course_block: CourseBlock,
    old_block: CourseBlock,
    *,
    spec: BlockSpec,
    old_spec: BlockSpec,
) -> Block:
    """Return a user's block after it has followed the change of the course."""
    settings = {
        name: getattr(spec, name)
        for name in ("title", "description", "limit", "schema_ref")
        if getattr(block, name) == getattr(old_spec, name)
    }
    value = _with_new_headings(block.value, course_block, old_block)
    if len(value) > settings.get("limit", block.limit):
        settings.pop("limit", None)
    teachers, old_teachers = spec.metadata.get(TEACHERS_SEE), old_spec.metadata.get(TEACHERS_SEE)
    metadata = dict(block.metadata)
    if teachers and not old_teachers and TEACHERS_SEE not in metadata:
        # Teachers see earlier text only if its owner agrees.
        metadata[TEACHERS_ASK] = teachers
    elif not teachers:
        metadata.pop(TEACHERS_ASK, None)
    return replace(block, label=spec.label, value=value, metadata=metadata, **settings)


def _with_new_headings(text: str, course_block: CourseBlock, old_block: CourseBlock) -> str:
    """Return the text with the headings of renamed fields changed."""
    if course_block.schema is None or old_block.schema is None:
        return text
    old_fields = {field.name: field for field in old_block.schema.fields}
    titles = {}
    for field in course_block.schema.fields:
        former_name = course_block.former_fields.get(field.name, field.name)
        # The file may keep its line `was` after the rename, so check if the heading is still the
        # former one.
        old_field = old_fields.get(field.name) or old_fields.get(former_name)
        if old_field:
            titles[heading_key(old_field.title)] = field.title
            titles[heading_key(old_field.name)] = field.title
    lines = text.split("\n")
    for index, line in enumerate(lines):
        if line.startswith("## "):
            heading = heading_key(line.removeprefix("## ").strip())
            lines[index] = f"## {titles[heading]}" if heading in titles else line
    return "\n".join(lines)


def tools_of(agent: CourseAgent) -> tuple[str, ...]:
    """Return the names of the agent's tools: those in its course, else a tutor's usual tools.

    Args:
        agent: The agent in the course's file. Tools for its workspace and for skills are added.
    """
    names = TUTOR_TOOLS if agent.tools is None else agent.tools
    with_files = () if agent.workspace == "none" else WORKSPACE_TOOLS
    return (*names, *with_files, *(SKILL_TOOLS if agent.notes_skills else ()))


def blocks_of(stored: StoredCourse) -> Sequence[CourseBlock]:
    """Return the blocks of the course as last applied; empty if it was never applied.

    Args:
        stored: The course's record.
    """
    course = applied_course(stored.source, stored.name)
    return course.blocks if course else ()


@lru_cache(maxsize=64)
def applied_course(source: str | None, name: str) -> Course | None:
    """Return the course as last applied.

    Returns None if it was never applied, or if an older version of Ricordo applied it under other
    rules.

    Args:
        source: The file's text in the course's record; None if it was never applied.
        name: The course's name.
    """
    try:
        return parse_course(source, name) if source else None
    except Invalid:
        return None


def named_agents(stored: StoredCourse) -> dict[str, str]:
    """Return the ids of the agents that the file names; retired ones are left out.

    Args:
        stored: The course's record.
    """
    course = applied_course(stored.source, stored.name)
    if course is None:
        return dict(stored.agents)
    names = {agent.name for agent in course.agents}
    return {name: id for name, id in stored.agents.items() if name in names}


def shown(stored: StoredCourse) -> StoredCourse:
    """Return the course without its retired agents.

    Args:
        stored: The course's record, which is not changed.
    """
    return replace(stored, agents=named_agents(stored))


def spec_of_block(course: Course, block: CourseBlock) -> BlockSpec:
    """Return the spec with which a block of the course is created.

    Args:
        course: The course, whose name marks the blocks that its teachers see.
        block: A block of the course. One with fields starts with their headings as text.
    """
    metadata: dict[str, Any] = {} if block.shared or block.is_view else {COPY: FOR_ALL}
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
        description=described(block.schema, block.description or block.schema.description),
        schema_ref=block.schema_name,
    )
