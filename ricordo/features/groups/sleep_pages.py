"""Pages of sleeptime agents: their work for a person, its cost, and its pause ("not now")."""

from typing import Any

from fastapi import Request, Response

from ricordo.api.routing import needs
from ricordo.features.groups.pages import names_in
from ricordo.pages.inside import Api
from ricordo.pages.shell import Pages, address_of, done, form_of, render, typed_number

router = Pages("/ui/sleeptime", scope="memory")
_PAIRS_PAGE = 20
_WORK_PAGE = 30
_KINDS = ("sleeptime", "voice_sleeptime")
_reads = needs("agents:read", "memory:read")


@router.get("")
@_reads
async def list_pairs(request: Request) -> Response:
    """Show the agents that have sleeptime agents.

    Pairs whose reading the person paused are marked "not now".
    """
    api = Api(request)
    query = request.query_params
    user = query.get("user") or None
    after = query.get("after")
    if query.get("kind") in _KINDS:
        kind = query.get("kind")
    else:
        kind = _KINDS[0]
    groups, next_page = await _page_of_groups(api, str(kind), after)
    if next_page:
        older = address_of("/ui/sleeptime", user=user, **next_page)
    else:
        older = ""
    pairs = [
        (group, pair)
        for group in groups
        if (
            pair := await api.find(
                f"/v1/agents/{group['manager_agent_id']}/sleeptime", user_id=user
            )
        )
    ]
    return await render(
        request,
        "groups/pairs.html",
        pairs=pairs,
        names=await names_in(request, groups),
        older=older,
        user=user,
    )


async def _page_of_groups(
    api: Api, kind: str, after: str | None
) -> tuple[list[Any], dict[str, str]]:
    """Return one page of groups, and the query of the next page.

    Groups are listed one kind after the other.
    """
    groups: list[Any] = []
    for listed_kind in _KINDS[_KINDS.index(kind) :]:
        room = _PAIRS_PAGE - len(groups)
        rows: list[Any] = await api.get(
            "/v1/groups/",
            manager_type=listed_kind,
            show_hidden_groups=True,
            limit=room + 1,
            after=after if listed_kind == kind else None,
        )
        groups += rows[:room]
        if rows[room:]:
            if rows[:room]:
                cursor = {"after": groups[-1]["id"]}
            else:
                cursor = {}
            return groups, {"kind": listed_kind, **cursor}
    return groups, {}


@router.get("/{agent_id}")
@_reads
async def show_pair(request: Request, agent_id: str) -> Response:
    """Show one pair with its frequency and its work, newest first."""
    api = Api(request)
    query = request.query_params
    user = query.get("user") or None
    home = f"/v1/agents/{agent_id}/sleeptime"
    pair = await api.get(home, user_id=user)
    group = await api.get(f"/v1/groups/{pair['group_id']}")
    work: list[Any] = await api.get(
        f"{home}/transcripts", user_id=user, limit=_WORK_PAGE + 1, after=query.get("after")
    )
    older = ""
    if work[_WORK_PAGE:]:
        last_id = work[_WORK_PAGE - 1]["id"]
        older = address_of(f"/ui/sleeptime/{agent_id}", user=user, after=last_id)
    return await render(
        request,
        "groups/pair.html",
        pair=pair,
        names=await names_in(request, [group]),
        work=work[:_WORK_PAGE],
        older=older,
        user=user,
    )


@router.post("/{agent_id}")
async def pause(request: Request, agent_id: str) -> Response:
    """Pause the reading of messages ("not now"), or resume it."""
    form = await form_of(request)
    user = form.get("user") or None
    is_paused = form.get("do") == "pause"
    await Api(request).ask(
        "PATCH",
        f"/v1/agents/{agent_id}/sleeptime",
        {"paused": is_paused},
        query={"user_id": user} if user else None,
    )
    if user is not None:
        notice = "The choice was saved."
    elif is_paused:
        notice = "Your messages are not read from now on."
    else:
        notice = "Your messages are read again from now on."
    return done(request, address_of(f"/ui/sleeptime/{agent_id}", user=user), notice)


@router.post("/{agent_id}/frequency")
@needs("agents:write")
async def change_frequency(request: Request, agent_id: str) -> Response:
    """Change how many turns pass between two runs of sleeptime agents; empty means each turn."""
    api = Api(request)
    form = await form_of(request)
    agent = await api.get(f"/v1/agents/{agent_id}")
    group = agent["multi_agent_group"] or {}
    manager_config = {
        "manager_type": group.get("manager_type", "sleeptime"),
        "manager_agent_id": agent_id,
        "sleeptime_agent_frequency": typed_number(form.get("frequency", "")),
    }
    await api.ask("PATCH", f"/v1/groups/{group.get('id', '')}", {"manager_config": manager_config})
    return done(
        request, f"/ui/agents/{agent_id}/settings", "The interval of memory work was changed."
    )
