"""A database of the retired Letta V1 server 0.16.8, for reading alone. Its tables are those of its release."""

from base64 import b64decode
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any
from uuid import UUID, uuid5

import orjson

from ricordo.domain.clock import SECOND
from ricordo.domain.ids import is_id
from ricordo.errors import Invalid, Unavailable

Row = dict[str, Any]
_NEEDED = ("agents", "messages", "block", "tools", "organizations")
# What comes along; vectors are computed anew, and take most of the space.
_PASSAGES = (
    "SELECT id, text, tags, metadata_, created_at FROM archival_passages WHERE archive_id = %s AND NOT is_deleted"
    " ORDER BY created_at, id"
)
_MESSAGES = "SELECT * FROM messages WHERE agent_id = %s AND NOT is_deleted ORDER BY sequence_id"
_PORTION = 500  # messages and passages that are stored at once
_SPACE = UUID("6f2b3c0e-6d3c-4b7e-9d0a-2f4e6c8a1b53")
_SALT, _IV, _ROUNDS, _KEY_BYTES = 16, 12, 100_000, 32


@contextmanager
def open_source(url: str, organization: str | None = None) -> Iterator["LettaDatabase"]:
    """The database at this address. Raises Invalid where it is none of that server's, Unavailable where it does not answer."""
    try:
        import psycopg
        from psycopg.rows import dict_row
    except ImportError as error:
        raise Unavailable('To read PostgreSQL install: pip install "ricordo[postgres]"') from error
    try:
        with psycopg.connect(url, row_factory=dict_row, connect_timeout=10) as connection:
            connection.read_only = True
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            yield LettaDatabase(connection, organization)
    except psycopg.Error as error:
        raise Unavailable(f"The database cannot be read: {str(error).strip() or type(error).__name__}") from error


class LettaDatabase:
    """One organization of that server, as it was when the first row was read."""

    def __init__(self, connection: Any, organization: str | None) -> None:
        self._connection = connection
        self._known: dict[tuple[str, ...], list[Row]] = {}
        there = {row["tablename"] for row in self._rows("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")}
        if missing := [name for name in _NEEDED if name not in there]:
            raise Invalid(
                f"This is no database of the retired Letta V1 server: it has no table {', '.join(missing)}. Check the address."
            )
        self._there = there
        found = self._rows("SELECT DISTINCT organization_id AS id FROM agents WHERE NOT is_deleted ORDER BY 1")
        ids = [row["id"] for row in found]
        if organization is None and len(ids) > 1:
            raise Invalid(f"It holds several organizations. Name one with --organization: {', '.join(map(str, ids))}.")
        if organization is not None and organization not in ids:
            raise Invalid(f"No agent belongs to {organization}. There are: {', '.join(map(str, ids)) or 'none'}.")
        self._organization = organization or (ids[0] if ids else None)

    def table(self, name: str) -> list[Row]:
        """The rows of the organization that are not deleted, the oldest first; none where there is no such table."""
        query = f'SELECT * FROM "{name}" WHERE NOT is_deleted AND organization_id = %s ORDER BY created_at, id'  # noqa: S608 - our names
        return self._once(name, query, self._organization)

    def links(self, name: str, left: str, right: str) -> dict[str, list[str]]:
        """What a link table says: ids of `right` by those of `left`."""
        found: dict[str, list[str]] = defaultdict(list)
        for row in self._once(name, f'SELECT "{left}" AS l, "{right}" AS r FROM "{name}" ORDER BY 1, 2'):  # noqa: S608 - our names
            found[row["l"]].append(row["r"])
        return found

    def _once(self, table: str, query: str, *values: Any) -> list[Row]:
        if table not in self._there:
            return []
        if (table, query) not in self._known:
            self._known[table, query] = self._rows(query, *values)
        return self._known[table, query]

    def count(self, name: str) -> int:
        return len(self.table(name))

    def messages(self, agent_id: str) -> Iterator[Row]:
        """All messages of an agent in their order, read piece by piece."""
        with self._connection.cursor(name="messages") as cursor:
            cursor.itersize = 500
            yield from cursor.execute(_MESSAGES, (agent_id,))

    def passages(self, archive_id: str) -> Iterator[Row]:
        """All passages of an archive."""
        with self._connection.cursor(name="passages") as cursor:
            cursor.itersize = 500
            yield from cursor.execute(_PASSAGES, (archive_id,))

    def window(self, conversation_id: str) -> list[Row]:
        """The messages of a conversation in their order, with whether they are in its context."""
        query = (
            "SELECT message_id, in_context FROM conversation_messages WHERE conversation_id = %s AND NOT is_deleted"
            " ORDER BY position"
        )
        return self._rows(query, conversation_id) if "conversation_messages" in self._there else []

    def text_of_file(self, file_id: str) -> str | None:
        """The text of a file; None where none was kept."""
        if "file_contents" not in self._there:
            return None
        found = self._rows("SELECT text FROM file_contents WHERE file_id = %s AND NOT is_deleted", file_id)
        return found[0]["text"] if found else None

    def _rows(self, query: str, *values: Any) -> list[Row]:
        return list(self._connection.execute(query, values or None).fetchall())


def decrypted(sealed: str, key: str) -> str | None:
    """A value that the server encrypted with its LETTA_ENCRYPTION_KEY; None where the key is another, or it is none."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.pbkdf2 import PBKDF2HMAC

    try:
        data = b64decode(sealed, validate=True)
        salt, iv, content = data[:_SALT], data[_SALT : _SALT + _IV], data[_SALT + _IV :]
        derived = PBKDF2HMAC(SHA256(), _KEY_BYTES, salt, _ROUNDS).derive(key.encode())
        return AESGCM(derived).decrypt(iv, content, None).decode()
    except (ValueError, InvalidTag):
        return None


def id_here(kind: str, id: str) -> str:
    """The id that it had, or one that follows from it where it is none here."""
    return id if is_id(id, kind) else f"{kind}-{uuid5(_SPACE, id)}"


def time_of(row: Row) -> int:
    return int(row["created_at"].timestamp() * SECOND)


def portions(rows: Iterator[Row]) -> Iterator[list[Row]]:
    while some := list(islice(rows, _PORTION)):
        yield some


def as_file(row: Row) -> Row:
    """A message as agent files have it. Older rows have their words in `text`, and calls may stand among the content."""
    parts = [one for one in row.get("content") or () if isinstance(one, dict)]
    content = parts or ([{"type": "text", "text": row["text"]}] if row.get("text") else [])
    calls = row.get("tool_calls") or [
        {
            "id": one.get("id"),
            "function": {"name": one.get("name"), "arguments": orjson.dumps(one.get("input")).decode()},
        }
        for one in parts
        if one.get("type") == "tool_call"
    ]
    returns = row.get("tool_returns") or [
        {
            "tool_call_id": one.get("tool_call_id"),
            "status": "error" if one.get("is_error") else "success",
            "func_response": one.get("content"),
        }
        for one in parts
        if one.get("type") == "tool_return"
    ]
    approvals = row.get("approvals") or []
    if not approvals and row.get("approve") is not None:
        approvals = [
            {
                "type": "approval",
                "tool_call_id": row.get("tool_call_id") or row.get("approval_request_id"),
                "approve": row["approve"],
                "reason": row.get("denial_reason"),
            }
        ]
    kept = {name: row.get(name) for name in ("role", "name", "otid", "sender_id", "group_id", "model", "tool_call_id")}
    return {
        **kept,
        "content": content,
        "tool_calls": calls,
        "tool_returns": returns,
        "approvals": approvals,
        "created_at": row["created_at"].isoformat(),
    }
