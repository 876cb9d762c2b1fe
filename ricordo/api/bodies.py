"""Read the bodies of requests.

FastAPI decodes bodies of up to `SMALL` bytes. Longer bodies are decoded and checked here in one
call, outside the event loop.
"""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from fastapi import HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope

from ricordo.offload import SMALL, offload

T = TypeVar("T")
# The most commas and brackets of a body with more than `SMALL` bytes. Decoded JSON takes up to a
# hundred times the memory of its text. At this limit, decoding takes 60 ms.
MOST_MARKS = 200_000
# A body with more bytes is a large body.
LARGE = 1024 * 1024
# The limit for the bytes of all large bodies in memory; a single body may be larger.
MOST_AT_ONCE = 36 * 1024 * 1024
# A key of the ASGI scope. Its value is the size limit in bytes for a body sent with the caller's
# API key.
MOST_BYTES = "ricordo.most_bytes"
# FastAPI's text about a body that is nested too deeply or is not UTF-8.
NOT_DECODED = "There was an error parsing the body"
Respond = Callable[[Request], Awaitable[Response]]
Check = Callable[[Any], tuple[Any, list[dict[str, Any]]]]


class LargeBodies:
    """The count of the bytes of large bodies in memory, which `CountedBody` limits."""

    def __init__(self) -> None:
        self.taken = 0


_LATER = {"retry-after": "1"}
LARGE_BODIES = LargeBodies()


@dataclass(slots=True)
class CountedBody:
    """The body of one request, which counts toward the limit while it is large and in memory."""

    receive: Receive
    large_bodies: LargeBodies
    size: int = 0

    async def __call__(self) -> Message:
        """Receive a part of the body. Raises HTTPException (503) if there is no room for it."""
        message = await self.receive()
        added = len(message.get("body", b""))
        if self.size + added > LARGE:
            self.large_bodies.taken += added if self.size > LARGE else self.size + added
        self.size += added
        if self.size > LARGE and self.size < self.large_bodies.taken > MOST_AT_ONCE:
            raise HTTPException(
                503,
                "The server is reading too many large requests. Send yours again in a moment.",
                _LATER,
            )
        return message

    def release(self) -> None:
        """Stop counting the body. Call it when the answer begins."""
        self.large_bodies.taken -= self.size if self.size > LARGE else 0
        self.size = 0


def limit_body(scope: Scope, receive: Receive, limit: int) -> Receive:
    """Return a `receive` that raises HTTPException (413) for a longer body.

    Args:
        scope: The ASGI scope, which gets the limit, so that the answer can name it.
        receive: The `receive` of the request.
        limit: The most bytes of the body.
    """
    size = 0
    scope[MOST_BYTES] = limit

    async def receive_limited() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > limit:
            raise HTTPException(413)  # `Application` adds the reason
        return message

    return receive_limited


async def read_and_respond(respond: Respond, check: Check, request: Request) -> Response:
    """Respond after reading the body.

    A JSON body with more than `SMALL` bytes is decoded and checked first. FastAPI then uses the
    decoded body.

    Args:
        respond: FastAPI's handler of the route.
        check: Validates the decoded body, and returns it with a list of faults.
        request: The request.

    Raises:
        RequestValidationError: The body is no JSON, has faults, or has too many items.
        HTTPException: The body did not arrive, is nested too deeply or is not UTF-8 (400).
    """
    try:
        content = await request.body()
    except ClientDisconnect:
        raise HTTPException(400, "The body did not arrive.") from None
    if len(content) > SMALL and is_json(request):
        request._json = await offload(partial(_checked, content, check), len(content))
    return await respond(request)


def is_json(request: Request) -> bool:
    """Return whether the request says that its body is JSON."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "application/json" or kind.endswith("+json")


def decode(content: bytes) -> Any:
    """Return the decoded JSON.

    Args:
        content: The body of a request.

    Raises:
        RequestValidationError: The body is no JSON, or has too many items.
        HTTPException: The body is nested too deeply or is not UTF-8 (400).
    """
    if len(content) > SMALL:
        marks = sum(map(content.count, (b",", b"[", b"{")))
    else:
        marks = 0
    if marks > MOST_MARKS:
        message = f"it holds {marks} commas and brackets, and {MOST_MARKS} are allowed. Send it in several requests."
        raise RequestValidationError([{"type": "too_long", "loc": ("body",), "msg": message}])
    try:
        return json.loads(content)
    except json.JSONDecodeError as error:
        fault = {
            "type": "json_invalid",
            "loc": ("body", error.pos),
            "ctx": {"error": error.msg},
            "msg": "",
        }
        raise RequestValidationError([fault]) from error
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, NOT_DECODED) from error


def validated(model: Callable[[Any], T], body: Any) -> T:
    """Return the request model of this body.

    Args:
        model: The model's class, or a function that validates.
        body: The decoded JSON.

    Raises:
        RequestValidationError: The body has faults; their locations begin with "body".
    """
    try:
        return model(body)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False)
        raise RequestValidationError(
            [{**fault, "loc": ("body", *fault["loc"])} for fault in faults]
        ) from error


def _checked(content: bytes, check: Check) -> Any:
    body, faults = check(decode(content))
    if faults:
        raise RequestValidationError(faults)
    return body
