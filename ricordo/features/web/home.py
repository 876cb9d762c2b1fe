"""The page at `/`: what waits for the caller, what was said last, and the agents; without a key where one is needed, the way in."""

from fastapi import Request, Response

from ricordo import __version__
from ricordo.api.routing import needs
from ricordo.domain.scope import REQUEST_SCOPE
from ricordo.features.web.inside import Api
from ricordo.features.web.shell import Pages, render

router = Pages()


@router.get("/")
@needs()
async def show_home(request: Request) -> Response:
    """What needs the caller, or what this server is."""
    if request.scope.get(REQUEST_SCOPE) is None:
        return await render(request, "welcome.html", version=__version__)
    api = Api(request)
    agents = await api.get("/v1/agents/", limit=10)
    return await render(request, "home.html", version=__version__, agents=agents)
