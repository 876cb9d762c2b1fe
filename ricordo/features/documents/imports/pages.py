"""The pages for imports and exports: uploads and downloads."""

from fastapi import Request, Response

from ricordo.api.routing import needs
from ricordo.domain.scope import ADMIN, IMPERSONATE, REQUEST_SCOPE
from ricordo.features.documents.imports.service import owner_of_list
from ricordo.pages.inside import Api, RefusedByApi
from ricordo.pages.shell import Pages, address_of, done, render

router = Pages("/ui/imports", scope="messages")
_MOST_JOBS = 20
_AGENTS_PER_PAGE = 100
_reads = needs("messages:read")
_writes = needs("messages:write")


@router.get("")
@_reads
async def list_imports(request: Request) -> Response:
    """Show a form for an upload, and the newest imports."""
    return await _list(request)


@router.post("")
@_writes
async def upload(request: Request) -> Response:
    form = (await request.body(), request.headers.get("content-type", ""))
    try:
        job = await Api(request).ask("POST", "/v1/imports", form=form)
    except RefusedByApi as error:
        return await _list(request, str(error), error.status)
    return done(request, f"/ui/imports/{job['id']}", "The file was uploaded.")


@router.post("/memory")
@needs("memory:approve", "memory:override")
async def restore_memory(request: Request) -> Response:
    """Restore a person's memory, and show it."""
    form = (await request.body(), request.headers.get("content-type", ""))
    try:
        restored = await Api(request).ask("POST", "/v1/imports/memory", form=form)
    except RefusedByApi as error:
        return await _list(request, str(error), error.status)
    said = "The memory was restored."
    if restored["left_out"]:
        said = f"{said} {' '.join(restored['left_out'])}"
    return done(request, f"/ui/people/{restored['user_id']}", said)


@router.get("/{import_id}")
@_reads
async def show_import(request: Request, import_id: str) -> Response:
    """Show an import; the page reloads itself while the import runs."""
    return await render(
        request,
        "documents.imports/import.html",
        job=await Api(request).get(f"/v1/imports/{import_id}"),
    )


async def _list(request: Request, problem: str = "", status: int = 200) -> Response:
    api = Api(request)
    scope = request.scope[REQUEST_SCOPE]
    after = request.query_params.get("after")
    agents = await api.find("/v1/agents/", limit=_AGENTS_PER_PAGE + 1, after=after) or []
    older = ""
    if len(agents) > _AGENTS_PER_PAGE:
        older = address_of("/ui/imports", after=agents[_AGENTS_PER_PAGE - 1]["id"])
    return await render(
        request,
        "documents.imports/imports.html",
        status=status,
        problem=problem,
        agents=agents[:_AGENTS_PER_PAGE],
        older=older,
        may_paste=scope.may(IMPERSONATE) or owner_of_list(scope) is not None,
        jobs=await api.find("/v1/jobs/", kind="imports.upload", limit=_MOST_JOBS) or [],
        # None for a caller who sees all users and must first choose one, or may not read memory.
        memory_of=scope.subject if scope.may("memory:read") else None,
        may_restore=scope.role == ADMIN and scope.subject_id is None,
    )
