"""Errors in the form of the retired Letta V1 server.

The form is `{"detail": "NOT_FOUND: …"}`, or `{"error": …}` for failures of models.
"""

import logging
from collections.abc import Mapping

from fastapi import FastAPI, Request, Response
from fastapi.exception_handlers import http_exception_handler
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from ricordo.api.answers import answer
from ricordo.api.bodies import NOT_DECODED
from ricordo.api.bodies import is_json as says_json
from ricordo.api.call import ID_PREFIXES
from ricordo.api.guard import RETRY_AFTER, with_openai_error
from ricordo.api.models.base import FaultResponse
from ricordo.api.routing import REFUSALS
from ricordo.domain.run import INTERRUPTED
from ricordo.domain.text import Json
from ricordo.errors import (
    Busy,
    Conflict,
    DatabaseFailed,
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
# Limits of an answer: the number of faults in a request, the depth of a path, and characters.
_MOST_FAULTS = 20
_DEEPEST = 20
_LONGEST_NAME = 100
_LONGEST_MESSAGE = 300
# The types of faults of a body that is still bytes, since FastAPI decodes only JSON.
_NOT_DECODED = ("model_attributes_type", "dict_type", "list_type")
# The status of each type of error, and the code before its message; the first matching type counts.
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
    """Let the app answer errors and bad requests in this form, and document it.

    Args:
        app: The app, which gets the handlers.
    """
    app.router.responses.update(REFUSALS)  # for the routes of plugins; ours have them already
    app.exception_handler(RicordoError)(_ricordo_error)
    app.exception_handler(RequestValidationError)(_invalid_request)
    app.exception_handler(ClientDisconnect)(_disconnected)
    app.exception_handler(HTTPException)(_http_error)
    app.exception_handler(Exception)(_unexpected_error)


async def _ricordo_error(_request: Request, error: RicordoError) -> Response:
    if isinstance(error, ModelError):
        return model_failure(error.kind, str(error))
    if isinstance(error, Busy):
        return _refused({"detail": str(error), "run_id": error.run_id}, 409)
    status, code = _answer_of(error)
    message = _encodable(str(error))
    response = _refused({"detail": f"{code}: {message}" if code else message}, status)
    if isinstance(error, DatabaseFailed):
        response.headers["retry-after"] = RETRY_AFTER
    return response


def status_of(error: RicordoError) -> int:
    """Return the HTTP status of this error.

    Args:
        error: The error. A failure of a model has a status for each kind; other errors have one for
            each class.
    """
    if isinstance(error, ModelError):
        return MODEL_STATUS.get(error.kind, 500)
    return _answer_of(error)[0]


def _answer_of(error: RicordoError) -> tuple[int, str]:
    return next(answer for kind, answer in _STATUS.items() if isinstance(error, kind))


def model_failure(kind: str, message: str, detail: str | None = None) -> Response:
    """Return a provider's failure, in the form of a run's error.

    Args:
        kind: The kind of a ModelError, or another kind of a run's failure, such as "deleted". It
            decides the status.
        message: The sentence for people.
        detail: The text of the provider's error, or None.
    """
    if kind == "context_window_exceeded":
        return _refused({"detail": f"CONTEXT_WINDOW_EXCEEDED: {message}"}, 400, is_final=True)
    if kind in MODEL_STATUS:
        failure = {"error": {"type": kind, "message": message, "detail": detail}}
        return _refused(failure, MODEL_STATUS[kind], is_final=True)
    if kind == "deleted":
        return _refused({"detail": f"NOT_FOUND: {message}"}, 404)
    if kind == INTERRUPTED:  # the client may retry, which creates a new answer
        return _refused({"detail": message}, 503)
    return _refused({"detail": message}, 500, is_final=True)


def text_conflict(reason: str | None, conflict: Json) -> Response:
    """Return the answer to a write whose text could not be merged.

    Args:
        reason: The sentence for people.
        conflict: The texts that collide (a `TextConflict` as JSON).
    """
    return _refused({"detail": f"CONFLICT: {reason}", "conflict": conflict}, 409)


def _refused(content: Json, status: int, *, is_final: bool = False) -> Response:
    response = answer(content, status)
    if is_final or status in (409, 412):
        # A client should not retry these, because the server has already retried or a retry cannot
        # succeed.
        response.headers["x-should-retry"] = "false"
    return response


async def _invalid_request(request: Request, error: RequestValidationError) -> Response:
    # The request's content is not repeated: it may be long or secret.
    errors = error.errors()
    faults = [_fault(request, fault) for fault in errors[:_MOST_FAULTS]]
    messages = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in faults]
    if len(errors) > len(faults):
        more = f"; and {len(errors) - len(faults)} more"
    else:
        more = ""
    content: Json = {
        "trace_id": "",
        "detail": f"INVALID_ARGUMENT: {'; '.join(messages)}{more}",
        "errors": faults,
    }
    if any(fault["loc"][0] == "path" for fault in faults):
        name = next(fault["loc"][1] for fault in faults if fault["loc"][0] == "path")
        prefix = ID_PREFIXES.get(str(name), "agent")
        content["examples"] = [f"{prefix}-123e4567-e89b-42d3-8456-426614174000"]
    return _answered(request, content, 422)


def _fault(request: Request, fault: Json) -> Json:
    """Return a fault's location and message, shortened and without names of our types."""
    path = [
        key if isinstance(key, int) else _shortened(key, _LONGEST_NAME)
        for key in field_path(fault)[:_DEEPEST]
    ]
    message = fault_message(fault, is_json=says_json(request))
    return FaultResponse.of(None, loc=path, msg=message)


def field_path(fault: Json) -> list[str | int]:
    """Return the keys and indexes that lead to a fault, without the names of our functions.

    Args:
        fault: A fault of pydantic or FastAPI.
    """
    # pydantic adds "function-wrap[name()]" for a validator that is a function.
    return [key for key in fault["loc"] if not str(key).startswith("function-")]


def fault_message(fault: Json, *, is_json: bool) -> str:
    """Return the sentence about a fault, without the request's content.

    Args:
        fault: A fault of pydantic or FastAPI.
        is_json: Whether the request says that its body is JSON.
    """
    message = str(fault["msg"]).removeprefix("Value error, ").replace(" after validation", "")
    if fault["type"] == "union_tag_invalid":  # pydantic's own sentence repeats the input
        message = f"Input tag is none of the expected tags: {fault['ctx']['expected_tags']}"
    elif fault["type"] == "extra_forbidden":
        message = "There is no such field here. Check how it is spelled, or leave it out"
    elif fault["type"] == "json_invalid":
        message = f"JSON decode error: {fault['ctx']['error']}"
    elif fault["loc"] == ("body",) and fault["type"] in _NOT_DECODED and not is_json:
        message = "Only JSON is read here. Send the header Content-Type: application/json"
    elif message.startswith("Expected UploadFile"):  # FastAPI's own sentence names a Python class
        message = "Send it as a file with a name, as `curl -F file=@notes.md` does"
    return _shortened(message, _LONGEST_MESSAGE)


def _shortened(text: str, limit: int) -> str:
    text = _encodable(text)
    if len(text) <= limit:
        return text
    return f"{text[:limit]}…"


def _encodable(text: str) -> str:
    # A name in the request may hold a lone surrogate, which cannot be sent back.
    return text.encode("utf-8", "replace").decode()


async def _http_error(request: Request, error: HTTPException) -> Response:
    if error.status_code < 400:
        return await http_exception_handler(request, error)
    status = error.status_code
    message = str(error.detail)
    if message == NOT_DECODED and request.headers.get("content-encoding", "identity") != "identity":
        status = 415
        message = "Compressed requests are not read here. Send the body without Content-Encoding."
    if status in (404, 405):
        route = f"{request.method} {_shortened(request.url.path, _LONGEST_NAME)}"
        message = (
            f"There is no route {route} here. docs/develop/compatibility.md lists the routes that"
            " are served, and those that are not."
        )
    response = _answered(request, {"detail": message}, status)
    response.headers.update(error.headers or {})
    return response


async def _disconnected(request: Request, _error: Exception) -> Response:
    message = "The connection was closed before the whole request arrived. Send it again."
    return _answered(request, {"detail": message}, 400)


async def _unexpected_error(request: Request, error: Exception) -> Response:
    log.error(
        "request failed", exc_info=error, extra={"method": request.method, "path": request.url.path}
    )
    return _answered(request, {"detail": "An unknown error occurred"}, 500)


def _answered(request: Request, content: Json, status: int) -> Response:
    return answer(with_openai_error(content, status, request.scope), status)
