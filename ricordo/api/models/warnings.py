"""Warnings about fields and parameters without effect, in one header of the answer.

A client may send a documented parameter that has no effect here. Its request succeeds, and the
answer has a warning.
"""

from collections.abc import Iterable, Mapping
from contextvars import ContextVar

HEADER = "X-Ricordo-Warnings"
_LONGEST = 4000  # characters of the header; proxies refuse long ones
# The warnings of the current request, set by its route: the fields for each reason.
REASONS: ContextVar[dict[str, dict[str, None]] | None] = ContextVar("warnings", default=None)


def warn(names: Iterable[str], reason: str) -> None:
    """Warn the client that these fields had no effect.

    Outside a request, do nothing.

    Args:
        names: The fields, as the request names them.
        reason: The reason, as a sentence. Fields with the same reason share one warning.
    """
    reasons = REASONS.get()
    if reasons is not None:
        reasons.setdefault(reason, {}).update(dict.fromkeys(names))


def header_of(reasons: Mapping[str, Iterable[str]]) -> tuple[bytes, bytes]:
    """Return the header with these reasons and the fields that each concerns.

    Args:
        reasons: The fields that each reason concerns, by the reason.
    """
    sentences = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons.items())
    # Names come from the request, so remove line ends, which could begin another header.
    plain = "".join(sign if " " <= sign <= "~" else "?" for sign in sentences[:_LONGEST])
    return HEADER.lower().encode(), plain.encode()
