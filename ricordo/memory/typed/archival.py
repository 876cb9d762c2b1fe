"""What typed memory writes into the archive, and how it is recognised there. Pure.

A passage has a first line with its kind and moment (UTC), and a body: the block's text, or a task with its notes.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from ricordo.errors import Invalid
from ricordo.memory.typed.blocks import LISTS, HumanBlock

ARCHIVED, TASK_COMPLETED = "ARCHIVED", "TASK COMPLETED"
_HEADER = re.compile(r"\[(?:ARCHIVED|TASK COMPLETED) (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\]")
# As for requests: an equal body within ten minutes is a repeat, later it is said anew.
_REPEATED_WITHIN = timedelta(minutes=10)
_PIECE = 60  # characters by which a text is looked for
_AS_IT_IS = re.compile(r"[^\\;\n]+")


def passage(kind: str, body: str, now: datetime) -> str:
    """The passage, as `[ARCHIVED 2025-12-31T10:00:00]` and the body below."""
    return f"[{kind} {now.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='seconds')}]\n{body}"


def completed_task(human: HumanBlock) -> str:
    """The body for a task that is done: `Task: …`, and where there are notes `Context:` and a line for each."""
    lines = [f"Task: {_indented(human.current_task or '')}"]
    if human.context_notes:
        lines += ["Context:", *(f"- {_indented(note)}" for note in human.context_notes)]
    return "\n".join(lines)


def leaving(whole: HumanBlock, kept: HumanBlock) -> HumanBlock:
    """What is in `whole` and not in `kept`, under the same user, task and state."""
    gone: dict[str, Any] = {name: _missing(getattr(whole, name), getattr(kept, name)) for name in LISTS}
    return replace(whole, **gone)


def is_cut(whole: HumanBlock, kept: HumanBlock) -> bool:
    """Whether a name, a role or a task is longer in `whole`."""
    return any(getattr(whole, name) != getattr(kept, name) for name in ("name", "role", "current_task"))


def holds_lists(block: HumanBlock) -> bool:
    """Whether there is more in it than user, task and state."""
    return any(getattr(block, name) for name in LISTS)


def piece_of(text: str) -> str:
    """The piece of a text by which its passages are looked for: its longest stretch that is written as it is, or its start."""
    return max(_AS_IT_IS.findall(text), key=len, default="")[:_PIECE]


def is_filed(name: str, value: str, passages: Iterable[str]) -> bool:
    """Whether one of these passages is an archived block that has the value in the list of this name."""
    return any(value in getattr(block, name) for text in passages if (block := _archived_block(text)))


def is_repeat(body: str, passages: Iterable[str], now: datetime) -> bool:
    """Whether one of these passages is this very one, archived by a process that was ended before it could go on."""
    headers = [
        _HEADER.fullmatch(header) for header, _, rest in (text.partition("\n") for text in passages) if rest == body
    ]
    return any(header and _is_near(header[1], now) for header in headers)


def _missing(values: Sequence[str], kept: Sequence[str]) -> list[str]:
    return [value for value in values if value not in kept]


def _archived_block(text: str) -> HumanBlock | None:
    header, _, body = text.partition("\n")
    if not header.startswith(f"[{ARCHIVED} "):
        return None
    try:
        return HumanBlock.from_memory_string(body)
    except Invalid:
        return None  # somebody else's passage, or one that was edited


def _is_near(written: str, now: datetime) -> bool:
    try:
        moment = datetime.fromisoformat(written).replace(tzinfo=UTC)
    except ValueError:
        return False
    return abs(now.astimezone(UTC) - moment) <= _REPEATED_WITHIN


def _indented(text: str) -> str:
    # A line of its own could pass for another task's header.
    return text.replace("\n", "\n  ")
