"""The pages of guardians: their students, and a student's skills in a course.

The forms about a student's guardians are on the student's page of skills, and are answered here.
"""

from typing import Any

from fastapi import Request, Response

from ricordo.api.routing import needs
from ricordo.errors import Invalid
from ricordo.pages.inside import Api
from ricordo.pages.shell import Pages, done, form_of, page_of, render

router = Pages("/ui/guardian")
_of_students = Pages("/ui/people/{user_id}/guardians", scope="memory")
_watches = needs("students:read")


@router.get("")
@_watches
async def list_students(request: Request) -> Response:
    """Show the guardian's students, with the courses that the guardian may see."""
    api = Api(request)
    listed: list[Any] = await api.get("/v1/guardian/students")
    students = [await api.get(f"/v1/guardian/students/{student['user_id']}") for student in listed]
    return await render(request, "tutor.guardians/students.html", students=students)


@router.get("/{student_id}/{course_name}")
@_watches
async def show_skills(request: Request, student_id: str, course_name: str) -> Response:
    """Show a student's skills in a course, as far as the guardian may see them."""
    path = f"/v1/guardian/students/{student_id}/courses/{course_name}"
    watched: Any = await Api(request).get(path)
    return await render(
        request,
        "tutor.guardians/skills.html",
        watched=watched,
        titles={skill["name"]: skill["title"] for skill in watched["skills"]},
    )


@_of_students.post("")
@needs("memory:approve", "memory:override", "users:write")
async def change(request: Request, user_id: str) -> Response:
    """Do the form's action: choose what a guardian sees, add a guardian, or remove one."""
    form = await form_of(request)
    action = form.get("action", "")
    guardian = form.get("guardian", "").strip()
    if not guardian:
        raise Invalid("Name the guardian.")
    path = f"/v1/users/{user_id}/guardians/{guardian}"
    api = Api(request)
    if action == "choose":
        await api.ask("PATCH", path, {"sees": form.get("sees", "")})
        notice = "Saved."
    elif action == "add":
        await api.ask("PUT", path)
        notice = "Added. This guardian sees nothing until the student or a course allows it."
    elif action == "remove":
        await api.ask("DELETE", path)
        notice = "Removed."
    else:
        raise Invalid("Choose what to do.")
    return done(request, page_of("people", user_id, "learning"), notice)


router.routes += _of_students.routes
