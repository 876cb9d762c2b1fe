"""The page of templates: their versions, and forms that save, roll back and delete."""

from fastapi import Request, Response

from ricordo.api.routing import needs
from ricordo.domain.scope import REQUEST_SCOPE, Scope
from ricordo.features.templates import queries
from ricordo.features.web.inside import Api
from ricordo.features.web.shell import Pages, address_of, done, form_of, render
from ricordo.storage.engine.repository import Page

router = Pages("/ui/templates", scope="agents")
_HOME, _EACH = "/ui/templates", 50
_KEPT = ("core_memories", "environment_variables", "sources")
_writes = needs("agents:write")


@router.get("")
@_writes
async def list_templates(request: Request) -> Response:
    """All templates with their versions."""
    me: Scope = request.scope[REQUEST_SCOPE]
    wanted = Page(limit=_EACH + 1, after=request.query_params.get("after"))
    found = await request.app.state.runtime.store.read(lambda tx: queries.listed(tx, me, wanted))
    older = address_of(_HOME, after=found[_EACH - 1][0].id) if len(found) > _EACH else ""
    return await render(request, "templates/templates.html", found=found[:_EACH], older=older)


@router.post("/{template_name}/save")
@_writes
async def save(request: Request, template_name: str) -> Response:
    form = await form_of(request)
    sent = {f"preserve_{name}_on_migration": True for name in _KEPT} | {
        "migrate_agents": form.get("agents") == "yes"
    }
    said = {"message": form.get("message", "").strip() or None}
    made = await Api(request).ask("POST", f"/v1/templates/{template_name}/save", sent | said)
    return done(request, _HOME, f"Version {made['latest_version']} was saved.")


@router.post("/{template_name}/rollback")
@_writes
async def rollback(request: Request, template_name: str) -> Response:
    sent = {"version": (await form_of(request)).get("version", "")}
    made = await Api(request).ask("POST", f"/v1/templates/{template_name}/rollback", sent)
    return done(request, _HOME, made["message"])


@router.post("/{template_name}/delete")
@_writes
async def delete(request: Request, template_name: str) -> Response:
    await Api(request).ask("DELETE", f"/v1/templates/{template_name}")
    return done(request, _HOME, "The template was deleted. Its agents stay.")
