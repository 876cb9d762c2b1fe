"""Finding messages and passages, with the reason each was found."""

from ricordo.memory.recall import find_messages, find_passages
from ricordo.storage.search import MessageFilter, PassageFilter
from ricordo.storage.sqlite import SqliteStore
from tests.support import make


async def test_messages_come_best_first_each_with_its_own_relevance(store: SqliteStore) -> None:
    state = await make.stored_agent(store)
    texts = ["The weather was fine.", "Jasmine tea, and more tea: jasmine.", "We spoke of jasmine and of a long walk."]
    await make.stored_messages(store, *(make.message(state.agent, text) for text in texts))
    hits = await store.read(lambda tx: find_messages(tx, "jasmine tea", MessageFilter(state.agent.id), 5))
    assert [hit.message.text for hit in hits] == [texts[1], texts[2]]
    assert [hit.relevance.fts_rank for hit in hits] == [1, 2]
    assert hits[0].relevance.score > hits[1].relevance.score


async def test_another_agents_messages_are_not_found(store: SqliteStore) -> None:
    state, other = await make.stored_agent(store), await make.stored_agent(store, make.agent("Otto"))
    await make.stored_messages(store, make.message(other.agent, "jasmine"))
    assert await store.read(lambda tx: find_messages(tx, "jasmine", MessageFilter(state.agent.id), 5)) == []


async def test_without_an_archive_no_passage_is_found(store: SqliteStore) -> None:
    state = await make.stored_agent(store)
    await make.stored_archive(store, state.agent, "jasmine")
    assert await store.read(lambda tx: find_passages(tx, "jasmine", PassageFilter(()), 5)) == []


async def test_only_the_archives_that_are_asked_are_searched(store: SqliteStore) -> None:
    state = await make.stored_agent(store)
    one = await make.stored_archive(store, state.agent, "jasmine tea", name="one")
    await make.stored_archive(store, state.agent, "jasmine cake", name="other")
    hits = await store.read(lambda tx: find_passages(tx, "jasmine", PassageFilter((one.id,)), 5))
    assert [hit.passage.text for hit in hits] == ["jasmine tea"]
