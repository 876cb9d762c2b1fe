"""Warnings: fields and parameters that a request sent and that changed nothing, told in one header of its answer.

A client's parameter that is documented and cannot act here is no reason to refuse its request, and none to be silent.
"""

from collections.abc import Iterable
from contextvars import ContextVar

from starlette.types import Message, Send

HEADER = "X-Ricordo-Warnings"
_LONGEST = 4000  # characters of the header; proxies refuse long ones
_REASONS: ContextVar[dict[str, dict[str, None]] | None] = ContextVar("warnings", default=None)


def warn(names: Iterable[str], reason: str) -> None:
    """Tell the client that these fields changed nothing, and why. Without a request nobody is told."""
    reasons = _REASONS.get()
    if reasons is not None:
        reasons.setdefault(reason, {}).update(dict.fromkeys(names))


def with_warnings(send: Send) -> Send:
    """Return what sends an answer with the warnings of its request, which begins with this call."""
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
