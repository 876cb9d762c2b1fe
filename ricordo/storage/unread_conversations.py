"""Conversations with messages that a feature has not handled yet.

A feature keeps a mark for each conversation: the seq of the last message that it handled. The
selects here join its table of marks with conversations and messages.
"""

from typing import Any

from sqlalchemy import ColumnElement, Select, Table, and_, bindparam, case, func, select

from ricordo.storage.conversations import IS_OF_BACKGROUND_TASK
from ricordo.storage.engine.repository import equal
from ricordo.storage.messages import IS_SPOKEN, IS_WRITTEN_BY_USER
from ricordo.storage.schema.core_tables import agents, conversations, messages

_CONVERSATION = (conversations.c.id, conversations.c.organization_id, conversations.c.user_id)
_IS_OF_USER = and_(
    messages.c.conversation_id == conversations.c.id,
    messages.c.user_id == conversations.c.user_id,
)
_IS_SAID_BY_USER = and_(
    _IS_OF_USER,
    IS_WRITTEN_BY_USER,
    messages.c.is_untrusted.is_(False),
)


def idle_conversations(marks: Table, mark: ColumnElement[int]) -> Select[Any]:
    """Select idle conversations in which their user wrote messages after the mark.

    The parameters are `since`, `idle_since`, `after` and `limit`. Only messages after the time
    `since` count. A conversation is idle if its user's last message is not after `idle_since`. Only
    conversations in which this message has a seq above `after` are selected, in the order of this
    seq.

    Args:
        marks: A table with one row for each conversation and user.
        mark: Its column with the seq of the last handled message.
    """
    newest = func.max(messages.c.seq)
    handled = func.coalesce(func.max(mark), 0)
    is_unread = messages.c.seq > func.coalesce(mark, 0)
    is_mark = (marks.c.conversation_id == conversations.c.id) & (
        marks.c.user_id == conversations.c.user_id
    )
    grouped = (
        conversations.c.organization_id,
        conversations.c.id,
        conversations.c.agent_id,
        conversations.c.user_id,
        agents.c.model,
    )
    return (
        select(
            *grouped,
            newest.label("newest"),
            handled.label("read_to"),
            func.sum(case((is_unread, 1), else_=0)).label("turns"),
        )
        .join(messages, _IS_SAID_BY_USER)
        .join(agents, agents.c.id == conversations.c.agent_id)
        .outerjoin(marks, is_mark)
        .where(
            messages.c.created_at > bindparam("since"),
            conversations.c.deleted_at.is_(None),
            agents.c.hidden.is_(False),
        )
        .group_by(*grouped)
        .having(
            func.max(messages.c.created_at) <= bindparam("idle_since"),
            newest > handled,
            newest > bindparam("after"),
        )
        .order_by(newest)
        .limit(bindparam("limit"))
    )


def is_of_user_and_agent() -> ColumnElement[bool]:
    """Return the condition that a conversation is between a user and an agent.

    Its parameters are `user_id` and `agent_id`.
    """
    return equal(conversations, "user_id", "agent_id")


def conversations_behind(marks: Table, mark: ColumnElement[int]) -> Select[Any]:
    """Select users' conversations with spoken messages after the mark, in the order of their seq.

    Its parameters are `since`, `after` and `limit`. Only messages after the time `since` count, and
    only conversations with a seq above `after`. Conversations of background tasks and deleted ones
    are left out.

    Args:
        marks: A table with one row for each conversation.
        mark: Its column with the seq of the last handled message.
    """
    return (
        select(*_CONVERSATION, conversations.c.seq)
        .join(messages, _IS_OF_USER & IS_SPOKEN)
        .outerjoin(marks, marks.c.conversation_id == conversations.c.id)
        .where(
            messages.c.created_at > bindparam("since"),
            conversations.c.seq > bindparam("after"),
            conversations.c.deleted_at.is_(None),
            ~IS_OF_BACKGROUND_TASK,
        )
        .group_by(*_CONVERSATION, conversations.c.seq)
        .having(func.max(messages.c.seq) > func.coalesce(func.max(mark), 0))
        .order_by(conversations.c.seq)
        .limit(bindparam("limit"))
    )
