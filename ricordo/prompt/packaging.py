"""How results, events and a user's words look to a model: small JSON texts with a kind or status and a local time (blueprint §17).

What someone says is stored as it was said and packed for each request; an event is stored packed, as an `EventPart`, so that words
which only look like an event are packed as words.
"""

from dataclasses import replace
from typing import Any

import orjson

from ricordo.domain.clock import to_datetime, zone
from ricordo.domain.message import EventPart, Message, Part, TextPart

FIRST_LOGIN = "Never (first login)"
_NOT_FROM_USER = "[This is an automated system message hidden from the user] "


def local_time(now: int, timezone: str) -> str:
    return to_datetime(now).astimezone(zone(timezone)).strftime("%Y-%m-%d %I:%M:%S %p %Z%z")


def package_result(content: Any, *, is_success: bool, time: str) -> str:
    return _dump({"status": "OK" if is_success else "Failed", "message": content, "time": time}, indent=True)


def package_user_message(message: str, time: str, *, location: str | None = None, name: str | None = None) -> str:
    """What a user said, with when, and with where and who where that is known."""
    optional = {"location": location, "name": name}
    known = {key: value for key, value in optional.items() if value is not None}
    return _dump({"type": "user_message", "message": message, "time": time, **known})


def heartbeat_event(reason: str, time: str) -> EventPart:
    return EventPart(_dump({"type": "heartbeat", "reason": _NOT_FROM_USER + reason, "time": time}), event="heartbeat")


def login_event(time: str) -> EventPart:
    """The event of a user who comes in for the first time."""
    return EventPart(_dump({"type": "login", "last_login": FIRST_LOGIN, "time": time}), event="login")


def summary_event(summary: str, count: int | None, time: str) -> EventPart:
    """The alert in place of messages that left the window: the first `count` of them, or (None) all there were."""
    # Wire facts of the retired Letta V1 server, the blank before the summary too.
    hidden = (
        "Note: prior messages have been hidden from view due to conversation memory constraints."
        if count is None
        else f"Note: {count} messages from the beginning of the conversation have been hidden from view due to memory "
        "constraints."
    )
    text = f"{hidden}\nThe following is a summary of the previous messages:\n {summary}"
    return EventPart(_dump({"type": "system_alert", "message": text, "time": time}))


def packed(message: Message, timezone: str) -> Message:
    """A user message for a type of agent that gets them as JSON: texts packed one by one, pictures and events as they are."""
    if not message.is_said:
        return message
    time = local_time(message.created_at, timezone)

    def shown(part: Part) -> Part:
        if not isinstance(part, TextPart):
            return part
        return replace(part, text=package_user_message(part.text, time, name=message.name))

    return replace(message, parts=tuple(map(shown, message.parts)))


def truncate(text: str, limit: int) -> str:
    """The text, cut to `limit` characters with a note that says so."""
    if len(text) <= limit:
        return text
    note = f"... [NOTE: function output was truncated since it exceeded the character limit: {len(text)} > {limit}]"
    return text[:limit] + note


def _dump(value: dict[str, Any], *, indent: bool = False) -> str:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 if indent else 0).decode()
