"""The page of a workspace: its files, the text of one file, uploads, and deletions."""

from typing import Any

from fastapi import Request, Response

from ricordo.domain.scope import REQUEST_SCOPE
from ricordo.errors import Invalid
from ricordo.pages.inside import Api, RefusedByApi
from ricordo.pages.shell import Pages, done, page_of, render

router = Pages("/ui/workspace", scope="memory")
_shared = Pages("/ui/shared-workspace", scope="agents")
_SHOWN_CHARACTERS = 100_000


@router.get("")
async def find(request: Request) -> Response:
    """Redirect to the files of the user in the query or of the caller, or ask for a user."""
    user = request.query_params.get("user") or request.scope[REQUEST_SCOPE].subject
    if user:
        return done(request, page_of("workspace", user))
    context: dict[str, Any] = {
        "user": "",
        "home": "",
        "api": "",
        "may_write": False,
        "files": [],
        "file_path": "",
        "text": None,
    }
    return await render(request, "files.workspaces/files.html", problem="", **context)


@_shared.get("")
@router.get("/{user_id}")
async def show(request: Request) -> Response:
    """Show the files of a user or the shared files, and the text of one file."""
    return await _show(request)


@_shared.post("/upload")
@router.post("/{user_id}/upload")
async def upload(request: Request) -> Response:
    """Store a file that was chosen in the browser."""
    async with request.form(max_files=1, max_fields=2) as form:
        file = form.get("file")
        folder = str(form.get("folder") or "")
        name = getattr(file, "filename", None)
        if file is None or isinstance(file, str) or not name:
            raise Invalid("Choose a file first.")
        content = await file.read()
    path = "/".join(filter(None, (folder.strip("/ "), name)))
    home, api = _addresses(request)
    try:
        await Api(request).ask("PUT", f"{api}/{path}", form=(content, "application/octet-stream"))
    except RefusedByApi as error:
        if error.status in (403, 404):
            raise
        return await _show(request, str(error), error.status)
    return done(request, home, f"{path} was stored.")


@_shared.post("/files/{shared_path:path}/delete")
@router.post("/{user_id}/files/{file_path:path}/delete")
async def delete(request: Request) -> Response:
    """Delete a file."""
    parameters = request.path_params
    home, api = _addresses(request)
    path = parameters.get("file_path") or parameters["shared_path"]
    await Api(request).ask("DELETE", f"{api}/{path}")
    return done(request, home, f"{path} was deleted.")


async def _show(request: Request, problem: str = "", status: int = 200) -> Response:
    api = Api(request)
    path = request.query_params.get("path", "")
    text = None
    home, api_path = _addresses(request)
    files: list[Any] = await api.get(api_path)
    if path and all(file["path"] != path for file in files):
        problem = problem or f'There is no file "{path[:80]}" in this workspace.'
        status = 404 if status == 200 else status
        path = ""
    if path:
        content = await api.find(f"{api_path}/{path}")
        if isinstance(content, str) and "\0" not in content:
            text = content[:_SHOWN_CHARACTERS]
            if len(content) > _SHOWN_CHARACTERS:
                text = f"{text}\n[cut: the file has {len(content)} characters]"
    user = request.path_params.get("user_id")
    may_write = request.scope[REQUEST_SCOPE].may("memory:write" if user else "agents:write")
    context: dict[str, Any] = {
        "user": user,
        "home": home,
        "api": api_path,
        "may_write": may_write,
        "files": files,
        "file_path": path,
        "text": text,
        "problem": problem,
    }
    return await render(request, "files.workspaces/files.html", status=status, **context)


def _addresses(request: Request) -> tuple[str, str]:
    """Return the paths of the page and of the API for these files.

    They are a user's files, or those that all users share.
    """
    user = request.path_params.get("user_id")
    if user is None:
        return "/ui/shared-workspace", "/v1/workspace/files"
    return page_of("workspace", user), f"/users/{user}/workspace/files"


router.routes += _shared.routes
