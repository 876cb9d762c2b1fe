"""The page of a workspace: its files, what a text holds, an upload, and buttons to delete."""

from typing import Any

from fastapi import Request, Response

from ricordo.domain.scope import REQUEST_SCOPE
from ricordo.errors import Invalid
from ricordo.features.web.inside import Api, RefusedByApi
from ricordo.features.web.shell import Pages, done, render

router = Pages("/ui/workspace", scope="memory")
_of_all = Pages("/ui/shared-workspace", scope="agents")
_SHOWN = 100_000  # characters of a text


@router.get("")
async def find(request: Request) -> Response:
    """The caller's own files, or a form that asks whose are wanted."""
    user = request.query_params.get("user") or request.scope[REQUEST_SCOPE].subject
    if user:
        return done(request, f"/ui/workspace/{user}")
    shown: dict[str, Any] = {
        "user": "",
        "home": "",
        "api": "",
        "may_write": False,
        "files": [],
        "file_path": "",
        "text": None,
    }
    return await render(request, "workspaces/files.html", problem="", **shown)


@_of_all.get("")
@router.get("/{user_id}")
async def show(request: Request) -> Response:
    """The files of a user, or those that all users share, and the text of one."""
    return await _show(request)


@_of_all.post("/upload")
@router.post("/{user_id}/upload")
async def upload(request: Request) -> Response:
    """Store a file that was chosen in the browser."""
    async with request.form(max_files=1, max_fields=2) as form:
        file = form.get("file")
        folder = str(form.get("folder") or "")
        name = getattr(file, "filename", None)
        if file is None or isinstance(file, str) or not name:
            raise Invalid("Choose a file first.")
        data = await file.read()
    path = "/".join(filter(None, (folder.strip("/ "), name)))
    home, api = _place(request)
    try:
        await Api(request).ask("PUT", f"{api}/{path}", form=(data, "application/octet-stream"))
    except RefusedByApi as error:
        if error.status in (403, 404):
            raise
        return await _show(request, str(error), error.status)
    return done(request, home, f"{path} was stored.")


@_of_all.post("/files/{shared_path:path}/delete")
@router.post("/{user_id}/files/{file_path:path}/delete")
async def delete(request: Request) -> Response:
    """Delete a file."""
    named = request.path_params
    (home, api) = _place(request)
    path = named.get("file_path") or named["shared_path"]
    await Api(request).ask("DELETE", f"{api}/{path}")
    return done(request, home, f"{path} was deleted.")


async def _show(request: Request, problem: str = "", status: int = 200) -> Response:
    api = Api(request)
    path = request.query_params.get("path", "")
    text = None
    home, files_at = _place(request)
    files: list[Any] = await api.get(files_at)
    if path:
        found = await api.find(f"{files_at}/{path}")
        text = found[:_SHOWN] if isinstance(found, str) and "\0" not in found else None
    user = request.path_params.get("user_id")
    may_write = request.scope[REQUEST_SCOPE].may("memory:write" if user else "agents:write")
    shown: dict[str, Any] = {
        "user": user,
        "home": home,
        "api": files_at,
        "may_write": may_write,
        "files": files,
    }
    shown |= {"file_path": path, "text": text, "problem": problem}
    return await render(request, "workspaces/files.html", status=status, **shown)


def _place(request: Request) -> tuple[str, str]:
    """Where the page and the API have these files: a user's, or those that all users share."""
    user = request.path_params.get("user_id")
    if user is None:
        return "/ui/shared-workspace", "/v1/workspace/files"
    return f"/ui/workspace/{user}", f"/users/{user}/workspace/files"


router.routes += _of_all.routes
