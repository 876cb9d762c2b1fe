"""The text that a sleeping agent reads: what was said in a talk, line by line, in the format of the retired Letta V1 server."""

from collections.abc import Sequence

import orjson

from ricordo.domain.message import (
    ApprovalPart,
    EventPart,
    ImagePart,
    Message,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from ricordo.llm.tokens import text_tokens
from ricordo.prompt.texts import text
from ricordo.tools.builtin.recall import SENT

SPEECH = "send_message"
CUT = " … [{} more characters are in the history]"


def lines_of(message: Message) -> list[str]:
    """The lines of one message; none for what only the server wrote."""
    if message.role in ("system", "summary"):
        return []
    if message.role == "user":
        who = message.name or "user"
        return [f"{who}: {words}" for part in message.parts if (words := _said(part))]
    return [line for part in message.parts if (line := _line(part))]


def _said(part: object) -> str:
    match part:
        case EventPart():
            return ""
        case TextPart():
            return part.text.strip()
        case ImagePart():
            return "[Image Here]"
    return ""


def _line(part: object) -> str:
    match part:
        case EventPart():
            return ""
        case TextPart() if part.text.strip():
            return f"assistant: {part.text.strip()}"
        case ReasoningPart() if part.text.strip():
            return f"assistant: <thinking>{part.text.strip()}</thinking>"
        case ToolCallPart():
            return f"assistant: {_call(part)}"
        case ToolReturnPart() if part.content.strip() and part.content != SENT:
            return f"assistant: Tool call returned {part.content.strip()}"
        case ApprovalPart():
            return (
                "[User approved]"
                if part.approves
                else f"[User rejected: {part.reason or 'no reason'}]"
            )
    return ""


def _call(call: ToolCallPart) -> str:
    if call.name == SPEECH:
        try:
            arguments = orjson.loads(call.arguments)
        except ValueError:
            arguments = None
        if isinstance(arguments, dict) and isinstance(arguments.get("message"), str):
            return str(arguments["message"])
    return f"Calling tool {call.name}"


def shortened(line: str, most_tokens: int) -> str:
    """The line, cut where it alone would be longer than this."""
    if text_tokens(line) <= most_tokens:
        return line
    kept = line[: max(1, len(line) * most_tokens // text_tokens(line))]
    return kept + CUT.format(len(line) - len(kept))


def transcript_event(lines: Sequence[str]) -> EventPart:
    """The event that gives a sleeping agent these lines to read."""
    return EventPart(
        "\n".join([_reminder("sleep_reminder"), "", "Messages:", *lines]), event="transcript"
    )


def go_on_event() -> EventPart:
    """The event that lets a sleeping agent finish what failed."""
    return EventPart(_reminder("sleep_again"), event="transcript")


def _reminder(key: str) -> str:
    return f"<system-reminder>\n{text(key)}\n</system-reminder>"
