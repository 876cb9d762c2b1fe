"""Pages for those who make courses and teach in them: courses with their faults, one as it is set up, and its students."""

from typing import Any

from fastapi import Request, Response

from ricordo.api.routing import needs
from ricordo.errors import Invalid
from ricordo.features.tutor.courses.course_file import Course, parse_course
from ricordo.pages.inside import Api
from ricordo.pages.shell import Pages, address_of, done, render

router = Pages("/ui/courses", scope="agents")
_HOME, _MOST, _EACH = "/ui/courses", 1000, 50
_teaches = needs("agents:write")


@router.get("")
@_teaches
async def list_courses(request: Request) -> Response:
    """The courses, with what is wrong with the file of each."""
    found: list[Any] = await Api(request).get("/v1/courses/", limit=_MOST)
    courses = sorted(found, key=lambda one: one["name"])
    return await render(request, "tutor.teachers/courses.html", courses=courses, faults=_faults)


@router.post("/apply")
@_teaches
async def apply(request: Request) -> Response:
    """Read the files of all courses, and bring them into use."""
    found: list[Any] = await Api(request).ask("POST", "/v1/courses/apply")
    wrong = sum(1 for one in found if one["fault"])
    words = (
        f"{wrong} of {len(found)} courses cannot be used as they are."
        if wrong
        else "All courses are in use."
    )
    return done(request, _HOME, words)


@router.get("/{course_name}")
@_teaches
async def show(request: Request, course_name: str) -> Response:
    """A course as it was applied last: its agents with the parts of their prompts, its blocks, and its tasks."""
    api = Api(request)
    stored: Any = await api.get(f"/v1/courses/{course_name}")
    course = _course_of(stored)
    agents = [
        (one, await api.find(f"/v1/agents/{stored['agents'].get(one.name)}"))
        for one in course.agents
    ]
    shown = {
        "stored": stored,
        "course": course,
        "agents": agents,
        "faults": _faults,
        "basis": _basis,
    }
    return await render(request, "tutor.teachers/course.html", **shown)


@router.get("/{course_name}/students")
@_teaches
async def list_students(request: Request, course_name: str) -> Response:
    """The students, with what waits for each."""
    after, page = request.query_params.get("after"), f"{_HOME}/{course_name}/students"
    found: list[Any] = await Api(request).get(
        f"/v1/courses/{course_name}/students", limit=_EACH + 1, after=after
    )
    older = address_of(page, after=found[_EACH - 1]["user_id"]) if len(found) > _EACH else ""
    shown: dict[str, Any] = {"course_name": course_name, "students": found[:_EACH], "older": older}
    return await render(request, "tutor.teachers/students.html", **shown)


@router.get("/{course_name}/students/{user_id}")
@_teaches
async def show_student(request: Request, course_name: str, user_id: str) -> Response:
    """A student, with the blocks that teachers see."""
    one: Any = await Api(request).get(f"/v1/courses/{course_name}/students/{user_id}")
    return await render(request, "tutor.teachers/student.html", course_name=course_name, one=one)


def _course_of(stored: Any) -> Course:
    """The course as it was applied last, with nothing in it where it never was."""
    try:
        return parse_course(stored["source"] or "", stored["name"])
    except Invalid:  # never applied, or by an older version that allowed it
        return Course(stored["name"], stored["title"] or stored["name"], None, (), (), (), "")


def _basis(system: str, instructions: str) -> str:
    """What the system prompt says before the course's instructions."""
    return system.rstrip().removesuffix(instructions.strip()).rstrip()


def _faults(told: str | None) -> list[tuple[str, str]]:
    """Each fault as its place, such as `essay/agents.toml: Line 3`, and its words."""
    found = []
    for line in (told or "").splitlines():
        file, colon, rest = line.partition(": ")
        number, more, words = rest.partition(": ")
        has_place = bool(colon and more) and file.endswith(".toml")
        found.append((f"{file}: {number}", words) if has_place else ("", line))
    return found
