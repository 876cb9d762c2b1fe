"""The numbered transcript for the agent that keeps a voice agent's memory. No I/O.

Its format is that of the retired Letta V1 server. The lines can be read back from the text, so that
pieces can be archived by line numbers.
"""

import re
from collections.abc import Iterable, Sequence
from xml.sax.saxutils import escape

from ricordo.domain.message import EventPart, ImagePart, Message, ToolReturnPart
from ricordo.prompt.texts import text
from ricordo.tools.builtin.recall import SENT

# Wire facts.
_OLDER = "(Older) Evicted Messages:"
_NEWER = "(Newer) In-Context Messages:"
_INDENT = "    "
_LINE = re.compile(r"^ {4}\d+\. ")


def numbered_lines_of(message: Message) -> list[str]:
    """Return the message as one line, `role: text`; texts by the server give no line."""
    if message.role not in ("user", "assistant", "tool", "approval") or message.is_event:
        return []
    parts = (_text(message), _pictures(message), *_returns(message))
    texts = [part for part in parts if part]
    if not texts:
        return []
    if message.role == "approval":
        role = "assistant"
    else:
        role = message.role
    return [f"{role}: {' '.join(texts)}"]


def numbered_event(older: Sequence[str], newer: Sequence[str], kept_count: int) -> EventPart:
    """Return the event with these lines, numbered from 0.

    Args:
        older: The lines of messages that left the voice agent's view.
        newer: The lines of messages that it still sees.
        kept_count: The least number of messages that remain in its view.
    """
    numbered = [
        f"{_INDENT}{number}. {_indented(line)}" for number, line in enumerate([*older, *newer])
    ]
    lines = [
        text("voice_reminder").replace("{kept}", str(kept_count)),
        "",
        _OLDER,
        *numbered[: len(older)],
        "",
        _NEWER,
        *numbered[len(older) :],
    ]
    return EventPart("\n".join(lines), event="transcript")


def lines_in(transcript: str) -> list[str]:
    """Return the lines of a transcript by number; any other text gives none."""
    if _OLDER not in transcript.splitlines():
        return []
    lines: list[str] = []
    for line in transcript.splitlines()[transcript.splitlines().index(_OLDER) + 1 :]:
        if numbered := _LINE.match(line):
            lines.append(line[numbered.end() :])
        elif lines and line.startswith(_INDENT * 2):
            lines[-1] += f"\n{line.removeprefix(_INDENT * 2)}"
    return lines


def memory_text(lines: Iterable[str], context: str) -> str:
    """Return a piece of a conversation as the XML text of a passage.

    Args:
        lines: Lines of the transcript, as `lines_in` returns them.
        context: A sentence by the model on the subject of the piece.
    """
    messages = "".join(f"<message>{escape(line)}</message>" for line in lines)
    return f"<memory><messages>{messages}</messages><context>{escape(context)}</context></memory>"


def _indented(line: str) -> str:
    return f"\n{_INDENT * 2}".join(line.splitlines())


def _text(message: Message) -> str:
    """Return the text of a message, or the arguments of its calls."""
    if message.spoken.strip():
        return message.spoken.strip()
    return " ".join(call.arguments for call in message.tool_calls)


def _pictures(message: Message) -> str:
    count = sum(isinstance(part, ImagePart) for part in message.parts)
    if count == 1:
        return "[Image omitted]"
    if count:
        return f"[{count} images omitted]"
    return ""


def _returns(message: Message) -> list[str]:
    returns = [part for part in message.parts if isinstance(part, ToolReturnPart)]
    return [part.content.strip() for part in returns if part.content != SENT]
