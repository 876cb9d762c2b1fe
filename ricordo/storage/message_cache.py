"""The messages of windows that this process read, so that a turn reads only new ones.

A conversation's entry is valid for one version of its agent's messages. The version is the count of
changes that the database keeps (`schema/message_changes.py`); a turn reads it before its window.
After a change by any process the versions differ, and the entry is dropped. Messages are frozen, so
turns may share them. System messages are not cached, because the count leaves them out: a turn may
rewrite its system message.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from sys import getsizeof
from typing import Any, get_args

from ricordo.domain.agent import AgentState
from ricordo.domain.message import Message, Part
from ricordo.storage import messages
from ricordo.storage.engine.store import Transaction

MOST_BYTES = 32 * 1024 * 1024
# A larger message, such as one with a picture, is read again for each turn.
MOST_BYTES_OF_ONE = 64 * 1024
# An entry unused for this long is dropped when another entry is used.
UNUSED_SECONDS = 600.0
# An entry is rebuilt if it has more than this many messages beyond those of its window, for example
# after a compaction.
_SURPLUS = 100
# The bytes of a message with its ids, and of a part, without their texts.
_MESSAGE_BYTES = 1_100
_PART_BYTES = 130
_FIELDS: Mapping[type[Any], Sequence[str]] = {
    kind: [part_field.name for part_field in fields(kind)] for kind in get_args(Part)
}
Version = tuple[int, int]
"""The time of the agent's creation, and the number of changes of its messages since then."""
_NOTHING: Mapping[str, Message] = {}


@dataclass(slots=True)
class _Entry:
    """A conversation's messages by id; `size` is in bytes.

    Messages are only ever added, since a turn may be reading the entry.
    """

    version: Version
    messages: dict[str, Message] = field(default_factory=dict)
    size: int = 0
    used_at: float = 0.0


@dataclass(slots=True)
class MessageCache:
    """Messages by conversation, in at most `most_bytes`; the least recently used are dropped first.

    Any thread may use it.
    """

    most_bytes: int = MOST_BYTES
    size: int = 0
    _entries: OrderedDict[str, _Entry] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, conversation_id: str, version: Version) -> Mapping[str, Message]:
        """Return the conversation's messages by id; none if the entry has another version.

        Args:
            conversation_id: The conversation.
            version: The version of its agent's messages, as the caller has just read it.
        """
        with self._lock:
            entry = self._entries.get(conversation_id)
            if entry is None:
                return _NOTHING
            if entry.version != version:
                self.size -= self._entries.pop(conversation_id).size
                return _NOTHING
            return entry.messages

    def add(self, conversation_id: str, version: Version, window: Sequence[Message]) -> None:
        """Cache messages of a window.

        Args:
            conversation_id: The conversation.
            version: The version of its agent's messages, as it was before they were read.
            window: The messages, without system messages. Large ones are not cached.
        """
        with self._lock:
            entry = self._entries.pop(conversation_id, None)
            surplus = len(entry.messages) - len(window) if entry else 0
            if entry is None or entry.version != version or surplus > _SURPLUS:
                self.size -= entry.size if entry else 0
                entry = _Entry(version)
            for message in window:
                if message.id in entry.messages:
                    continue
                size = size_of(message)
                if size <= MOST_BYTES_OF_ONE:
                    entry.messages[message.id] = message
                    entry.size += size
                    self.size += size
            entry.used_at = time.monotonic()
            self._entries[conversation_id] = entry
            while self._entries:
                oldest = next(iter(self._entries.values()))
                if self.size <= self.most_bytes and entry.used_at - oldest.used_at < UNUSED_SECONDS:
                    return
                self.size -= self._entries.popitem(last=False)[1].size


def size_of(message: Message) -> int:
    """Return roughly the bytes that the message takes in memory."""
    size = _MESSAGE_BYTES
    contents: list[Any] = list(message.parts)
    while contents:
        content = contents.pop()
        if isinstance(content, str):
            size += getsizeof(content)
        elif isinstance(content, tuple):
            contents += content
        elif names := _FIELDS.get(type(content)):
            size += _PART_BYTES
            contents += [getattr(content, name) for name in names]
    return size


def read_window(tx: Transaction, state: AgentState) -> list[Message]:
    """Return the messages of the conversation's window, in order, without deleted ones.

    Takes one statement. The version in `state` was read before. If messages change in between, the
    new entry counts as older than it is, which is safe.
    """
    conversation = state.conversation
    version = (state.agent.created_at, state.message_changes)
    cache: MessageCache = tx.cache.setdefault(MessageCache, MessageCache())
    cached = cache.get(conversation.id, version)
    new = messages.by_ids(tx, [id for id in conversation.window if id not in cached])
    by_id = {**cached, **{message.id: message for message in new}}
    window = [by_id[id] for id in conversation.window if id in by_id]
    # The version counts neither system messages nor those of other agents.
    countable = [
        message
        for message in window
        if message.role != "system" and message.agent_id == state.agent.id
    ]
    # Add the window only after the commit, since the transaction may roll back the rows that it
    # read.
    tx.after_commit.append(partial(cache.add, conversation.id, version, countable))
    return window
