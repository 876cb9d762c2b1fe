"""Messages: inserted once, read by id, run or page."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Row, Select, bindparam, insert, select

from ricordo.domain.message import Message, parts_from_json, parts_to_json
from ricordo.domain.scope import Scope
from ricordo.storage.engine.repository import columns_of, equal, found, names_of, new_values, one_of, setter, values_of
from ricordo.storage.engine.store import Transaction
from ricordo.storage.paging import Page, read_page
from ricordo.storage.schema.core_tables import messages

_SELECT = select(messages.c.seq, *columns_of(messages, "text", "tool_name"))
_BY_IDS = _SELECT.where(one_of(messages.c.id, "ids"))
_BY_NUMBERS = _SELECT.where(one_of(messages.c.seq, "numbers"))
_BY_ID = _SELECT.where(equal(messages, "id", "organization_id"))
_OF_RUN = _SELECT.where(equal(messages, "run_id"), messages.c.seq > bindparam("after")).order_by(messages.c.seq)
_BY_OTIDS = _SELECT.where(equal(messages, "conversation_id"), one_of(messages.c.otid, "otids"))
_PLAIN = names_of(messages, "parts", "text", "tool_name")
_INSERT = insert(messages)
_REWRITE = setter(messages, "parts", "text", "created_at", where=messages.c.id == bindparam("message_id"))


def insert_all(tx: Transaction, new: Sequence[Message]) -> list[dict[str, Any]]:
    rows = [_values(message) for message in new]
    tx.run(_INSERT, rows)
    return rows


def by_ids(tx: Transaction, ids: Sequence[str]) -> list[Message]:
    """Return the messages with these ids, in their order; ids of deleted ones are left out."""
    rows = {row.id: _message(row) for row in tx.all(_BY_IDS, {"ids": list(ids)})}
    return [rows[id] for id in ids if id in rows]


def by_numbers(tx: Transaction, numbers: Sequence[int]) -> list[Message]:
    """Return the messages with these numbers (`seq`), in their order; deleted ones are left out."""
    rows = {row.seq: _message(row) for row in tx.all(_BY_NUMBERS, {"numbers": list(numbers)})} if numbers else {}
    return [rows[number] for number in numbers if number in rows]


def get(tx: Transaction, scope: Scope, id: str) -> Message:
    row = tx.first(_BY_ID, {"id": id, "organization_id": scope.organization_id})
    return _message(found(row, "Message", id))


def of_run(tx: Transaction, run_id: str, *, after: int = 0) -> list[Message]:
    """Return the messages of a run whose seq is greater than `after`, in order."""
    return [_message(row) for row in tx.all(_OF_RUN, {"run_id": run_id, "after": after})]


def by_otids(tx: Transaction, conversation_id: str, otids: Sequence[str]) -> list[Message]:
    return [_message(row) for row in tx.all(_BY_OTIDS, {"conversation_id": conversation_id, "otids": list(otids)})]


def page_of_kept(
    read_messages: Callable[[Page], list[Message]], wanted: Page, keeps: Callable[[Message], bool]
) -> list[Message]:
    """Return one page of the messages that `keeps` is true of: it has the size that was asked for, where there are so many."""
    is_backwards = bool(wanted.before and not wanted.after)
    kept: list[Message] = []
    reading = wanted
    while True:
        read = read_messages(reading)
        fitting = [message for message in read if keeps(message)]
        kept = [*fitting, *kept] if is_backwards else [*kept, *fitting]
        if len(kept) >= wanted.limit or len(read) < reading.limit:
            return kept[-wanted.limit :] if is_backwards else kept[: wanted.limit]
        reading = replace(reading, before=read[0].id) if is_backwards else replace(reading, after=read[-1].id)


def page(tx: Transaction, scope: Scope, wanted: Page, **equal: str) -> list[Message]:
    """Return one page, filtered by columns: `page(tx, scope, Page(limit=20), conversation_id=…)`."""
    statement: Select[Any] = _SELECT.where(messages.c.organization_id == scope.organization_id)
    for name, value in equal.items():
        statement = statement.where(messages.c[name] == value)
    return [_message(row) for row in read_page(tx, statement, messages, wanted)]


def rewrite(tx: Transaction, message: Message) -> None:
    values = {"parts": parts_to_json(message.parts), "text": "", "created_at": message.created_at}
    tx.run(_REWRITE, new_values(values) | {"message_id": message.id})


def searchable_text(message: Message) -> str:
    """Return what search finds the message by: words that were said or read; no prompts, heartbeats or results of searches."""
    if message.role in ("system", "summary") or message.is_event:
        return ""
    words = [said] if (said := message.spoken) else []
    words += [result.content for result in message.tool_returns if result.name not in _UNSEARCHED]
    return "\n".join(words)


_UNSEARCHED = {"send_message", "conversation_search", "archival_memory_search"}


def _values(message: Message) -> dict[str, Any]:
    # Search and the list of tools' names are texts of the database, which keep no NUL; `parts` keeps it as JSON.
    names = [*(call.name for call in message.tool_calls), *(result.name for result in message.tool_returns)]
    return {
        **values_of(message, _PLAIN),
        "parts": parts_to_json(message.parts),
        "text": searchable_text(message).replace("\0", " "),
        "tool_name": " ".join(names).replace("\0", " ") or None,
    }


def _message(row: Row[Any]) -> Message:
    # By place and not by name: a turn reads its whole window, and this is where most of that time would go.
    values: tuple[Any, ...] = tuple(row)
    seq, id, organization_id, agent_id, conversation_id, role, parts = values[:7]
    user_id, run_id, step_id, otid, name, sender_id, group_id, model, created_at, is_untrusted = values[7:]
    return Message(
        id,
        agent_id,
        conversation_id,
        role,
        parts_from_json(parts),
        created_at,
        seq,
        organization_id,
        user_id,
        run_id,
        step_id,
        otid,
        name,
        sender_id,
        group_id,
        model,
        is_untrusted,
    )
