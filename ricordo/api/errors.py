"""Errors as clients of the retired Letta V1 server know them: `{"detail": "NOT_FOUND: …"}`, and `{"error": …}` for models."""

import logging
from collections.abc import Mapping

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError

from ricordo.api.call import answer
from ricordo.api.models.base import Json
from ricordo.api.routing import REFUSALS
from ricordo.errors import (
    Busy,
    Conflict,
    Forbidden,
    Invalid,
    ModelError,
    NotFound,
    PreconditionFailed,
    RicordoError,
    TooLong,
    Unavailable,
    Unsupported,
)

log = logging.getLogger(__name__)
MODEL_STATUS: Mapping[str, int] = {
    "llm_timeout": 504,
    "llm_rate_limit": 429,
    "llm_authentication": 401,
    "llm_insufficient_credits": 402,
    "llm_bad_request": 400,
    "llm_empty_response": 500,
    "llm_error": 500,
}
# The first that fits.
_STATUS: Mapping[type[RicordoError], tuple[int, str]] = {
    NotFound: (404, "NOT_FOUND"),
    TooLong: (422, "INVALID_ARGUMENT"),
    Unsupported: (422, "INVALID_ARGUMENT"),
    Invalid: (400, "INVALID_ARGUMENT"),
    PreconditionFailed: (412, "PRECONDITION_FAILED"),
    Conflict: (409, "CONFLICT"),
    Forbidden: (403, ""),
    Unavailable: (503, ""),
    RicordoError: (500, "INTERNAL_SERVER_ERROR"),
}


def install_error_handlers(app: FastAPI) -> None:
    """Make the app answer errors and bad requests so, and document it."""
    app.router.responses.update(REFUSALS)  # for the routes of plugins; ours have it already
    app.exception_handler(RicordoError)(_ours)
    app.exception_handler(RequestValidationError)(_invalid_request)
    app.exception_handler(Exception)(_unknown)


async def _ours(_request: Request, error: RicordoError) -> Response:
    if isinstance(error, ModelError):
        return model_failure(error.kind, str(error))
    if isinstance(error, Busy):
        return _refused({"detail": str(error), "run_id": error.run_id}, 409)
    status, code = next(answer for kind, answer in _STATUS.items() if isinstance(error, kind))
    return _refused({"detail": f"{code}: {error}" if code else str(error)}, status)


def model_failure(kind: str, message: str, detail: str | None = None) -> Response:
    """Return a provider's failure, as an error of a run has it too."""
    if kind == "context_window_exceeded":
        return _refused({"detail": f"CONTEXT_WINDOW_EXCEEDED: {message}"}, 400, is_final=True)
    if kind in MODEL_STATUS:
        failure = {"error": {"type": kind, "message": message, "detail": detail}}
        return _refused(failure, MODEL_STATUS[kind], is_final=True)
    return _refused({"detail": message}, 500, is_final=True)


def text_conflict(why: str | None, conflict: Json) -> Response:
    return _refused({"detail": f"CONFLICT: {why}", "conflict": conflict}, 409)


def _refused(content: Json, status: int, *, is_final: bool = False) -> Response:
    response = answer(content, status)
    if is_final or status in (409, 412):
        # The server has tried again already, or will give the same answer: a retry of the client's would only repeat it.
        response.headers["x-should-retry"] = "false"
    return response


async def _invalid_request(request: Request, error: RequestValidationError) -> Response:
    # What was sent is not repeated: it may be long, or secret.
    faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()]
    content: Json = {"trace_id": "", "detail": f"INVALID_ARGUMENT: {'; '.join(faults)}"}
    if any(fault["loc"][0] == "path" for fault in error.errors()):
        prefix = next((name.removesuffix("_id") for name in request.path_params if name.endswith("_id")), "agent")
        content["examples"] = [f"{prefix}-123e4567-e89b-42d3-8456-426614174000"]
    return answer(content, 422)


async def _unknown(request: Request, error: Exception) -> Response:
    log.error("request failed", exc_info=error, extra={"method": request.method, "path": request.url.path})
    return answer({"detail": "An unknown error occurred"}, 500)
