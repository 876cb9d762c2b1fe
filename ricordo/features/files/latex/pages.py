"""The page that shows a PDF of a workspace."""

from typing import Any

from fastapi import Request, Response

from ricordo.errors import NotFound
from ricordo.features.files.latex import PDFJS, STATIC
from ricordo.pages.inside import Api
from ricordo.pages.shell import Pages, render

router = Pages("/ui/latex", scope="memory")


@router.get("/{user_id}/{file_path:path}")
async def show(request: Request, user_id: str, file_path: str) -> Response:
    """Show the pages of the PDF, which the browser loads from the workspace."""
    address = f"/users/{user_id}/workspace/files"
    files = await Api(request).get(address)
    if all(file["path"] != file_path for file in files):
        raise NotFound(f'There is no file "{file_path[:80]}" in this workspace.')
    scripts = {"viewer": f"{STATIC}/viewer.mjs", "pdfjs": f"{STATIC}/pdf-{PDFJS}"}
    context: dict[str, Any] = {
        "user": user_id,
        "file_path": file_path,
        "pdf": f"{address}/{file_path}",
        **scripts,
    }
    return await render(request, "files.latex/viewer.html", **context)
