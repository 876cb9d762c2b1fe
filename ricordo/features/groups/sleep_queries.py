"""Queries of sleeptime agents: turn counters, marks and transcripts, each for one user.

A mark belongs to one sleeptime agent and one conversation of its manager. It contains the message
(`seq`) up to which transcripts were made, and the last message to read. The transaction that stores
a transcript moves the mark, so each message that is read is in exactly one transcript.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import bindparam, case, func, select, update

from ricordo.domain.scope import Scope
from ricordo.features.groups.queries import NO_USER, sleep_counters, sleep_marks, transcripts
from ricordo.storage import message_lookup
from ricordo.storage.engine.repository import (
    Missing,
    Page,
    Replacing,
    Repository,
    equal,
    one_of,
    setter,
)
from ricordo.storage.engine.store import Transaction

TranscriptStatus = Literal["begun", "done", "failed"]


@dataclass(frozen=True, slots=True)
class Mark:
    """A sleeptime agent's progress in a conversation.

    `read_to` is the seq of the last message that the agent has read or skipped. `said_to` is the
    seq of the last message that it must read.
    """

    group_id: str
    agent_id: str
    conversation_id: str
    user_id: str
    read_to: int
    said_to: int


@dataclass(frozen=True, slots=True)
class Transcript:
    """Messages for a sleeptime agent to read.

    They are the messages from `first_seq` to `last_seq` in these conversations. `run_id` is the
    last run that worked on the transcript; `attempts` counts the failures.
    """

    id: str
    organization_id: str
    group_id: str
    agent_id: str
    user_id: str | None
    conversation_ids: str
    first_seq: int
    last_seq: int
    message_count: int
    run_id: str | None = None
    status: TranscriptStatus = "begun"
    attempts: int = 0
    created_at: int = 0
    ended_at: int | None = None


_MARKS = Repository(Mark, sleep_marks)
_TRANSCRIPTS = Repository(Transcript, transcripts)
_NEW_COUNTER = Missing(sleep_counters)
_SAY = Replacing(sleep_marks, "said_to")
_BEGIN = Missing(sleep_marks)
_THIS_COUNTER = equal(sleep_counters, "group_id", "user_id")
_COUNTER = select(sleep_counters.c.turns, sleep_counters.c.is_paused).where(_THIS_COUNTER)
_COUNT = setter(
    sleep_counters,
    "turns",
    where=(sleep_counters.c.group_id == bindparam("of_group"))
    & (sleep_counters.c.user_id == bindparam("of_user"))
    & (sleep_counters.c.turns == bindparam("counted")),
)
_PAUSE = setter(
    sleep_counters,
    "is_paused",
    where=(sleep_counters.c.group_id == bindparam("of_group"))
    & (sleep_counters.c.user_id == bindparam("of_user")),
)
_THIS_MARK = (
    (sleep_marks.c.group_id == bindparam("of_group"))
    & (sleep_marks.c.agent_id == bindparam("of_agent"))
    & (sleep_marks.c.conversation_id == bindparam("of_conversation"))
)
_READ = setter(sleep_marks, "read_to", where=_THIS_MARK)
_UNREAD = (
    _MARKS.select.where(equal(sleep_marks, "group_id", "agent_id", "user_id"))
    .where(sleep_marks.c.read_to < sleep_marks.c.said_to)
    .order_by(sleep_marks.c.read_to, sleep_marks.c.seq)
    .with_for_update()
)
_SKIP = (
    update(sleep_marks)
    .where(
        sleep_marks.c.group_id == bindparam("of_group"),
        sleep_marks.c.user_id == bindparam("of_user"),
    )
    # If messages were skipped before, `read_to` of a voice agent may already exceed `said_to`.
    .values(
        read_to=case(
            (sleep_marks.c.read_to > sleep_marks.c.said_to, sleep_marks.c.read_to),
            else_=sleep_marks.c.said_to,
        )
    )
)
_TURNS = select(sleep_counters.c.group_id, sleep_counters.c.turns).where(
    one_of(sleep_counters.c.group_id, "group_ids"), equal(sleep_counters, "user_id")
)
_LAST_READ = (
    select(sleep_marks.c.group_id, func.max(sleep_marks.c.read_to).label("read_to"))
    .where(one_of(sleep_marks.c.group_id, "group_ids"), equal(sleep_marks, "user_id"))
    .group_by(sleep_marks.c.group_id)
)
_BEGUN = _TRANSCRIPTS.select.where(
    equal(transcripts, "agent_id"), transcripts.c.status == "begun"
).order_by(transcripts.c.seq)
insert_transcript = _TRANSCRIPTS.insert
# Only the job of the transcript writes these columns.
save_transcript = _TRANSCRIPTS.updates("run_id", "status", "attempts", "ended_at", locked=None)


def count_turn(
    tx: Transaction, group_id: str, user_id: str | None, frequency: int, counted: int | None
) -> int:
    """Count a turn of this user, and return the count.

    The first turn has the count 0. The count stays below `frequency`, then starts again at 0.

    Args:
        tx: The transaction.
        group_id: The group of the sleeptime agents.
        user_id: The user of the turn, or None.
        frequency: The number of turns from one run to the next, at least 1.
        counted: The count that the caller read; None if no turn was counted yet. If another turn
            was counted since, the count is read again.
    """
    counter_key = {"of_group": group_id, "of_user": user_id or NO_USER}
    if counted is None:
        _begin_counter(tx, group_id, user_id)
        counted = -1
    while True:
        new = (counted + 1) % frequency
        if tx.run(_COUNT, counter_key | {"counted": counted, "new_turns": new}):
            return new
        row = tx.first(_COUNTER, {"group_id": group_id, "user_id": user_id or NO_USER})
        if row is None:  # the user was erased meanwhile
            return new
        counted = row.turns


def keep_due(tx: Transaction, group_id: str, user_id: str | None, frequency: int) -> None:
    """Let the next turn be due again, because this one planned no run.

    Args:
        tx: The transaction, in which `count_turn` returned 0.
        group_id: The group of the sleeptime agents.
        user_id: The user of the turn, or None.
        frequency: The number of turns from one run to the next, at least 1.
    """
    key = {"of_group": group_id, "of_user": user_id or NO_USER}
    tx.run(_COUNT, key | {"counted": 0, "new_turns": frequency - 1})


def is_paused(tx: Transaction, group_id: str, user_id: str | None) -> bool:
    """Return True if the user said "not now".

    Args:
        tx: The transaction.
        group_id: The group of the sleeptime agents.
        user_id: The user; None for conversations without a user.
    """
    row = tx.first(_COUNTER, {"group_id": group_id, "user_id": user_id or NO_USER})
    return bool(row and row.is_paused)


def _begin_counter(tx: Transaction, group_id: str, user_id: str | None) -> None:
    tx.run(
        _NEW_COUNTER,
        {"group_id": group_id, "user_id": user_id or NO_USER, "turns": -1, "is_paused": False},
    )


def set_paused(tx: Transaction, group_id: str, user_id: str | None, *, is_paused: bool) -> None:
    """Stop or resume reading the user's messages from now on.

    Messages that waited to be read at the time of the call are never read.

    Args:
        tx: The transaction.
        group_id: The group of the sleeptime agents.
        user_id: The user; None for conversations without a user.
        is_paused: True stops, False resumes.
    """
    _begin_counter(tx, group_id, user_id)
    tx.run(
        _PAUSE, {"of_group": group_id, "of_user": user_id or NO_USER, "new_is_paused": is_paused}
    )
    skip(tx, group_id, user_id)


def skip(tx: Transaction, group_id: str, user_id: str | None) -> None:
    """Skip all messages that were not read yet.

    Args:
        tx: The transaction.
        group_id: The group of the sleeptime agents.
        user_id: The user of the messages; None for conversations without a user.
    """
    tx.run(_SKIP, {"of_group": group_id, "of_user": user_id or NO_USER})


def begin(tx: Transaction, mark: Mark) -> None:
    """Store the message at which the reading of a conversation begins, if it has no mark.

    Args:
        tx: The transaction.
        mark: The new mark; an existing one is not changed.
    """
    tx.run(_BEGIN, _MARKS.values(mark))


def say(tx: Transaction, mark: Mark) -> None:
    """Store the last message of a conversation that has to be read.

    An existing mark keeps its progress.

    Args:
        tx: The transaction.
        mark: The mark. `said_to` is stored; `read_to` only if the conversation has no mark yet.
    """
    tx.run(_SAY, _MARKS.values(mark))


def read(tx: Transaction, mark: Mark, read_to: int) -> None:
    """Store the progress of a sleeptime agent in a conversation.

    Args:
        tx: The transaction.
        mark: The mark, whose group, agent and conversation count.
        read_to: The seq of the last message that was read.
    """
    tx.run(_READ, _of_mark(mark) | {"new_read_to": read_to})


def unread(tx: Transaction, group_id: str, agent_id: str, user_id: str | None) -> list[Mark]:
    """Return and lock the marks of conversations with unread messages, longest waiting first.

    Args:
        tx: The transaction.
        group_id: The group of the sleeptime agents.
        agent_id: The sleeptime agent.
        user_id: The user of the conversations; None for conversations without a user.
    """
    parameters = {"group_id": group_id, "agent_id": agent_id, "user_id": user_id or NO_USER}
    return _MARKS.all(tx, _UNREAD, parameters)


def turns(tx: Transaction, group_ids: Sequence[str], user_id: str | None) -> Mapping[str, int]:
    """Return the counted turns of this user by group; groups without a count are left out.

    Args:
        tx: The transaction.
        group_ids: The groups.
        user_id: The user; None for turns without a user.
    """
    rows = tx.all(_TURNS, {"group_ids": list(group_ids), "user_id": user_id or NO_USER})
    return {row.group_id: row.turns for row in rows}


def last_read(tx: Transaction, group_ids: Sequence[str], user_id: str | None) -> Mapping[str, str]:
    """Return by group the id of this user's newest message that was read or skipped.

    Args:
        tx: The transaction.
        group_ids: The groups; those of which no message was read are left out.
        user_id: The user; None for conversations without a user.
    """
    rows = tx.all(_LAST_READ, {"group_ids": list(group_ids), "user_id": user_id or NO_USER})
    if not rows:
        return {}
    ids = message_lookup.ids_by_seq(tx, [row.read_to for row in rows])
    return {row.group_id: ids[row.read_to] for row in rows if row.read_to in ids}


def begun(tx: Transaction, agent_id: str) -> list[Transcript]:
    """Return the agent's transcripts whose work has not ended, oldest first.

    Args:
        tx: The transaction, or a read.
        agent_id: The sleeptime agent; transcripts of all users are returned.
    """
    return _TRANSCRIPTS.all(tx, _BEGUN, {"agent_id": agent_id})


def page_of_transcripts(
    tx: Transaction, scope: Scope, page: Page, **equal: Any
) -> list[Transcript]:
    """Return one page of transcripts that the caller sees.

    Args:
        tx: The transaction, or a read.
        scope: The caller.
        page: The part of the list, by creation.
        **equal: Values that columns must have, such as `group_id`; None for any.
    """
    return _TRANSCRIPTS.page(tx, scope, page, **equal)


def _of_mark(mark: Mark) -> dict[str, str]:
    return {
        "of_group": mark.group_id,
        "of_agent": mark.agent_id,
        "of_conversation": mark.conversation_id,
    }
