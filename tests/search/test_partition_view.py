"""What a search remembers of a partition: it goes on from there, and only what nothing can go on from is laid out anew."""

from operator import itemgetter

import pytest

from ricordo.domain.agent import Agent
from ricordo.search import index, partition_view, scoring
from ricordo.search.index import MessageFilter, Query, insert_messages
from ricordo.search.reader import SizedCache
from ricordo.storage import messages
from ricordo.storage.engine.store import Store
from tests.conftest import BOTH
from tests.seams import make
from tests.seams.stores import START, flush

DATABASES = BOTH
MINUTE = 60_000_000


class Counted:
    """How often a partition was laid out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = 0
        lay_out = scoring.documents_of

        def counting(*of: object) -> scoring.DocumentColumns:
            self.times += 1
            return lay_out(*of)  # type: ignore[arg-type]

        monkeypatch.setattr(scoring, "documents_of", counting)


@pytest.fixture
def laid_out(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


async def say(store: Store, agent: Agent, *texts: str, minute: int = 0) -> list[str]:
    said = [make.message(agent, text, created_at=START + (minute + n) * MINUTE) for n, text in enumerate(texts)]
    await store.write(lambda tx: insert_messages(tx, said))
    return [message.id for message in said]


async def find(store: Store, query: str, *agents: Agent) -> list[str]:
    wanted = MessageFilter(tuple(agent.id for agent in agents))
    hits = (await store.read(lambda tx: index.find_messages(tx, Query(query), wanted, 9))).hits
    found = await store.read(lambda tx: messages.by_numbers(tx, [hit.document for hit in hits]))
    return [message.text for message in found]


async def test_new_messages_and_a_flush_continue_what_is_cached(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    unpack = partition_view.unpack
    monkeypatch.setattr(partition_view, "unpack", lambda *row: [read.append(row[1]), unpack(*row)][1])  # type: ignore[func-returns-value]
    agent = (await make.stored_agent(store)).agent
    await say(store, agent, "tea", "rain")
    assert await find(store, "tea", agent) == ["tea", "rain"]
    for minute, text in enumerate(("tea house", "violin"), 9):
        await say(store, agent, text, minute=minute)
        assert text in await find(store, text, agent)
    # Some of the buffer is flushed, then all of it and more than any search has seen.
    await store.write(lambda tx: flush(tx, agent.id, 3))
    assert "violin" in await find(store, "violin", agent)
    await say(store, agent, "harbour", minute=30)
    await store.write(lambda tx: flush(tx, agent.id))
    await say(store, agent, "harbour snow", minute=40)
    assert sorted(await find(store, "harbour", agent))[:2] == ["harbour", "harbour snow"]
    assert len(await find(store, "tea rain violin harbour", agent)) == 6
    assert len(read) == len(set(read)) == 5  # each row of the buffer is read once


async def test_what_is_deleted_lays_the_partition_out_anew_once(store: Store, laid_out: Counted) -> None:
    agent = (await make.stored_agent(store)).agent
    deleted, *_ = await say(store, agent, "tea", "tea bread", "snow")
    await store.write(lambda tx: flush(tx, agent.id))
    await find(store, "tea", agent)
    await store.write(lambda tx: index.unindex_messages(tx, [deleted]))
    for _ in range(2):
        assert "tea" not in await find(store, "tea", agent)
    assert laid_out.times == 2
    await find(store, "bread", agent)
    assert laid_out.times == 2
    await say(store, agent, "tea again", minute=9)
    found = await find(store, "tea", agent)
    assert "tea again" in found
    assert "tea" not in found
    await store.write(lambda tx: flush(tx, agent.id))
    assert await find(store, "tea", agent) == found


@pytest.mark.parametrize("least", [1, partition_view.LEAST_SPREAD], ids=["that many hold", "that few hold"])
async def test_a_term_that_is_remembered_is_read_on_after_a_flush_and_anew_after_a_deletion_by_another_server(
    store: Store, monkeypatch: pytest.MonkeyPatch, least: int
) -> None:
    monkeypatch.setattr(partition_view, "LEAST_SPREAD", least)
    agent = (await make.stored_agent(store)).agent
    await say(store, agent, "tea", "rain tea")
    await store.write(lambda tx: flush(tx, agent.id))
    assert sorted(await find(store, "tea", agent)) == ["rain tea", "tea"]
    here = dict(store.cache)  # type: ignore[attr-defined]
    # Another server knows nothing of what this one remembers, and the other way round.
    store.cache.clear()  # type: ignore[attr-defined]
    (deleted,) = await say(store, agent, "tea house", minute=5)
    await store.write(lambda tx: flush(tx, agent.id))
    ahead = dict(store.cache)  # type: ignore[attr-defined]
    store.cache.clear()  # type: ignore[attr-defined]
    store.cache.update(here)  # type: ignore[attr-defined]
    assert sorted(await find(store, "tea", agent)) == ["rain tea", "tea", "tea house"]
    store.cache.clear()  # type: ignore[attr-defined]
    store.cache.update(ahead)  # type: ignore[attr-defined]
    await store.write(lambda tx: index.unindex_messages(tx, [deleted]))
    await store.write(lambda tx: flush(tx, agent.id))
    store.cache.clear()  # type: ignore[attr-defined]
    store.cache.update(here)  # type: ignore[attr-defined]
    assert sorted(await find(store, "tea", agent)) == ["rain tea", "tea"]


def test_a_cache_keeps_to_its_limit_and_drops_nothing_for_what_is_used_with_it() -> None:
    cache = SizedCache(600)
    for number in range(8):
        cache.put(f"word {number}", number, 100)
        cache.get("word 0")
    assert [number for number in range(8) if cache.get(f"word {number}") is not None] == [0, 3, 4, 5, 6, 7]
    grouped = SizedCache(100, group=itemgetter(1))
    grouped.put(("vectors", 1), "one", 60)
    grouped.put(("documents", 2), "two", 60)
    grouped.put(("view", 2), "view", 90)
    assert [grouped.get(key) for key in (("vectors", 1), ("documents", 2), ("view", 2))] == [None, "two", "view"]
