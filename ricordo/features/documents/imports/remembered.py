"""Read the memories that other assistants saved of a person, and propose them.

Claude's export contains the memory as one text. ChatGPT's export has no list of saved memories. Its
chats show the memories in three forms: as calls of the memory tool `bio`, as the list at the start
of a chat (`model_set_context`), and as custom instructions. A list that a person copied from a page
is read line by line.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ricordo.domain.scope import Actor, Scope, User
from ricordo.domain.text import normal_text
from ricordo.domain.version import ChangeMetadata
from ricordo.errors import Conflict, Forbidden, Invalid, TooLong
from ricordo.memory import user_memory
from ricordo.memory.proposals import Unchanged
from ricordo.storage.engine.store import Transaction

BLOCK = "human"
_MOST = 10_000  # texts of the newest list, and as many others of one export
# Names that ChatGPT has given to its memory tool.
_MEMORY_TOOLS = ("bio", "memory")
_BULLET = re.compile(r"^\s*(?:[-*•–]\s+|\d{1,3}[.)]\s+)?")
# A date in brackets before the text: [2025-01-31], [2025-01-31]. or [unknown] -
_DATE = re.compile(r"^\[[^\]\n]{4,30}\]\s*[.:\-–]?\s*")
_HEADING = re.compile(r"^(?:#{1,6}\s+(?P<marked>.+?)|\*\*(?P<bold>[^*]+)\*\*)\s*:?\s*$")
_PARAGRAPH = re.compile(r"\n[ \t]*\n")


@dataclass(frozen=True, slots=True)
class RememberedText:
    """A text that another assistant remembered.

    The source `list` means that it was in a list of all memories at that time. `said_at` is in
    microseconds.
    """

    text: str
    source: Literal["call", "list", "instructions", "memory"]
    said_at: int | None = None

    @property
    def key(self) -> str:
        """The name of the text in the records of an import. Equal texts have equal names."""
        digest = hashlib.sha256(" ".join(self.text.split()).casefold().encode()).hexdigest()
        return f"remembered/{digest[:32]}"


class RememberedTexts:
    """Collects the remembered texts of an export. Its chats may come in any order."""

    def __init__(self) -> None:
        self._texts: dict[str, RememberedText] = {}
        self._lists: dict[int, list[RememberedText]] = {}

    def add(self, remembered: Iterable[RememberedText]) -> None:
        for one in remembered:
            if one.source == "list":
                self._lists.setdefault(one.said_at or 0, []).append(one)
                self._keep_newest_list()
            elif len(self._texts) < _MOST:
                self._texts.setdefault(one.key, one)

    def current(self) -> list[RememberedText]:
        """Return the texts that are still remembered, each once.

        If a call saved a text before the newest list, and the list lacks the text, it was deleted.
        """
        at, listed = next(iter(self._lists.items()), (0, []))
        in_list = {one.key: one for one in listed}
        later = {
            key: one
            for key, one in self._texts.items()
            if one.source != "call" or not listed or (one.said_at or 0) >= at
        }
        return [*(in_list | later).values()]

    def _keep_newest_list(self) -> None:
        newest = max(self._lists)
        self._lists = {newest: self._lists[newest][:_MOST]}


def remembered_in_message(message: Mapping[str, Any], said_at: int | None) -> list[RememberedText]:
    """Return the memories that a message of a ChatGPT chat contains."""
    content = message.get("content") or {}
    if content.get("content_type") == "model_editable_context":
        listed = content.get("model_set_context")
        return [RememberedText(line, "list", said_at) for line in lines_of(listed)]
    if content.get("content_type") == "user_editable_context":
        return [RememberedText(text, "instructions", said_at) for text in _instructions(message)]
    if message.get("recipient") in _MEMORY_TOOLS and message["author"]["role"] == "assistant":
        parts = content.get("parts") or (content.get("text"),)
        text = "\n".join(part for part in parts if isinstance(part, str)).strip()
        return [RememberedText(line, "call", said_at) for line in lines_of(text)]
    return []


def _instructions(message: Mapping[str, Any]) -> Iterator[str]:
    """Yield a person's custom instructions, without the text that ChatGPT adds to them."""
    given = (message.get("metadata") or {}).get("user_context_message_data") or {}
    for name in ("about_user_message", "about_model_message"):
        if isinstance(text := given.get(name), str) and text.strip():
            yield text.strip()


def lines_of(text: Any) -> list[str]:
    """Return the lines of a list, without bullets, numbers and dates."""
    if not isinstance(text, str):
        return []
    entries = (_DATE.sub("", _BULLET.sub("", line)).strip() for line in text.splitlines())
    return [entry for entry in entries if entry and not entry.startswith("```")]


def paragraphs_of(text: str) -> list[str]:
    """Return the paragraphs of a text, each after its heading."""
    paragraphs: list[str] = []
    heading = ""
    for paragraph in _PARAGRAPH.split(normal_text(text).strip()):
        lines = paragraph.strip().split("\n")
        if match := _HEADING.match(lines[0].strip()):
            heading = (match["marked"] or match["bold"] or "").strip().rstrip(":")
            lines = lines[1:]
        body = "\n".join(lines).strip()
        if body:
            paragraphs.append(f"{heading}: {body}" if heading else body)
    return paragraphs


def propose_remembered(
    tx: Transaction, user: User, author: Actor, text: str, expires_after: int | None
) -> bool:
    """Propose a line for a user's memory.

    Args:
        tx: The transaction.
        user: The user.
        author: The agent that gets the import; for a list, the system.
        text: The line, which counts as untrusted.
        expires_after: The lifetime of the proposal in microseconds; None if it never expires.

    Returns:
        False if the memory or a proposal contains the line already.

    Raises:
        Invalid, Conflict, Forbidden, TooLong: if the memory accepts no such proposal, for example
            because a hundred proposals wait, or the user rejected the line lately.
    """
    scope = Scope(user.organization_id)
    memory = user_memory.open_memory(tx, scope, user.id, makes=True)
    if author.kind == "agent":
        reason = f"Remembered by {author.name}"
    else:
        reason = "From an uploaded list"
    metadata = ChangeMetadata(author, reason, is_untrusted=True)
    try:
        proposal = user_memory.propose_line(tx, memory, BLOCK, text, metadata, expires_after)
    except Unchanged:
        return False
    return not proposal.is_repeated


# Errors of `propose_remembered` after which only one text is left out.
REFUSALS = (Invalid, Conflict, Forbidden, TooLong)
