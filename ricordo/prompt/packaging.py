"""How results and events look to a model: small JSON texts with a status and a local time (blueprint §0.4, §17)."""

from typing import Any

import orjson

from ricordo.domain.clock import to_datetime, zone

_NOT_FROM_USER = "[This is an automated system message hidden from the user] "


def local_time(now: int, timezone: str) -> str:
    """A moment as agents read it: `2026-01-20 02:13:45 PM PST-0800`."""
    return to_datetime(now).astimezone(zone(timezone)).strftime("%Y-%m-%d %I:%M:%S %p %Z%z")


def package_result(content: Any, *, is_success: bool, time: str) -> str:
    """A tool's result, as it is stored and as the model sees it: indented by two, as the retired Letta V1 server wrote it."""
    return _dump({"status": "OK" if is_success else "Failed", "message": content, "time": time}, indent=True)


def package_heartbeat(reason: str, time: str) -> str:
    """A synthetic user message that hands control back to the agent."""
    return _dump({"type": "heartbeat", "reason": _NOT_FROM_USER + reason, "time": time})


def truncate(text: str, limit: int) -> str:
    """The text, cut to `limit` characters with a note that says so."""
    if len(text) <= limit:
        return text
    note = f"... [NOTE: function output was truncated since it exceeded the character limit: {len(text)} > {limit}]"
    return text[:limit] + note


def _dump(value: dict[str, Any], *, indent: bool = False) -> str:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 if indent else 0).decode()
