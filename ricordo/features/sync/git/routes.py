"""The routes of git's smart HTTP.

The code behind them is imported at the first request by git. It needs dulwich, which takes 5 MB and
5% of the time of a server's start, and most servers have no git clients.
"""

from fastapi import Response

from ricordo.api.call import RequestContext
from ricordo.api.routing import Routes, needs
from ricordo.offload import import_in_thread

router = Routes(
    prefix="/users/{user_id}/memory.git", tags=["git"], scope="memory", include_in_schema=False
)
_SMART_HTTP = "ricordo.features.sync.git.smart_http"
# The most bytes of a push that are read. Those beyond RICORDO_MAX_BODY_MB are dropped, so that the
# sender can read the refusal.
_MOST_SENT = 2 * 1024**3


@router.get("/info/refs")
async def branches(context: RequestContext, user_id: str, service: str = "") -> Response:
    """List the branches in the form of the service that git will request."""
    smart_http = await import_in_thread(_SMART_HTTP)
    response: Response = await smart_http.list_branches(context, user_id, service)
    return response


@router.post("/git-upload-pack")
@needs("memory:read")
async def read(context: RequestContext, user_id: str) -> Response:
    """Send the objects that a clone or fetch lacks."""
    smart_http = await import_in_thread(_SMART_HTTP)
    response: Response = await smart_http.send_objects(context, user_id)
    return response


@router.post("/git-receive-pack", max_body_size=_MOST_SENT)
async def write(context: RequestContext, user_id: str) -> Response:
    """Turn a push into versions or proposals."""
    smart_http = await import_in_thread(_SMART_HTTP)
    response: Response = await smart_http.receive_push(context, user_id)
    return response
