"""`/help`: the documentation of this version."""

import asyncio

from fastapi import Request, Response
from fastapi.responses import FileResponse

from ricordo.api.routing import needs
from ricordo.features.web.help.documentation import image_path, read_page
from ricordo.pages.shell import Pages, base_of, render

router = Pages()


@router.get("/help")
@needs()
async def index(request: Request) -> Response:
    """List all pages in groups."""
    return await _show(request, "index")


@router.get("/help/images/{name}")
@needs()
async def image(request: Request, name: str) -> Response:  # noqa: ARG001 - pages get the request
    """Return a picture that a page shows."""
    return FileResponse(image_path(name), media_type="image/png")


@router.get("/help/{name:path}")
@needs()
async def show(request: Request, name: str) -> Response:
    """Show one page."""
    return await _show(request, name)


async def _show(request: Request, name: str) -> Response:
    page = await asyncio.to_thread(read_page, name, base_of(request))
    return await render(request, "web.help/page.html", page=page, is_large=True)
