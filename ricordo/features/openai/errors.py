"""Refusals in OpenAI's shape: `{"error": {"type", "message", "param", "code"}}`."""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import orjson
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.types import Receive, Scope, Send

from ricordo.api.answers import answer
from ricordo.api.bodies import is_json as says_json
from ricordo.api.errors import MODEL_STATUS, fault_message, field_path, status_of
from ricordo.api.guard import openai_error, openai_type
from ricordo.api.routing import GuardedRoute, Routes, ValidatedRoute, refusal_of
from ricordo.api.sse import DONE
from ricordo.domain.event import Failed
from ricordo.domain.run import DATABASE_FAILED, INTERRUPTED
from ricordo.domain.text import Json
from ricordo.errors import ModelError, RicordoError
from ricordo.features.openai.queries import UnknownModel

_FAILURES: Mapping[str, int] = {
    **MODEL_STATUS,
    "context_window_exceeded": 400,
    "deleted": 404,
    INTERRUPTED: 503,
}


class OpenAIValidatedRoute(ValidatedRoute):
    """FastAPI's part of a route whose refusals have OpenAI's shape."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        respond = super().get_route_handler()

        async def respond_or_refuse(request: Request) -> Response:
            try:
                return await respond(request)
            except (RicordoError, RequestValidationError) as error:
                return refusal_for(error, is_json=says_json(request))

        return respond_or_refuse


class OpenAIRoute(GuardedRoute):
    """A route whose refusals have OpenAI's shape."""

    validated_class = OpenAIValidatedRoute
    has_openai_errors = True

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, or refuse it in OpenAI's shape if the caller lacks a scope.

        Args:
            scope: The ASGI scope of the request.
            receive: Receives the body, as ASGI defines it.
            send: Sends the response, as ASGI defines it.
        """
        if refusal := refusal_of(scope, self.scopes):
            await _refusal(refusal[0], refusal[1])(scope, receive, send)
            return
        await super().handle(scope, receive, send)


class OpenAIRoutes(Routes):
    """The routes of one module whose refusals have OpenAI's shape."""

    guarded_class = OpenAIRoute


def refusal_for(error: RicordoError | RequestValidationError, *, is_json: bool = True) -> Response:
    """Return the response for this error.

    Args:
        error: An error of Ricordo, or of the check of the body.
        is_json: Whether the request says that its body is JSON.
    """
    if isinstance(error, RequestValidationError):
        fault = error.errors()[0]
        # The place of a fault of JSON is an index in the text, and no field.
        path = [] if fault["type"] == "json_invalid" else field_path(fault)[1:]
        param = ".".join(map(str, path)) or None
        message = fault_message(fault, is_json=is_json)
        if param:
            message = f"{param}: {message}"
        return _refusal(400, message, param=param)
    if isinstance(error, ModelError):
        return _refusal(_FAILURES.get(error.kind, 500), str(error), kind=error.kind)
    if isinstance(error, UnknownModel):
        return _refusal(404, str(error), param="model", code="model_not_found")
    return _refusal(status_of(error), str(error))


def failure(failed: Failed) -> Response:
    """Return the response for a turn that failed.

    Args:
        failed: The turn's last event.
    """
    return _refusal(_FAILURES.get(failed.kind, 500), failed.message, kind=failed.kind)


def failure_json(failed: Failed) -> Json:
    """Return the error object for a turn that failed.

    Args:
        failed: The turn's last event.
    """
    return openai_error(failed.message, failed.kind)


def _refusal(
    status: int,
    message: str,
    *,
    kind: str | None = None,
    param: str | None = None,
    code: str | None = None,
) -> Response:
    response = answer(openai_error(message, kind or openai_type(status), param, code), status)
    if kind or status in (409, 412):
        # Tell the client not to retry: the server has already retried, or would give the same
        # answer.
        response.headers["x-should-retry"] = "false"
    return response


# The last event of a stream after a failure of the database.
CUT_OFF = (b"data: " + orjson.dumps(openai_error(DATABASE_FAILED, INTERRUPTED)) + b"\n\n", DONE)
