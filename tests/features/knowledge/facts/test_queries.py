"""Queries of facts on both databases."""

import pytest

from ricordo.domain.agent import Agent, Conversation
from ricordo.domain.message import Message, TextPart
from ricordo.domain.scope import LOCAL_ORGANIZATION, Scope
from ricordo.features.knowledge.facts import queries
from ricordo.features.knowledge.facts.queries import EVERYBODY, FactFilter
from ricordo.features.knowledge.facts.records import Evidence, FactState, UserFact
from ricordo.features.knowledge.facts.search import beside
from ricordo.storage import agents, conversations, messages
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction
from tests.conftest import BOTH
from tests.features.knowledge.facts.conftest import FactBook, moment

DATABASES = BOTH
AGENT = "agent-00000000-0000-4000-8000-000000000001"
CONVERSATION = "conv-00000000-0000-4000-8000-000000000001"


async def test_unread_messages_count_until_their_mark_has_moved(book: FactBook) -> None:
    user_id = book.user.id

    def message(number: int, role: str, text: str) -> Message:
        return Message(
            f"message-00000000-0000-4000-8000-00000000000{number}",
            AGENT,
            CONVERSATION,
            role,  # type: ignore[arg-type]
            (TextPart(text),),
            created_at=1_000 + number,
            organization_id=LOCAL_ORGANIZATION,
            user_id=user_id,
        )

    def lay_out(tx: Transaction) -> None:
        agent = Agent(AGENT, LOCAL_ORGANIZATION, "A", "letta_v1_agent", "", "scripted/model")
        agents.insert_one(tx, agent, [])
        conversation = Conversation(CONVERSATION, LOCAL_ORGANIZATION, AGENT, user_id=user_id)
        conversations.insert_one(tx, conversation)
        said = [message(1, "user", "I live in Graz."), message(2, "assistant", "Nice.")]
        messages.insert_all(tx, [*said, message(3, "user", "I like tea.")])

    await book.store.write(lay_out)

    def read(tx: Transaction) -> tuple[int, ...]:
        (row,) = queries.unread(tx, 0, 2_000)
        assert queries.unread_of(tx, user_id, AGENT, 0, 2_000) == [row]
        assert queries.unread(tx, 0, 1_002) == []  # not idle
        assert queries.unread(tx, 1_003, 2_000) == []  # too old
        queries.set_mark(tx, CONVERSATION, user_id, row.newest - 1)
        (later,) = queries.unread(tx, 0, 2_000)
        queries.set_mark(tx, CONVERSATION, user_id, row.newest)
        assert queries.unread(tx, 0, 2_000) == []
        return row.turns, later.turns, queries.read_to(tx, CONVERSATION, user_id) - row.newest

    assert await book.store.write(read) == (2, 1, 0)


async def test_old_unread_conversations_do_not_hide_newer_ones(
    book: FactBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "MOST_AT_ONCE", 2)

    def lay_out(tx: Transaction) -> list[str]:
        agent = Agent(AGENT, LOCAL_ORGANIZATION, "A", "letta_v1_agent", "", "scripted/model")
        agents.insert_one(tx, agent, [])
        ids = [f"{CONVERSATION[:-1]}{number}" for number in range(5)]
        for number, id in enumerate(ids):
            conversation = Conversation(id, LOCAL_ORGANIZATION, AGENT, user_id=book.user.id)
            conversations.insert_one(tx, conversation)
            said = Message(
                f"message-00000000-0000-4000-8000-00000000000{number}",
                AGENT,
                id,
                "user",
                (TextPart("I live in Graz."),),
                created_at=1_000,
                organization_id=LOCAL_ORGANIZATION,
                user_id=book.user.id,
            )
            messages.insert_all(tx, [said])
        return ids

    ids = await book.store.write(lay_out)
    rows = await book.store.read(lambda tx: queries.unread(tx, 0, 2_000))
    assert [row.conversation_id for row in rows] == ids


async def test_a_users_facts_policy_falls_back_to_the_organizations(book: FactBook) -> None:
    def choose(tx: Transaction) -> list[str]:
        chosen = [queries.policy_of(tx, LOCAL_ORGANIZATION, book.user.id)]
        for user_id, policy in ((EVERYBODY, "propose"), (book.user.id, "direct")):
            queries.set_policy(tx, LOCAL_ORGANIZATION, user_id, policy)  # type: ignore[arg-type]
            chosen.append(queries.policy_of(tx, LOCAL_ORGANIZATION, book.user.id))
        queries.set_policy(tx, LOCAL_ORGANIZATION, book.user.id, None)
        assert queries.is_any_on(tx)
        return [*chosen, queries.policy_of(tx, LOCAL_ORGANIZATION, book.user.id)]

    assert await book.store.write(choose) == ["off", "propose", "direct", "propose"]


async def test_facts_can_be_listed_by_date_counted_and_removed(book: FactBook) -> None:
    await book.say("My favourite drink is tea.", at="2026-05-01")
    await book.say("My favourite drink is now coffee.", at="2026-11-02")

    def listed(tx: Transaction, day: str) -> list[str]:
        filters = FactFilter(as_of=moment(day))
        return [
            fact.value for fact in queries.page(tx, Scope(), book.user.id, Page(limit=9), filters)
        ]

    def read(tx: Transaction) -> list[list[str]]:
        assert queries.counts(tx, book.user.id) == {"current": 1, "ended": 1}
        values = [listed(tx, day) for day in ("2026-04-01", "2026-06-01", "2026-12-01")]
        for fact in queries.of_states(tx, book.user.id, "current", "ended"):
            assert queries.remove(tx, fact) == 1
        return values

    assert await book.store.write(read) == [[], ["tea"], ["coffee"]]


def test_current_and_ended_facts_of_the_first_six_hits_are_shown() -> None:
    hits = [f"message-{number}" for number in range(9)]

    def fact(hit: str, state: FactState) -> UserFact:
        return UserFact(
            id=f"{state} {hit}",
            organization_id=LOCAL_ORGANIZATION,
            user_id="user-1",
            sentence="Nothing alike.",
            kind="who",
            source="rule",
            state=state,
            said_at=1,
            holds_from=1,
            created_at=1,
            evidence=(Evidence(hit, "Nothing alike."),),
        )

    states: tuple[FactState, ...] = ("current", "ended")
    for state in states:
        facts = [fact(hit, state) for hit in reversed(hits)]
        assert [shown.id for shown in beside(facts, "tea", hits)] == [
            f"{state} {hit}" for hit in hits[:6]
        ]
