"""Search: filters before the limit, queries as data, any language, and deletion.

Other modules of this folder test the other parts.
"""

import asyncio
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ricordo.domain.passage import Passage
from ricordo.search import index
from ricordo.search.index import (
    MessageFilter,
    PassageFilter,
    Query,
    SearchHit,
    insert_messages,
    insert_passages,
)
from ricordo.storage import archives, messages
from ricordo.storage.engine.store import Store, Transaction
from tests.seams import make
from tests.seams.stores import START, flush

# These words are no stop words in any language. A text of three words, two of them "dog", would
# count as Danish, in which "dog" means "however".
WORDS = ("tiger", "fox", "owl", "elk", "zebra")
TAGS = ("red", "green", "blue")
some_words = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join)
times = st.integers(0, 5)
moments = st.none() | times


def time_at(moment: int | None) -> int | None:
    return None if moment is None else START + moment


def find_messages(tx: Transaction, query: str, agent_id: str, limit: int = 5) -> list[SearchHit]:
    return list(index.find_messages(tx, Query(query), MessageFilter((agent_id,)), limit).hits)


def message_ids(tx: Transaction, query: str, agent_id: str, limit: int = 5) -> list[str]:
    return [
        m.id
        for m in messages.by_numbers(
            tx, [h.document for h in find_messages(tx, query, agent_id, limit)]
        )
    ]


async def test_passages_are_filtered_before_the_limit(store: Store) -> None:
    agent = (await make.stored_agent(store)).agent
    tags = st.lists(st.sampled_from(TAGS), unique=True, max_size=3).map(tuple)
    filed = st.lists(
        st.tuples(some_words, st.integers(0, 2), tags, times, st.booleans()), max_size=25
    )
    conditions = st.tuples(
        st.lists(st.integers(0, 2), max_size=3), tags, st.booleans(), moments, moments
    )

    def matches(passage: Passage, query: str, wanted: PassageFilter) -> bool:
        shared = set(passage.tags) & set(wanted.tags)
        return (
            passage.archive_id in wanted.archive_ids
            and (
                not wanted.tags or (shared == set(wanted.tags) if wanted.all_tags else bool(shared))
            )
            and (wanted.start is None or passage.created_at >= wanted.start)
            and (wanted.end is None or passage.created_at <= wanted.end)
            and bool(set(query.split()) & set(passage.text.split()))
        )

    async def check(filed: list, query: str, conditions: tuple, limit: int) -> None:  # type: ignore[type-arg]
        shelves = [
            await make.stored_archive(store, agent, name=name) for name in ("one", "two", "three")
        ]
        looked_through, tags, all_tags, start, end = conditions
        wanted = PassageFilter(
            tuple(shelves[n].id for n in looked_through),
            tags,
            all_tags,
            None,
            time_at(start),
            time_at(end),
        )
        made = []
        for words, shelf, carried, moment, flushes in filed:
            passage = make.passage(shelves[shelf], words, tags=carried, created_at=START + moment)
            made.append(passage)
            await store.write(lambda tx, p=passage, s=shelves[shelf]: insert_passages(tx, s, [p]))  # type: ignore[misc]
            if flushes:
                await store.write(lambda tx, s=shelves[shelf]: flush(tx, s.id))  # type: ignore[misc]

        def look(tx: Transaction) -> tuple[list[SearchHit], list[str]]:
            hits = list(index.find_passages(tx, Query(query), wanted, limit).hits)
            return hits, [
                p.id for p in archives.passages_by_numbers(tx, [hit.document for hit in hits])
            ]

        hits, ids = await store.read(look)
        expected = {passage.id for passage in made if matches(passage, query, wanted)}
        assert len(ids) == len(set(ids)) == min(limit, len(expected))
        assert set(ids) <= expected
        scores = [hit.relevance.score for hit in hits]
        assert scores == sorted(scores, reverse=True)

    loop = asyncio.get_running_loop()

    @given(filed, some_words, conditions, st.integers(1, 8))
    def draw(filed: list, query: str, conditions: tuple, limit: int) -> None:  # type: ignore[type-arg]
        asyncio.run_coroutine_threadsafe(check(filed, query, conditions, limit), loop).result(60)

    await asyncio.to_thread(draw)


ODD = (
    "AND OR NOT NEAR ( ) \" ' * ^ : - + { } [ ] , . ; % _ \\ / < > = ! ? # $ & | ~ ` @ \x00 \n \t 🍵 👩‍👩‍👧 é ß İ ı ſ 名前 "
    'हिन्दी e\u0301 \u202e \ufeff text: NEAR( rowid tea* "tea" messages_fts 1 ²'
).split(" ")


async def test_any_query_is_treated_as_data(store: Store) -> None:
    agent = (await make.stored_agent(store)).agent
    (tea,) = await make.stored_messages(store, make.message(agent, "green tea"))
    anything = st.text(max_size=40) | st.lists(st.sampled_from(ODD), max_size=8).map(" ".join)

    def check(tx: Transaction) -> None:
        @given(anything)
        def holds(query: str) -> None:
            assert message_ids(tx, query + " tea", agent.id) == [tea.id]
            find_messages(tx, query, agent.id)
            index.find_passages(tx, Query(query), PassageFilter(("archive-1",)), 5)

        holds()

    await store.read(check)


async def test_a_message_is_found_by_its_words_in_any_language(store: Store) -> None:
    agent = (await make.stored_agent(store)).agent
    words = (
        "Straße İstanbul STRASSE re\u0301sume\u0301 naïve ΣΊΣΥΦΟΣ Чай 名前 snake_case it's "
        "don\u2019t 42 e-mail a\x00b"
    )
    said = (*words.split(" "), "🍵 Tee")
    stored = await make.stored_messages(store, *(make.message(agent, text) for text in said))
    for message in stored:
        found = await store.read(
            lambda tx, query=message.text: message_ids(tx, query, agent.id, 20)
        )  # type: ignore[misc]
        assert message.id in found, message.text


async def test_a_query_without_words_gives_the_newest(store: Store) -> None:
    agent = (await make.stored_agent(store)).agent
    stored = await make.stored_messages(
        store,
        *(make.message(agent, str(moment), created_at=START + moment) for moment in (3, 9, 1, 9)),
    )
    archive = await make.stored_archive(store, agent, "older", "newer")
    for query in ("", "   ", "?!", "\x00", "_", '"""', "* *"):
        newest = await store.read(lambda tx, query=query: message_ids(tx, query, agent.id, 3))  # type: ignore[misc]
        assert newest == [stored[3].id, stored[1].id, stored[0].id], query
    found = await store.read(
        lambda tx: index.find_passages(tx, Query(""), PassageFilter((archive.id,)), 1)
    )
    texts = await store.read(
        lambda tx: archives.passages_by_numbers(tx, [hit.document for hit in found.hits])
    )
    assert [passage.text for passage in texts] == ["newer"]


async def test_a_unit_that_is_rolled_back_leaves_nothing_to_find(store: Store) -> None:
    agent = (await make.stored_agent(store)).agent

    def work(tx: Transaction) -> None:
        insert_messages(tx, [make.message(agent, "never said")])
        assert find_messages(tx, "said", agent.id)
        raise LookupError

    with pytest.raises(LookupError):
        await store.write(work)
    await make.stored_messages(store, make.message(agent, "something other"))
    assert await store.read(lambda tx: find_messages(tx, "said", agent.id)) == []


async def test_the_beginning_of_a_very_long_text_is_found_and_the_flush_completes(
    store: Store,
) -> None:
    agent = (await make.stored_agent(store)).agent
    book = " ".join(f"word{number}" for number in range(30_000))
    long, short = await make.stored_messages(
        store,
        make.message(agent, book),
        make.message(agent, "short tea", created_at=START + 86_400_000_000),
    )
    for _flushed in range(2):
        assert await store.read(lambda tx: message_ids(tx, "word12", agent.id)) == [long.id]
        assert await store.read(lambda tx: message_ids(tx, "tea", agent.id)) == [short.id]
        # Each message is flushed in a separate transaction, since the first has so many words.
        assert await store.write(lambda tx: flush(tx, agent.id)) == 1
    assert await store.write(lambda tx: flush(tx, agent.id)) == 0


def test_messages_and_passages_are_stored_only_through_the_index() -> None:
    """The repositories do not index, so a direct call would hide texts from search."""
    package = Path(index.__file__).parents[1]
    calls = re.compile(
        r"\b(messages\.insert_all|archives\.(insert_one|insert_passages|delete_passage))\("
    )
    found = {
        (p.relative_to(package).as_posix(), call[1])
        for p in package.rglob("*.py")
        for call in calls.finditer(p.read_text("utf-8"))
    }
    # A new archive without passages has nothing to index. A group's messages are found through its
    # members.
    others = {path for path, call in found if call != "archives.insert_one"} - {
        "features/groups/talk_start.py"
    }
    assert others == {"search/index.py"}
