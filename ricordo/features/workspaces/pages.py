"""The page of a workspace: its files, what a text holds, an upload, and buttons to delete."""

from typing import Any

from fastapi import Request, Response

from ricordo.domain.scope import REQUEST_SCOPE
from ricordo.errors import Invalid
from ricordo.features.web.inside import Api, RefusedByApi
from ricordo.features.web.shell import Pages, done, render

router = Pages("/ui/workspace", scope="memory")
_SHOWN = 100_000  # characters of a text


@router.get("")
async def find(request: Request) -> Response:
    """The caller's own files, or a form that asks whose are wanted."""
    user = request.query_params.get("user") or request.scope[REQUEST_SCOPE].subject
    if user:
        return done(request, f"/ui/workspace/{user}")
    return await render(request, "workspaces/files.html", user="", files=[], file_path="", text=None, problem="")


@router.get("/{user_id}")
async def show(request: Request, user_id: str) -> Response:
    """The files of a user, and the text of one."""
    return await _show(request, user_id)


@router.post("/{user_id}/upload")
async def upload(request: Request, user_id: str) -> Response:
    """Store a file that was chosen in the browser."""
    async with request.form(max_files=1, max_fields=2) as form:
        file, folder = form.get("file"), str(form.get("folder") or "")
        name = getattr(file, "filename", None)
        if file is None or isinstance(file, str) or not name:
            raise Invalid("Choose a file first.")
        data = await file.read()
    path = "/".join(filter(None, (folder.strip("/ "), name)))
    try:
        await Api(request).ask("PUT", f"{_api(user_id)}/{path}", form=(data, "application/octet-stream"))
    except RefusedByApi as error:
        if error.status in (403, 404):
            raise
        return await _show(request, user_id, str(error), error.status)
    return done(request, f"/ui/workspace/{user_id}", f"{path} was stored.")


@router.post("/{user_id}/files/{file_path:path}/delete")
async def delete(request: Request, user_id: str, file_path: str) -> Response:
    """Delete a file."""
    await Api(request).ask("DELETE", f"{_api(user_id)}/{file_path}")
    return done(request, f"/ui/workspace/{user_id}", f"{file_path} was deleted.")


async def _show(request: Request, user: str, problem: str = "", status: int = 200) -> Response:
    api, path, text = Api(request), request.query_params.get("path", ""), None
    files: list[Any] = await api.get(_api(user))
    if path:
        found = await api.find(f"{_api(user)}/{path}")
        text = found[:_SHOWN] if isinstance(found, str) and "\0" not in found else None
    shown: dict[str, Any] = {"user": user, "files": files, "file_path": path, "text": text, "problem": problem}
    return await render(request, "workspaces/files.html", status=status, **shown)


def _api(user: str) -> str:
    return f"/users/{user}/workspace/files"
