"""The whole index.

After any sequence of messages, changes, deletions and flushes, a search finds the same as a plain
computation.
"""

from operator import itemgetter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ricordo.domain.agent import Agent
from ricordo.domain.message import Message
from ricordo.domain.scope import NOBODY
from ricordo.search import fusion, index, partition_view, scoring, write_buffer
from ricordo.search.engine import _from_outside
from ricordo.search.index import MessageFilter, Query, SearchResult, insert_messages
from ricordo.search.reader import IndexCache, SizedCache, document_records, occurrences
from ricordo.search.words import query_terms
from ricordo.search.write_buffer import IndexEntry, pack, unpack
from ricordo.storage import conversations, messages
from ricordo.storage.engine.store import Store, Transaction
from tests.conftest import BOTH
from tests.seams import make
from tests.seams.stores import START, flush

WORDS = ("tea", "rain", "Lisbon", "violin", "bread", "harbour", "snow")
NAMES = (None, "Anna", "Bert Lisbon")
HOUR = 3_600_000_000
DATABASES = BOTH
texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join)
queries = st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(" ".join)
moments = st.integers(0, 40).map(lambda hours: START + hours * HOUR)


# Steps of an example: messages (conversation, text, name, role, time, user), deletions, flushes and
# searches. The next search must see all changes since the caches were filled.
says = st.tuples(
    st.just("say"),
    st.integers(0, 1),
    texts,
    st.sampled_from(NAMES),
    st.sampled_from(("user", "assistant")),
    moments,
    st.sampled_from((None, "user-1", "user-2")),
)
others = st.sampled_from(
    [("look",), *(("forget", which) for which in range(51)), *(("flush", n) for n in range(1, 10))]
)
operations = st.lists(st.one_of(says, says, others), max_size=40)
filters = st.builds(
    dict,
    conversation_id=st.sampled_from((None, None, "conv-other")),
    roles=st.sampled_from(((), ("user",), ("user", "assistant"))),
    subject_id=st.sampled_from((None, None, NOBODY, "user-1")),
    own_conversation=st.sampled_from((None, "conv-other")),
    start=st.none() | moments,
    end=st.none() | moments,
)


def expected_hits(
    kept: list[Message], query: str, wanted: MessageFilter, limit: int
) -> list[tuple[int, float]]:
    """Compute the best messages and their scores from the texts alone.

    No blob, buffer or cache is used.
    """
    kept = [message for message in kept if sees(wanted, message)]
    rows = [
        unpack(
            0,
            m.seq,
            pack(
                IndexEntry(
                    m.id, m.text, m.created_at, m.conversation_id, m.user_id, m.role, m.name or ""
                )
            ),
        )
        for m in kept
    ]
    if not rows:
        return []
    records = document_records(rows)
    documents = scoring.documents_of(records, np.ones(len(rows), dtype=bool))
    counts = [occurrences(row) for row in rows]
    postings = []
    for word in query_terms(query):
        found = [(place, count[word]) for place, count in enumerate(counts) if word in count]
        values = np.array([times for _, times in found], dtype=np.uint8)
        places = np.array([place for place, _ in found], dtype=np.int64)
        postings.append(scoring.Posting(places, values & np.uint8(127), values >= 128))
    may = np.array([allows(message, wanted) for message in kept])
    lexical = scoring.lexical(
        documents, [posting for posting in postings if len(posting.positions)]
    )
    scores = fusion.fuse(documents, lexical, spoken=fusion.speaks(documents, postings), may=may)
    best = fusion.top(documents, scores, may & (scores > 0), limit)
    return [(kept[place].seq, round(float(scores[place]), 6)) for place in best.tolist()]


def sees(wanted: MessageFilter, message: Message) -> bool:
    return (
        wanted.subject_id is None
        or message.user_id in (None, wanted.subject_id)
        or message.conversation_id == wanted.own_conversation
    )


def allows(message: Message, wanted: MessageFilter) -> bool:
    return (
        wanted.conversation_id in (None, message.conversation_id)
        and (not wanted.roles or message.role in wanted.roles)
        and (wanted.start is None or message.created_at >= wanted.start)
        and (wanted.end is None or message.created_at <= wanted.end)
    )


def found(hits: SearchResult) -> list[tuple[int, float]]:
    return [(hit.document, hit.relevance.score) for hit in hits.hits]


async def test_a_search_finds_the_same_as_a_plain_computation(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(
        program: list[tuple[Any, ...]],
        query: str,
        conditions: dict[str, object],
        limit: int,
        least: int,
    ) -> None:
        # A rare word is computed each time, a frequent word is cached: both must find the same.
        monkeypatch.setattr(partition_view, "LEAST_SPREAD", least)
        agent = (await make.stored_agent(store)).agent
        other = make.conversation(agent, id=f"conv-{agent.id}-other")
        await store.write(lambda tx: conversations.insert_one(tx, other))
        both = (conversations.default_id(agent.id), other.id)
        kept: list[Message] = []
        if conditions["conversation_id"]:
            conditions = {**conditions, "conversation_id": other.id}
        if conditions["own_conversation"]:
            conditions = {**conditions, "own_conversation": other.id}
        wanted = MessageFilter((agent.id,), **conditions)  # type: ignore[arg-type]

        def look(tx: Transaction) -> SearchResult:
            return index.find_messages(tx, Query(query), wanted, limit)

        for step in program:
            match step:
                case "say", place, text, name, role, at, user:
                    where = {
                        "conversation_id": both[place],
                        "created_at": at,
                        "name": name,
                        "user_id": user,
                    }
                    said = make.message(agent, text, role, **where)
                    await store.write(lambda tx, said=said: insert_messages(tx, [said]))  # type: ignore[misc]
                    kept += await store.read(lambda tx, said=said: messages.by_ids(tx, [said.id]))  # type: ignore[misc]
                case "forget", which if kept:
                    deleted = kept.pop(which % len(kept))
                    await store.write(
                        lambda tx, deleted=deleted: index.unindex_messages(tx, [deleted.id])
                    )  # type: ignore[misc]
                case "flush", most:
                    await store.write(lambda tx, most=most: flush(tx, agent.id, most))  # type: ignore[misc]
                case ("look",):
                    await store.read(look)
        expected = expected_hits(kept, query, wanted, limit)
        unmerged = found(await store.read(look))
        assert [document for document, _ in unmerged] == [document for document, _ in expected]
        assert [score for _, score in unmerged] == pytest.approx(
            [score for _, score in expected], abs=2e-6
        )
        while await store.write(lambda tx: flush(tx, agent.id)):
            pass
        flushed = found(await store.read(look))
        assert {document for document, _ in flushed} == {d for d, _ in expected} or len(
            flushed
        ) == limit
        assert [score for _, score in flushed] == pytest.approx(
            [score for _, score in expected], abs=2e-6
        )

    await run_examples(check)


async def run_examples(check) -> None:  # type: ignore[no-untyped-def]
    """Let hypothesis draw examples in a thread, and check each of them in this event loop."""
    import asyncio

    loop = asyncio.get_running_loop()

    @given(
        operations,
        queries,
        filters,
        st.integers(1, 12),
        st.sampled_from((1, partition_view.LEAST_SPREAD)),
    )
    def draw(
        program: list[tuple[Any, ...]],
        query: str,
        conditions: dict[str, object],
        limit: int,
        least: int,
    ) -> None:
        asyncio.run_coroutine_threadsafe(
            check(program, query, conditions, limit, least), loop
        ).result(60)

    await asyncio.to_thread(draw)


@pytest.mark.parametrize(
    "numbers", [[3, 5, 8, 9, 12], [5, 3, 12, 9, 8]], ids=["in order", "restored in another order"]
)
def test_hits_of_an_outside_index_are_matched_by_number_and_unknown_ones_dropped(
    numbers: list[int],
) -> None:
    nearest = [(12, 0.9), (3, 0.5), (4, 0.8), (100, 0.7), (8, float("nan"))]
    found = _from_outside(np.array(numbers), nearest)
    assert sorted(
        zip(np.array(numbers)[found.positions].tolist(), found.values.tolist(), strict=True)
    ) == [
        (3, 0.5),
        (12, pytest.approx(0.9)),
    ]
    assert (np.diff(found.positions) > 0).all()
    assert len(_from_outside(np.array(numbers), [])) == 0
    assert len(_from_outside(np.array([], dtype=np.int64), nearest)) == 0


MINUTE = 60_000_000


async def say(store: Store, agent: Agent, *texts: str, minute: int = 0) -> list[str]:
    said = [
        make.message(agent, text, created_at=START + (minute + n) * MINUTE)
        for n, text in enumerate(texts)
    ]
    await store.write(lambda tx: insert_messages(tx, said))
    return [message.id for message in said]


async def find(store: Store, query: str, *agents: Agent) -> list[str]:
    wanted = MessageFilter(tuple(agent.id for agent in agents))
    hits = (await store.read(lambda tx: index.find_messages(tx, Query(query), wanted, 9))).hits
    found = await store.read(lambda tx: messages.by_numbers(tx, [hit.document for hit in hits]))
    return [message.text for message in found]


async def test_new_messages_and_a_flush_extend_the_cached_data(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    unpack = partition_view.unpack
    monkeypatch.setattr(
        partition_view, "unpack", lambda *row: [read.append(row[1]), unpack(*row)][1]
    )  # type: ignore[func-returns-value]
    agent = (await make.stored_agent(store)).agent
    await say(store, agent, "tea", "rain")
    assert await find(store, "tea", agent) == ["tea", "rain"]
    for minute, text in enumerate(("tea house", "violin"), 9):
        await say(store, agent, text, minute=minute)
        assert text in await find(store, text, agent)
    # First a part of the buffer is flushed, then all of it, with more messages than any search has
    # seen.
    await store.write(lambda tx: flush(tx, agent.id, 3))
    assert "violin" in await find(store, "violin", agent)
    await say(store, agent, "harbour", minute=30)
    await store.write(lambda tx: flush(tx, agent.id))
    await say(store, agent, "harbour snow", minute=40)
    assert sorted(await find(store, "harbour", agent))[:2] == ["harbour", "harbour snow"]
    assert len(await find(store, "tea rain violin harbour", agent)) == 6
    assert len(read) == len(set(read)) == 5  # each row of the buffer is read once


@pytest.mark.parametrize(
    "least", [1, partition_view.LEAST_SPREAD], ids=["that many hold", "that few hold"]
)
async def test_a_cached_term_is_extended_after_a_flush_and_reread_after_a_deletion_elsewhere(
    store: Store, monkeypatch: pytest.MonkeyPatch, least: int
) -> None:
    monkeypatch.setattr(partition_view, "LEAST_SPREAD", least)
    agent = (await make.stored_agent(store)).agent
    await say(store, agent, "tea", "rain tea")
    await store.write(lambda tx: flush(tx, agent.id))
    assert sorted(await find(store, "tea", agent)) == ["rain tea", "tea"]
    here = dict(store.cache)  # type: ignore[attr-defined]
    # The test swaps the caches of two servers, since neither knows the other's cache.
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


async def test_cached_buffer_rows_share_their_words(store: Store) -> None:
    words = []
    for _ in range(2):
        agent = (await make.stored_agent(store)).agent
        await say(store, agent, "harbour snow harbour")
        await find(store, "harbour", agent)
        cache = store.cache[IndexCache].partitions  # type: ignore[attr-defined]
        _, rows, _ = cache.get(("view", agent.id))
        (row, (counts,)), *others = rows.values()
        assert not others
        assert (row.speaker, row.text, row.labels) == ([], [], [])
        words.append({term: term for term in counts})
    assert "snow" in words[0]
    assert all(words[1][term] is term for term in words[0] if term in words[1])


async def test_the_number_of_owners_with_counted_rows_is_bounded(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_buffer, "MOST_OWNERS", 2)
    agents = [(await make.stored_agent(store)).agent for _ in range(3)]
    for agent in (agents[0], agents[1], agents[0], agents[2]):
        await say(store, agent, "tea")
    counted = store.cache[write_buffer.flush_when_due]  # type: ignore[attr-defined]
    assert list(counted) == [agents[0].id, agents[2].id]


def test_a_cache_keeps_its_limit_and_drops_no_entry_of_the_same_group() -> None:
    cache = SizedCache(600)
    for number in range(8):
        cache.put(f"word {number}", number, 100)
        cache.get("word 0")
    assert [number for number in range(8) if cache.get(f"word {number}") is not None] == [
        0,
        3,
        4,
        5,
        6,
        7,
    ]
    grouped = SizedCache(100, group=itemgetter(1))
    grouped.put(("vectors", 1), "one", 60)
    grouped.put(("documents", 2), "two", 60)
    grouped.put(("view", 2), "view", 90)
    assert [grouped.get(key) for key in (("vectors", 1), ("documents", 2), ("view", 2))] == [
        None,
        "two",
        "view",
    ]
