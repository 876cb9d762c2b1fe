"""Search: what is found against a search by hand, filters before the limit, queries as data, and forgetting."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text

from ricordo.domain.message import Message
from ricordo.domain.passage import Passage
from ricordo.storage import archives, conversations, messages
from ricordo.storage.search import Hit, MessageFilter, PassageFilter, find_messages, find_passages, match_expression
from ricordo.storage.sqlite import SqliteStore
from ricordo.storage.store import Transaction
from tests.support import make
from tests.support.clock import START

# Words the stemmer leaves alone and the index keeps, so that a search by hand can tell what must be found.
WORDS = ("cat", "dog", "fox", "owl", "elk")
ROLES = ("user", "assistant")
TAGS = ("red", "green", "blue")
some_words = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join)
times = st.integers(0, 5)
moments = st.none() | times


def at(moment: int | None) -> int | None:
    return None if moment is None else START + moment


def check_hits(hits: list[Hit], expected: set[str], limit: int) -> None:
    """The hits are some of what must be found, as many as the limit allows, each once, the best first."""
    ids = [hit.id for hit in hits]
    assert len(ids) == len(set(ids)) == min(limit, len(expected))
    assert set(ids) <= expected
    scores = [hit.relevance.score for hit in hits]
    assert scores == sorted(scores, reverse=True)
    assert [hit.relevance.fts_rank for hit in hits] == list(range(1, len(hits) + 1))


async def test_messages_are_filtered_before_the_limit(store: SqliteStore) -> None:
    one, two = (await make.stored_agent(store)).agent, (await make.stored_agent(store)).agent
    thread = make.conversation(one, id="conv-2")
    await store.write(lambda tx: conversations.insert_one(tx, thread))
    spots = [(one, conversations.default_id(one.id)), (one, thread.id), (two, conversations.default_id(two.id))]
    said = st.lists(st.tuples(some_words, st.sampled_from(spots), st.sampled_from(ROLES), times), max_size=25)
    conditions = st.tuples(
        st.sampled_from([None, thread.id]), st.sampled_from([(), ("user",), ROLES]), moments, moments
    )

    def matches(message: Message, query: str, wanted: MessageFilter) -> bool:
        return (
            message.agent_id == wanted.agent_id
            and (wanted.conversation_id in (None, message.conversation_id))
            and (not wanted.roles or message.role in wanted.roles)
            and (wanted.start is None or message.created_at >= wanted.start)
            and (wanted.end is None or message.created_at <= wanted.end)
            and bool(set(query.split()) & set(message.text.split()))
        )

    def check(tx: Transaction) -> None:
        @given(said, some_words, conditions, st.integers(1, 8))
        def holds(said: list, query: str, conditions: tuple, limit: int) -> None:  # type: ignore[type-arg]
            made = [
                make.message(agent, words, role, conversation_id=conversation, created_at=START + moment)
                for words, (agent, conversation), role, moment in said
            ]
            place, roles, start, end = conditions
            wanted = MessageFilter(one.id, place, roles, at(start), at(end))
            savepoint = tx.connection.begin_nested()
            messages.insert_all(tx, made)
            hits = find_messages(tx, query, wanted, limit)
            savepoint.rollback()
            check_hits(hits, {message.id for message in made if matches(message, query, wanted)}, limit)

        holds()

    await store.write(check)


async def test_passages_are_filtered_before_the_limit(store: SqliteStore) -> None:
    agent = (await make.stored_agent(store)).agent
    shelves = [await make.stored_archive(store, agent, name=name) for name in ("one", "two", "three")]
    tags = st.lists(st.sampled_from(TAGS), unique=True, max_size=3).map(tuple)
    filed = st.lists(st.tuples(some_words, st.sampled_from(shelves), tags, times), max_size=25)
    conditions = st.tuples(st.lists(st.sampled_from(shelves), max_size=3), tags, st.booleans(), moments, moments)

    def matches(passage: Passage, query: str, wanted: PassageFilter) -> bool:
        shared = set(passage.tags) & set(wanted.tags)
        return (
            passage.archive_id in wanted.archive_ids
            and (not wanted.tags or (shared == set(wanted.tags) if wanted.all_tags else bool(shared)))
            and (wanted.start is None or passage.created_at >= wanted.start)
            and (wanted.end is None or passage.created_at <= wanted.end)
            and bool(set(query.split()) & set(passage.text.split()))
        )

    def check(tx: Transaction) -> None:
        @given(filed, some_words, conditions, st.integers(1, 8))
        def holds(filed: list, query: str, conditions: tuple, limit: int) -> None:  # type: ignore[type-arg]
            made = [
                make.passage(shelf, words, tags=tags, created_at=START + moment) for words, shelf, tags, moment in filed
            ]
            looked_through, tags, all_tags, start, end = conditions
            wanted = PassageFilter(tuple(shelf.id for shelf in looked_through), tags, all_tags, at(start), at(end))
            savepoint = tx.connection.begin_nested()
            for shelf in shelves:
                archives.insert_passages(tx, shelf, [passage for passage in made if passage.archive_id == shelf.id])
            hits = find_passages(tx, query, wanted, limit)
            savepoint.rollback()
            check_hits(hits, {passage.id for passage in made if matches(passage, query, wanted)}, limit)

        holds()

    await store.write(check)


ODD = (
    "AND OR NOT NEAR ( ) \" ' * ^ : - + { } [ ] , . ; % _ \\ / < > = ! ? # $ & | ~ ` @ \x00 \n \t 🍵 👩‍👩‍👧 é ß İ ı ſ 名前 "
    'हिन्दी e\u0301 \u202e \ufeff text: NEAR( rowid tea* "tea" messages_fts 1 ²'
).split(" ")


async def test_any_query_is_data(store: SqliteStore) -> None:
    agent = (await make.stored_agent(store)).agent
    (tea,) = await make.stored_messages(store, make.message(agent, "green tea"))
    anything = st.text(max_size=40) | st.lists(st.sampled_from(ODD), max_size=8).map(" ".join)

    def check(tx: Transaction) -> None:
        @given(anything)
        def holds(query: str) -> None:
            hits = find_messages(tx, query + " tea", MessageFilter(agent.id), 5)
            assert [hit.id for hit in hits] == [tea.id]
            find_messages(tx, query, MessageFilter(agent.id), 5)
            find_passages(tx, query, PassageFilter(("archive-1",)), 5)

        holds()

    await store.read(check)


async def test_a_message_is_found_by_each_of_its_words_in_any_language(store: SqliteStore) -> None:
    agent = (await make.stored_agent(store)).agent
    said = (
        "Straße",
        "İstanbul",
        "STRASSE",
        "re\u0301sume\u0301",
        "naïve",
        "ΣΊΣΥΦΟΣ",
        "Чай",
        "名前",
        "snake_case",
        "it's",
        "don\u2019t",
        "42",
        "e-mail",
        "a\x00b",
        "🍵 Tee",
    )
    stored = await make.stored_messages(store, *(make.message(agent, text) for text in said))
    for message in stored:
        hits = await store.read(lambda tx, query=message.text: find_messages(tx, query, MessageFilter(agent.id), 20))
        assert message.id in {hit.id for hit in hits}, message.text


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        ("We talked about gardens", "garden"),
        ("Her résumé lies here", "RESUME"),
        ("Her résumé lies here", "re\u0301sume\u0301"),
        ("snake_case it is", "snake"),
        ("It says 'AND' there", "and there"),
        ("Who are you", "who are you"),
    ],
)
async def test_words_match_in_other_forms_and_common_words_when_nothing_else_is_asked(
    store: SqliteStore, said: str, asked: str
) -> None:
    agent = (await make.stored_agent(store)).agent
    (message, _) = await make.stored_messages(store, make.message(agent, said), make.message(agent, "Nothing else."))
    hits = await store.read(lambda tx: find_messages(tx, asked, MessageFilter(agent.id), 5))
    assert [hit.id for hit in hits] == [message.id]


async def test_common_words_are_no_reason_to_find_a_message(store: SqliteStore) -> None:
    agent = (await make.stored_agent(store)).agent
    _, tea = await make.stored_messages(
        store, make.message(agent, "What is the time?"), make.message(agent, "Tea is hot.")
    )
    hits = await store.read(lambda tx: find_messages(tx, "what is the tea?", MessageFilter(agent.id), 5))
    assert [hit.id for hit in hits] == [tea.id]


async def test_the_message_with_more_of_the_words_comes_first(store: SqliteStore) -> None:
    agent = (await make.stored_agent(store)).agent
    one, both, _ = await make.stored_messages(
        store,
        make.message(agent, "Green things"),
        make.message(agent, "Green tea"),
        make.message(agent, "Something else"),
    )
    hits = await store.read(lambda tx: find_messages(tx, "green tea", MessageFilter(agent.id), 5))
    assert [hit.id for hit in hits] == [both.id, one.id]
    assert hits[0].relevance.score > hits[1].relevance.score > 0


@pytest.mark.parametrize("query", ["", "   ", "?!", "🍵", "\x00", "_", '"""', "* *"])
async def test_a_query_without_a_word_gives_the_newest(store: SqliteStore, query: str) -> None:
    agent = (await make.stored_agent(store)).agent
    stored = await make.stored_messages(
        store, *(make.message(agent, str(moment), created_at=START + moment) for moment in (3, 9, 1, 9))
    )
    archive = await make.stored_archive(store, agent, "older", "newer")
    hits = await store.read(lambda tx: find_messages(tx, query, MessageFilter(agent.id), 3))
    assert [hit.id for hit in hits] == [stored[3].id, stored[1].id, stored[0].id]
    passages = await store.read(lambda tx: find_passages(tx, query, PassageFilter((archive.id,)), 1))
    texts = await store.read(lambda tx: archives.passages_by_ids(tx, [hit.id for hit in passages]))
    assert [passage.text for passage in texts] == ["newer"]


async def test_deleted_messages_are_not_found_and_leave_no_text_in_the_index(store: SqliteStore) -> None:
    agent = (await make.stored_agent(store)).agent
    await make.stored_messages(store, make.message(agent, "secret tea"))
    thread = conversations.default_id(agent.id)
    await store.write(lambda tx: messages.delete_of_conversation(tx, thread))

    def look(tx: Transaction) -> None:
        for query in ("secret", ""):
            assert find_messages(tx, query, MessageFilter(agent.id), 5) == []
        assert tx.connection.execute(text("SELECT count(*) FROM messages_fts")).scalar_one() == 0

    await store.read(look)
    # A later message never takes over what an earlier one was found by.
    (later,) = await make.stored_messages(store, make.message(agent, "coffee"))
    assert await store.read(lambda tx: find_messages(tx, "secret", MessageFilter(agent.id), 5)) == []
    (hit,) = await store.read(lambda tx: find_messages(tx, "coffee", MessageFilter(agent.id), 5))
    assert hit.id == later.id


async def test_a_unit_that_is_rolled_back_leaves_nothing_to_find(store: SqliteStore) -> None:
    agent = (await make.stored_agent(store)).agent

    def work(tx: Transaction) -> None:
        messages.insert_all(tx, [make.message(agent, "never said")])
        raise LookupError

    with pytest.raises(LookupError):
        await store.write(work)
    assert await store.read(lambda tx: find_messages(tx, "said", MessageFilter(agent.id), 5)) == []


async def test_a_system_message_is_never_found(store: SqliteStore) -> None:
    agent = (await make.stored_agent(store, make.agent(system="Speak of dragons."))).agent
    for query in ("dragons", ""):
        hits = await store.read(lambda tx, query=query: find_messages(tx, query, MessageFilter(agent.id), 5))
        assert hits == []


def test_each_word_is_quoted_once_and_common_ones_go_if_others_stay() -> None:
    assert match_expression("The tea, the TEA and NEAR(Tea)") == '"Tea" OR "NEAR"'
    assert match_expression("who are you") == '"who" OR "are" OR "you"'
    assert match_expression("-!") is None
    assert match_expression(" ".join(f"w{number}" for number in range(500))).count("OR") == 63  # type: ignore[union-attr]
