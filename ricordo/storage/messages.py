"""Messages: inserted once, read by id, run or page."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import bindparam, insert

from ricordo.domain.message import Message, Part, TextPart, parts_from_json, parts_to_json
from ricordo.domain.run import Run
from ricordo.domain.scope import Scope
from ricordo.domain.text import normal_text
from ricordo.storage.engine.repository import Page, Repository, equal, new_values, one_of, setter
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import messages

_ROWS = Repository(
    Message, messages, forms={"parts": (parts_to_json, parts_from_json)}, long="parts"
)
_OF_RUN = _ROWS.select.where(
    equal(messages, "run_id"), messages.c.seq > bindparam("after")
).order_by(messages.c.seq)
_OF_RUNS = _ROWS.select.where(one_of(messages.c.run_id, "run_ids")).order_by(messages.c.seq)
_BETWEEN = (
    _ROWS.select.where(equal(messages, "conversation_id"))
    .where(messages.c.seq > bindparam("after"), messages.c.seq <= bindparam("to"))
    .order_by(messages.c.seq)
    .limit(bindparam("most"))
)
_BY_OTIDS = _ROWS.select.where(equal(messages, "conversation_id"), one_of(messages.c.otid, "otids"))
_INSERT = insert(messages)
_REWRITE = setter(
    messages, "parts", "text", "created_at", where=messages.c.id == bindparam("message_id")
)
_MOVE = setter(messages, "run_id", "created_at", where=messages.c.id == bindparam("message_id"))
get, by_ids, by_numbers, page = _ROWS.get, _ROWS.by_ids, _ROWS.by_numbers, _ROWS.page
page_of_numbers = _ROWS.page_of_numbers


def insert_all(tx: Transaction, new: Sequence[Message]) -> list[dict[str, Any]]:
    rows = [_values(_normal(message)) for message in new]
    tx.run(_INSERT, rows)
    return rows


def of_run(tx: Transaction, run_id: str, *, after: int = 0) -> list[Message]:
    """Return the messages of a run whose seq is greater than `after`, in order."""
    return _ROWS.all(tx, _OF_RUN, {"run_id": run_id, "after": after})


def of_runs(tx: Transaction, run_ids: Sequence[str]) -> list[Message]:
    """Return the messages of several runs, in order."""
    if len(run_ids) == 1:
        return of_run(tx, run_ids[0])
    return _ROWS.all(tx, _OF_RUNS, {"run_ids": list(run_ids)})


def page_of_run(tx: Transaction, scope: Scope, wanted: Page, run: Run) -> list[Message]:
    """Return one page of a run's messages; of a talk's its input, and what agents said in its turns."""
    if not run.turn_ids:
        return page(tx, scope, wanted, run_id=run.id)
    is_answer = messages.c.run_id.in_(run.turn_ids) & messages.c.step_id.is_not(None)
    return page(tx, scope, wanted, (messages.c.run_id == run.id) | is_answer)


def between(tx: Transaction, conversation_id: str, after: int, to: int, most: int) -> list[Message]:
    """Return the messages of the conversation's own whose seq is greater than `after` and at most `to`, the oldest first."""
    return _ROWS.all(
        tx, _BETWEEN, {"conversation_id": conversation_id, "after": after, "to": to, "most": most}
    )


def by_otids(tx: Transaction, conversation_id: str, otids: Sequence[str]) -> list[Message]:
    return _ROWS.all(tx, _BY_OTIDS, {"conversation_id": conversation_id, "otids": list(otids)})


def page_of_kept(
    read_messages: Callable[[Page], list[Message]], wanted: Page, keeps: Callable[[Message], bool]
) -> list[Message]:
    """Return one page of the messages that `keeps` is true of: it has the size that was asked for, where there are so many.

    A bounded page may have fewer, but none only where there are no more.
    """
    is_backwards = wanted.is_backwards
    kept: list[Message] = []
    reading = wanted
    while True:
        read = read_messages(reading)
        fitting = [message for message in read if keeps(message)]
        kept = [*fitting, *kept] if is_backwards else [*kept, *fitting]
        is_short = len(read) < reading.limit
        if len(kept) >= wanted.limit or not read or (is_short and (kept or not wanted.is_bounded)):
            return kept[-wanted.limit :] if is_backwards else kept[: wanted.limit]
        reading = (
            replace(reading, before=read[0].id)
            if is_backwards
            else replace(reading, after=read[-1].id)
        )


def rewrite(tx: Transaction, message: Message) -> None:
    values = {"parts": parts_to_json(message.parts), "text": "", "created_at": message.created_at}
    tx.run(_REWRITE, new_values(values) | {"message_id": message.id})


def move(
    tx: Transaction, moved: Sequence[Message], run_id: str, created_at: int | None = None
) -> list[Message]:
    """Make these messages those of another run, and where a time is given, as if they were said then."""
    made = [replace(one, run_id=run_id, created_at=created_at or one.created_at) for one in moved]
    tx.run(
        _MOVE,
        [
            {"message_id": one.id, "new_run_id": run_id, "new_created_at": one.created_at}
            for one in made
        ],
    )
    return made


def searchable_text(message: Message) -> str:
    """Return what search finds the message by: words that were said or read; no prompts, heartbeats or results of searches."""
    if message.role in ("system", "summary") or message.is_event:
        return ""
    words = [said] if (said := message.spoken) else []
    words += [result.content for result in message.tool_returns if result.name not in _UNSEARCHED]
    return "\n".join(words)


_UNSEARCHED = {"send_message", "conversation_search", "archival_memory_search"}


def _normal(message: Message) -> Message:
    """The message with its text in normal form; what a provider signed stays to the byte."""
    parts: list[Part] = []
    for part in message.parts:
        if isinstance(part, TextPart) and part.signature is None:
            part = replace(part, text=normal_text(part.text))  # noqa: PLW2901
        parts.append(part)
    return message if tuple(parts) == message.parts else replace(message, parts=tuple(parts))


def _values(message: Message) -> dict[str, Any]:
    # Search and the list of tools' names are texts of the database, which keep no NUL; `parts` keeps it as JSON.
    names = [
        *(call.name for call in message.tool_calls),
        *(result.name for result in message.tool_returns),
    ]
    return {
        **_ROWS.values(message),
        "text": searchable_text(message).replace("\0", " "),
        "tool_name": " ".join(names).replace("\0", " ") or None,
    }
