"""Reset of a group: delete its messages and all copies.

The copies are also removed from the windows.
"""

from ricordo.agents.deletion import remove_messages
from ricordo.domain.scope import Scope
from ricordo.features.groups import queries
from ricordo.runtime import Runtime
from ricordo.storage import conversations, message_lookup, runs
from ricordo.storage.engine.store import Transaction


async def reset_talks(runtime: Runtime, scope: Scope, group_id: str) -> None:
    """Delete the messages of the group that the caller may delete.

    The conversations are reset one after the other, each in one transaction.

    Args:
        runtime: The running server.
        scope: The caller.
        group_id: The group.

    Raises:
        NotFound: if the caller may not use all agents of the group.
        Busy: while a turn runs in one of the conversations.
        Conflict: if a conversation cannot be changed now.
    """

    def find(tx: Transaction) -> list[str]:
        queries.get(tx, scope, group_id)
        in_group = [
            conversations.get(tx, id)
            for id in message_lookup.conversations_of_group(tx, scope, group_id)
        ]
        return [
            conversation.id
            for conversation in in_group
            if conversation and scope.owns(conversation.user_id)
        ]

    for conversation_id in await runtime.store.read(find):
        await runtime.store.write(lambda tx, id=conversation_id: _reset(tx, scope, group_id, id))  # type: ignore[misc]


def _reset(tx: Transaction, scope: Scope, group_id: str, conversation_id: str) -> None:
    ids = message_lookup.ids_of_group(tx, group_id, conversation_id)
    remove_messages(tx, scope, conversation_id, ids)
    # If the same message is sent again, it then starts a new talk.
    runs.forget_bodies(tx, conversation_id)
