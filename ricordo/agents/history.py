"""Past messages taken in: stored for recall, in their order and out of the window, without a turn.

An import touches no window and asks no model, so it needs no lease and runs beside a turn. It goes in portions, between which
turns have theirs; with an otid on each message a repeat stores only what is missing, wherever the first try was stopped.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import tzinfo
from functools import partial

from ricordo.agents.conversations import require_own
from ricordo.domain.clock import parse_timestamp, zone
from ricordo.domain.message import Message, Role, TextPart
from ricordo.domain.scope import Scope
from ricordo.errors import Collision, Conflict, Invalid
from ricordo.search.index import insert_messages
from ricordo.storage import agents, conversations, messages
from ricordo.storage.engine.store import Store, Transaction

PORTION = 250


@dataclass(frozen=True, slots=True)
class PastMessage:
    """One message to import. `created_at` is ISO 8601, in the agent's time zone where it names none."""

    role: Role
    texts: tuple[str, ...]
    name: str | None = None
    created_at: str | None = None
    otid: str | None = None


async def import_messages(
    store: Store,
    scope: Scope,
    agent_id: str,
    past: Sequence[PastMessage],
    conversation_id: str | None = None,
) -> list[str]:
    """Store the messages in the conversation (None: the agent's default one); returns their ids in order.

    The id of a message that is stored there already, with its otid, is that of the stored one. A message without a date comes right
    beside its neighbour in the list, and where none has one, all come right before now. Everything is checked before anything is
    stored; raises NotFound, Invalid, Conflict where an otid stands for another message.
    """
    counted = Counter(item.otid for item in past if item.otid)
    if twice := next((otid for otid, count in counted.items() if count > 1), None):
        raise Invalid(
            f"Two of these messages have the otid {twice}. Give every message an otid of its own."
        )
    id = conversation_id or conversations.default_id(agent_id)

    def check(tx: Transaction) -> str:
        state = agents.load(tx, scope, agent_id, id)
        require_own(scope, state.conversation)
        if len(past) > PORTION:  # a single one is checked where it is stored
            _stored(tx, id, past)
        return state.agent.timezone

    def insert(tx: Transaction, start: int) -> list[str]:
        # Deleted since the import began, perhaps: what belongs to nobody any more takes nothing in.
        agents.require(tx, scope, agent_id)
        conversation = conversations.require(tx, scope, id)
        portion = past[start : start + PORTION]
        known = _stored(tx, id, portion)
        new: list[Message] = []
        ids: list[str] = []
        for item, created_at in zip(portion, times[start:], strict=False):
            if not (message_id := known.get(item.otid or "")):
                message = conversation.new_message(item.role, map(TextPart, item.texts), created_at)
                new.append(replace(message, otid=item.otid, name=item.name))
                message_id = message.id
            ids.append(message_id)
        if new:
            insert_messages(tx, new)
            conversations.add_past(tx, id, len(new), max(message.created_at for message in new))
        return ids

    times = _times(past, zone(await store.read(check)), store.clock.now())
    ids: list[str] = []
    for start in range(0, len(past), PORTION):
        try:
            ids += await store.write(partial(insert, start=start))
        except Collision:
            # On a database with several writers somebody stored one of these otids meanwhile: it is found there now.
            ids += await store.write(partial(insert, start=start))
    return ids


def _stored(tx: Transaction, conversation_id: str, past: Sequence[PastMessage]) -> dict[str, str]:
    """The ids, by otid, of those that stand in the conversation; raises Conflict where another message stands there instead."""
    sent = {item.otid: item for item in past if item.otid}
    known: dict[str, str] = {}
    for message in messages.by_otids(tx, conversation_id, list(sent)) if sent else ():
        otid = message.otid or ""
        item = sent[otid]
        if (message.role, message.parts, message.name) != (
            item.role,
            tuple(map(TextPart, item.texts)),
            item.name,
        ):
            raise Conflict(
                f"The otid {otid} stands for another message of this conversation, {message.id}. "
                "Give yours an otid of its own, or send what was sent with this one before."
            )
        known[otid] = message.id
    return known


def _times(past: Sequence[PastMessage], where: tzinfo, now: int) -> list[int]:
    given = [
        None if item.created_at is None else parse_timestamp(item.created_at, where)
        for item in past
    ]
    dated = next((place for place, time in enumerate(given) if time is not None), None)
    # A microsecond apart, and none of them after what is said from now on.
    before = now - len(given) if dated is None else (given[dated] or 0) - dated - 1
    times: list[int] = []
    for time in given:
        before = before + 1 if time is None else time
        times.append(before)
    return times
