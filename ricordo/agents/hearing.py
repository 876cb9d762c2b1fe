"""Messages that reach an agent without starting a turn.

They are stored in its conversation, and it reads them in its next turn.
"""

from collections.abc import Sequence
from dataclasses import replace

from ricordo.agents.conversations import require_own
from ricordo.agents.request import (
    NewMessage,
)
from ricordo.domain.scope import Scope
from ricordo.errors import Busy
from ricordo.search.index import insert_messages
from ricordo.storage import conversations, messages, runs
from ricordo.storage.engine.store import Transaction


def store_heard(
    tx: Transaction, scope: Scope, conversation_id: str, new_messages: Sequence[NewMessage]
) -> int:
    """Store messages in the conversation and put them into its window.

    Args:
        tx: The transaction.
        scope: The caller. Messages of other authors than the conversation's user are stored as
            untrusted.
        conversation_id: The conversation.
        new_messages: The messages in order. A message whose otid is already stored is left out.

    Returns:
        The number of stored messages.

    Raises:
        NotFound: There is no such conversation.
        Forbidden: The caller may only read the conversation.
        Busy: A turn runs there, and would overwrite the window.
    """
    conversations.lock(tx, conversation_id)
    conversation = require_own(scope, conversations.require(tx, scope, conversation_id))
    otids = [message.otid for message in new_messages if message.otid]
    if otids:
        known_otids = {message.otid for message in messages.by_otids(tx, conversation_id, otids)}
    else:
        known_otids = set()
    fresh = [
        message
        for message in new_messages
        if message.otid is None or message.otid not in known_otids
    ]
    if not fresh:
        return 0
    if open_runs := runs.open_runs(tx, conversation_id=conversation_id):
        raise Busy(open_runs[0].id)
    now = tx.clock.now()
    stored = [
        replace(
            new_message.signed(conversation.new_message(new_message.role, new_message.parts, now)),
            is_untrusted=new_message.is_others(scope, conversation.user_id),
        )
        for new_message in fresh
    ]
    insert_messages(tx, stored)
    window = list(conversation.window)
    ids = [message.id for message in stored]
    # A request for approval stays last, since the answer is matched with the last message.
    index = len(window)
    if conversation.waits and (last := messages.by_ids(tx, window[-1:])) and last[0].is_waiting:
        index -= 1
    conversations.save_window(
        tx,
        conversation_id,
        [*window[:index], *ids, *window[index:]],
        conversation.prompt_key,
        added=len(stored),
    )
    return len(stored)
