"""The table of sessions at Honcho: for each conversation how far it was sent, and how far it was tried to be."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import UniqueConstraint, bindparam, func, insert, select

from ricordo.domain.agent import Conversation
from ricordo.domain.ids import new_id
from ricordo.domain.message import Message, parts_from_json, parts_to_json
from ricordo.storage.engine.repository import Repository, equal, setter
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.columns import numbers, reference, root, strings, table
from ricordo.storage.schema.core_tables import conversations, messages

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
    """`name` is its id at Honcho. `sent` is the seq of the last message that arrived, `tried` of the last that was sent."""

    id: str
    organization_id: str
    user_id: str
    conversation_id: str
    name: str
    sent: int = 0
    tried: int = 0


_SESSIONS = Repository(HonchoSession, honcho_sessions)
_MESSAGES = Repository(Message, messages, forms={"parts": (parts_to_json, parts_from_json)})
_sessions, _said = honcho_sessions.c, messages.c
_OF_CONVERSATION = _SESSIONS.select.where(equal(honcho_sessions, "conversation_id"))
_OF_USER = _SESSIONS.select.where(equal(honcho_sessions, "user_id"))
_OF_OTHERS = (
    select(_sessions.id)
    .where(equal(honcho_sessions, "name"), _sessions.user_id != bindparam("user_id"))
    .limit(1)
)
_INSERT = insert(honcho_sessions)
_PROGRESS = setter(honcho_sessions, "sent", "tried", where=_sessions.id == bindparam("this_id"))
_SPOKEN = _said.role.in_(("user", "assistant")) & (_said.text != "")
_NEXT = (
    _MESSAGES.select.where(
        equal(messages, "conversation_id", "user_id"), _SPOKEN, _said.seq > bindparam("after")
    )
    .order_by(_said.seq)
    .limit(AT_ONCE)
)
_BEHIND = (
    select(conversations.c.id, conversations.c.organization_id, conversations.c.user_id)
    .join(
        messages,
        (_said.conversation_id == conversations.c.id)
        & (_said.user_id == conversations.c.user_id)
        & _SPOKEN,
    )
    .outerjoin(honcho_sessions, _sessions.conversation_id == conversations.c.id)
    .where(_said.created_at > bindparam("since"), ~conversations.c.hidden)
    .group_by(conversations.c.id, conversations.c.organization_id, conversations.c.user_id)
    .having(func.max(_said.seq) > func.coalesce(func.max(_sessions.sent), 0))
    .limit(500)
)


def session_of(tx: Transaction, conversation: Conversation) -> HonchoSession:
    """Return the session of the conversation, made where it is new. No two users share one, whatever chat ids they send."""
    found = _SESSIONS.first(tx, _OF_CONVERSATION, {"conversation_id": conversation.id})
    if found:
        return found
    summary, user_id = conversation.summary or "", conversation.user_id or ""
    name = summary if summary.startswith("chat_") else f"chat_{conversation.id}"
    name = re.sub(r"[^A-Za-z0-9_-]", "-", name)[:200]
    if tx.first(_OF_OTHERS, {"name": name, "user_id": user_id}):
        name = f"{name}_{user_id}"
    made = HonchoSession(
        new_id("honcho"), conversation.organization_id, user_id, conversation.id, name
    )
    tx.run(_INSERT, _SESSIONS.values(made))
    return made


def of_user(tx: Transaction, user_id: str) -> Sequence[HonchoSession]:
    return _SESSIONS.all(tx, _OF_USER, {"user_id": user_id})


def next_messages(tx: Transaction, session: HonchoSession) -> Sequence[Message]:
    """Return what is to be sent next, in its order: what the user and the agent said, no events, calls or prompts."""
    values = {
        "conversation_id": session.conversation_id,
        "user_id": session.user_id,
        "after": session.sent,
    }
    return _MESSAGES.all(tx, _NEXT, values)


def note(tx: Transaction, session: HonchoSession) -> None:
    tx.run(_PROGRESS, {"new_sent": session.sent, "new_tried": session.tried, "this_id": session.id})


def behind(tx: Transaction, since: int) -> Sequence[tuple[str, str, str]]:
    """Return the conversations of users with messages since this time that were not sent: id, organization, user."""
    return [(row.id, row.organization_id, row.user_id) for row in tx.all(_BEHIND, {"since": since})]
