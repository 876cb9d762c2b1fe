"""Errors as clients of the retired Letta V1 server know them: `{"detail": "NOT_FOUND: …"}`, and a shape of its own for models."""

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError

from ricordo.api.call import answer
from ricordo.api.routing import REFUSALS
from ricordo.errors import (
    Busy,
    Conflict,
    Forbidden,
    Invalid,
    ModelError,
    NotFound,
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
# Ours has tried again already, or will give the same answer: the client's own retry would only repeat the request.
_NO_RETRY = {"x-should-retry": "false"}


def install_error_shapes(app: FastAPI) -> None:
    """Make the app answer our errors, and bad requests, in these shapes, and say so in its document."""
    app.router.responses.update(REFUSALS)  # for the routes of plugins; ours have it already
    app.exception_handler(RicordoError)(_ours)
    app.exception_handler(RequestValidationError)(_invalid_request)
    app.exception_handler(Exception)(_unknown)


async def _ours(_request: Request, error: RicordoError) -> Response:
    if isinstance(error, ModelError):
        return model_failure(error.kind, str(error))
    if isinstance(error, Busy):
        response = answer({"detail": str(error), "run_id": error.run_id}, 409)
        response.headers.update(_NO_RETRY)
        return response
    status, code = _status(error)
    response = answer({"detail": f"{code}: {error}" if code else str(error)}, status)
    if status == 409:
        response.headers.update(_NO_RETRY)
    return response


def model_failure(kind: str, message: str, detail: str | None = None) -> Response:
    """A provider's failure, as an error of a run tells it too."""
    if kind == "context_window_exceeded":
        response = answer({"detail": f"CONTEXT_WINDOW_EXCEEDED: {message}"}, 400)
    elif kind in MODEL_STATUS:
        response = answer({"error": {"type": kind, "message": message, "detail": detail}}, MODEL_STATUS[kind])
    else:
        response = answer({"detail": message}, 500)
    response.headers.update(_NO_RETRY)
    return response


def _status(error: RicordoError) -> tuple[int, str]:
    match error:
        case NotFound():
            return 404, "NOT_FOUND"
        case TooLong() | Unsupported():
            return 422, "INVALID_ARGUMENT"
        case Invalid():
            return 400, "INVALID_ARGUMENT"
        case Conflict():
            return 409, "CONFLICT"
        case Forbidden():
            return 403, ""
        case Unavailable():
            return 503, ""
    return 500, "INTERNAL_SERVER_ERROR"


async def _invalid_request(request: Request, error: RequestValidationError) -> Response:
    faults = [{key: fault[key] for key in ("type", "loc", "msg", "input") if key in fault} for fault in error.errors()]
    body: dict[str, Any] = {"trace_id": "", "detail": repr(faults)}
    if any(fault["loc"][0] == "path" for fault in faults):
        prefix = next((name.removesuffix("_id") for name in request.path_params if name.endswith("_id")), "agent")
        body |= {"examples": [f"{prefix}-123e4567-e89b-42d3-8456-426614174000"]}
    return answer(body, 422)


async def _unknown(request: Request, error: Exception) -> Response:
    log.error("request failed", exc_info=error, extra={"method": request.method, "path": request.url.path})
    return answer({"detail": "An unknown error occurred"}, 500)
