"""Import of past messages, which are stored for recall outside the window, without a turn.

An import changes no window and asks no model, so it needs no lease and can run during a turn. It
runs in portions, and other writers can write between them. If each message has an otid, a repeated
import stores only the missing messages, wherever the first one stopped.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import tzinfo
from functools import partial

from ricordo.agents.conversations import require_own
from ricordo.domain.agent import effective
from ricordo.domain.clock import parse_timestamp, zone
from ricordo.domain.egress import IN_PROCESS, Clearance, join
from ricordo.domain.message import Message, Role, TextPart
from ricordo.domain.scope import Scope
from ricordo.errors import Collision, Conflict, Invalid
from ricordo.prompt.egress import cleared_state
from ricordo.search.index import insert_messages
from ricordo.storage import agents, conversations, messages
from ricordo.storage.engine.store import Store, Transaction

PORTION = 250


@dataclass(frozen=True, slots=True)
class PastMessage:
    """One message to import.

    `created_at` is ISO 8601, in the agent's time zone if it has none. `egress` is the egress label
    of the texts from which the message was made.
    """

    role: Role
    texts: tuple[str, ...]
    name: str | None = None
    created_at: str | None = None
    otid: str | None = None
    egress: str | None = None


async def import_messages(
    store: Store,
    scope: Scope,
    agent_id: str,
    past: Sequence[PastMessage],
    conversation_id: str | None = None,
) -> list[str]:
    """Store the messages in the conversation; return their ids in order.

    Everything is checked before anything is stored.

    Args:
        store: The database, which gets one transaction for each 250 messages.
        scope: The caller.
        agent_id: The agent.
        past: The messages in order. For a message whose otid is already stored, the stored id is
            returned. A message without a date gets a time next to that of its neighbour. If no
            message has a date, the last one gets the present time.
        conversation_id: The conversation; None for the agent's default conversation.

    Raises:
        NotFound: There is no such agent or conversation.
        Forbidden: The caller may only read the conversation.
        Invalid: A date cannot be read or is out of range, or two messages have one otid.
        Conflict: An otid belongs to another message.
    """
    otid_counts = Counter(past_message.otid for past_message in past if past_message.otid)
    if twice := next((otid for otid, count in otid_counts.items() if count > 1), None):
        raise Invalid(
            f"Two of these messages have the otid {twice}. Give every message a different otid."
        )
    id = conversation_id or conversations.default_id(agent_id)

    # A message gets the egress labels of its conversation and of the blocks that it repeats.
    clearance = Clearance()

    def check(tx: Transaction) -> str:
        state = agents.load(tx, scope, agent_id, id)
        cleared_state(effective(state), IN_PROCESS, clearance)
        require_own(scope, state.conversation)
        if len(past) > PORTION:  # a single portion is checked when it is stored
            _stored_ids(tx, id, past)
        return state.agent.timezone

    def insert(tx: Transaction, start: int) -> list[str]:
        # The agent or conversation may have been deleted since the import began.
        agents.require(tx, scope, agent_id)
        # The lock keeps the egress policy until the messages with its label are stored.
        conversations.lock(tx, id)
        conversation = conversations.require(tx, scope, id)
        portion = past[start : start + PORTION]
        stored_ids = _stored_ids(tx, id, portion)
        new_messages: list[Message] = []
        ids: list[str] = []
        for past_message, created_at in zip(portion, times[start:], strict=False):
            if not (message_id := stored_ids.get(past_message.otid or "")):
                message = conversation.new_message(
                    past_message.role, map(TextPart, past_message.texts), created_at
                )
                message = replace(
                    message,
                    otid=past_message.otid,
                    name=past_message.name,
                    egress=join(past_message.egress, message.egress),
                )
                new_messages.append(clearance.with_labels(message))
                message_id = message.id
            ids.append(message_id)
        if new_messages:
            insert_messages(tx, new_messages)
            conversations.add_past(
                tx, id, len(new_messages), max(message.created_at for message in new_messages)
            )
        return ids

    times = _times(past, zone(await store.read(check)), store.clock.now())
    ids: list[str] = []
    for start in range(0, len(past), PORTION):
        try:
            ids += await store.write(partial(insert, start=start))
        except Collision:
            # Another writer stored one of these otids meanwhile. The second try finds it.
            ids += await store.write(partial(insert, start=start))
    return ids


def _stored_ids(
    tx: Transaction, conversation_id: str, past: Sequence[PastMessage]
) -> dict[str, str]:
    """Return the ids of messages that are stored in the conversation, by otid.

    Raises Conflict where an otid belongs to another message.
    """
    past_by_otid = {past_message.otid: past_message for past_message in past if past_message.otid}
    ids: dict[str, str] = {}
    for message in (
        messages.by_otids(tx, conversation_id, list(past_by_otid)) if past_by_otid else ()
    ):
        otid = message.otid or ""
        past_message = past_by_otid[otid]
        if (message.role, message.parts, message.name) != (
            past_message.role,
            tuple(map(TextPart, past_message.texts)),
            past_message.name,
        ):
            raise Conflict(
                f"The otid {otid} belongs to another message of this conversation, {message.id}. "
                "Use a new otid, or repeat the message that had this one."
            )
        ids[otid] = message.id
    return ids


def _times(past: Sequence[PastMessage], timezone: tzinfo, now: int) -> list[int]:
    dates = [
        None
        if past_message.created_at is None
        else parse_timestamp(past_message.created_at, timezone)
        for past_message in past
    ]
    first_dated = next((index for index, time in enumerate(dates) if time is not None), None)
    # Messages without a date are a microsecond apart. If no message has one, the last gets `now`.
    previous = (
        now - len(dates) if first_dated is None else (dates[first_dated] or 0) - first_dated - 1
    )
    times: list[int] = []
    for time in dates:
        previous = previous + 1 if time is None else time
        times.append(previous)
    return times
