"""Messages: inserted once, read by id, run or page."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, String, bindparam, cast, insert, or_, select

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
    .limit(bindparam("limit"))
)
_EVENT_PARTS = ('"kind":"event"', '"kind": "event"')
# Texts of users and agents, without events, calls and prompts.
IS_SPOKEN = messages.c.role.in_(("user", "assistant")) & (messages.c.text != "")
# Messages that a user wrote with a text. Events, which the server wrote, have no searchable text.
IS_WRITTEN_BY_USER = (messages.c.role == "user") & (messages.c.text != "")
# Messages that a user wrote, also pictures alone: the condition of `Message.is_said`. A database
# may put a space after the colon.
IS_SAID = (messages.c.role == "user") & ~or_(
    *(cast(messages.c.parts, String).contains(part) for part in _EVENT_PARTS)
)
_SPOKEN_AFTER = (
    _ROWS.select.where(equal(messages, "conversation_id", "user_id"), IS_SPOKEN)
    .where(messages.c.seq > bindparam("after"))
    .order_by(messages.c.seq)
    .limit(bindparam("limit"))
)
_BY_OTIDS = _ROWS.select.where(equal(messages, "conversation_id"), one_of(messages.c.otid, "otids"))
_INSERT = insert(messages)
_LOCK = select(messages.c.id).where(equal(messages, "id")).with_for_update()
_REWRITE = setter(
    messages, "parts", "text", "created_at", where=messages.c.id == bindparam("message_id")
)
_MOVE = setter(messages, "run_id", "created_at", where=messages.c.id == bindparam("message_id"))
get = _ROWS.get
by_ids = _ROWS.by_ids
by_numbers = _ROWS.by_numbers
page = _ROWS.page
page_of_numbers = _ROWS.page_of_numbers


def insert_all(tx: Transaction, new: Sequence[Message]) -> list[dict[str, Any]]:
    """Store new messages, and return their rows as they are stored.

    The search index is not changed here.

    Args:
        tx: The transaction.
        new: The messages in order. Texts get their normal form, except those that a provider
            signed.

    Returns:
        A row for each message, with the columns `text` and `tool_name` too, and without `seq`.
    """
    rows = [_row_of(message) for message in new]
    tx.run(_INSERT, rows)
    return rows


def of_run(tx: Transaction, run_id: str, *, after: int = 0) -> list[Message]:
    """Return the messages of a run, in order.

    Args:
        tx: The transaction.
        run_id: The run; the caller's access to it is checked before.
        after: Only messages with a greater seq than this; 0: all.
    """
    return _ROWS.all(tx, _OF_RUN, {"run_id": run_id, "after": after})


def of_runs(tx: Transaction, run_ids: Sequence[str]) -> list[Message]:
    """Return the messages of several runs, in order.

    They are in the order of storage, so runs at the same time may be mixed.

    Args:
        tx: The transaction.
        run_ids: The runs; the caller's access to them is checked before.
    """
    if len(run_ids) == 1:
        return of_run(tx, run_ids[0])
    return _ROWS.all(tx, _OF_RUNS, {"run_ids": list(run_ids)})


def page_of_run(tx: Transaction, scope: Scope, page_requested: Page, run: Run) -> list[Message]:
    """Return one page of a run's messages.

    For a talk among agents these are its input and the agents' answers in its turns.

    Args:
        tx: The transaction.
        scope: The caller.
        page_requested: The part of the list.
        run: The run. If it is a talk, its `turn_ids` name the runs of the agents' turns.
    """
    if not run.turn_ids:
        return page(tx, scope, page_requested, run_id=run.id)
    is_answer = messages.c.run_id.in_(run.turn_ids) & messages.c.step_id.is_not(None)
    return page(tx, scope, page_requested, (messages.c.run_id == run.id) | is_answer)


def between(
    tx: Transaction, conversation_id: str, after: int, to: int, limit: int
) -> list[Message]:
    """Return the oldest of the conversation's messages between two seqs.

    Messages that a fork shares are not among them.

    Args:
        tx: The transaction.
        conversation_id: The conversation.
        after: The messages have a greater seq than this.
        to: The greatest seq of a message.
        limit: The most messages.
    """
    parameters = {
        "conversation_id": conversation_id,
        "after": after,
        "to": to,
        "limit": limit,
    }
    return _ROWS.all(tx, _BETWEEN, parameters)


def is_until(time: int) -> ColumnElement[bool]:
    """Return the condition that a message was created at this time or before.

    Args:
        time: The time in microseconds UTC.
    """
    return messages.c.created_at <= time


def labelled(tx: Transaction, agent_id: str, user_id: str | None, most: int) -> list[Message]:
    """Return the messages with an egress label among the agent's newest ones with a user.

    Args:
        tx: The transaction.
        agent_id: The agent.
        user_id: The user that the messages are about; None: messages about no user.
        most: The number of newest messages that are searched.
    """
    recent = (
        select(messages.c.id)
        .where(messages.c.agent_id == agent_id, messages.c.user_id.is_not_distinct_from(user_id))
        .order_by(messages.c.created_at.desc(), messages.c.seq.desc())
        .limit(most)
        .subquery()
    )
    is_labelled = messages.c.egress.is_not(None) & messages.c.id.in_(select(recent.c.id))
    return _ROWS.all(tx, _ROWS.select.where(is_labelled).order_by(messages.c.seq), {})


def by_otids(tx: Transaction, conversation_id: str, otids: Sequence[str]) -> list[Message]:
    """Return the conversation's messages that clients sent with these otids, in no fixed order.

    Args:
        tx: The transaction.
        conversation_id: The conversation.
        otids: Ids that clients gave to their messages.
    """
    return _ROWS.all(tx, _BY_OTIDS, {"conversation_id": conversation_id, "otids": list(otids)})


def spoken_after(
    tx: Transaction, conversation_id: str, user_id: str, *, after: int, limit: int
) -> list[Message]:
    """Return the next texts of this user and the agent, in order.

    Args:
        tx: The transaction.
        conversation_id: The conversation.
        user_id: The user that the messages are about.
        after: The messages have a greater seq than this.
        limit: The most messages.
    """
    parameters = {
        "conversation_id": conversation_id,
        "user_id": user_id,
        "after": after,
        "limit": limit,
    }
    return list(_ROWS.all(tx, _SPOKEN_AFTER, parameters))


def page_of_kept(
    read_messages: Callable[[Page], list[Message]], page: Page, keeps: Callable[[Message], bool]
) -> list[Message]:
    """Return one page of the messages that `keeps` accepts.

    The page is full if there are enough messages. A bounded page may have fewer. It is empty only
    if no message is left.

    Args:
        read_messages: Returns a page of all messages. It is called again, with another cursor,
            until enough messages are accepted.
        page: The part of the list of accepted messages.
        keeps: Returns whether the page has this message.
    """
    is_backwards = page.is_backwards
    page_messages: list[Message] = []
    reading = page
    while True:
        messages_read = read_messages(reading)
        fitting = [message for message in messages_read if keeps(message)]
        if is_backwards:
            page_messages = [*fitting, *page_messages]
        else:
            page_messages = [*page_messages, *fitting]
        is_short = len(messages_read) < reading.limit
        if (
            len(page_messages) >= page.limit
            or not messages_read
            or (is_short and (page_messages or not page.is_bounded))
        ):
            if is_backwards:
                return page_messages[-page.limit :]
            return page_messages[: page.limit]
        if not is_backwards:
            reading = replace(reading, after=messages_read[-1].id)
            continue
        reading = replace(reading, before=messages_read[0].id)


def lock(tx: Transaction, message_id: str) -> Message | None:
    """Lock a message until the transaction ends, and return it; None if it is deleted.

    Args:
        tx: The transaction.
        message_id: The message's id.
    """
    if tx.first(_LOCK, {"id": message_id}) is None:
        return None
    return by_ids(tx, [message_id])[0]


def rewrite(tx: Transaction, message: Message) -> None:
    """Store other parts and another time of a message, and empty its text for search.

    Args:
        tx: The transaction.
        message: The stored message with its new parts and its new `created_at`.
    """
    columns = {
        "message_id": message.id,
        "new_parts": parts_to_json(message.parts),
        "new_text": "",
        "new_created_at": message.created_at,
    }
    tx.run(_REWRITE, columns)


def rewrite_searchable(
    tx: Transaction, message: Message, searched_parts: Sequence[Part] | None = None
) -> str:
    """Store another text of a message that search still finds; return the text for search.

    Args:
        tx: The transaction.
        message: The stored message with its new parts and its `created_at`. The index is not
            changed here.
        searched_parts: The parts by which search finds the message; None: all.
    """
    if searched_parts is None:
        searched_parts = message.parts
    text = indexed_text(replace(message, parts=tuple(searched_parts)))
    columns = {
        "parts": parts_to_json(message.parts),
        "text": text,
        "created_at": message.created_at,
    }
    tx.run(_REWRITE, new_values(columns) | {"message_id": message.id})
    return text


def move(
    tx: Transaction, moved: Sequence[Message], run_id: str, created_at: int | None = None
) -> list[Message]:
    """Move these messages to another run, and return them changed.

    Args:
        tx: The transaction.
        moved: The messages.
        run_id: The run that gets them.
        created_at: Their new time in microseconds UTC; None: each keeps its time.
    """
    changed = [
        replace(message, run_id=run_id, created_at=created_at or message.created_at)
        for message in moved
    ]
    rows = [
        {"message_id": message.id, "new_run_id": run_id, "new_created_at": message.created_at}
        for message in changed
    ]
    tx.run(_MOVE, rows)
    return changed


def searchable_text(message: Message) -> str:
    """Return the text by which search finds the message.

    It consists of spoken text and results of tools. Prompts, summaries, events, and results of
    searches and of `send_message` are left out. Texts of pictures come last, each with a mark.

    Args:
        message: The message.
    """
    if message.role in ("system", "summary") or message.is_event:
        return ""
    spoken = message.spoken
    texts = [spoken] if spoken else []
    texts += [part.content for part in message.tool_returns if part.name not in _UNSEARCHED]
    if message.pictures:
        texts += filter(None, [message.picture_text])
    return "\n".join(texts)


def indexed_text(message: Message) -> str:
    """Return the searchable text as the database keeps it, without NUL.

    Args:
        message: The message.
    """
    return searchable_text(message).replace("\0", " ")


_UNSEARCHED = {"send_message", "conversation_search", "archival_memory_search"}


def _row_of(message: Message) -> dict[str, Any]:
    """Return the row of a new message, with its text in normal form.

    Text that a provider signed stays as it is.
    """
    parts: list[Part] = []
    for part in message.parts:
        if isinstance(part, TextPart) and part.signature is None:
            part = replace(part, text=normal_text(part.text))  # noqa: PLW2901
        parts.append(part)
    if tuple(parts) != message.parts:
        message = replace(message, parts=tuple(parts))
    # `text` and `tool_name` are database texts, which hold no NUL; `parts` keeps it in JSON.
    names = [
        *(call.name for call in message.tool_calls),
        *(part.name for part in message.tool_returns),
    ]
    return {
        **_ROWS.values(message),
        "text": indexed_text(message),
        "tool_name": " ".join(names).replace("\0", " ") or None,
    }
