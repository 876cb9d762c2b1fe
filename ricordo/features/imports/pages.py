"""The pages of moving in: an upload, how far it is, and what came of it."""

from fastapi import Request, Response

from ricordo.api.routing import needs
from ricordo.features.web.inside import Api, RefusedByApi
from ricordo.features.web.shell import Pages, done, render

router = Pages("/ui/imports", scope="messages")
_LIST, _ONE = "imports/imports.html", "imports/import.html"
_SHOWN = 20
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
    api = Api(request)
    agents = await api.find("/v1/agents/", limit=100) or []
    jobs = await api.find("/v1/jobs/", kind="imports.upload", limit=_SHOWN) or []
    return await render(request, _LIST, status=status, agents=agents, jobs=jobs, problem=problem)
