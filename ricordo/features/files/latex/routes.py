"""The files of the PDF viewer, and PDFs with it in one document.

The document is HTML and needs nothing else to be shown.
"""

from base64 import b64encode
from functools import cache
from gzip import compress
from html import escape
from importlib.resources import files

from fastapi import Response

from ricordo.api.call import RequestContext, for_user
from ricordo.api.routing import Routes, needs
from ricordo.domain.text import Json
from ricordo.errors import Invalid, NotFound
from ricordo.features.files.latex import PARTS, STATIC
from ricordo.features.files.workspaces import service
from ricordo.features.files.workspaces.queries import Space
from ricordo.offload import offload

router = Routes(
    tags=["workspaces"],
    scope="memory",
    open_paths=[f"{STATIC}/{name}" for name in PARTS.values()],
)
_HTML: dict[int | str, Json] = {200: {"content": {"text/html": {"schema": {"type": "string"}}}}}
# The page may run only the scripts in it, and may load nothing, on any page that embeds it.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' blob:; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data: blob:; base-uri 'none'; form-action 'none'"
)
_HEADERS = {
    "Content-Security-Policy": f"{_POLICY}; sandbox allow-scripts allow-downloads",
    "X-Content-Type-Options": "nosniff",
}


@router.get(STATIC + "/{name}", include_in_schema=False)
@needs()
async def read_static(name: str) -> Response:
    """Return one of the viewer's files."""
    # The file names of PDF.js include its version.
    if name == PARTS["viewer"]:
        age = "no-cache"
    else:
        age = "public, max-age=31536000, immutable"
    headers = {"Cache-Control": age, "X-Content-Type-Options": "nosniff"}
    return Response(content(name), headers=headers, media_type="text/javascript; charset=utf-8")


@router.get("/users/{user_id}/latex/{file_path:path}", response_class=Response, responses=_HTML)
async def artifact(context: RequestContext, user_id: str, file_path: str) -> Response:
    """Return a PDF of the user's workspace with its viewer, as one HTML document."""
    context = await for_user(context, user_id)
    path = service.path_of(file_path)
    space = Space(context.scope.organization_id, context.scope.subject or "")
    pdf = await context.store.read(lambda tx: service.read(tx, space, path))
    if not pdf.startswith(b"%PDF-"):
        raise Invalid(f'"{path[:80]}" is not a PDF.')
    # The name is escaped, and the PDF is base64, so nothing in them is read as HTML. The name is
    # inserted last, since it may contain the other placeholders.
    page = (
        (await offload(_page, 1 << 20))
        .replace("{policy}", _POLICY)
        .replace("{data}", b64encode(pdf).decode())
        .replace("{name}", escape(path.rpartition("/")[2]))
    )
    return Response(page, headers=_HEADERS, media_type="text/html; charset=utf-8")


@cache
def content(name: str) -> bytes:
    """Return the bytes of a static file of the viewer.

    Args:
        name: A value of `PARTS`.

    Raises:
        NotFound: There is no such file.
    """
    if name not in PARTS.values():
        raise NotFound(f"There is no file {name[:80]}.")
    return files("ricordo.features.files.latex").joinpath("static", name).read_bytes()


@cache
def _page() -> str:
    """Return the document without its PDF.

    It contains PDF.js in compressed form, at a third of its size.
    """
    page = (
        files("ricordo.features.files.latex")
        .joinpath("templates", "artifact.html")
        .read_text("utf-8")
    )
    for name, file in PARTS.items():
        page = page.replace(f"{{{name}}}", b64encode(compress(content(file), mtime=0)).decode())
    return page
