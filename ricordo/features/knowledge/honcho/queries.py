"""The table of sessions at Honcho.

A row has the last message of a conversation that arrived, and the last message of an attempt.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import UniqueConstraint, bindparam, insert, select

from ricordo.domain.agent import Conversation
from ricordo.domain.ids import new_id
from ricordo.domain.message import Message
from ricordo.storage import messages, unread_conversations
from ricordo.storage.engine.repository import Repository, equal, setter
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.columns import numbers, reference, root, strings, table

honcho_sessions = table(
    "honcho_sessions",
    *root(),
    *strings("user_id", null=False),
    reference("conversation_id", "conversations"),
    *strings("name", null=False),
    *numbers("sent", "tried"),
    UniqueConstraint("conversation_id"),
    erasure="delete",
)
AT_ONCE = 50  # messages of one request


@dataclass(frozen=True, slots=True)
class HonchoSession:
    """A conversation's session at Honcho.

    `name` is its id at Honcho. `sent` is the seq of the last message that Honcho has. `tried` is
    the seq of the last message that the server tried to send; this may have failed.
    """

    id: str
    organization_id: str
    user_id: str
    conversation_id: str
    name: str
    sent: int = 0
    tried: int = 0

    @property
    def chat_id(self) -> str:
        """The id of the session's chat.

        A session's name may end with a generation, as in `chat_1__2`.
        """
        return re.sub(r"__\d{1,6}$", "", self.name.removeprefix("chat_"))


_SESSIONS = Repository(HonchoSession, honcho_sessions)
_session_columns = honcho_sessions.c
_OF_CONVERSATION = _SESSIONS.select.where(equal(honcho_sessions, "conversation_id"))
_OF_USER = _SESSIONS.select.where(equal(honcho_sessions, "user_id"))
_OF_OTHERS = (
    select(_session_columns.id)
    .where(equal(honcho_sessions, "name"), _session_columns.user_id != bindparam("user_id"))
    .limit(1)
)
_INSERT = insert(honcho_sessions)
_PROGRESS = setter(
    honcho_sessions, "sent", "tried", where=_session_columns.id == bindparam("this_id")
)
_RESTART = setter(
    honcho_sessions, "name", "sent", "tried", where=_session_columns.id == bindparam("this_id")
)
_BEHIND_AT_ONCE = 500
_BEHIND = unread_conversations.conversations_behind(honcho_sessions, _session_columns.sent)


def session_of(tx: Transaction, conversation: Conversation) -> HonchoSession:
    """Return the session of the conversation; a missing one is created.

    No two users share a session, even if they send the same chat ids.

    Args:
        tx: The transaction.
        conversation: The conversation. Clients' chats have the summary "chat_<id>", which becomes
            the session's name.
    """
    stored = _SESSIONS.first(tx, _OF_CONVERSATION, {"conversation_id": conversation.id})
    if stored:
        return stored
    summary = conversation.summary or ""
    user_id = conversation.user_id or ""
    if summary.startswith("chat_"):
        name = summary
    else:
        name = f"chat_{conversation.id}"
    name = re.sub(r"[^A-Za-z0-9_-]", "-", name)[:200]
    if tx.first(_OF_OTHERS, {"name": name, "user_id": user_id}):
        name = f"{name}_{user_id}"
    session = HonchoSession(
        new_id("honcho"), conversation.organization_id, user_id, conversation.id, name
    )
    tx.run(_INSERT, _SESSIONS.values(session))
    return session


def of_user(tx: Transaction, user_id: str) -> Sequence[HonchoSession]:
    """Return the sessions of the user's conversations.

    Args:
        tx: The transaction.
        user_id: The user.
    """
    return _SESSIONS.all(tx, _OF_USER, {"user_id": user_id})


def next_messages(tx: Transaction, session: HonchoSession) -> Sequence[Message]:
    """Return the next messages to send, in order.

    They are texts of the user and the agent, without events, calls and prompts.

    Args:
        tx: The transaction.
        session: The session, whose `sent` is the last message that Honcho has.

    Returns:
        At most 50 messages.
    """
    return messages.spoken_after(
        tx, session.conversation_id, session.user_id, after=session.sent, limit=AT_ONCE
    )


def save_progress(tx: Transaction, session: HonchoSession) -> None:
    """Store the last messages that were sent and tried.

    Args:
        tx: The transaction.
        session: The session with its new `sent` and `tried`.
    """
    tx.run(_PROGRESS, {"new_sent": session.sent, "new_tried": session.tried, "this_id": session.id})


def restart(tx: Transaction, session: HonchoSession) -> None:
    """Store another name, and record that nothing was sent under it.

    Args:
        tx: The transaction.
        session: The session with its new name.
    """
    parameters = {"new_name": session.name, "new_sent": 0, "new_tried": 0, "this_id": session.id}
    tx.run(_RESTART, parameters)


def behind(tx: Transaction, since: int) -> Sequence[tuple[str, str, str]]:
    """Return the users' conversations with recent messages that were not sent.

    Args:
        tx: The transaction.
        since: Only messages after this time (microseconds UTC) count.

    Returns:
        Tuples of conversation, organization and user ids. Conversations of background tasks are
        left out.
    """
    # Read all of them in portions. Some may not be sent for days, and must not hide the others.
    unsent: list[tuple[str, str, str]] = []
    parameters = {"since": since, "after": 0, "limit": _BEHIND_AT_ONCE}
    while rows := tx.all(_BEHIND, parameters):
        unsent += [(row.id, row.organization_id, row.user_id) for row in rows]
        parameters["after"] = rows[-1].seq
    return unsent
