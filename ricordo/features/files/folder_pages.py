"""The pages of folders: which there are, a folder's files and how far they are read, and the agents that have it."""

from typing import Any

from fastapi import Request, Response

from ricordo.api.routing import needs
from ricordo.features.web.inside import Api, RefusedByApi
from ricordo.features.web.shell import Pages, address_of, done, form_of, render

router = Pages("/ui/files", scope="archives")
_LIST, _FOLDER = "files/folders.html", "files/folder.html"
_EACH = 100
_reads, _writes = needs("archives:read", "memory:read"), needs("archives:write", "memory:write")


@router.get("")
@_reads
async def list_folders(request: Request) -> Response:
    """The folders that the caller sees, and a form for another."""
    return await _list(request, {})


@router.post("")
@_writes
async def make_folder(request: Request) -> Response:
    form = await form_of(request)
    sent = {
        name: form[name].strip()
        for name in ("name", "description", "instructions")
        if form.get(name, "").strip()
    }
    try:
        made = await Api(request).ask("POST", "/v1/folders/", sent)
    except RefusedByApi as error:
        return await _list(request, form, str(error), error.status)
    return done(request, f"/ui/files/{made['id']}", f"{made['name']} was made. Put files into it.")


@router.get("/{folder_id}")
@_reads
async def show_folder(request: Request, folder_id: str) -> Response:
    """A folder with its files; while some are being read, the list renews itself."""
    return await _show(request, folder_id)


@router.post("/{folder_id}/upload")
@_writes
async def upload(request: Request, folder_id: str) -> Response:
    sent = (await request.body(), request.headers.get("content-type", ""))
    try:
        file = await Api(request).ask("POST", f"/v1/folders/{folder_id}/upload", form=sent)
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
    """Give the folder to an agent, or take it away."""
    form = await form_of(request)
    do = "detach" if form.get("do") == "detach" else "attach"
    agent = await Api(request).ask(
        "PATCH", f"/v1/agents/{form.get('agent', '')}/folders/{do}/{folder_id}"
    )
    words = "no longer has this folder" if do == "detach" else "can read these files now"
    return done(request, f"/ui/files/{folder_id}", f"{agent['name']} {words}.")


async def _list(
    request: Request, form: dict[str, str], problem: str = "", status: int = 200
) -> Response:
    after = request.query_params.get("after")
    found = await Api(request).get("/v1/folders/", limit=_EACH + 1, after=after)
    older = address_of("/ui/files", after=found[_EACH - 1]["id"]) if len(found) > _EACH else ""
    given: dict[str, str] = {
        name: form.get(name, "") for name in ("name", "description", "instructions")
    }
    return await render(
        request,
        _LIST,
        status=status,
        folders=found[:_EACH],
        older=older,
        form=given,
        problem=problem,
    )


async def _show(request: Request, folder_id: str, problem: str = "", status: int = 200) -> Response:
    api, home = Api(request), f"/v1/folders/{folder_id}"
    folder = await api.get(home)
    files: list[Any] = await api.get(
        f"{home}/files", limit=_EACH + 1, after=request.query_params.get("after")
    )
    older = (
        address_of(f"/ui/files/{folder_id}", after=files[_EACH - 1]["id"])
        if len(files) > _EACH
        else ""
    )
    ids = await api.get(f"{home}/agents", limit=_EACH)
    agents = await api.find("/v1/agents/", limit=_EACH) or []
    return await render(
        request,
        _FOLDER,
        status=status,
        folder=folder,
        files=files[:_EACH],
        older=older,
        is_busy=any(file["processing_status"] not in ("completed", "error") for file in files),
        having=[agent for agent in agents if agent["id"] in ids],
        others=[agent for agent in agents if agent["id"] not in ids],
        problem=problem,
    )
