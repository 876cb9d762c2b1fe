"""Facts that rules read from the data sets, and searches that show these facts with messages.

The server's rules read each turn as its speaker's words. They do not see the questions. The facts
are stored as under the policy `direct`. So a repeated fact gets more evidence, and a contradiction
ends the older fact.
"""

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.locomo import Conversation, Question, Turn
from ricordo.domain.clock import to_micros
from ricordo.domain.message import Message, TextPart
from ricordo.domain.scope import Scope
from ricordo.features.knowledge.facts import queries
from ricordo.features.knowledge.facts.extraction import drafts_in
from ricordo.features.knowledge.facts.filing import Reading, file_drafts
from ricordo.features.knowledge.facts.records import UserFact
from ricordo.features.knowledge.facts.search import MOST_BESIDE, beside
from ricordo.features.knowledge.facts.tables import user_facts
from ricordo.storage import users
from ricordo.storage.engine.sqlite import open_sqlite
from ricordo.storage.engine.store import Store, Transaction
from ricordo.storage.schema.columns import metadata

# The number of messages that a search shows, including the messages of facts.
SHOWN = 10


@dataclass(frozen=True)
class Facts:
    """The facts of one conversation, and searches that show them."""

    facts: Sequence[UserFact]

    def instead(self, question: Question, hits: Sequence[str]) -> list[str]:
        """Return the messages of the best facts, then the hits.

        There are as many messages as without facts.
        """
        return list(dict.fromkeys((*self._messages(question, hits), *hits)))

    def beside(self, question: Question, hits: Sequence[str]) -> list[str]:
        """Return the first hits, and the messages of the facts that the search shows with them."""
        return list(dict.fromkeys((*hits[:SHOWN], *self._messages(question, hits))))

    def hits_as_long(
        self, conversation: Conversation, question: Question, hits: Sequence[str]
    ) -> list[str]:
        """Return the first hits, and more hits instead of facts.

        The additional hits have the same length together as the facts that `beside` would show.
        """
        lengths = {turn.id: len(turn.text) for turn in conversation.turns}
        room = sum(len(fact.sentence) for fact in self._shown(question, hits))
        shown = list(hits[:SHOWN])
        for id in hits[SHOWN:]:
            if room <= 0:
                break
            room -= lengths[id]
            shown.append(id)
        return shown

    def _shown(self, question: Question, hits: Sequence[str]) -> list[UserFact]:
        return beside(self.facts, question.text, hits)[:MOST_BESIDE]

    def _messages(self, question: Question, hits: Sequence[str]) -> list[str]:
        shown = self._shown(question, hits)
        return [piece.message_id for fact in shown for piece in fact.evidence]


def facts_of(conversations: Sequence[Conversation]) -> Mapping[str, Facts]:
    """Return the facts of these conversations, by the conversation's id.

    Each person who speaks is a user: both people of a LoCoMo conversation, and the user of a chat.
    """
    return asyncio.run(_read(conversations))


async def _read(conversations: Sequence[Conversation]) -> dict[str, Facts]:
    with tempfile.TemporaryDirectory() as folder:
        store = open_sqlite(Path(folder) / "facts.db")
        metadata.create_all(store.engine, tables=[user_facts])
        found = {each.id: Facts(await _facts_in(store, each)) for each in conversations}
        await store.close()
    return found


async def _facts_in(store: Store, conversation: Conversation) -> list[UserFact]:
    facts: list[UserFact] = []
    for speaker in conversation.speakers:
        if speaker == "assistant":
            continue
        turns = [turn for turn in conversation.turns if turn.speaker == speaker]

        def file(
            tx: Transaction, turns: Sequence[Turn] = turns, speaker: str = speaker
        ) -> list[UserFact]:
            user = users.find_or_make(tx, Scope(), f"{speaker} of {conversation.id}")
            for turn in turns:
                said_at = to_micros(turn.said_at)
                message = Message(
                    turn.id,
                    "agent",
                    conversation.id,
                    "user",
                    (TextPart(turn.text),),
                    created_at=said_at,
                    user_id=user.id,
                )
                reading = Reading(user.organization_id, user.id, "direct", [message])
                file_drafts(tx, reading, drafts_in(turn.id, turn.text, said_at))
            return queries.of_states(tx, user.id, "current", "ended")

        facts += await store.write(file)
    return facts
