"""Queries of group talks: their conversations, and their messages without copies."""

from sqlalchemy import select

from ricordo.domain.message import Message
from ricordo.domain.scope import Scope
from ricordo.features.groups.queries import talks
from ricordo.storage import conversations, message_lookup, messages
from ricordo.storage.engine.repository import Missing, Page
from ricordo.storage.engine.store import Transaction

_ADD = Missing(talks)
# Stop reasons of a talk that waits for an approval or was interrupted.
_OPEN_ENDS = ("requires_approval", "error")
_OF_ANY_GROUP = select(talks.c.conversation_id)


def add_talks(tx: Transaction, group_id: str, conversation_id: str) -> None:
    """Record that the group's talks are in this conversation.

    Args:
        tx: The transaction.
        group_id: The group.
        conversation_id: A conversation of the group's leader. It may be recorded already.
    """
    tx.run(_ADD, {"group_id": group_id, "conversation_id": conversation_id})


def unfinished(tx: Transaction, since: int) -> list[tuple[str, str]]:
    """Return organization and id of conversations whose last talk is unfinished.

    Args:
        tx: The transaction.
        since: The talk's last run ended after this time, in microseconds.
    """
    return conversations.ended_with(tx, _OPEN_ENDS, since, among=_OF_ANY_GROUP)


def page_of_group_messages(
    tx: Transaction, scope: Scope, page: Page, group_id: str
) -> list[Message]:
    """Return one page of a group's messages, without the members' copies.

    Copies have no step and are in no conversation of talks.

    Args:
        tx: The transaction.
        scope: The caller; only messages that the caller sees are returned.
        page: The part of the list.
        group_id: The group.
    """
    of_talks = select(talks.c.conversation_id).where(talks.c.group_id == group_id)
    is_original = message_lookup.IS_OF_STEP | message_lookup.is_in_conversations(of_talks)
    return messages.page(tx, scope, page, is_original, group_id=group_id)
