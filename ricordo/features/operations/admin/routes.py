"""Health checks of the server, for the program that restarts it."""

import asyncio
import logging
import time
from typing import Literal

from fastapi import Request

from ricordo.api.models.base import ResponseModel
from ricordo.api.routing import Routes, needs
from ricordo.domain.text import Json
from ricordo.errors import RicordoError, Unavailable, database_summary
from ricordo.features.operations.admin.state import operations_of
from ricordo.runtime import Runtime
from ricordo.storage import jobs
from ricordo.storage.engine.database import require_savable

log = logging.getLogger(__name__)
router = Routes(tags=["health"], scope="agents", open_paths=("/v1/health/live", "/v1/health/ready"))
_PATIENCE = 2.0  # seconds for the database
_SAVED_SECONDS = 3.0


class LiveResponse(ResponseModel):
    """The process answers."""

    status: Literal["live"]


class ReadyResponse(ResponseModel):
    """Turns can begin here."""

    status: Literal["ready"]


@router.get("/v1/health/live", response_model=LiveResponse)
@needs()
async def live() -> Json:
    """Answer 200 while the process runs. Nothing else is checked."""
    return LiveResponse.of(None, status="live")


@router.get("/v1/health/ready", response_model=ReadyResponse)
@needs()
async def ready(request: Request) -> Json:
    """Answer 200 if turns can begin here.

    Answers 503 with the reason while the database fails or the server is stopping.
    """
    if problems := await _problems(request.app.state.runtime):
        raise Unavailable(" ".join(problems))
    return ReadyResponse.of(None, status="ready")


async def _problems(runtime: Runtime) -> list[str]:
    if runtime.is_stopping:
        problems = ["The server is stopping."]
    else:
        problems = []
    try:
        runtime.store.require_in_place()
    except RicordoError as error:
        log.warning("the server is not ready", extra={"reason": error})
        problems.append(
            "The database's files were renamed, replaced or removed. The server's log names them."
        )
        return problems
    try:
        async with asyncio.timeout(_PATIENCE):
            await runtime.store.read(jobs.is_due)
            runtime.store.require_writes()
            await _require_savable(runtime)
    except TimeoutError:
        problems.append(f"The database does not answer within {_PATIENCE:g} seconds.")
    except RicordoError as error:
        # The error's message may name files, and anybody may ask.
        problems.append(f"{database_summary(error)} The server's log has the reason.")
    return problems


async def _require_savable(runtime: Runtime) -> None:
    """Raise if nothing can be saved.

    After a successful check, no other check is made for three seconds.
    """
    operations = operations_of(runtime)
    now = time.monotonic()
    if now < operations.saved_until:
        return
    await require_savable(runtime.store, runtime.settings)
    operations.saved_until = now + _SAVED_SECONDS
