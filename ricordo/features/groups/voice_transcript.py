"""The numbered transcript that the keeper of a voice agent's memory reads, in the format of the retired Letta V1 server. Pure.

The lines can be read back from the text, so that chunks of them are kept by their numbers.
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
    """Return the message as one line, `role: text`; none for what only the server wrote."""
    if message.role not in ("user", "assistant", "tool", "approval") or message.is_event:
        return []
    words = [one for one in (_words(message), _pictures(message), *_returns(message)) if one]
    if not words:
        return []
    role = "assistant" if message.role == "approval" else message.role
    return [f"{role}: {' '.join(words)}"]


def numbered_event(older: Sequence[str], newer: Sequence[str], kept: int) -> EventPart:
    """Return the event with these lines, numbered through; `kept` messages stay in the agent's view at least."""
    numbered = [
        f"{_INDENT}{number}. {_indented(line)}" for number, line in enumerate([*older, *newer])
    ]
    lines = [
        text("voice_reminder").replace("{kept}", str(kept)),
        "",
        _OLDER,
        *numbered[: len(older)],
        "",
        _NEWER,
        *numbered[len(older) :],
    ]
    return EventPart("\n".join(lines), event="transcript")


def lines_in(transcript: str) -> list[str]:
    """Return the lines of a transcript, by their numbers; none where the text is no transcript."""
    if _OLDER not in transcript.splitlines():
        return []
    found: list[str] = []
    for line in transcript.splitlines()[transcript.splitlines().index(_OLDER) + 1 :]:
        if numbered := _LINE.match(line):
            found.append(line[numbered.end() :])
        elif found and line.startswith(_INDENT * 2):
            found[-1] += f"\n{line.removeprefix(_INDENT * 2)}"
    return found


def memory_text(lines: Iterable[str], context: str) -> str:
    """Return a piece of a talk as a passage, in XML."""
    messages = "".join(f"<message>{escape(line)}</message>" for line in lines)
    return f"<memory><messages>{messages}</messages><context>{escape(context)}</context></memory>"


def _indented(line: str) -> str:
    return f"\n{_INDENT * 2}".join(line.splitlines())


def _words(message: Message) -> str:
    """Return what a message says; the arguments of its calls where it says nothing."""
    if message.spoken.strip():
        return message.spoken.strip()
    return " ".join(call.arguments for call in message.tool_calls)


def _pictures(message: Message) -> str:
    count = sum(isinstance(part, ImagePart) for part in message.parts)
    if count == 1:
        return "[Image omitted]"
    return f"[{count} images omitted]" if count else ""


def _returns(message: Message) -> list[str]:
    returns = [part for part in message.parts if isinstance(part, ToolReturnPart)]
    return [one.content.strip() for one in returns if one.content != SENT]
