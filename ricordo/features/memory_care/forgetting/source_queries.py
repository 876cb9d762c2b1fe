"""Sources: kinds of rows that may mention a fact about a user, to search and to clean.

Every table whose rows can belong to a user is already a source, according to its columns' erasure
rules. A feature adds an entry (`Feature.forget_sources`) only if its rows should be shown under
another name, or removed in another way.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from typing import Any, Protocol

import orjson
from sqlalchemy import Table, select, update

from ricordo.agents.deletion import before_purge
from ricordo.domain.message import (
    ImagePart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolReturnPart,
    parts_from_json,
    parts_to_json,
)
from ricordo.features.memory_care.erasure.queries import AT_ONCE
from ricordo.features.memory_care.forgetting.belonging_queries import (
    Belongings,
    is_owned,
    tables_with_words,
    word_columns,
)
from ricordo.features.memory_care.forgetting.needle import (
    BOTH,
    EXACT,
    FREE,
    MARK,
    Match,
    Matches,
    Needle,
    blank,
    change_strings,
    strings_in,
)
from ricordo.features.memory_care.forgetting.state import Forgetting, Item, matches_of
from ricordo.search import index
from ricordo.storage import archives, conversations, deletion
from ricordo.storage import messages as message_rows
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import jobs, messages, passages

_EXCERPT = 300  # characters
_MOST_EXCERPTS = 20
# Names of kinds of rows for people; other rows are named after their table.
_KINDS = {
    "agents": "agent",
    "conversations": "conversation",
    "file_pieces": "file",
    "schedules": "schedule",
    "task_runs": "task",
    "user_facts": "fact",
    "workspace_files": "workspace",
}
# Records of requests and of work. They are cleaned together with any item.
_FOLLOWING = frozenset(
    "batch_items file_uploads forget_requests import_parts imported_items jobs openwebui_items"
    " run_events runs sleep_transcripts steps traces".split()
)
# Rows of these tables are deleted rather than blanked, since nothing useful would remain of them.
_DELETED = frozenset("file_uploads forget_requests run_events traces user_facts".split())
_FOLDER = archives.FOLDER
JOB = "forgetting"


class Source(Protocol):
    """A kind of rows that may mention a fact."""

    def find(
        self, tx: Transaction, owned: Belongings, needle: Needle, after: int
    ) -> tuple[list[Item], int | None]:
        """Return the items among the next rows, and the next position; None at the end.

        Args:
            tx: The transaction.
            owned: The area of the search.
            needle: The fact.
            after: The position from the previous call; 0 at the start.
        """

    def remove(
        self, tx: Transaction, owned: Belongings, forgetting: Forgetting, items: Sequence[Item]
    ) -> None:
        """Remove the fact from these items, and record that. A second call changes nothing more.

        Args:
            tx: The transaction.
            owned: The area of the removal; rows outside of it are not changed.
            forgetting: The state of the work, which is changed.
            items: Items that `find` returned for this source.
        """


@dataclass(frozen=True)
class TableSource:
    """The rows of a table.

    Attributes:
        kind: The name of a row, for people.
        follows: The rows are not listed, but are cleaned together with any item.
        deletes: A row that mentions the fact is deleted rather than blanked.
        condition: Rows that do not meet it are neither found nor changed.
    """

    table: Table
    kind: str
    follows: bool = False
    deletes: bool = False
    condition: Any = None

    def find(
        self, tx: Transaction, owned: Belongings, needle: Needle, after: int
    ) -> tuple[list[Item], int | None]:
        """Return the items among the next rows of the table, and the next position.

        Args:
            tx: The transaction.
            owned: The area of the search.
            needle: The fact.
            after: The position from the previous call; 0 at the start.

        Returns:
            The items, and the next position; None at the end.
        """
        rows, position = self._rows(tx, owned, after)
        items: dict[str, Item] = {}
        for row in rows:
            for item in self._items(row._mapping, needle):
                items.setdefault(item.id, item)
        return list(items.values()), position

    def remove(
        self, tx: Transaction, owned: Belongings, forgetting: Forgetting, items: Sequence[Item]
    ) -> None:
        """Blank or delete the rows of these items.

        Args:
            tx: The transaction.
            owned: The area of the removal; rows outside of it are not changed.
            forgetting: The state of the work, whose counts are changed.
            items: Items that `find` returned.
        """
        needle = forgetting.needle_of_followers if self.follows else forgetting.needle
        matches = matches_of(items)
        name = "id" if "id" in self.table.c else "seq"
        keys = [key if name == "id" else int(key) for key in matches]
        columns = [self.table.c.seq, self.table.c[name].label("key_"), *word_columns(self.table)]
        statement = select(*columns).where(self.table.c[name].in_(keys)).with_for_update()
        for row in tx.all(statement.where(self._is_searched(owned))):
            self._clean(tx, row._mapping, needle, matches[str(row.key_)], forgetting)

    def _is_searched(self, owned: Belongings) -> Any:
        is_searched = is_owned(self.table, owned)
        return is_searched if self.condition is None else is_searched & self.condition

    def _clean(
        self,
        tx: Transaction,
        row: Mapping[str, Any],
        needle: Needle,
        matches: Matches,
        forgetting: Forgetting,
    ) -> None:
        if self.deletes:
            deletion.purge_all(
                tx, self.table, "seq", [row["seq"]], before_purge, forgetting.removed
            )
            return
        changed = changed_words(row, word_columns(self.table), needle, matches)
        if not changed:
            return
        if "digest" in self.table.c and "content" in changed:
            changed["digest"] = _digest(changed["content"])
            if "size" in self.table.c:
                changed["size"] = len(changed["content"])
        tx.run(update(self.table).where(self.table.c.seq == row["seq"]).values(changed))
        forgetting.changed[self.table.name] += 1

    def _rows(
        self, tx: Transaction, owned: Belongings, after: int
    ) -> tuple[Sequence[Any], int | None]:
        places = [
            self.table.c[name]
            for name in ("id", "agent_id", "conversation_id", "file_id", "name", "path")
            if name in self.table.c
        ]
        times = [self.table.c.created_at] if "created_at" in self.table.c else []
        columns = dict.fromkeys([self.table.c.seq, *places, *times, *word_columns(self.table)])
        statement = select(*columns).where(self._is_searched(owned))
        return portion(tx, self.table, statement, after)

    def _items(self, row: Mapping[str, Any], needle: Needle) -> Iterator[Item]:
        matches = EXACT if self.follows else BOTH
        sentences = sentences_of(row, word_columns(self.table), needle, matches)
        where = {
            name: row[name]
            for name in ("agent_id", "conversation_id", "file_id", "name", "path")
            if row.get(name)
        }
        key = str(row.get("id") or row["seq"])
        for match, excerpts in sentences.items():
            yield Item(self.kind, key, match, excerpts, where, row.get("created_at"), self.follows)


def _digest(content: Any) -> str:
    """Return the digest of a file's bytes, or of a template's JSON, as their features do."""
    if not isinstance(content, bytes):
        content = orjson.dumps(content, option=orjson.OPT_SORT_KEYS)
    return sha256(content).hexdigest()


class MessageSource:
    """Messages, with prompts and summaries; the search index is updated too."""

    def find(
        self, tx: Transaction, owned: Belongings, needle: Needle, after: int
    ) -> tuple[list[Item], int | None]:
        """Return the items among the next messages, and the next position.

        Args:
            tx: The transaction.
            owned: The area of the search.
            needle: The fact.
            after: The position from the previous call; 0 at the start.

        Returns:
            The items, and the next position; None at the end.
        """
        names = ("seq", "id", "role", "parts", "agent_id", "conversation_id", "created_at")
        statement = select(*(messages.c[name] for name in names)).where(is_owned(messages, owned))
        rows, position = portion(tx, messages, statement, after)
        items: list[Item] = []
        for row in rows:
            is_prompt = row.role == "system"
            kind = "prompt" if is_prompt else "summary" if row.role == "summary" else "message"
            where = {
                "agent_id": row.agent_id,
                "conversation_id": row.conversation_id,
                "role": row.role,
            }
            sentences = sentences_of(
                row._mapping, [messages.c.parts], needle, EXACT if is_prompt else BOTH
            )
            items += [
                Item(kind, row.id, match, excerpts, where, row.created_at, is_prompt)
                for match, excerpts in sentences.items()
            ]
        return items, position

    def remove(
        self, tx: Transaction, owned: Belongings, forgetting: Forgetting, items: Sequence[Item]
    ) -> None:
        """Blank the fact in these messages, and in the search index.

        Args:
            tx: The transaction.
            owned: The area of the removal; messages outside of it are not changed.
            forgetting: The state of the work, which is changed. It gets the conversations whose
                prompts have to be rendered again, and the partitions of the index to flush.
            items: Items that `find` returned.
        """
        matches = matches_of(items)
        statement = select(messages.c.id).where(messages.c.id.in_(matches)).with_for_update()
        ids = [row.id for row in tx.all(statement.where(is_owned(messages, owned)))]
        for message in message_rows.by_ids(tx, ids):
            is_prompt = message.role == "system"
            needle = forgetting.needle_of_followers if is_prompt else forgetting.needle
            changed = without_words(message, needle, matches[message.id])
            if changed == message:
                continue
            index.rewrite_message(tx, changed)
            forgetting.changed["prompts" if is_prompt else "messages"] += 1
            if is_prompt:
                forgetting.conversations.add(message.conversation_id)
                conversations.change(tx, message.conversation_id, prompt_key="")
            elif message_rows.searchable_text(message):
                forgetting.partitions[message.agent_id] = "messages"


class PassageSource:
    """Passages of archives.

    A passage with no other content is deleted, unless it is part of a file.
    """

    def find(
        self, tx: Transaction, owned: Belongings, needle: Needle, after: int
    ) -> tuple[list[Item], int | None]:
        """Return the items among the next passages, and the next position.

        Args:
            tx: The transaction.
            owned: The area of the search.
            needle: The fact.
            after: The position from the previous call; 0 at the start.

        Returns:
            The items, and the next position; None at the end.
        """
        statement = select(passages).where(is_owned(passages, owned))
        rows, position = portion(tx, passages, statement, after)
        items: list[Item] = []
        for row in rows:
            is_file = row.archive_id.startswith(_FOLDER)
            where = {"archive_id": row.archive_id}
            if is_file and isinstance(row.metadata, dict):
                where["file_id"] = row.metadata.get("file_id", "")
            columns = [passages.c.text, passages.c.metadata]
            items += [
                Item(
                    "file part" if is_file else "passage",
                    row.id,
                    match,
                    some,
                    where,
                    row.created_at,
                )
                for match, some in sentences_of(row._mapping, columns, needle).items()
            ]
        return items, position

    def remove(
        self, tx: Transaction, owned: Belongings, forgetting: Forgetting, items: Sequence[Item]
    ) -> None:
        """Blank the fact in these passages, or delete passages that say nothing else.

        Args:
            tx: The transaction.
            owned: The area of the removal; passages outside of it are not changed.
            forgetting: The state of the work, which is changed. It gets the partitions of the index
                to flush.
            items: Items that `find` returned.
        """
        matches = matches_of(items)
        statement = select(passages.c.id).where(passages.c.id.in_(matches))
        ids = [row.id for row in tx.all(statement.where(is_owned(passages, owned)))]
        archives.lock_passages(tx, ids)
        for passage in archives.passages_by_ids(tx, ids):
            change = partial(blank, needle=forgetting.needle, matches=matches[passage.id])
            text = change(passage.text)
            metadata = change_strings(passage.metadata, change, is_free=True)
            if (text, metadata) == (passage.text, passage.metadata):
                continue
            forgetting.partitions[passage.archive_id] = "passages"
            is_file = passage.archive_id.startswith(_FOLDER)
            if text.strip() == MARK and not is_file:
                deletion.purge_all(
                    tx, passages, "id", [passage.id], before_purge, forgetting.removed
                )
                continue
            index.rewrite_passage(tx, replace(passage, text=text, metadata=metadata))
            forgetting.changed["passages"] += 1


def built_in_sources(named: Sequence[Any], existing: Collection[str]) -> list[Any]:
    """Return the sources of messages, passages and features, and one for each other table.

    Only tables with texts of users have a source.

    Args:
        named: The sources of features.
        existing: The names of the database's tables.
    """
    taken = {source.table.name for source in named if isinstance(source, TableSource)}
    taken |= {"messages", "passages"}
    sources: list[Any] = [MessageSource(), PassageSource(), *named]
    for table in tables_with_words():
        if table.name in existing and table.name not in taken:
            sources.append(
                TableSource(
                    table,
                    _KINDS.get(table.name, table.name.removesuffix("s").replace("_", " ")),
                    follows=table.name in _FOLLOWING,
                    deletes=table.name in _DELETED,
                    # The state of this job itself is cleared at the end.
                    condition=jobs.c.kind != JOB if table is jobs else None,
                )
            )
    # Sources with `follows` come last, since they are also searched for the sentences that were
    # chosen in earlier sources.
    return sorted(sources, key=lambda source: bool(getattr(source, "follows", False)))


def portion(
    tx: Transaction, table: Table, statement: Any, after: int
) -> tuple[Sequence[Any], int | None]:
    """Return the matching rows among the next AT_ONCE rows, and the next position; None at the end.

    Args:
        tx: The transaction.
        table: The table of the rows.
        statement: A query of this table, without order and limit.
        after: The seq after which the read begins; 0 at the start.
    """
    seq = table.c.seq
    newest_row = tx.first(select(seq).order_by(seq.desc()).limit(1))
    newest = newest_row.seq if newest_row else 0
    rows = tx.all(statement.where(seq > after, seq <= after + AT_ONCE).order_by(seq))
    position = after + AT_ONCE
    return rows, position if newest > position else None


def sentences_of(
    row: Mapping[str, Any], columns: Sequence[Any], needle: Needle, matches: Matches = BOTH
) -> dict[Match, tuple[str, ...]]:
    """Return the sentences of a row that mention the fact, by kind of match.

    Args:
        row: The row by the names of its columns.
        columns: The columns to search, as `word_columns` gives them.
        needle: The fact.
        matches: The kinds of matches to return.

    Returns:
        The sentences as excerpts: shortened, without repetitions, and limited in number.
    """
    sentences: defaultdict[Match, list[str]] = defaultdict(list)
    for column in columns:
        for text in strings_in(_value(row[column.name]), is_free=column.name in FREE):
            for unit in needle.units(text, matches):
                sentences[unit.match].append(text[unit.start : unit.end])
    return {
        match: tuple(sentence[:_EXCERPT] for sentence in dict.fromkeys(some))[:_MOST_EXCERPTS]
        for match, some in sentences.items()
    }


def changed_words(
    row: Mapping[str, Any], columns: Sequence[Any], needle: Needle, matches: Matches
) -> dict[str, Any]:
    """Return those values of a row's columns that change.

    Args:
        row: The row by the names of its columns.
        columns: The columns to search, as `word_columns` gives them.
        needle: The fact.
        matches: The kinds of matches to replace by a mark.
    """
    change = partial(blank, needle=needle, matches=matches)
    changed: dict[str, Any] = {}
    for column in columns:
        value = row[column.name]
        old = _value(value)
        new = change_strings(old, change, is_free=column.name in FREE)
        if new != old:
            changed[column.name] = new.encode() if isinstance(value, bytes) else new
    return changed


def without_words(message: Message, needle: Needle, matches: Matches) -> Message:
    """Return the message with a mark in place of each sentence that mentions the fact.

    A changed part loses its provider's signature, which no longer fits. The message also loses
    reasoning that cannot be read, and pictures whose text mentions the fact.

    Args:
        message: The message; an unaffected one is returned unchanged.
        needle: The fact.
        matches: The kinds of matches to replace.
    """
    message = _without_pictures(message, needle, matches)
    change = partial(blank, needle=needle, matches=matches)
    old_parts = parts_to_json(message.parts)
    new_parts = change_strings(old_parts, change)
    for old, new in zip(old_parts, new_parts, strict=True):
        if old != new:
            new.pop("signature", None)
    if new_parts == old_parts:
        return message
    return replace(message, parts=tuple(map(_fitting, parts_from_json(new_parts))))


def _fitting(part: Part) -> Part:
    """Return the part without the properties that its changed text no longer has."""
    if isinstance(part, ReasoningPart):
        return replace(part, redacted=None, signature=None)
    if isinstance(part, ToolReturnPart) and part.is_json and part.decoded() == part.content:
        return replace(part, is_json=False)
    return part


def _without_pictures(message: Message, needle: Needle, matches: Matches) -> Message:
    """Return the message with a mark in place of each picture whose text mentions the fact.

    Such pictures of tool results are removed without a mark.
    """

    def mentions(picture: ImagePart) -> bool:
        return bool(picture.text and needle.units(picture.text, matches))

    if not any(map(mentions, message.pictures)):
        return message
    parts: list[Part] = []
    for part in message.parts:
        if isinstance(part, ImagePart) and mentions(part):
            parts.append(TextPart(MARK))
        elif isinstance(part, ToolReturnPart) and any(map(mentions, part.pictures)):
            kept = tuple(picture for picture in part.pictures if not mentions(picture))
            parts.append(replace(part, pictures=kept))
        else:
            parts.append(part)
    return replace(message, parts=tuple(parts))


def _value(value: Any) -> Any:
    """Return a stored value; bytes of a text are returned as text."""
    if not isinstance(value, bytes | memoryview):
        return value
    try:
        return bytes(value).decode()
    except UnicodeDecodeError:
        return ""
