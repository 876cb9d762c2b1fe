"""Whether the server lives and is ready, for whatever starts it again."""

import asyncio
import logging
from typing import Literal

from fastapi import Request

from ricordo.api.models.base import Json, ResponseModel
from ricordo.api.routing import Routes, needs
from ricordo.errors import RicordoError, Unavailable
from ricordo.runtime import Runtime
from ricordo.storage import jobs

log = logging.getLogger(__name__)
router = Routes(tags=["health"], scope="agents")
_PATIENCE = 2.0  # seconds for the database


class LiveResponse(ResponseModel):
    """The process answers."""

    status: Literal["live"]


class ReadyResponse(ResponseModel):
    """Turns can begin here."""

    status: Literal["ready"]


@router.get("/v1/health/live", response_model=LiveResponse)
@needs()
async def live() -> Json:
    """Answer as long as the process does; nothing else is asked."""
    return LiveResponse.of(None, status="live")


@router.get("/v1/health/ready", response_model=ReadyResponse)
@needs()
async def ready(request: Request) -> Json:
    """Answer 200 where turns can begin here, 503 with the reason while the database does not answer or the server stops."""
    if problems := await _problems(request.app.state.runtime):
        raise Unavailable(" ".join(problems))
    return ReadyResponse.of(None, status="ready")


async def _problems(runtime: Runtime) -> list[str]:
    found = ["The server stops."] if runtime.is_stopping else []
    try:
        runtime.store.require_in_place()
    except RicordoError as error:
        log.warning("the server is not ready", extra={"reason": str(error)})
        found.append("The database's files were renamed, replaced or removed. The server's log names them.")
    try:
        async with asyncio.timeout(_PATIENCE):
            await runtime.store.read(jobs.is_due)
    except TimeoutError:
        found.append(f"The database does not answer within {_PATIENCE:g} seconds.")
    except RicordoError:  # what it says may name places, and anybody may ask
        found.append("The database does not answer. The server's log says why.")
    return found
