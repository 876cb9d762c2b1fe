"""Pages of folders: their list, and one folder's files, progress and agents."""

from typing import Any

from fastapi import Request, Response

from ricordo.api.routing import needs
from ricordo.domain.scope import REQUEST_SCOPE
from ricordo.pages.inside import Api, RefusedByApi
from ricordo.pages.shell import Pages, address_of, done, form_of, render, require_id
from ricordo.storage import conversation_overviews

router = Pages("/ui/files", scope="archives")
_LIST = "files.folders/folders.html"
_FOLDER = "files.folders/folder.html"
_PAGE_SIZE = 100
_reads = needs("archives:read", "memory:read")
_writes = needs("archives:write", "memory:write")


@router.get("")
@_reads
async def list_folders(request: Request) -> Response:
    """Show the folders that the caller sees, and a form for a new folder."""
    return await _list(request, {})


@router.post("")
@_writes
async def make_folder(request: Request) -> Response:
    form = await form_of(request)
    fields = {
        name: form[name].strip()
        for name in ("name", "description", "instructions")
        if form.get(name, "").strip()
    }
    try:
        folder = await Api(request).ask("POST", "/v1/folders/", fields)
    except RefusedByApi as error:
        return await _list(request, form, str(error), error.status)
    return done(
        request, f"/ui/files/{folder['id']}", f"{folder['name']} was created. Upload files to it."
    )


@router.get("/{folder_id}")
@_reads
async def show_folder(request: Request, folder_id: str) -> Response:
    """Show a folder with its files.

    While some are being read, the list refreshes itself.
    """
    return await _show(request, folder_id)


@router.post("/{folder_id}/upload")
@_writes
async def upload(request: Request, folder_id: str) -> Response:
    body = (await request.body(), request.headers.get("content-type", ""))
    try:
        file = await Api(request).ask("POST", f"/v1/folders/{folder_id}/upload", form=body)
    except RefusedByApi as error:
        if error.status in (403, 404):
            raise
        return await _show(request, folder_id, str(error), error.status)
    return done(request, f"/ui/files/{folder_id}", f"{file['file_name']} was uploaded.")


@router.post("/{folder_id}/files/{file_id}/delete")
@_writes
async def delete_file(request: Request, folder_id: str, file_id: str) -> Response:
    await Api(request).ask("DELETE", f"/v1/folders/{folder_id}/{file_id}")
    return done(request, f"/ui/files/{folder_id}", "The file was deleted.")


@router.post("/{folder_id}/delete")
@_writes
async def delete_folder(request: Request, folder_id: str) -> Response:
    await Api(request).ask("DELETE", f"/v1/folders/{folder_id}")
    return done(request, "/ui/files", "The folder was deleted with its files.")


@router.post("/{folder_id}/agents")
@needs("agents:write", "memory:write")
async def change_agents(request: Request, folder_id: str) -> Response:
    """Attach the folder to an agent, or detach it."""
    form = await form_of(request)
    if form.get("do") == "detach":
        action = "detach"
    else:
        action = "attach"
    agent_id = require_id(form.get("agent", ""), "agent")
    agent = await Api(request).ask("PATCH", f"/v1/agents/{agent_id}/folders/{action}/{folder_id}")
    if action == "detach":
        change = "no longer has this folder"
    else:
        change = "can read these files now"
    return done(request, f"/ui/files/{folder_id}", f"{agent['name']} {change}.")


async def _list(
    request: Request, form: dict[str, str], problem: str = "", status: int = 200
) -> Response:
    after = request.query_params.get("after")
    folders = await Api(request).get("/v1/folders/", limit=_PAGE_SIZE + 1, after=after)
    older = ""
    if len(folders) > _PAGE_SIZE:
        older = address_of("/ui/files", after=folders[_PAGE_SIZE - 1]["id"])
    fields: dict[str, str] = {
        name: form.get(name, "") for name in ("name", "description", "instructions")
    }
    return await render(
        request,
        _LIST,
        status=status,
        folders=folders[:_PAGE_SIZE],
        older=older,
        form=fields,
        problem=problem,
    )


async def _show(request: Request, folder_id: str, problem: str = "", status: int = 200) -> Response:
    api = Api(request)
    home = f"/v1/folders/{folder_id}"
    folder = await api.get(home)
    files: list[Any] = await api.get(
        f"{home}/files", limit=_PAGE_SIZE + 1, after=request.query_params.get("after")
    )
    older = ""
    if len(files) > _PAGE_SIZE:
        older = address_of(f"/ui/files/{folder_id}", after=files[_PAGE_SIZE - 1]["id"])
    ids = await api.get(f"{home}/agents", limit=_PAGE_SIZE)
    scope = request.scope[REQUEST_SCOPE]
    names = await request.app.state.runtime.store.read(
        lambda tx: conversation_overviews.names_of_agents(tx, scope, ids)
    )
    agents = await api.find("/v1/agents/", limit=_PAGE_SIZE) or []
    return await render(
        request,
        _FOLDER,
        status=status,
        folder=folder,
        files=files[:_PAGE_SIZE],
        older=older,
        is_busy=any(file["processing_status"] not in ("completed", "error") for file in files),
        having=[{"id": id, "name": names[id]} for id in ids if id in names],
        others=[agent for agent in agents if agent["id"] not in ids],
        problem=problem,
    )
