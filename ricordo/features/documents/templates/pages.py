"""The page of templates, with forms to save, roll back and delete them."""

from fastapi import Request, Response

from ricordo.api.routing import needs
from ricordo.domain.scope import REQUEST_SCOPE, Scope
from ricordo.features.documents.templates import queries
from ricordo.pages.inside import Api
from ricordo.pages.shell import Pages, address_of, done, form_of, render
from ricordo.storage.engine.repository import Page

router = Pages("/ui/templates", scope="agents")
_HOME = "/ui/templates"
_PAGE_SIZE = 50
_PRESERVED = ("core_memories", "environment_variables", "sources")
_writes = needs("agents:write")


@router.get("")
@_writes
async def list_templates(request: Request) -> Response:
    """Show a page of templates with their versions."""
    scope: Scope = request.scope[REQUEST_SCOPE]
    page = Page(limit=_PAGE_SIZE + 1, after=request.query_params.get("after"))
    rows = await request.app.state.runtime.store.read(
        lambda tx: queries.page_with_versions(tx, scope, page)
    )
    older = ""
    if len(rows) > _PAGE_SIZE:
        older = address_of(_HOME, after=rows[_PAGE_SIZE - 1][0].id)
    return await render(
        request, "documents.templates/templates.html", templates=rows[:_PAGE_SIZE], older=older
    )


@router.post("/{template_name}/save")
@_writes
async def save(request: Request, template_name: str) -> Response:
    form = await form_of(request)
    body = {
        **{f"preserve_{name}_on_migration": True for name in _PRESERVED},
        "migrate_agents": form.get("agents") == "yes",
        "message": form.get("message", "").strip() or None,
    }
    template = await Api(request).ask("POST", f"/v1/templates/{template_name}/save", body)
    return done(request, _HOME, f"Version {template['latest_version']} was saved.")


@router.post("/{template_name}/rollback")
@_writes
async def rollback(request: Request, template_name: str) -> Response:
    body = {"version": (await form_of(request)).get("version", "")}
    change = await Api(request).ask("POST", f"/v1/templates/{template_name}/rollback", body)
    return done(request, _HOME, change["message"])


@router.post("/{template_name}/delete")
@_writes
async def delete(request: Request, template_name: str) -> Response:
    await Api(request).ask("DELETE", f"/v1/templates/{template_name}")
    return done(request, _HOME, "The template was deleted. Its agents stay.")
