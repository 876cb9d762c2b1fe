"""Threads read and written as they lie in the tables, for mending: nothing here trusts that a row holds what it should.

Elsewhere a row that cannot be understood is an error; here it is a finding.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Row, Text, bindparam, cast, func, select, update

from ricordo.domain.clock import SystemClock
from ricordo.domain.message import Message, Part, TextPart, parts_from_json, parts_to_json
from ricordo.settings import Settings
from ricordo.storage.held import hold, reading, require_current
from ricordo.storage.prepared import Statements
from ricordo.storage.store import Transaction, each
from ricordo.storage.tables import agents, conversations, messages, runs

_PORTION = 200
_NAMES = [column.name for column in messages.c if column.name not in ("parts", "text", "tool_name")]
_ROWS = select(*(messages.c[name] for name in _NAMES), cast(messages.c.parts, Text).label("parts"))
_BY_IDS = _ROWS.where(messages.c.id.op("IN")(each(bindparam("ids", type_=messages.c.parts.type))))
_WINDOW = select(cast(conversations.c.window, Text).label("window")).where(conversations.c.id == bindparam("id"))
_COUNT = select(func.count().label("rows")).where(messages.c.conversation_id == bindparam("id"))
_FIRST = _ROWS.where(messages.c.conversation_id == bindparam("id")).order_by(messages.c.seq).limit(1)
_KNOWN = select(messages.c.id).where(messages.c.id.op("IN")(each(bindparam("ids", type_=messages.c.parts.type))))
_THREADS = (
    select(conversations.c.id, conversations.c.seq)
    .where(conversations.c.seq > bindparam("after"), conversations.c.deleted_at.is_(None))
    .order_by(conversations.c.seq)
    .limit(_PORTION)
)
_PUT_PARTS = update(messages).where(messages.c.id == bindparam("message_id")).values(parts=bindparam("new_parts"))
_PUT_RUN = update(runs).where(runs.c.id == bindparam("run_id")).values(status="failed", stop_reason="error")


@dataclass(frozen=True, slots=True)
class Stored:
    """A message as it lies there. `is_readable` is False where its parts had to be taken as plain text."""

    message: Message
    is_readable: bool


@contextmanager
def looking(settings: Settings) -> Iterator[Transaction]:
    """One consistent view of a database that no server holds, and that is left as it is. Raises Conflict, NotFound, Unavailable."""
    with hold(settings, force=True) as connection, reading(connection):
        require_current(connection, "The database")
        yield Transaction(connection, SystemClock(), Statements(connection.dialect), {})


def some_threads(tx: Transaction, after: int) -> Sequence[tuple[int, str]]:
    """The next threads that are not deleted, each with the number to go on after."""
    return [(row.seq, row.id) for row in tx.all(_THREADS, {"after": after})]


def agents_without_thread(tx: Transaction) -> list[str]:
    """The ids of agents that have lost their own thread."""
    own = select(conversations.c.agent_id).where(conversations.c.is_default)
    return [row.id for row in tx.all(select(agents.c.id).where(agents.c.id.not_in(own)).order_by(agents.c.seq))]


def agent_of(tx: Transaction, agent_id: str) -> tuple[str, str]:
    """The organisation that the agent belongs to, and its system prompt."""
    row = tx.all(select(agents.c.organization_id, agents.c.system).where(agents.c.id == agent_id))[0]
    return row.organization_id, row.system


def window_of(tx: Transaction, conversation_id: str) -> list[Any] | None:
    """What stands in the thread's window, whatever that is; None where it is no list."""
    value = _decoded(tx.all(_WINDOW, {"id": conversation_id})[0].window)
    return value if isinstance(value, list) else None


def newest_of(tx: Transaction, conversation_id: str) -> list[str]:
    """The ids of the thread's newest messages, oldest first: what a window that was lost is made of."""
    statement = select(messages.c.id).where(messages.c.conversation_id == conversation_id)
    return [row.id for row in tx.all(statement.order_by(messages.c.seq.desc()).limit(_PORTION))][::-1]


def of_runs(tx: Transaction, run_ids: Sequence[str]) -> list[Stored]:
    """What was said in these runs."""
    return [_stored(row) for row in tx.all(_ROWS.where(messages.c.run_id.in_(run_ids)))] if run_ids else []


def by_ids(tx: Transaction, ids: Sequence[str]) -> dict[str, Stored]:
    """The messages with these ids that are there."""
    return {row.id: _stored(row) for row in tx.all(_BY_IDS, {"ids": list(ids)})} if ids else {}


def known(tx: Transaction, ids: Sequence[str]) -> set[str]:
    """Those of the ids that messages have."""
    return {row.id for row in tx.all(_KNOWN, {"ids": list(ids)})} if ids else set()


def prompt_of(tx: Transaction, conversation_id: str) -> Message | None:
    """The thread's own system message, in its window or not: what it began with."""
    row = tx.first(_FIRST, {"id": conversation_id})
    return _stored(row).message if row and row.role == "system" else None


def count_rows(tx: Transaction, conversation_id: str) -> int:
    """How many messages the thread has of its own."""
    return int(tx.all(_COUNT, {"id": conversation_id})[0].rows)


def half_ended(tx: Transaction, conversation_id: str) -> list[str]:
    """The ids of runs that have ended and yet are called running."""
    statement = select(runs.c.id).where(
        runs.c.conversation_id == conversation_id,
        runs.c.ended_at.is_not(None),
        runs.c.status.in_(("created", "running")),
    )
    return [row.id for row in tx.all(statement)]


def stop_reason_of(tx: Transaction, run_id: str | None) -> str | None:
    """Why the run stopped; None where it did not, or is not there."""
    row = tx.first(select(runs.c.stop_reason).where(runs.c.id == run_id)) if run_id else None
    return row.stop_reason if row else None


def put_parts(tx: Transaction, message: Message) -> None:
    """Store the parts of a message anew; what search knows of it stays."""
    tx.run(_PUT_PARTS, {"message_id": message.id, "new_parts": parts_to_json(message.parts)})


def end_run(tx: Transaction, run_id: str) -> None:
    """Call a run failed that has ended without saying how."""
    tx.run(_PUT_RUN, {"run_id": run_id})


def _stored(row: Row[Any]) -> Stored:
    parts, is_readable = _parts(row.parts)
    values = {name: getattr(row, name) for name in _NAMES}
    return Stored(Message(**values, parts=parts), is_readable)


def _parts(text: str) -> tuple[tuple[Part, ...], bool]:
    value = _decoded(text)
    if not isinstance(value, list):
        return ((TextPart(value if isinstance(value, str) else text),) if value else ()), False
    found: list[Part] = []
    is_readable = True
    for item in value:
        part = _part(item)
        is_readable = is_readable and part is not None
        found.append(part or TextPart(item if isinstance(item, str) else orjson.dumps(item).decode()))
    return tuple(found), is_readable


_TEXTS = ("text", "call_id", "name", "arguments", "content")


def _part(item: Any) -> Part | None:
    try:
        (part,) = parts_from_json([item])
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return part if all(isinstance(getattr(part, name), str) for name in _TEXTS if hasattr(part, name)) else None


def _decoded(text: str) -> Any:
    try:
        return orjson.loads(text)
    except (orjson.JSONDecodeError, TypeError):
        return text
