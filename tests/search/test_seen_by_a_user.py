"""The texts that a user's search counts.

They are the user's texts and shared texts, so no score reveals what others wrote.
"""

import random

import numpy as np
import pytest

from ricordo.search import index, partition_view
from ricordo.search.fusion import focus
from ricordo.search.index import MessageFilter, Query, SearchHit
from ricordo.search.vectors import FEW, ShownVectors, similarities_shown, vectors_from
from ricordo.storage import conversations, messages
from ricordo.storage.engine.store import Store
from tests.conftest import BOTH
from tests.seams import make
from tests.seams.stores import START, flush
from tests.search.test_vectors import rows

DATABASES = BOTH
WORDS = ("tea", "rain", "Lisbon", "violin", "bread", "harbour", "snow", "Regenschirm", "umbrella")
QUERIES = ("tea", "rain in Lisbon", "schirm", "violin bread snow harbour", "the quartz", "")
MINUTE = 60_000_000


@pytest.mark.parametrize(
    "least", [1, partition_view.LEAST_SPREAD], ids=["terms worked out once", "few hits"]
)
async def test_a_users_scores_do_not_change_when_others_write(
    store: Store, monkeypatch: pytest.MonkeyPatch, least: int
) -> None:
    monkeypatch.setattr(partition_view, "LEAST_SPREAD", least)
    chance = random.Random(31)  # noqa: S311 - examples
    agent = (await make.stored_agent(store)).agent
    others = [make.conversation(agent, id=f"conv-{agent.id}-{number}") for number in range(3)]
    for conversation in others:
        await store.write(lambda tx, new=conversation: conversations.insert_one(tx, new))  # type: ignore[misc]
    places = (conversations.default_id(agent.id), *(conversation.id for conversation in others))

    async def say(user: str | None, words: tuple[str, ...], count: int) -> None:
        for _ in range(count):
            where = {
                "conversation_id": chance.choice(places),
                "created_at": START + chance.randrange(90) * MINUTE,
            }
            text = " ".join(chance.choices(words, k=chance.randint(1, 9)))
            said = make.message(agent, text, user_id=user, **where)
            await store.write(lambda tx, said=said: index.insert_messages(tx, [said]))  # type: ignore[misc]

    async def look() -> list[list[SearchHit]]:
        found = []
        for query in QUERIES:
            wanted = MessageFilter((agent.id,), subject_id="user-1", reads_before=True)
            hits = await store.read(
                lambda tx, q=query, w=wanted: index.find_messages(tx, Query(q), w, 50)
            )  # type: ignore[misc]
            found.append(list(hits.hits))
        return found

    await say("user-1", WORDS, 12)
    await say(None, WORDS, 8)
    alone = await look()
    await store.write(lambda tx: flush(tx, agent.id, 9))
    for words, count in (
        (("quartz", "tea", "schirmherr"), 40),
        (("violin", "sonnenschirm", "quartz"), 60),
    ):
        await say("user-2", words, count)
        assert_same(await look(), alone)
        await store.write(lambda tx: flush(tx, agent.id))
        assert_same(await look(), alone)


def assert_same(found: list[list[SearchHit]], before: list[list[SearchHit]]) -> None:
    for query, hits, expected in zip(QUERIES, found, before, strict=True):
        assert [hit.document for hit in hits] == [hit.document for hit in expected], query
        assert [hit.before for hit in hits] == [hit.before for hit in expected], query
        for name in ("score", "word_match", "fts_rank", "mode"):
            ours = [getattr(hit.relevance, name) for hit in hits]
            assert ours == pytest.approx(
                [getattr(hit.relevance, name) for hit in expected], abs=2e-6
            ) or (ours == [getattr(hit.relevance, name) for hit in expected]), (query, name)


@pytest.mark.parametrize(
    "count", [300, FEW - 500, 2 * FEW + 2000], ids=["few", "most hidden of many", "many"]
)
def test_visible_vectors_are_compared_as_if_there_were_no_others(count: int) -> None:
    own, hidden = rows(count), rows(1500, seed=2)
    place = np.sort(np.random.default_rng(3).choice(count + len(hidden), count, replace=False))
    every = np.zeros((count + len(hidden), own.shape[1]), dtype=own.dtype)
    every[np.setdiff1d(np.arange(len(every)), place)] = hidden
    every[place] = own
    alone = vectors_from(own)
    shown = ShownVectors(vectors_from(every), place, alone.common)
    also = np.zeros(count, dtype=np.bool_)
    for query in own[:5].astype(np.float32):
        exact = own.astype(np.float32) @ focus(query, alone.common)
        found = similarities_shown(shown, query, None, also)
        np.testing.assert_allclose(found.values, exact[found.positions], atol=5e-3)
        assert np.count_nonzero(np.isin(np.argsort(exact)[-10:], found.positions)) >= 9
        may = np.arange(count) % 2 == 0
        some = similarities_shown(shown, query, may, also)
        assert len(some) == count if count <= FEW else may[some.positions].all()


async def test_a_users_own_messages_come_first_and_agents_without_any_are_left_out(
    store: Store,
) -> None:
    first, second = [(await make.stored_agent(store)).agent for _ in range(2)]
    said = [
        make.message(first, "tea, tea and more tea", user_id=None, created_at=START),
        make.message(
            first, "a cup of tea in the rain", user_id="user-1", created_at=START + MINUTE
        ),
        make.message(first, "tea of another", user_id="user-2", created_at=START + 2 * MINUTE),
        make.message(second, "tea, tea, tea", user_id=None, created_at=START + 3 * MINUTE),
    ]
    for message in said:
        await store.write(lambda tx, new=message: index.insert_messages(tx, [new]))  # type: ignore[misc]

    async def find(query: str, *agents: str, **conditions: object) -> list[str]:
        wanted = MessageFilter(agents, own_first=True, **conditions)  # type: ignore[arg-type]
        hits = await store.read(lambda tx: index.find_messages(tx, Query(query), wanted, 9))
        found = await store.read(
            lambda tx: messages.by_numbers(tx, [hit.document for hit in hits.hits])
        )
        return [message.id for message in found]

    nobodys, own, _, others = [message.id for message in said]
    for query in ("tea", ""):
        assert await find(query, first.id, second.id, subject_id="user-1") == [own, nobodys]
        assert await find(query, first.id, second.id, subject_id="user-3") == []
        assert await find(query, second.id, subject_id="user-1") == [others]
        assert len(await find(query, first.id, second.id)) == 4
