"""A store with a user, and messages from which facts are stored."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from typing import Any, TypeVar

import pytest

from ricordo.domain.clock import DAY, to_micros
from ricordo.domain.message import Message, Role, TextPart
from ricordo.domain.scope import LOCAL_ORGANIZATION, Scope, User
from ricordo.features.knowledge.facts import queries
from ricordo.features.knowledge.facts.extraction import drafts_in
from ricordo.features.knowledge.facts.filing import FilingReport, Reading, file_drafts
from ricordo.features.knowledge.facts.options import FactPolicy
from ricordo.features.knowledge.facts.records import FactDraft, FactState, UserFact
from ricordo.storage import users
from ricordo.storage.engine.store import Store, Transaction

T = TypeVar("T")
_NUMBERS = count(1)


def message(text: str, user_id: str = "user-ada", role: Role = "user", **fields: Any) -> Message:
    number = next(_NUMBERS)
    shown: dict[str, Any] = {"created_at": number * DAY, "seq": number, "user_id": user_id} | fields
    return Message(f"message-{number}", "agent-1", "conv-1", role, (TextPart(text),), **shown)


class FactBook:
    """Stores facts of a user's messages, and shows the facts."""

    def __init__(self, store: Store, user: User) -> None:
        self.store = store
        self.user = user
        self._last = 0

    async def say(
        self,
        *texts: str,
        policy: FactPolicy = "direct",
        at: str | None = None,
        drafts: list[FactDraft] | None = None,
    ) -> FilingReport:
        """Store facts of messages by the rules, or these drafts for the first message."""
        spoken = [message(text, self.user.id) for text in texts]
        if at:
            spoken = [replace(new, created_at=moment(at)) for new in spoken]
        if drafts is None:
            drafts = [
                draft for new in spoken for draft in drafts_in(new.id, new.text, new.created_at)
            ]
        return await self.file(spoken, drafts, policy)

    async def file(
        self, spoken: list[Message], drafts: list[FactDraft], policy: FactPolicy = "direct"
    ) -> FilingReport:
        reading = Reading(LOCAL_ORGANIZATION, self.user.id, policy, spoken)
        return await self.changed(lambda tx: file_drafts(tx, reading, drafts))

    async def changed(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` in a transaction that has locked the user."""

        def locked(tx: Transaction) -> T:
            users.lock(tx, self.user.id)
            return work(tx)

        return await self.store.write(locked)

    async def facts(self, *states: FactState) -> list[UserFact]:
        wanted: tuple[FactState, ...] = states or ("current",)
        return await self.store.read(lambda tx: queries.of_states(tx, self.user.id, *wanted))

    async def held(self, day: str) -> list[str]:
        """Return the sentences of the facts that were current at noon of a day."""
        facts = await self.facts("current", "ended")
        noon = moment(day)
        return [
            fact.sentence for fact in facts if fact.holds_from <= noon and not fact.is_over(noon)
        ]


def moment(day: str) -> int:
    return to_micros(datetime.fromisoformat(day).replace(tzinfo=UTC, hour=12))


@pytest.fixture
async def book(store: Store) -> FactBook:
    def make(tx: Transaction) -> User:
        return users.find_or_make(tx, Scope(), "ada")

    return FactBook(store, await store.write(make))
