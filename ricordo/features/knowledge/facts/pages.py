"""The pages of a person's facts, with their evidence and a form for each, and of the profile."""

from datetime import date
from typing import Any

from fastapi import Request, Response

from ricordo.api.routing import needs
from ricordo.domain.clock import to_datetime
from ricordo.domain.scope import REQUEST_SCOPE, Scope
from ricordo.errors import Invalid
from ricordo.features.knowledge.facts.profile import HEADINGS
from ricordo.memory import user_memory
from ricordo.pages.inside import Api
from ricordo.pages.memory_owner import MemoryOwner
from ricordo.pages.shell import Pages, address_of, done, form_of, page_of, render

router = Pages("/ui/people/{user_id}/facts", scope="memory")
_TEMPLATE = "knowledge.facts/facts.html"
_PAGE = 100
_MOST_PROPOSED = 100
_PROFILE_TOKENS = 800
_NOTICES = {
    "approve": "The fact holds now.",
    "reject": "The fact was rejected.",
    "forget": "The fact was forgotten.",
    "change": "The fact was corrected.",
}
POLICIES = {
    "off": "Nothing is read",
    "propose": "Facts wait for approval",
    "direct": "Facts hold at once",
}


@router.get("")
async def show_facts(request: Request, user_id: str) -> Response:
    """Show the facts that hold now or held on a day, the proposed facts, and the ended facts."""
    scope: Scope = request.scope[REQUEST_SCOPE]
    memory = await request.app.state.runtime.store.read(
        lambda tx: user_memory.open_memory(tx, scope, user_id)
    )
    api = Api(request)
    path = f"/v1/users/{memory.user.id}/facts"
    day = request.query_params.get("as_of", "").strip()[:10]
    after = request.query_params.get("after") or None
    shown: list[Any] = await api.get(path, limit=_PAGE + 1, after=after, as_of=day or None)
    proposed: list[Any] = []
    ended: list[Any] = []
    blocks: list[Any] = []
    if day and not after:
        blocks = await api.get(f"/users/{memory.user.id}/blocks", as_of=day)
    if not day and not after:
        proposed = await api.get(path, state="proposed", limit=_MOST_PROPOSED)
        ended = await api.get(path, state="ended", limit=_PAGE)
    page = f"/ui/people/{memory.user.id}/facts"
    older = ""
    if len(shown) > _PAGE:
        older = address_of(page, as_of=day, after=shown[_PAGE - 1]["id"])
    owns = scope.may_decide_for("user", memory.user.id)
    return await render(
        request,
        _TEMPLATE,
        owner=MemoryOwner("user", memory.user.id, memory.user.name),
        shown=shown[:_PAGE],
        proposed=proposed,
        ended=ended,
        day=day,
        blocks=blocks,
        earlier_day=_months_from(day or _today(request), -1),
        later_day=_months_from(day, 1) if day else "",
        older=older,
        policy=await api.get(f"{path}/policy"),
        policies=POLICIES,
        may_decide=owns and scope.may("memory:approve", "memory:override"),
    )


def _today(request: Request) -> str:
    return f"{to_datetime(request.app.state.runtime.store.clock.now()):%Y-%m-%d}"


def _months_from(day: str, months: int) -> str:
    """Return the first day of an earlier or later month; empty if the text is not a day."""
    try:
        first = date.fromisoformat(day).replace(day=1)
        number = first.year * 12 + first.month - 1 + months
        return first.replace(year=number // 12, month=number % 12 + 1).isoformat()
    except ValueError:
        return ""


@router.get("/profile")
async def show_profile(request: Request, user_id: str) -> Response:
    """Show a person's profile within a number of tokens, with the source of each line."""
    scope: Scope = request.scope[REQUEST_SCOPE]
    memory = await request.app.state.runtime.store.read(
        lambda tx: user_memory.open_memory(tx, scope, user_id)
    )
    query_params = request.query_params
    tokens = query_params.get("tokens", "").strip() or str(_PROFILE_TOKENS)
    question = query_params.get("question", "").strip()
    path = f"/v1/users/{memory.user.id}/profile"
    profile = await Api(request).get(path, tokens=tokens, question=question or None)
    return await render(
        request,
        "knowledge.facts/profile.html",
        owner=MemoryOwner("user", memory.user.id, memory.user.name),
        profile=profile,
        tokens=tokens,
        question=question,
        headings=HEADINGS,
    )


@router.post("/policy")
@needs("memory:approve", "memory:override")
async def choose_policy(request: Request, user_id: str) -> Response:
    """Choose whether facts about this person are read."""
    policy = (await form_of(request)).get("policy", "")
    if policy not in ("", *POLICIES):
        raise Invalid("Choose one of the policies.")
    await Api(request).ask("PUT", f"/v1/users/{user_id}/facts/policy", {"policy": policy or None})
    return done(request, page_of("people", user_id, "facts"), "Saved.")


@router.post("/{fact_id}")
@needs("memory:approve", "memory:override")
async def decide_fact(request: Request, user_id: str, fact_id: str) -> Response:
    """Approve, reject, correct or forget one fact."""
    form = await form_of(request)
    action = form.get("action", "")
    path = f"/v1/users/{user_id}/facts/{fact_id}"
    api = Api(request)
    if action in ("approve", "reject"):
        await api.ask("POST", f"{path}/{action}")
    elif action == "forget":
        await api.ask("DELETE", path)
    elif action == "change":
        await api.ask("PATCH", path, {"sentence": form.get("sentence", "").strip()})
    else:
        raise Invalid("Choose what to do with the fact.")
    return done(request, page_of("people", user_id, "facts"), _NOTICES[action])
