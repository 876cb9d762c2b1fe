"""Warnings about fields and parameters without effect, in one header of the answer.

A documented parameter of a client that has no effect here is no reason to refuse its request, but
none to be silent either.
"""

from collections.abc import Iterable
from contextvars import ContextVar

from starlette.types import Message, Send

HEADER = "X-Ricordo-Warnings"
_LONGEST = 4000  # characters of the header; proxies refuse long ones
_REASONS: ContextVar[dict[str, dict[str, None]] | None] = ContextVar("warnings", default=None)


def warn(names: Iterable[str], reason: str) -> None:
    """Warn the client that these fields changed nothing.

    Without a request, do nothing.
    """
    reasons = _REASONS.get()
    if reasons is not None:
        reasons.setdefault(reason, {}).update(dict.fromkeys(names))


def with_warnings(send: Send) -> Send:
    """Return a `send` that adds the warnings of the request, which begins with this call."""
    reasons: dict[str, dict[str, None]] = {}
    _REASONS.set(reasons)

    async def send_with_warnings(message: Message) -> None:
        if reasons and message["type"] == "http.response.start":
            sentences = "; ".join(
                f"{', '.join(names)}: {reason}" for reason, names in reasons.items()
            )
            # Names come from the request: one with a line end must not begin another header.
            plain = "".join(sign if " " <= sign <= "~" else "?" for sign in sentences[:_LONGEST])
            header = (HEADER.lower().encode(), plain.encode())
            message = {**message, "headers": [*message["headers"], header]}
        await send(message)

    return send_with_warnings
