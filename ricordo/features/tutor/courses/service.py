"""Apply courses to the database: create and change their agents, and keep students' memory.

A course is a folder with a file on the server. Its agents are ordinary agents of the first
organization. Their blocks contain the initial texts. A student's first edit creates the student's
copy of a block. Every course with a block of that label then shows this copy.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ricordo.agents.lifecycle import delete_agent
from ricordo.domain.ids import new_id
from ricordo.domain.text import Json
from ricordo.errors import Collision, Invalid, NotFound, RicordoError, Unavailable
from ricordo.features.tutor.courses import queries
from ricordo.features.tutor.courses.applying import (
    SCOPE,
    PreparedAgents,
    named_agents,
    prepare_course,
    store_course,
    tools_of,
)
from ricordo.features.tutor.courses.course_file import FILE, Course, read_courses
from ricordo.features.tutor.courses.course_schemas import (
    schema_problems,
    write_file,
    write_schemas,
)
from ricordo.features.tutor.courses.options import CourseSettings
from ricordo.features.tutor.courses.prompt import missing_tools
from ricordo.features.tutor.courses.queries import StoredCourse
from ricordo.memory.sections import Problem, refuse
from ricordo.offload import SMALL, offload
from ricordo.runtime import Runtime
from ricordo.storage import agents, tools
from ricordo.storage.engine.store import Transaction

_MISSING = (
    "The course's file is missing. The course's agents stay until the course is deleted. If several "
    "servers share the database, each of them needs the file."
)


@dataclass(frozen=True, slots=True)
class CourseReview:
    """The courses of a folder that can be applied, and the faults of the others, by name.

    `warnings` concern courses that can be applied but whose texts name tools that their agents or
    tasks lack.
    """

    courses: Mapping[str, Course]
    faults: Mapping[str, str]
    warnings: Mapping[str, str]


class _DryRun(Exception):
    """Ends a transaction so that its changes are rolled back."""


def folder_of(runtime: Runtime) -> Path:
    """Return the folder of the courses: the setting's, or else `courses` in the data folder."""
    return CourseSettings().courses_dir or runtime.settings.data_dir / "courses"


async def review_courses(
    runtime: Runtime, new_texts: Mapping[str, str] | None = None
) -> CourseReview:
    """Find the faults of a folder's courses, and store nothing.

    A course whose file has no fault is also tried on this server. A course in which this check
    finds a fault is not applied.

    Args:
        runtime: The running server.
        new_texts: Texts by course name that replace the files. Of the other courses then only the
            files are read, and they are not tried on this server. None checks all files.

    Raises:
        Unavailable: if the folder cannot be read.
    """
    folder = folder_of(runtime)
    courses, faults = await offload(lambda: read_courses(folder, new_texts), SMALL + 1)
    usable = {}
    for name, course in courses.items():
        if new_texts and name not in new_texts:
            continue
        try:
            await _require_usable(runtime, course)
            usable[name] = course
        except RicordoError as error:
            faults[name] = str(error)
    known_names = await runtime.store.read(lambda tx: frozenset(tools.names(tx, SCOPE)))
    return CourseReview(
        usable,
        faults,
        {name: _warnings(course, known_names) for name, course in usable.items()},
    )


def _warnings(course: Course, known_names: Collection[str]) -> str:
    """Return a line for each tool that the course's texts name but its agent lacks."""
    names = [(agent.name, tools_of(agent)) for agent in course.agents]
    problems = sorted(set(missing_tools(course, known_names, names)))
    return "\n".join(f"{course.file_name}: {problem}" for problem in problems)


def review_lines(review: CourseReview) -> list[Json]:
    """Return the courses of a review as JSON, by name, with their faults, warnings and counts."""
    lines = []
    for name in sorted([*review.courses, *review.faults]):
        course = review.courses.get(name)
        lines.append(
            {
                "name": name,
                "fault": review.faults.get(name),
                "warning": review.warnings.get(name) or None,
                "agents": len(course.agents) if course else 0,
                "blocks": sum(not block.is_view for block in course.blocks) if course else 0,
                "tasks": len(course.tasks) if course else 0,
                "skills": len(course.skills) if course else 0,
            }
        )
    return lines


async def _require_usable(runtime: Runtime, course: Course) -> None:
    """Raise Invalid with the line of each problem that the course has on this server."""
    if await runtime.store.read(lambda tx: _applied(tx, course)):
        return
    prepared = await _prepared(runtime, course)

    def try_out(tx: Transaction) -> None:
        if queries.find(tx, SCOPE, course.name) is None:
            queries.insert(tx, _new_course(course.name))
        store_course(tx, runtime, course, prepared)
        raise _DryRun

    with suppress(_DryRun):
        await runtime.store.write(try_out)


async def _prepared(runtime: Runtime, course: Course) -> PreparedAgents:
    """Return the course's agents, ready to be stored. Raises Invalid."""
    data_dir = runtime.settings.data_dir
    found_problems: list[Problem] = await offload(
        lambda: schema_problems(course, data_dir), SMALL + 1
    )
    prepared, problems = await prepare_course(runtime, course)
    if found_problems or problems:
        refuse([*found_problems, *problems], course.file_name)
    return prepared


def _applied(tx: Transaction, course: Course) -> StoredCourse | None:
    """Return the stored course if exactly this file is in use."""
    stored = queries.find(tx, SCOPE, course.name)
    if stored is None or stored.digest != course.digest or stored.fault is not None:
        return None
    return stored if _is_complete(tx, stored) else None


def _is_complete(tx: Transaction, stored: StoredCourse) -> bool:
    """Return True if each agent in the applied file exists; retired agents may be missing."""
    return all(agents.find(tx, SCOPE, agent_id) for agent_id in named_agents(stored).values())


def _new_course(name: str) -> StoredCourse:
    return StoredCourse(new_id("course"), SCOPE.organization_id, name)


async def apply_all(runtime: Runtime) -> Sequence[StoredCourse]:
    """Apply every course of the folder to the database.

    The fault of a file is stored with its course, and does not stop other courses. Raises
    Unavailable if the folder cannot be read.
    """
    review = await review_courses(runtime)
    faults = dict(review.faults)
    for name, course in review.courses.items():
        try:
            await apply(runtime, course)
        except RicordoError as error:
            faults[name] = str(error)
    for name, fault in faults.items():
        await runtime.store.write(partial(_note_fault, name=name, fault=fault))

    def finish(tx: Transaction) -> Sequence[StoredCourse]:
        for stored in queries.all_courses(tx, SCOPE):
            if stored.name not in review.courses and stored.name not in faults:
                _note_fault(tx, stored.name, _MISSING)
        return queries.all_courses(tx, SCOPE)

    return await runtime.store.write(finish)


async def apply(runtime: Runtime, course: Course) -> StoredCourse:
    """Create or change the agents of one course, all or none.

    For a course that is already applied, this is one read.

    Args:
        runtime: The running server.
        course: The parsed course.

    Raises:
        Invalid: if the course has problems on this server.
        RicordoError: if the course cannot be stored.
    """
    stored = await runtime.store.read(lambda tx: _applied(tx, course))
    if stored:
        return stored
    prepared = await _prepared(runtime, course)
    await offload(lambda: write_schemas(course, runtime.settings.data_dir), SMALL + 1)
    if await runtime.store.read(lambda tx: queries.find(tx, SCOPE, course.name)) is None:
        # Two servers may apply it at once; each waits for the lock on the row in `store_course`.
        with suppress(Collision):
            await runtime.store.write(lambda tx: queries.insert(tx, _new_course(course.name)))
    return await runtime.store.write(lambda tx: store_course(tx, runtime, course, prepared))


def _note_fault(tx: Transaction, name: str, fault: str) -> None:
    stored = queries.find(tx, SCOPE, name)
    if stored is None:
        with suppress(Collision):
            queries.insert(tx, replace(_new_course(name), fault=fault))
        return
    stored = queries.get(tx, SCOPE, name, locks=True)
    if stored.fault != fault:
        queries.change(tx, replace(stored, fault=fault))


def are_complete(tx: Transaction) -> bool:
    """Return True if each agent of each course exists.

    Courses whose file has a fault are left out, since applying them changes nothing.
    """
    courses = queries.all_courses(tx, SCOPE)
    return all(_is_complete(tx, stored) for stored in courses if stored.fault is None)


async def check(runtime: Runtime, name: str, text: str) -> Course:
    """Read a course as if to apply it, and store nothing.

    Args:
        runtime: The running server.
        name: The course's name, which is the name of its folder.
        text: The text of the course's file.

    Raises:
        Invalid: with the faults of the file, or else with the problems on this server.
        Unavailable: if the folder of courses cannot be read.
    """
    review = await review_courses(runtime, {name: text})
    if fault := review.faults.get(name):
        raise Invalid(fault)
    return review.courses[name]


async def put(runtime: Runtime, name: str, text: str) -> StoredCourse:
    """Write the course's file and apply it.

    Args:
        runtime: The running server.
        name: The course's name, which is the name of its folder. A new folder is created.
        text: The text of the course's file.

    Raises:
        Invalid: for a course that cannot be used. The file is not changed then.
        Unavailable: if the folder cannot be read, or the file cannot be written.
        RicordoError: if it can no longer be used after the check. The old file is then restored.
    """
    course = await check(runtime, name, text)
    path = folder_of(runtime) / name / FILE
    old_content = await offload(lambda: _content_of(path), SMALL + 1)
    await offload(lambda: write_file(path, text.encode()), SMALL + 1)
    try:
        return await apply(runtime, course)
    except RicordoError:  # a tool or folder that the course needs was just deleted
        await offload(lambda: _restore(path, old_content), SMALL + 1)
        raise


def _content_of(path: Path) -> bytes | None:
    """Return the file's content; None if there is no file. Raises Unavailable."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unavailable(
            f"{path} cannot be read: {error.strerror}. Check its permissions."
        ) from error


def _restore(path: Path, content: bytes | None) -> None:
    if content is None:
        _delete_file(path)
    else:
        write_file(path, content)


def _delete_file(path: Path) -> None:
    """Delete the file if it exists. Raises Unavailable."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise Unavailable(
            f"{path} cannot be deleted: {error.strerror}. Check its permissions."
        ) from error


async def remove(runtime: Runtime, name: str) -> None:
    """Delete the course's file and its agents with their conversations.

    Students' memory stays.

    Args:
        runtime: The running server.
        name: The course's name.

    Raises:
        NotFound: if there is no such course.
        Unavailable: if the file cannot be deleted. Nothing is deleted then.
    """
    stored = await runtime.store.read(lambda tx: queries.get(tx, SCOPE, name))
    path = folder_of(runtime) / name / FILE
    await offload(lambda: _delete_file(path), SMALL + 1)
    for agent_id in stored.agents.values():
        with suppress(NotFound):
            await delete_agent(runtime, SCOPE, agent_id)
    await runtime.store.write(lambda tx: queries.remove(tx, stored))
