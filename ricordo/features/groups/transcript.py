"""The transcript that a sleeptime agent reads: a conversation, line by line.

Its format is that of the retired Letta V1 server.
"""

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
    """Return the lines of one message; texts by the server give no lines.

    Args:
        message: A message of any role. A line may contain line breaks of its text.
    """
    if message.role in ("system", "summary"):
        return []
    if message.role == "user":
        speaker = message.name or "user"
        return [f"{speaker}: {content}" for part in message.parts if (content := _content(part))]
    return [line for part in message.parts if (line := _line(part))]


def _content(part: object) -> str:
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
            if part.approves:
                return "[User approved]"
            return f"[User rejected: {part.reason or 'no reason'}]"
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
    """Return the line, cut if it has more tokens than this.

    Args:
        line: The line.
        most_tokens: The most tokens, at least 1. A cut line ends with a note on the missing text,
            which is not counted.
    """
    if text_tokens(line) <= most_tokens:
        return line
    beginning = line[: max(1, len(line) * most_tokens // text_tokens(line))]
    return beginning + CUT.format(len(line) - len(beginning))


def transcript_event(lines: Sequence[str]) -> EventPart:
    """Return the event that gives a sleeptime agent these lines to read.

    Args:
        lines: The lines of all messages, from `lines_of`, oldest first.
    """
    return EventPart(
        "\n".join([_reminder("sleep_reminder"), "", "Messages:", *lines]), event="transcript"
    )


def go_on_event() -> EventPart:
    """Return the event that asks a sleeptime agent to finish failed work."""
    return EventPart(_reminder("sleep_again"), event="transcript")


def _reminder(key: str) -> str:
    return f"<system-reminder>\n{text(key)}\n</system-reminder>"
