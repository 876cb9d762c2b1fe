"""The page at `/`: what runs here, how to use it, and links to the pages of plugins. It shows no memory and no message."""

import re
from functools import cache
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from ricordo import __version__
from ricordo.domain.scope import REQUEST_SCOPE, Scope
from ricordo.llm.registry.models import LIBRARIAN
from ricordo.runtime import Runtime
from ricordo.settings import Settings
from ricordo.storage import agents

if TYPE_CHECKING:
    from jinja2 import Template

router = APIRouter(include_in_schema=False)
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}
# The address is part of commands that people paste into a shell, so only what can be in a host and port may be repeated.
_HOST = re.compile(r"[A-Za-z0-9.-]+(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]+\](:[0-9]{1,5})?")


@router.get("/", response_class=HTMLResponse)
async def show_home(request: Request) -> HTMLResponse:
    """What runs here and how to talk to it."""
    runtime: Runtime = request.app.state.runtime
    # With a key this page is all that strangers may see, so it shows no counts.
    has_key = request.scope.get(REQUEST_SCOPE) is None
    model = runtime.models.default_handle()
    has_model = model != LIBRARIAN or runtime.models.has_default()
    page = _template().render(
        version=__version__,
        agents=None if has_key else await runtime.store.read(lambda tx: agents.count(tx, Scope())),
        model=model if has_model else "none is configured",
        is_librarian=model == LIBRARIAN,
        has_model=has_model,
        needs_key=has_key,
        address=_address(request, runtime.settings),
        pages=runtime.plugins.pages(),
    )
    return HTMLResponse(page, headers=HEADERS)


def _address(request: Request, settings: Settings) -> str:
    host = request.headers.get("host", "")
    if not _HOST.fullmatch(host):
        name = f"[{settings.host}]" if ":" in settings.host else settings.host
        host = f"{name}:{settings.port}"
    return f"{request.url.scheme}://{host}"


@cache
def _template() -> "Template":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("ricordo.web")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined).get_template("home.html")
