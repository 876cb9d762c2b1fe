"""The page of templates: their versions, and forms that save, roll back and delete."""

from fastapi import Request, Response

from ricordo.api.routing import needs
from ricordo.domain.scope import REQUEST_SCOPE, Scope
from ricordo.features.templates import queries
from ricordo.features.web.inside import Api, RefusedByApi
from ricordo.features.web.shell import Pages, address_of, done, form_of, render
from ricordo.storage.engine.repository import Page

router = Pages("/ui/templates", scope="agents")
_EACH = 50
_writes = needs("agents:write")


@router.get("")
@_writes
async def list_templates(request: Request) -> Response:
    """All templates with their versions, and a form for another."""
    return await _show(request)


@router.post("")
@_writes
async def make_template(request: Request) -> Response:
    form = await form_of(request)
    sent = {"type": "agent", "agent_id": form.get("agent", ""), "name": form.get("name", "").strip() or None}
    return await _ask(request, "POST", "", sent, "{name} was made. It follows the agent.")


@router.post("/{template_name}/save")
@_writes
async def save(request: Request, template_name: str) -> Response:
    form = await form_of(request)
    sent = {
        "message": form.get("message", "").strip() or None,
        "migrate_agents": form.get("agents") == "yes",
        "preserve_core_memories_on_migration": True,
        "preserve_environment_variables_on_migration": True,
        "preserve_sources_on_migration": True,
    }
    return await _ask(request, "POST", f"/{template_name}/save", sent, "Version {latest_version} was saved.")


@router.post("/{template_name}/rollback")
@_writes
async def rollback(request: Request, template_name: str) -> Response:
    sent = {"version": (await form_of(request)).get("version", "")}
    return await _ask(request, "POST", f"/{template_name}/rollback", sent, "{message}")


@router.post("/{template_name}/delete")
@_writes
async def delete(request: Request, template_name: str) -> Response:
    return await _ask(request, "DELETE", f"/{template_name}", None, "The template was deleted. Its agents stay.")


async def _ask(request: Request, method: str, path: str, sent: object, words: str) -> Response:
    """Ask the API, and say in these words what came of it, or on the page why it refused."""
    try:
        answer = await Api(request).ask(method, f"/v1/templates{path}", sent)
    except RefusedByApi as error:
        if error.status in (403, 404):
            raise
        return await _show(request, str(error), error.status)
    return done(request, "/ui/templates", words.format_map(answer))


async def _show(request: Request, problem: str = "", status: int = 200) -> Response:
    me: Scope = request.scope[REQUEST_SCOPE]
    wanted = Page(limit=_EACH + 1, after=request.query_params.get("after"))
    found = await request.app.state.runtime.store.read(lambda tx: queries.listed(tx, me, wanted))
    agents = await Api(request).find("/v1/agents/", limit=100) or []
    return await render(
        request,
        "templates/templates.html",
        status=status,
        found=found[:_EACH],
        older=address_of("/ui/templates", after=found[_EACH - 1][0].id) if len(found) > _EACH else "",
        agents=agents,
        names={agent["id"]: agent["name"] for agent in agents},
        problem=problem,
    )
