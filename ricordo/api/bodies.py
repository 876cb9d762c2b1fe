"""Bodies of requests: small ones are read by FastAPI, large ones away from the event loop, decoded and checked in one go."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from fastapi import HTTPException, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ricordo.offload import SMALL, offload

T = TypeVar("T")
# Commas and brackets in a large body. A value of JSON takes up to a hundred times its bytes, and one call decodes them all: with so
# many it takes 60 ms.
MOST_MARKS = 200_000
# Bytes of a large body, and of all that are read and answered at once; one alone may be longer.
_LARGE, MOST_AT_ONCE = 1024 * 1024, 36 * 1024 * 1024
# Where a request has how many bytes its key may send at once.
MOST_BYTES = "ricordo.most_bytes"
Check = Callable[[Any], tuple[Any, list[dict[str, Any]]]]


class LargeBodies:
    """Counts the large bodies in memory, and refuses what is too much of them."""

    def __init__(self) -> None:
        self._taken = 0

    async def serve(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; its body counts until its answer begins."""
        own = 0

        def give_back() -> None:
            nonlocal own
            self._taken -= own if own > _LARGE else 0
            own = 0

        async def take() -> Message:
            nonlocal own
            message = await receive()
            size = len(message.get("body", b""))
            if own + size > _LARGE:
                self._taken += size if own > _LARGE else own + size
            own += size
            if own > _LARGE and own < self._taken > MOST_AT_ONCE:
                raise HTTPException(
                    503,
                    "Too many large requests are read at once. Send it again in a moment.",
                    _LATER,
                )
            return message

        async def answer(message: Message) -> None:
            give_back()
            await send(message)

        try:
            await app(scope, take, answer)
        finally:
            give_back()


_LATER = {"retry-after": "1"}
LARGE_BODIES = LargeBodies()


def limit_body(scope: Scope, receive: Receive, most: int) -> Receive:
    """Return what receives a body of so many bytes at most, and raises HTTPException for a longer one."""
    size, scope[MOST_BYTES] = 0, most

    async def receive_limited() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > most:
            raise HTTPException(413)  # `Application` says why
        return message

    return receive_limited


async def read_large(request: Request, check: Check) -> None:
    """Decode and check the body where it is large, so that FastAPI finds it done. Raises RequestValidationError, HTTPException."""
    try:
        content = await request.body()
    except ClientDisconnect:
        raise HTTPException(400, "The body did not arrive.") from None
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if len(content) > SMALL and (kind == "application/json" or kind.endswith("+json")):
        request._json = await offload(partial(_checked, content, check), len(content))


def decode(content: bytes) -> Any:
    """Return what the JSON says. Raises RequestValidationError, and HTTPException for endless nesting."""
    marks = sum(map(content.count, (b",", b"[", b"{"))) if len(content) > SMALL else 0
    if marks > MOST_MARKS:
        words = f"it holds {marks} commas and brackets, and {MOST_MARKS} are the most. Send it in several requests."
        raise RequestValidationError([{"type": "too_long", "loc": ("body",), "msg": words}])
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
        raise HTTPException(400, "There was an error parsing the body") from error


def validated(model: Callable[[Any], T], sent: Any) -> T:
    """Return the request model made of what was sent. Raises RequestValidationError."""
    try:
        return model(sent)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False)
        raise RequestValidationError(
            [{**fault, "loc": ("body", *fault["loc"])} for fault in faults]
        ) from error


def _checked(content: bytes, check: Check) -> Any:
    made, faults = check(decode(content))
    if faults:
        raise RequestValidationError(faults)
    return made
