"""Whether the server answers."""

from fastapi import Response

from ricordo import __version__
from ricordo.api.call import answer
from ricordo.api.routing import Routes
from ricordo.api.wire.schemas import Health

router = Routes(prefix="/v1", tags=["health"])


@router.get("/health", response_model=Health, include_in_schema=False)
@router.get("/health/", response_model=Health)
async def health() -> Response:
    """The version, once the server is ready for turns."""
    return answer({"version": __version__, "status": "ok"})
