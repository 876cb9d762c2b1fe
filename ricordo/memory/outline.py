"""A summary without a model: who said what first and last, when, and which tools were called.

It is used where no model could sum up, so that an agent is never without one: plain, the same every time, and short.
"""

from collections import Counter
from collections.abc import Sequence

from ricordo.domain.message import Message
from ricordo.llm.tokens import text_tokens
from ricordo.prompt.packaging import local_time
from ricordo.prompt.truncation import shorten

# Longer than this, in characters, it would tell a reader nothing more.
_MOST = 8_000
_NOTE = "(No model wrote this summary. It lists what was said; the messages themselves can still be searched.)"
_QUOTED = 400
_FIRST_WORDS = 120
_EARLIER_SHARE = 0.6


def outline(messages: Sequence[Message], *, earlier: str = "", timezone: str = "UTC", longest: int = _MOST) -> str:
    """Outline the messages in at most `longest` characters; `earlier` was said of those before."""
    longest = min(longest, _MOST)
    parts = [_NOTE]
    if before := earlier.removeprefix(_NOTE).strip():
        parts.append("Earlier summary:\n" + shorten(before, int(longest * _EARLIER_SHARE)))
    said = [message for message in messages if message.role != "summary" and not message.is_event]
    if said:
        parts += [_counts(said, timezone), *_quotes(said, timezone)]
        if tools := _tools(said):
            parts.append(tools)
    head = "\n\n".join(parts)
    if len(head) >= longest:
        return clipped(head, longest)
    return head + _asked(said, timezone, longest - len(head))


def clipped(text: str, clip_chars: int | None, room: int | None = None) -> str:
    """The summary, cut to `clip_chars` characters and `room` tokens, with dots at its end where it was longer."""
    whole = text
    if clip_chars is not None and len(text) > clip_chars:
        text = _with_dots(whole, clip_chars)
    while room is not None and text and (tokens := text_tokens(text)) > room:
        text = _with_dots(whole, min(len(text) - 1, len(text) * room // tokens))
    return text


def _counts(said: Sequence[Message], timezone: str) -> str:
    roles: Counter[str] = Counter(message.role for message in said)
    kinds = (("user", "from the user"), ("assistant", "from the agent"), ("tool", "with results of tools"))
    listed = [f"{roles[role]} {words}" for role, words in kinds if roles[role]]
    times = [message.created_at for message in said]
    return f"{len(said)} messages from {local_time(min(times), timezone)} to {local_time(max(times), timezone)}" + (
        f": {', '.join(listed)}." if listed else "."
    )


def _quotes(said: Sequence[Message], timezone: str) -> list[str]:
    quotes = []
    for role, speaker in (("user", "user"), ("assistant", "agent")):
        spoken = [message for message in said if message.role == role and message.spoken]
        for when, message in zip(("First", "Last"), (*spoken[:1], *spoken[1:][-1:]), strict=False):
            time = local_time(message.created_at, timezone)
            quotes.append(f"{when} from the {speaker} ({time}): {_line(message.spoken, _QUOTED)}")
    return quotes


def _tools(said: Sequence[Message]) -> str:
    calls = Counter(call.name for message in said for call in message.tool_calls)
    failed = Counter(part.name for message in said for part in message.tool_returns if part.status == "error")
    listed = [
        f"{name} ({count}{f', {failed[name]} failed' if failed[name] else ''})" for name, count in calls.most_common(20)
    ]
    more = f" and {len(calls) - 20} others" if len(calls) > 20 else ""
    return f"Tools called: {', '.join(listed)}{more}." if listed else ""


def _asked(said: Sequence[Message], timezone: str, room: int) -> str:
    """How the user's messages begin; where there is no room for all, the newest ones."""
    title = "\n\nHow the user's messages begin, oldest first:"
    lines: list[str] = []
    spoken = [message for message in said if message.role == "user" and message.text]
    room -= len(title) + len("\n(1000000 older ones are left out)")
    for message in reversed(spoken):
        line = f"\n- {local_time(message.created_at, timezone)}: {_line(message.text, _FIRST_WORDS)}"
        if len(line) > room:
            break
        room -= len(line)
        lines.append(line)
    if not lines:
        return ""
    left_out = len(spoken) - len(lines)
    return title + (f"\n({left_out} older ones are left out)" if left_out else "") + "".join(reversed(lines))


def _line(text: str, limit: int) -> str:
    return clipped(" ".join(text.split()), limit)


def _with_dots(text: str, length: int) -> str:
    return text[: max(0, length - 3)] + "..."[: max(0, length)]
