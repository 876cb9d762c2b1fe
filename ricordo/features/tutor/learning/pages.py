"""The pages of learner state: a student's skills by course, and the counts for teachers."""

from typing import Any

from fastapi import Request, Response

from ricordo.api.routing import needs
from ricordo.domain.scope import REQUEST_SCOPE, Scope
from ricordo.errors import Invalid
from ricordo.features.tutor.learning.digest import LEAST_GROUP
from ricordo.features.tutor.learning.records import LEVELS
from ricordo.memory import user_memory
from ricordo.pages.inside import Api
from ricordo.pages.memory_owner import MemoryOwner
from ricordo.pages.shell import Pages, done, form_of, page_of, render

router = Pages("/ui/people/{user_id}/learning", scope="memory")
_home = Pages("/ui/learning", scope="memory")
_of_teachers = Pages("/ui/courses/{course_name}", scope="agents")
# A guardian's permissions, and their names on the page.
_SIGHTS = {
    "nothing": "nothing",
    "levels": "levels of skills",
    "words": "levels, and the quotes that support them",
}
_LONGEST_DAYS = 4  # digits of a number of days


@_home.get("")
async def show_own(request: Request) -> Response:
    """Show the caller's page."""
    scope: Scope = request.scope[REQUEST_SCOPE]
    return await show_courses(request, scope.subject or scope.user_id)


@router.get("")
async def show_courses(request: Request, user_id: str) -> Response:
    """Show the courses with skills, each with its number of levels and due reviews."""
    owner = await _owner(request, user_id)
    api = Api(request)
    courses: list[Any] = await api.get(f"/v1/users/{owner.id}/learning")
    guardians: list[Any] = await api.get(f"/v1/users/{owner.id}/guardians")
    return await render(
        request,
        "tutor.learning/courses.html",
        owner=owner,
        courses=courses,
        guardians=guardians,
        sights=_SIGHTS,
        open_courses=[course["title"] for course in courses if course["guardians_see"]],
        may_decide=_may_decide(request, owner),
        may_link=request.scope[REQUEST_SCOPE].may("users:write"),
    )


@router.get("/{course_name}")
async def show_skills(request: Request, user_id: str, course_name: str) -> Response:
    """Show a student's skills in a course, with the evidence under each."""
    owner = await _owner(request, user_id)
    learner: Any = await Api(request).get(f"/v1/users/{owner.id}/learning/{course_name}")
    return await render(
        request,
        "tutor.learning/skills.html",
        owner=owner,
        learner=learner,
        titles={skill["name"]: skill["title"] for skill in learner["skills"]},
        waiting=[noted for skill in learner["skills"] for noted in skill["waiting"]],
        may_decide=_may_decide(request, owner),
    )


@router.post("/{course_name}")
@needs("memory:approve", "memory:override")
async def decide(request: Request, user_id: str, course_name: str) -> Response:
    """Do the form's action: set choices, dispute a level, approve waiting facts, or delete."""
    form = await form_of(request)
    action = form.get("action", "")
    path = f"/v1/users/{user_id}/learning/{course_name}"
    api = Api(request)
    if action == "choose":
        await api.ask("PATCH", path, _choice_of(form))
        notice = "Saved."
    elif action == "approve":
        notice = f"Approved: {(await api.ask('POST', f'{path}/approve'))['approved']}."
    elif action == "dispute":
        words = form.get("words", "").strip() or "I can do this."
        skill = form.get("skill", "")
        await api.ask("POST", f"{path}/skills/{skill}/dispute", {"words": words[:200]})
        notice = "Your tutor is asked to check it."
    elif action == "delete":
        await api.ask("DELETE", f"{path}/facts/{form.get('fact', '')}")
        notice = "Deleted. Your messages stay."
    elif action == "delete-all":
        removed = (await api.ask("DELETE", path))["removed"]
        notice = f"Deleted: {removed}. Your messages stay."
    else:
        raise Invalid("Choose what to do.")
    return done(request, page_of("people", user_id, "learning", course_name), notice)


@_of_teachers.get("/skills")
@needs("agents:write")
async def show_digest(request: Request, course_name: str) -> Response:
    """Show the numbers of students who are stuck, by week and skill."""
    digest: Any = await Api(request).get(f"/v1/courses/{course_name}/skills")
    weeks: dict[str, list[Any]] = {}
    for row in digest["weeks"]:
        weeks.setdefault(row["week"], []).append(row)
    return await render(
        request,
        "tutor.learning/digest.html",
        course_name=course_name,
        digest=digest,
        weeks=weeks,
        levels=LEVELS,
        least=LEAST_GROUP,
    )


def _choice_of(form: dict[str, str]) -> dict[str, Any]:
    """Return the choices of a form. Raises Invalid if the days are not a number."""
    days = form.get("retention_days", "").strip()
    if days and not (days.isascii() and days.isdigit() and len(days) <= _LONGEST_DAYS):
        raise Invalid("Write the number of days in digits, or leave it empty.")
    return {
        "is_off": "notes" not in form,
        "shares": "shares" in form,
        "retention_days": int(days) if days else None,
    }


def _may_decide(request: Request, owner: MemoryOwner) -> bool:
    scope: Scope = request.scope[REQUEST_SCOPE]
    owns = scope.may_decide_for("user", owner.id)
    return owns and scope.may("memory:approve", "memory:override")


async def _owner(request: Request, user_id: str) -> MemoryOwner:
    scope: Scope = request.scope[REQUEST_SCOPE]
    memory = await request.app.state.runtime.store.read(
        lambda tx: user_memory.open_memory(tx, scope, user_id)
    )
    return MemoryOwner("user", memory.user.id, memory.user.name)


router.routes += [*_home.routes, *_of_teachers.routes]
