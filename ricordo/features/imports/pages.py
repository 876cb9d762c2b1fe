"""The pages of moving in and out: an upload, how far it is and what came of it; files to take away."""

from fastapi import Request, Response

from ricordo.api.routing import needs
from ricordo.domain.scope import REQUEST_SCOPE
from ricordo.features.web.inside import Api, RefusedByApi
from ricordo.features.web.shell import Pages, address_of, done, render

router = Pages("/ui/imports", scope="messages")
_LIST, _ONE = "imports/imports.html", "imports/import.html"
_SHOWN, _AGENTS = 20, 100
_reads, _writes = needs("messages:read"), needs("messages:write")


@router.get("")
@_reads
async def list_imports(request: Request) -> Response:
    """A form for an upload, and the imports so far."""
    return await _list(request)


@router.post("")
@_writes
async def upload(request: Request) -> Response:
    sent = (await request.body(), request.headers.get("content-type", ""))
    try:
        made = await Api(request).ask("POST", "/v1/imports", form=sent)
    except RefusedByApi as error:
        return await _list(request, str(error), error.status)
    return done(request, f"/ui/imports/{made['id']}", "The file was uploaded.")


@router.get("/{import_id}")
@_reads
async def show_import(request: Request, import_id: str) -> Response:
    """An import; while it runs, the page renews itself."""
    return await render(request, _ONE, one=await Api(request).get(f"/v1/imports/{import_id}"))


async def _list(request: Request, problem: str = "", status: int = 200) -> Response:
    api, me, after = Api(request), request.scope[REQUEST_SCOPE], request.query_params.get("after")
    agents = await api.find("/v1/agents/", limit=_AGENTS + 1, after=after) or []
    shown = {
        "agents": agents[:_AGENTS],
        "older": address_of("/ui/imports", after=agents[_AGENTS - 1]["id"])
        if len(agents) > _AGENTS
        else "",
        "jobs": await api.find("/v1/jobs/", kind="imports.upload", limit=_SHOWN) or [],
        # Whoever sees everybody chooses a person first.
        "memory_of": me.subject if me.may("memory:read") else None,
    }
    return await render(request, _LIST, status=status, problem=problem, **shown)
