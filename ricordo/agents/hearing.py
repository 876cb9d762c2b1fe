"""Messages that an agent hears without being asked: they are stored in its conversation, and it reads them in its next turn."""

from collections.abc import Sequence
from dataclasses import replace

from ricordo.agents.conversations import require_own
from ricordo.agents.request import NewMessage
from ricordo.agents.turn_start import is_others
from ricordo.domain.scope import Scope
from ricordo.errors import Busy
from ricordo.search.index import insert_messages
from ricordo.storage import conversations, messages, runs
from ricordo.storage.engine.store import Transaction


def store_heard(
    tx: Transaction, scope: Scope, conversation_id: str, heard: Sequence[NewMessage]
) -> int:
    """Store messages in the conversation and put them into its window, those whose otid it has left out.

    Returns how many were stored. Raises NotFound, and Busy while a turn runs there, which holds the window.
    """
    conversations.lock(tx, conversation_id)
    conversation = require_own(scope, conversations.require(tx, scope, conversation_id))
    otids = [message.otid for message in heard if message.otid]
    if otids:
        known = {message.otid for message in messages.by_otids(tx, conversation_id, otids)}
    else:
        known = set()
    fresh = [message for message in heard if message.otid is None or message.otid not in known]
    if not fresh:
        return 0
    if open_runs := runs.open_runs(tx, conversation_id=conversation_id):
        raise Busy(open_runs[0].id)
    now = tx.clock.now()
    new = [
        replace(
            item.signed(conversation.new_message(item.role, item.parts, now)),
            is_untrusted=is_others(item, scope, conversation.user_id),
        )
        for item in fresh
    ]
    insert_messages(tx, new)
    window = list(conversation.window)
    ids = [message.id for message in new]
    # A request for approval stays last, where its answer is looked for.
    place = len(window)
    if conversation.waits and (last := messages.by_ids(tx, window[-1:])) and last[0].is_waiting:
        place -= 1
    conversations.save_window(
        tx,
        conversation_id,
        [*window[:place], *ids, *window[place:]],
        conversation.prompt_key,
        added=len(new),
    )
    return len(new)
