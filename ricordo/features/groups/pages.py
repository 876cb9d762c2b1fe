"""Pages of groups: their list, and one group with its talk.

A group's page has its members, its settings, and a form for messages.
"""

from typing import Any

from fastapi import Request, Response

from ricordo.api.routing import needs
from ricordo.domain.scope import REQUEST_SCOPE
from ricordo.features.groups.records import MANAGED
from ricordo.pages.inside import Api, RefusedByApi
from ricordo.pages.shell import (
    Pages,
    address_of,
    done,
    fields_of,
    form_of,
    render,
    require_id,
    typed_number,
)
from ricordo.storage import conversation_overviews

router = Pages("/ui/groups", scope="agents")
_LIST = "groups/list.html"
_ONE = "groups/one.html"
_PAGE_SIZE = 50
_MOST_AGENTS = 200
_MESSAGES = 50
_BAD_REQUEST = 400
_NO_MEMBERS = "Choose at least one member. The manager is not a member."
# The settings in the form, by kind of group.
_SETTINGS: dict[str, tuple[str, ...]] = {
    "round_robin": ("max_turns",),
    "dynamic": ("max_turns", "termination_token"),
    "sleeptime": ("sleeptime_agent_frequency",),
    "voice_sleeptime": ("max_message_buffer_length", "min_message_buffer_length"),
}
_NUMBERS = {
    "max_turns",
    "sleeptime_agent_frequency",
    "max_message_buffer_length",
    "min_message_buffer_length",
}
# The number of colours for speakers; the position in the group selects one.
_COLOURS = 6


@router.get("")
async def list_groups(request: Request) -> Response:
    """Show the groups that the caller may use, and a form."""
    return await _list(request)


@router.post("")
async def make_group(request: Request) -> Response:
    fields = await fields_of(request)
    form = dict(fields)
    kind = form.get("kind", "round_robin")
    manager_config: dict[str, Any] = {"manager_type": kind}
    if kind in MANAGED:
        manager_config["manager_agent_id"] = form.get("manager") or None
    body = {
        "description": form.get("description", "").strip(),
        "agent_ids": [
            agent_id
            for name, agent_id in fields
            if name == "member" and agent_id != manager_config.get("manager_agent_id")
        ],
        "manager_config": manager_config,
    }
    lacks_manager = kind in MANAGED and manager_config["manager_agent_id"] is None
    if not body["agent_ids"] and not lacks_manager:  # the API refuses a missing manager
        return await _list(request, form, _NO_MEMBERS, _BAD_REQUEST)
    try:
        group = await Api(request).ask("POST", "/v1/groups/", body)
    except RefusedByApi as error:
        return await _list(request, form, str(error), error.status)
    return done(request, f"/ui/groups/{group['id']}", "The group was created. Send it a message.")


@router.get("/{group_id}")
async def show_group(request: Request, group_id: str) -> Response:
    """Show one group. While the group talks, the page refreshes the talk by itself."""
    return await _show(request, group_id)


@router.post("/{group_id}")
async def change_group(request: Request, group_id: str) -> Response:
    """Change the description and the settings of the group's kind."""
    api = Api(request)
    form = await form_of(request)
    group = await api.get(f"/v1/groups/{group_id}")
    manager_config: dict[str, Any] = {
        "manager_type": group["manager_type"],
        "manager_agent_id": group["manager_agent_id"],
    }
    for name in _SETTINGS.get(group["manager_type"], ()):
        if name in form:
            manager_config[name] = _setting(name, form[name].strip())
    body = {
        "description": form.get("description", group["description"]),
        "manager_config": manager_config,
    }
    try:
        await api.ask("PATCH", f"/v1/groups/{group_id}", body)
    except RefusedByApi as error:
        return await _show(request, group_id, str(error), error.status)
    return done(request, f"/ui/groups/{group_id}", "The group was changed.")


@router.post("/{group_id}/say")
@needs("messages:write")
async def say(request: Request, group_id: str) -> Response:
    """Send a message to the group.

    Its agents answer in the background, and the page shows the answers as they arrive.
    """
    text = (await form_of(request)).get("message", "")
    if not text.strip():
        return done(request, f"/ui/groups/{group_id}", "Write something first.")
    body = {"messages": [{"role": "user", "content": text}]}
    try:
        run = await Api(request).ask("POST", f"/v1/groups/{group_id}/messages/async", body)
    except RefusedByApi as error:
        return await _show(request, group_id, str(error), error.status, draft=text)
    return done(request, address_of(f"/ui/groups/{group_id}", run=run["id"]))


@router.post("/{group_id}/reset")
@needs("messages:write")
async def reset(request: Request, group_id: str) -> Response:
    """Delete the messages of the group.

    The memory of its agents stays.
    """
    await Api(request).ask("PATCH", f"/v1/groups/{group_id}/reset-messages", {})
    return done(request, f"/ui/groups/{group_id}", "The messages were deleted. Memory stays.")


@router.post("/{group_id}/delete")
async def delete_group(request: Request, group_id: str) -> Response:
    await Api(request).ask("DELETE", f"/v1/groups/{group_id}")
    return done(request, "/ui/groups", "The group was deleted. Its agents and their messages stay.")


def _setting(name: str, text: str) -> int | str | None:
    """Return a typed setting in the form of the API.

    It is a number, a text, or None if empty.
    """
    if not text:
        return None
    if name in _NUMBERS:
        return typed_number(text)
    return text


async def _list(
    request: Request, form: dict[str, str] | None = None, problem: str = "", status: int = 200
) -> Response:
    api = Api(request)
    after = request.query_params.get("after")
    groups: list[Any] = await api.get("/v1/groups/", limit=_PAGE_SIZE + 1, after=after)
    older = ""
    if len(groups) > _PAGE_SIZE:
        older = address_of("/ui/groups", after=groups[_PAGE_SIZE - 1]["id"])
    may = request.scope[REQUEST_SCOPE].may("agents:write")
    return await render(
        request,
        _LIST,
        status=status,
        groups=groups[:_PAGE_SIZE],
        names=await names_in(request, groups),
        older=older,
        agents=await api.get("/v1/agents/", limit=_MOST_AGENTS) if may else [],
        form=form or {},
        problem=problem,
    )


async def _show(
    request: Request, group_id: str, problem: str = "", status: int = 200, *, draft: str = ""
) -> Response:
    api = Api(request)
    query = request.query_params
    group: Any = await api.get(f"/v1/groups/{group_id}")
    names = await names_in(request, [group])
    before = query.get("before")
    # The talk is not shown if the caller may not read messages.
    listed = await api.find(
        f"/v1/groups/{group_id}/messages",
        limit=_MESSAGES + 1,
        order="desc",
        **({"after": before} if before else {}),
    )
    messages = listed or []
    older = ""
    if messages[_MESSAGES:]:
        older = address_of(f"/ui/groups/{group_id}", before=messages[_MESSAGES - 1]["id"])
    run = None
    if run_id := query.get("run"):
        run = await api.find(f"/v1/runs/{require_id(run_id, 'run')}")
    speakers = [id for id in (*group["agent_ids"], group["manager_agent_id"]) if id]
    colours = {names.get(id, id): number % _COLOURS for number, id in enumerate(speakers)}
    return await render(
        request,
        _ONE,
        status=status,
        group=group,
        names=names,
        colours=colours,
        settings=_SETTINGS.get(group["manager_type"], ()),
        numbers=_NUMBERS,
        talks=listed is not None and group["manager_type"] not in ("sleeptime", "voice_sleeptime"),
        messages=messages[:_MESSAGES][::-1],
        older=older,
        is_newest=not before,
        run=run,
        is_busy=run is not None and run["status"] in ("created", "running"),
        problem=problem,
        draft=draft,
        is_large=True,
    )


async def names_in(request: Request, groups: list[Any]) -> dict[str, str]:
    """Return the names of all agents in these groups, by id.

    Args:
        request: The request for the page. Agents that its caller may not use are left out.
        groups: Groups as JSON, as the API returns them.
    """
    ids = {id for group in groups for id in (*group["agent_ids"], group["manager_agent_id"]) if id}
    scope = request.scope[REQUEST_SCOPE]
    store = request.app.state.runtime.store
    return dict(await store.read(lambda tx: conversation_overviews.names_of_agents(tx, scope, ids)))
