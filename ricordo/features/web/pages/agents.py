"""Pages of agents: the list, a new agent, and the settings of an agent."""

from collections.abc import Mapping
from typing import Any

from fastapi import Request, Response

from ricordo.api.agents import change_secret as store_secret
from ricordo.api.routing import needs
from ricordo.domain.scope import REQUEST_SCOPE
from ricordo.pages.inside import Api
from ricordo.pages.shell import Pages, address_of, done, form_of, render, typed_number
from ricordo.storage import conversation_overviews

router = Pages("/ui/agents", scope="agents")
_PAGE = 50


@router.get("")
async def list_agents(request: Request) -> Response:
    """List the agents, newest first, by name or tag."""
    api = Api(request)
    query = request.query_params
    search_text = query.get("q") or None
    tag = query.get("tag") or None
    agents = await api.get(
        "/v1/agents/",
        query_text=search_text,
        tags=tag,
        hidden=False,
        after=query.get("after") or None,
        limit=_PAGE + 1,
    )
    older = ""
    if agents[_PAGE:]:
        older = address_of("/ui/agents", q=search_text, tag=tag, after=agents[_PAGE - 1]["id"])
    models = await api.find("/v1/models/") or []
    return await render(
        request,
        "agents.html",
        agents=agents[:_PAGE],
        words=search_text,
        tag=tag,
        older=older,
        models=models,
        default=_default(request),
    )


@router.post("")
async def make_agent(request: Request) -> Response:
    form = await form_of(request)
    body = {
        "name": form.get("name", "").strip() or None,
        "model": form.get("model") or None,
        "memory_blocks": [
            {"label": "persona", "value": form.get("persona", "").strip()},
            {"label": "human", "value": ""},
        ],
    }
    agent = await Api(request).ask(
        "POST", "/v1/agents/", {name: field for name, field in body.items() if field}
    )
    return done(request, _page_of_agent(request, agent["id"]), f"{agent['name']} is ready.")


@router.get("/{agent_id}")
async def show_agent(request: Request, agent_id: str) -> Response:
    """Redirect to the agent's chat, which is its page, or to its memory."""
    await Api(request).get(f"/v1/agents/{agent_id}")
    return done(request, _page_of_agent(request, agent_id))


def _page_of_agent(request: Request, agent_id: str) -> str:
    """Return the agent's page: its chat, or its memory for a caller who may not read chats."""
    reads_chats = request.scope[REQUEST_SCOPE].may("messages:read")
    return f"/ui/agents/{agent_id}/{'chat' if reads_chats else 'memory'}"


@router.get("/{agent_id}/settings")
async def show_settings(request: Request, agent_id: str) -> Response:
    """Show the agent's settings and tools."""
    return await _render_settings(request, agent_id)


async def _render_settings(
    request: Request, agent_id: str, preview: Mapping[str, Any] | None = None
) -> Response:
    """Return the page.

    Before the agent is changed to another model, `preview` names the parts that this model would
    not see.
    """
    api = Api(request)
    agent = await api.get(f"/v1/agents/{agent_id}")
    attached = {tool["id"] for tool in agent["tools"]}
    approved = {
        rule["tool_name"] for rule in agent["tool_rules"] if rule["type"] == "requires_approval"
    }
    tools = await api.find("/v1/tools/", limit=200) or []
    scope = request.scope[REQUEST_SCOPE]
    store = request.app.state.runtime.store
    sleeper_ids = (agent["multi_agent_group"] or {}).get("agent_ids", [])
    return await render(
        request,
        "agent_settings.html",
        agent=agent,
        preview=preview,
        approved=approved,
        others=[tool for tool in tools if tool["id"] not in attached],
        models=await api.find("/v1/models/") or [],
        budget=await api.find(f"/v1/agents/{agent_id}/budget"),
        conversations=await api.find("/v1/conversations/", agent_id=agent_id, limit=100) or [],
        memberships=await api.find(f"/v1/agents/{agent_id}/groups", limit=20) or [],
        sleepers=await store.read(
            lambda tx: conversation_overviews.names_of_agents(tx, scope, sleeper_ids)
        ),
    )


@router.post("/{agent_id}/settings")
async def change_agent(request: Request, agent_id: str) -> Response:
    """Change the agent's fields by the form; a missing field keeps its value."""
    api = Api(request)
    form = await form_of(request)
    body: dict[str, object] = {
        name: form[name] for name in ("name", "description", "system", "model") if name in form
    }
    if "sleeptime" in form:
        body["enable_sleeptime"] = form["sleeptime"] == "on"
    if "tags" in form:
        body["tags"] = [tag.strip() for tag in form["tags"].split(",") if tag.strip()]
    if form.get("model") and "withheld_seen" not in form:
        agent = await api.get(f"/v1/agents/{agent_id}")
        preview = None
        if agent["model"] != form["model"]:
            preview = await api.find(f"/v1/agents/{agent_id}/egress", model=form["model"])
        if preview and (preview["withheld"] or preview["refused"]):
            return await _render_settings(request, agent_id, preview)
    changed = await api.ask("PATCH", f"/v1/agents/{agent_id}", body)
    if "daily_tokens" in form:
        limit = typed_number(form["daily_tokens"])
        await api.ask("PATCH", f"/v1/agents/{agent_id}/budget", {"daily_tokens": limit})
    return done(request, f"/ui/agents/{agent_id}/settings", f"{changed['name']} was changed.")


@router.post("/{agent_id}/tools/{tool_id}")
async def change_tool(request: Request, agent_id: str, tool_id: str) -> Response:
    """Attach or detach a tool, or set whether its calls wait for approval."""
    api = Api(request)
    form = await form_of(request)
    home = f"/v1/agents/{agent_id}/tools"
    action = form.get("do")
    if action == "detach":
        await api.ask("PATCH", f"{home}/detach/{tool_id}")
        notice = "The tool was detached."
    elif action in ("approve", "free"):
        tool = await api.get(f"/v1/tools/{tool_id}")
        body = {"requires_approval": action == "approve"}
        await api.ask("PATCH", f"{home}/approval/{tool['name']}", body)
        rule = "wait for approval" if action == "approve" else "need no approval"
        notice = f"Calls of {tool['name']} {rule} from now on."
    else:
        await api.ask("PATCH", f"{home}/attach/{tool_id}")
        notice = "The tool was attached."
    return done(request, f"/ui/agents/{agent_id}/settings", notice)


@router.post("/{agent_id}/secrets")
async def change_secret(request: Request, agent_id: str) -> Response:
    """Store or delete one secret of the agent; other secrets are not changed."""
    form = await form_of(request)
    name = form.get("name", "").strip()
    is_deleted = form.get("do") == "delete"
    text = None if is_deleted else form.get("value", "")
    runtime, scope = request.app.state.runtime, request.scope[REQUEST_SCOPE]
    await runtime.store.write(lambda tx: store_secret(tx, runtime, scope, agent_id, (name, text)))
    return done(
        request,
        f"/ui/agents/{agent_id}/settings",
        f"{name} was {'deleted' if is_deleted else 'stored'}.",
    )


@router.post("/{agent_id}/delete")
async def delete_agent(request: Request, agent_id: str) -> Response:
    api = Api(request)
    agent = await api.get(f"/v1/agents/{agent_id}")
    await api.ask("DELETE", f"/v1/agents/{agent_id}")
    return done(request, "/ui/agents", f"{agent['name']} was deleted.")


@router.post("/{agent_id}/reset")
@needs("messages:write")
async def forget_conversation(request: Request, agent_id: str) -> Response:
    """Empty the agent's default conversation; the memory stays."""
    await Api(request).ask("PATCH", f"/v1/agents/{agent_id}/reset-messages", {})
    return done(
        request,
        f"/ui/agents/{agent_id}/settings",
        "The conversation was emptied. The memory stays.",
    )


def _default(request: Request) -> str:
    handle: str = request.app.state.runtime.models.default_handle()
    return handle
