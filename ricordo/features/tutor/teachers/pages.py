"""Pages for teachers: the courses with their faults, a course's set-up, and its students."""

from typing import Any

from fastapi import Request, Response

from ricordo.api.routing import needs
from ricordo.errors import Invalid
from ricordo.features.tutor.courses.course_file import Course, parse_course
from ricordo.pages.inside import Api
from ricordo.pages.shell import Pages, address_of, done, render

router = Pages("/ui/courses", scope="agents")
_HOME = "/ui/courses"
_COURSE_LIMIT = 1000
_STUDENTS_PER_PAGE = 50
_teaches = needs("agents:write")


@router.get("")
@_teaches
async def list_courses(request: Request) -> Response:
    """List the courses with the faults of their files."""
    courses: list[Any] = await Api(request).get("/v1/courses/", limit=_COURSE_LIMIT)
    courses.sort(key=lambda course: course["name"])
    return await render(request, "tutor.teachers/courses.html", courses=courses, faults=_faults)


@router.post("/apply")
@_teaches
async def apply(request: Request) -> Response:
    """Read the files of all courses, and apply them."""
    courses: list[Any] = await Api(request).ask("POST", "/v1/courses/apply")
    fault_count = sum(1 for course in courses if course["fault"])
    sentence = "All courses are in use."
    if fault_count:
        sentence = f"{fault_count} of {len(courses)} courses cannot be used as they are."
    return done(request, _HOME, sentence)


@router.get("/{course_name}")
@_teaches
async def show(request: Request, course_name: str) -> Response:
    """Show a course as it was applied last.

    The page has its agents with the parts of their prompts, its blocks and its tasks.
    """
    api = Api(request)
    stored: Any = await api.get(f"/v1/courses/{course_name}")
    course = _course_of(stored)
    agents = [
        (course_agent, await api.find(f"/v1/agents/{stored['agents'].get(course_agent.name)}"))
        for course_agent in course.agents
    ]
    return await render(
        request,
        "tutor.teachers/course.html",
        stored=stored,
        course=course,
        agents=agents,
        faults=_faults,
        basis=_basis,
    )


@router.get("/{course_name}/students")
@_teaches
async def list_students(request: Request, course_name: str) -> Response:
    """List the students, with the numbers of their proposals and failed tasks."""
    # One more student than the page shows is read, to see whether there is another page.
    students: list[Any] = await Api(request).get(
        f"/v1/courses/{course_name}/students",
        limit=_STUDENTS_PER_PAGE + 1,
        after=request.query_params.get("after"),
    )
    has_more = len(students) > _STUDENTS_PER_PAGE
    students = students[:_STUDENTS_PER_PAGE]
    older = ""
    if has_more:
        older = address_of(f"{_HOME}/{course_name}/students", after=students[-1]["user_id"])
    return await render(
        request,
        "tutor.teachers/students.html",
        course_name=course_name,
        students=students,
        older=older,
    )


@router.get("/{course_name}/students/{user_id}")
@_teaches
async def show_student(request: Request, course_name: str, user_id: str) -> Response:
    """Show a student with the blocks that teachers see, and the skills that the student shares."""
    api = Api(request)
    student: Any = await api.get(f"/v1/courses/{course_name}/students/{user_id}")
    learner: Any = await api.find(f"/v1/courses/{course_name}/students/{user_id}/skills")
    return await render(
        request,
        "tutor.teachers/student.html",
        course_name=course_name,
        student=student,
        skills=learner["skills"] if learner else [],
    )


def _course_of(stored: Any) -> Course:
    """Return the course as last applied; an empty one if it was never applied."""
    try:
        return parse_course(stored["source"] or "", stored["name"])
    except Invalid:  # never applied, or applied by an older version under other rules
        return Course(
            name=stored["name"],
            title=stored["title"] or stored["name"],
            description=None,
            agents=(),
            blocks=(),
            tasks=(),
            text="",
        )


def _basis(system: str, instructions: str) -> str:
    """Return the part of the system prompt that precedes the course's instructions."""
    return system.rstrip().removesuffix(instructions.strip()).rstrip()


def _faults(fault: str | None) -> list[tuple[str, str]]:
    """Return each fault as a location, e.g. `essay/agents.toml: Line 3`, and a sentence.

    The location is empty if a line does not begin with one.
    """
    faults = []
    for line in (fault or "").splitlines():
        file, colon, rest = line.partition(": ")
        number, second_colon, sentence = rest.partition(": ")
        if colon and second_colon and file.endswith(".toml"):
            faults.append((f"{file}: {number}", sentence))
        else:
            faults.append(("", line))
    return faults
