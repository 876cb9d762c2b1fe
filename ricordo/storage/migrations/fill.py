"""Filling the search index of a database that was written before there was one."""

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, text

from ricordo.storage.index.tail import Entry, pack

_AT_ONCE = 500
_MESSAGES = text(
    "SELECT seq, agent_id AS owner_id, id, text, created_at, conversation_id AS thread, user_id, role, name"
    " FROM messages WHERE text <> '' AND seq > :after ORDER BY seq LIMIT :most"
)
_PASSAGES = text(
    "SELECT seq, archive_id AS owner_id, id, text, created_at, id AS thread, user_id, '' AS role, '' AS name"
    " FROM passages WHERE seq > :after ORDER BY seq LIMIT :most"
)
_TAGS = text("SELECT tag FROM passages_tags WHERE passage_id = :id")
_PUT = text("INSERT INTO search_tail (owner_id, document, data) VALUES (:owner_id, :document, :data)")


def put_all_in_tail(connection: Connection) -> None:
    """Index every message and passage there is."""
    for statement in (_MESSAGES, _PASSAGES):
        for rows in _batches(connection, statement):
            connection.execute(_PUT, [_tail_row(connection, row, statement is _PASSAGES) for row in rows])


def _batches(connection: Connection, statement: Any) -> Iterator[Sequence[Any]]:
    after = 0
    while rows := connection.execute(statement, {"after": after, "most": _AT_ONCE}).all():
        yield rows
        after = rows[-1].seq


def _tail_row(connection: Connection, row: Any, has_tags: bool) -> dict[str, Any]:
    tags = [tag.tag for tag in connection.execute(_TAGS, {"id": row.id})] if has_tags else []
    entry = Entry(
        row.id, row.text, row.created_at, row.thread, row.user_id, row.role, speaker=row.name or "", labels=tuple(tags)
    )
    return {"owner_id": row.owner_id, "document": row.seq, "data": pack(entry)}
