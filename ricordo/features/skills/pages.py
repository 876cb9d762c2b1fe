"""The pages of skills: the list of an owner's skills, and a skill with its proposals and versions.

A form contains the whole text of a skill's block. It begins with `SKILL.md`. The other files
follow, each below a line with its path.
"""

from dataclasses import dataclass
from typing import Any

from fastapi import Request, Response

from ricordo.domain.scope import REQUEST_SCOPE, Scope
from ricordo.errors import Invalid
from ricordo.features.skills.skill import Skill, make_skill, name_of, parse_skill
from ricordo.memory import user_memory
from ricordo.pages.inside import Api
from ricordo.pages.shell import Pages, done, form_of, render

_MOST_VERSIONS = 20
_MOST_AGENTS = 50
_EXAMPLE = """---
name: my-skill
description: What it does, and when to use it.
---

Write the instructions here.
"""


@dataclass(frozen=True, slots=True)
class _Place:
    """An owner with the paths of the owner's skills in the pages and in the API."""

    page: str
    api: str
    owner: str
    is_own: bool = False
    is_shared: bool = False


async def _place(request: Request) -> _Place:
    """Return the owner in the page's address, with the paths. Raises NotFound."""
    scope: Scope = request.scope[REQUEST_SCOPE]
    user_id = request.path_params.get("user_id")
    agent_id = request.path_params.get("agent_id")
    if user_id is not None:
        memory = await request.app.state.runtime.store.read(
            lambda tx: user_memory.open_memory(tx, scope, user_id)
        )
        path = f"{memory.user.id}/skills"
        is_own = memory.user.id == (scope.subject or scope.user_id)
        return _Place(f"/ui/people/{path}", f"/v1/users/{path}", memory.user.name, is_own=is_own)
    if agent_id is not None:
        agent: Any = await Api(request).get(f"/v1/agents/{agent_id}")
        path = f"agents/{agent['id']}/skills"
        return _Place(f"/ui/{path}", f"/v1/{path}", agent["name"], is_shared=True)
    return _Place("/ui/skills/organization", "/v1/skills", "everybody", is_shared=True)


def _may_write(request: Request, place: _Place) -> bool:
    scope: Scope = request.scope[REQUEST_SCOPE]
    return scope.may("agents:write" if place.is_shared else "memory:write")


async def show_own(request: Request) -> Response:
    """Show the caller's skills.

    Args:
        request: The request of the page, whose path gets the caller's user.
    """
    scope: Scope = request.scope[REQUEST_SCOPE]
    request.scope["path_params"] = {"user_id": scope.subject or scope.user_id}
    return await show_skills(request)


async def show_skills(request: Request) -> Response:
    """Show the owner's skills, with a form for a new one and one for a zip file."""
    place = await _place(request)
    api = Api(request)
    scope: Scope = request.scope[REQUEST_SCOPE]
    agents: Any = []
    if place.api == "/v1/skills":
        agents = await api.find("/v1/agents/", limit=_MOST_AGENTS) or []
    skills: Any = await api.get(place.api)
    proposals: Any = await api.get(place.api.removesuffix("s") + "-proposals")
    names = {skill["name"] for skill in skills}
    proposed = {name_of(proposal["label"]) for proposal in proposals} - names
    return await render(
        request,
        "skills/list.html",
        place=place,
        skills=skills,
        proposed=sorted(proposed),
        agents=agents,
        may_write=_may_write(request, place),
        sees_agents=scope.may("agents:read"),
        example=_EXAMPLE,
    )


async def add_skill(request: Request) -> Response:
    """Store the skill in the form's text, or in its zip file."""
    place = await _place(request)
    content_type = request.headers.get("content-type", "")
    if content_type.startswith("multipart/"):
        form = (await request.body(), content_type)
        outcome: Any = await Api(request).ask("POST", place.api, form=form)
    else:
        skill = parse_skill((await form_of(request)).get("text", ""))
        outcome = await _put(request, place, skill)
    name = (outcome["skill"] or {}).get("name")
    return done(request, f"{place.page}/{name}" if name else place.page, _notice_of(outcome))


async def show_skill(request: Request) -> Response:
    """Show a skill: its text or an editor, its proposals and its versions."""
    place = await _place(request)
    api = Api(request)
    name = request.path_params["skill_name"]
    path = f"{place.api}/{name}"
    scope: Scope = request.scope[REQUEST_SCOPE]
    proposals: Any = await api.get(f"{path}/proposals")
    skill: Any = await api.find(path)
    text = ""
    if skill:
        is_readable = not skill["problem"]
        text = (
            make_skill(skill["content"], skill["files"]).text if is_readable else skill["content"]
        )
    decides = scope.decides_for_everybody or place.is_own
    return await render(
        request,
        "skills/skill.html",
        place=place,
        name=name,
        skill=skill,
        text=text,
        proposals=proposals,
        versions=await api.find(f"{path}/history", limit=_MOST_VERSIONS) or [],
        may_write=_may_write(request, place),
        may_decide=decides and scope.may("memory:approve", "memory:override"),
        is_edited="edit" in request.query_params,
    )


async def change_skill(request: Request) -> Response:
    """Do the form's action: save, approve, reject, restore, set the policy, or delete."""
    place = await _place(request)
    api = Api(request)
    name = request.path_params["skill_name"]
    path = f"{place.api}/{name}"
    form = await form_of(request)
    action = form.get("action", "")
    page = f"{place.page}/{name}"
    if action == "save":
        skill = parse_skill(form.get("text", ""), name)
        notice = _notice_of(await _put(request, place, skill, form.get("version") or None))
    elif action in ("approve", "reject"):
        proposal = form.get("proposal", "")
        await api.ask("POST", f"{path}/proposals/{proposal}/{action}", {})
        notice = "Approved." if action == "approve" else "Rejected."
    elif action == "restore":
        notice = _notice_of(await api.ask("POST", f"{path}/restore", {"sha": form.get("sha", "")}))
    elif action == "policy":
        await api.ask("PATCH", path, {"policy": form.get("policy", "")})
        notice = "Saved."
    elif action == "delete":
        await api.ask("DELETE", path)
        notice = "Deleted. Its versions stay, and one can be restored."
    else:
        raise Invalid("Choose what to do.")
    return done(request, page if action != "reject" else place.page, notice)


async def _put(request: Request, place: _Place, skill: Skill, version: str | None = None) -> Any:
    body = {"content": skill.content, "files": dict(skill.files), "version": version}
    return await Api(request).ask("PUT", f"{place.api}/{skill.name}", body)


def _notice_of(outcome: Any) -> str:
    if outcome["proposal"]:
        return "Proposed. It waits for the owner."
    return "Saved."


def _pages(prefix: str, scope: str) -> Pages:
    """Return the pages of skills below one kind of owner."""
    pages = Pages(prefix, scope=scope)
    pages.add_api_route("", show_skills, methods=["GET"])
    pages.add_api_route("", add_skill, methods=["POST"])
    pages.add_api_route("/{skill_name}", show_skill, methods=["GET"])
    pages.add_api_route("/{skill_name}", change_skill, methods=["POST"])
    return pages


router = Pages("/ui/skills", scope="memory")
router.add_api_route("", show_own, methods=["GET"])
router.routes += [
    *_pages("/ui/skills/organization", "agents").routes,
    *_pages("/ui/people/{user_id}/skills", "memory").routes,
    *_pages("/ui/agents/{agent_id}/skills", "agents").routes,
]
