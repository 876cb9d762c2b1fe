"""What must be so after a fault: nothing acknowledged is lost, the order is kept, runs are closed, and search finds the words."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ricordo.agents.request import TurnRequest
from ricordo.domain.agent import Conversation
from ricordo.domain.message import Message
from ricordo.domain.run import Run
from ricordo.domain.scope import Scope
from ricordo.runtime import Runtime
from ricordo.search.index import MessageFilter
from ricordo.storage import agents, messages, runs
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction
from tests.seams.stage import split_pairs

_LATEST = 4


@dataclass
class Told:
    """What an agent's users know: the tokens they sent, those that were acknowledged, and the messages they saw saved."""

    sent: list[str] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    refused: Exception | None = None
    failed: str | None = None

    def acknowledge(self, request: TurnRequest) -> None:
        self.acknowledged += [message.otid for message in request.messages if message.otid]


async def waiting_of(runtime: Runtime, agent_id: str) -> Message | None:
    """The message whose calls wait for an answer."""

    def read(tx: Transaction) -> Message | None:
        last = messages.by_ids(tx, agents.load(tx, Scope(), agent_id).conversation.window[-1:])
        return last[0] if last and last[0].is_waiting else None

    return await runtime.store.read(read)


async def audit(runtime: Runtime, agent_id: str, told: Told) -> list[str]:
    """Everything that is wrong with an agent that was just answered."""

    def read(tx: Transaction) -> tuple[Conversation, list[Message], list[Message], list[Run]]:
        thread = agents.load(tx, Scope(), agent_id).conversation
        rows: list[Message] = []
        while page := messages.page(
            tx, Scope(), Page(limit=1000, order="asc", after=rows[-1].id if rows else None), conversation_id=thread.id
        ):
            rows += page
        return thread, rows, messages.by_ids(tx, thread.window), runs.open_runs(tx, agent_id=agent_id)

    thread, rows, window, still_open = await runtime.store.read(read)
    wrong = [f"{run.id} is open" for run in still_open]
    wrong += _lost(rows, told)
    wrong += _window(thread, rows, window)
    for otid in told.acknowledged[-_LATEST:]:
        word = otid.split("-")[2]
        found = await runtime.recall.messages(word, MessageFilter((agent_id,)), 20)
        if not any(word in hit.message.text for hit in found):
            wrong.append(f"search does not find {word}")
    return wrong


def _lost(rows: Sequence[Message], told: Told) -> list[str]:
    stored = Counter(row.otid for row in rows if row.otid)
    wrong = [f"{otid} is stored {stored[otid]} times" for otid in told.acknowledged if stored[otid] != 1]
    wrong += [f"{otid} is stored {times} times" for otid, times in stored.items() if times > 1]
    places = {row.id: place for place, row in enumerate(rows)}
    said = [message for message in told.messages if message.id in places]
    wrong += [
        f"{message.role} {message.id} was told and is gone" for message in told.messages if message.id not in places
    ]
    wrong += [
        f"{message.id} was told in other words" for message in said if rows[places[message.id]].parts != message.parts
    ]
    order = [places[message.id] for message in dict.fromkeys(said)]
    if order != sorted(order):
        wrong.append("the history has another order than what was told")
    inputs = [row.otid for row in rows if row.otid in set(told.acknowledged)]
    if inputs != [otid for otid in told.acknowledged if otid in set(inputs)]:
        wrong.append("what was said has another order")
    return wrong


def _window(thread: Conversation, rows: Sequence[Message], window: Sequence[Message]) -> list[str]:
    wrong = []
    if len(window) != len(thread.window) or len(set(thread.window)) != len(thread.window):
        wrong.append("the window names messages that are gone, or twice")
    if not window or window[0].role != "system" or any(row.role == "system" for row in window[1:]):
        wrong.append("the window does not begin with its one system message")
    if thread.message_count != len(rows):
        wrong.append(f"the thread counts {thread.message_count} messages and has {len(rows)}")
    return wrong + split_pairs(window)
