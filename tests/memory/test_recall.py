"""Search of messages and passages.

It works by words and by meaning, with another embedding model than the default, and with a failing
one.
"""

import tracemalloc
from pathlib import Path

import pytest

from ricordo.errors import Unavailable
from ricordo.features.vector_services.adapters import QdrantIndex
from ricordo.llm.scripted import ScriptedEmbedder
from ricordo.memory.edits import PassageDraft
from ricordo.memory.recall import FoundMessage, most_alike
from ricordo.search.index import MessageFilter, PassageFilter, SearchMode, insert_passages
from ricordo.search.words import QUESTION_LENGTH
from ricordo.storage import archives, conversations
from ricordo.storage.engine.store import Store
from tests.seams import make
from tests.seams.stores import count_statements
from tests.support.library import Library


@pytest.fixture
def library(store: Store, tmp_path: Path) -> Library:
    return Library(store, tmp_path)


async def test_messages_are_found_best_first_with_their_relevance(library: Library) -> None:
    state = await make.stored_agent(library.store)
    texts = [
        "The weather was fine.",
        "Jasmine tea, and more tea: jasmine.",
        "We spoke of jasmine and of a long walk.",
    ]
    await make.stored_messages(
        library.store,
        *(
            make.message(state.agent, text, created_at=day * 86_400_000_000)
            for day, text in enumerate(texts)
        ),
    )
    hits = await library.recall.messages("jasmine tea", MessageFilter((state.agent.id,)), 2)
    assert [hit.message.text for hit in hits] == [texts[1], texts[2]]
    assert [hit.relevance.fts_rank for hit in hits] == [1, 2]
    assert {hit.relevance.mode for hit in hits} == {"hybrid"}
    assert hits[0].relevance.score > hits[1].relevance.score


async def test_another_agents_messages_are_not_found(library: Library) -> None:
    state, other = (
        await make.stored_agent(library.store),
        await make.stored_agent(library.store, make.agent("Otto")),
    )
    await make.stored_messages(library.store, make.message(other.agent, "jasmine"))
    assert await library.recall.messages("jasmine", MessageFilter((state.agent.id,)), 5) == []
    assert (
        len(
            await library.recall.messages(
                "jasmine", MessageFilter((state.agent.id, other.agent.id)), 5
            )
        )
        == 1
    )


async def test_after_embedding_a_search_uses_words_and_meaning_with_both_ranks(
    library: Library,
) -> None:
    state = await make.stored_agent(library.store)
    archive = await make.stored_archive(
        library.store, state.agent, "jasmine tea in the pot", "a long walk", "tea"
    )
    await library.index(archive.id)
    hits = await library.recall.passages("jasmine tea", PassageFilter((archive.id,)), 1)
    assert [(hit.passage.text, hit.relevance.mode) for hit in hits] == [
        ("jasmine tea in the pot", "hybrid")
    ]
    assert hits[0].relevance.fts_rank is not None
    assert hits[0].relevance.vector_rank is not None
    by_meaning = await library.recall.passages(
        "jasmine tea", PassageFilter((archive.id,)), 3, "vector"
    )
    assert [hit.relevance.fts_rank for hit in by_meaning] == [None] * len(by_meaning)
    assert [hit.relevance.vector_rank for hit in by_meaning] == list(range(1, len(by_meaning) + 1))


async def test_a_failing_embedding_model_leaves_a_search_by_words(library: Library) -> None:
    state = await make.stored_agent(library.store)
    archive = await make.stored_archive(library.store, state.agent, "jasmine tea", "walk")
    await library.index(archive.id)
    library.embedder.fails(Unavailable("The model is away."), Unavailable("The model is away."))
    hits = await library.recall.passages("jasmine", PassageFilter((archive.id,)), 1)
    assert [(hit.passage.text, hit.relevance.mode) for hit in hits] == [("jasmine tea", "fts")]


async def test_a_query_is_embedded_once_and_not_at_all_for_a_search_by_words(
    library: Library,
) -> None:
    state = await make.stored_agent(library.store)
    wanted = MessageFilter((state.agent.id,))
    await library.recall.messages("jasmine", wanted, 5, "fts")
    assert library.embedder.asked == []
    for _ in range(3):
        await library.recall.messages("jasmine", wanted, 5)
    assert library.embedder.asked == [["jasmine"]]


async def test_an_archive_with_another_models_vectors_is_searched_with_that_model(
    library: Library,
) -> None:
    other = ScriptedEmbedder(name="other", dimensions=32)
    library.embedders.add(other)
    state = await make.stored_agent(library.store)
    archive = await make.stored_archive(
        library.store, state.agent, "jasmine tea", "a walk", embedding=other.handle
    )
    await library.index(archive.id)
    hits = await library.recall.passages("jasmine", PassageFilter((archive.id,)), 1)
    assert [(hit.passage.text, hit.relevance.mode) for hit in hits] == [("jasmine tea", "hybrid")]
    assert other.asked[-1] == ["jasmine"]


@pytest.mark.parametrize("mode", ["vector", "hybrid"])
async def test_an_external_index_is_asked_with_the_model_of_each_archive(
    store: Store, tmp_path: Path, mode: SearchMode
) -> None:
    vector_index = QdrantIndex(":memory:")
    library = Library(store, tmp_path, {"qdrant": vector_index})
    state = await make.stored_agent(store)
    archive_ids = {}
    for embedding in (library.embedder.handle, library.other.handle, None):
        archive = make.archive(f"Archive {embedding}", vector_db="qdrant", embedding=embedding)
        texts = [f"{word} of {embedding}" for word in ("tea", "a walk", "rain")]
        passages = [make.passage(archive, text) for text in texts]
        await store.write(
            lambda tx, one=archive: archives.insert_one(tx, one, owner=state.agent.id)
        )
        await store.write(lambda tx, one=archive, new=passages: insert_passages(tx, one, new))
        await library.index(archive.id)
        archive_ids[embedding] = archive.id
    for embedding, archive_id in archive_ids.items():
        hits = await library.recall.passages(
            f"tea of {embedding}", PassageFilter((archive_id,)), 1, mode
        )
        assert [(hit.passage.text, hit.relevance.mode) for hit in hits] == [
            (f"tea of {embedding}", mode)
        ]
    # One search of all archives finds texts by meaning in each of them.
    hits = await library.recall.passages("tea", PassageFilter(tuple(archive_ids.values())), 9, mode)
    assert len(hits) == 9
    assert all(hit.relevance.vector_rank is not None for hit in hits)
    await vector_index.close()


async def test_a_search_takes_at_most_five_statements(library: Library) -> None:
    state = await make.stored_agent(library.store)
    archive = await make.stored_archive(
        library.store, state.agent, *(f"jasmine tea {n}" for n in range(20))
    )
    wanted = PassageFilter((archive.id,), tags=())
    await library.index(archive.id)
    with count_statements(library.store) as counted:  # type: ignore[arg-type]
        # Nothing is cached yet, and one word occurs only inside other words, so this search needs
        # the most statements.
        assert await library.recall.passages("jasmine asmin", wanted, 5)
    assert len(counted.statements) == 5
    assert counted.transactions == 1
    with count_statements(library.store) as counted:  # type: ignore[arg-type]
        assert await library.recall.passages("jasmine", wanted, 5)
    assert len(counted.statements) == 2


async def test_the_cache_of_query_vectors_does_not_keep_the_texts(
    library: Library,
) -> None:
    state = await make.stored_agent(library.store)
    texts = [f"{number} {'tea' * 33_000}" for number in range(12)]
    wanted = MessageFilter((state.agent.id,))
    await library.recall.messages("jasmine", wanted, 5)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for text in [*texts, *texts]:
        await library.recall.messages(text + " ", wanted, 5)
        library.embedder.asked[1:] = []
    kept = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert kept < 1_100_000


async def test_a_search_in_a_fork_finds_shared_messages_and_none_sent_elsewhere_later(
    library: Library,
) -> None:
    store = library.store
    agent = (await make.stored_agent(store)).agent
    root = make.conversation(agent, id="conv-root")
    await store.write(lambda tx: conversations.insert_one(tx, root))
    said = [make.message(agent, f"Tea {number}.", conversation_id=root.id) for number in range(4)]
    stored = await make.stored_messages(store, *said)
    fork = make.conversation(agent, id="conv-fork", forked_from=root.id, forked_seq=stored[1].seq)
    await store.write(lambda tx: conversations.insert_one(tx, fork))
    await make.stored_messages(
        store, make.message(agent, "Tea of the fork.", conversation_id=fork.id)
    )
    shared = await store.read(lambda tx: conversations.shared_by(tx, fork))
    wanted = MessageFilter((agent.id,), fork.id, shared=shared)
    expected = {"Tea 0.", "Tea 1.", "Tea of the fork."}

    def texts(hits: list[FoundMessage]) -> set[str]:
        return {hit.message.text for hit in hits}

    assert texts(await library.recall.messages("tea", wanted, 10)) == expected
    assert texts(await library.recall.messages("", wanted, 10)) == expected
    await library.index(agent.id)
    for mode in ("hybrid", "vector", "fts"):
        assert texts(await library.recall.messages("tea", wanted, 10, mode)) == expected  # type: ignore[arg-type]
    assert len(await library.recall.messages("tea", wanted, 2)) == 2
    with count_statements(store) as counted:  # type: ignore[arg-type]
        await store.read(lambda tx: conversations.shared_by(tx, fork))
        await library.recall.messages("tea", wanted, 10)
    assert len(counted.statements) <= 5
    # A search without the shared messages finds only the fork's own.
    assert texts(await library.recall.messages("tea", MessageFilter((agent.id,), fork.id), 10)) == {
        "Tea of the fork."
    }


def existing(text: str, *tags: str, id: str = "passage-1") -> PassageDraft:
    return PassageDraft("call-1", id, text, tags)


def test_texts_are_classified_as_the_same_nearly_the_same_or_different() -> None:
    moved = "Ada moved to Turin in May and works as a gardener there."
    for text, other, is_same in (
        ("Ada likes tea.", "Ada likes tea.", True),
        (" Ada  likes\ntea. ", "Ada likes tea.", True),
        ("…", "…", True),
        ("Ada likes tea.", "ADA LIKES TEA!", False),
        (moved, "In May Ada moved to Turin and works there as a gardener now.", False),
        (
            "Ada möchte am Montag nach Turin fahren",
            "Ada möchte am Montag nach Turin fahren, bald",
            False,
        ),
        ("她喜欢喝茉莉花茶，每天早上都喝", "她喜欢喝茉莉花茶，每天早上都喝。", False),
        *(
            (("Ada likes tea."), other, None)
            for other in ("Ada likes coffee.", "Ben likes tea.", "", "…")
        ),
        ("Ada likes tea.", "Ada likes tea, and she keeps bees in her garden.", None),
        ("…", "!", None),
    ):
        there, back = (
            most_alike(text, (), [existing(other)]),
            most_alike(other, (), [existing(text)]),
        )
        assert (there and there.is_same, back and back.is_same) == (is_same, is_same), (text, other)


def test_an_equal_text_is_preferred_and_one_with_all_tags_counts_as_kept() -> None:
    there = [
        existing("Ada likes tea!", id="near"),
        existing("Ada likes tea.", "a", id="same"),
        existing("Ada likes tea.", "b", "a", "c", id="kept"),
    ]
    for tags, id, is_kept in (
        (("b", "c"), "kept", True),
        (("a",), "same", True),
        (("d",), "same", False),
    ):
        likeness = most_alike("Ada likes tea.", tags, there)
        assert (likeness.existing.id, likeness.is_kept) == (id, is_kept)


async def test_a_query_has_no_syntax_on_either_database(library: Library) -> None:
    state = await make.stored_agent(library.store)
    archive = await make.stored_archive(library.store, state.agent, "jasmine tea", "walk")
    await library.index(archive.id)
    for query in (
        "tea\0",
        "\ud800 tea",
        'tea:* & "x" <-> !y',
        "'; drop",
        "tea%_%\\",
        "e" + "\u0301" * 30_000 + " tea",
    ):
        for mode in ("hybrid", "fts", "vector"):
            await library.recall.passages(query, PassageFilter((archive.id,)), 5, mode)  # type: ignore[arg-type]
    await library.recall.passages("tea " * 250_000, PassageFilter((archive.id,)), 5)
    assert len(library.embedder.asked[-1][0]) == QUESTION_LENGTH


async def test_hits_report_similarity_and_word_share_also_on_later_pages(
    library: Library,
) -> None:
    state = await make.stored_agent(library.store)
    archive = await make.stored_archive(
        library.store, state.agent, *(f"jasmine tea {n}" for n in range(20))
    )
    await library.index(archive.id)
    wanted = PassageFilter((archive.id,))
    whole = await library.recall.passages("jasmine tea", wanted, 20)
    assert all(hit.relevance.matches_well and hit.relevance.similarity is not None for hit in whole)
    paged = [
        hit
        for skipped in range(0, 25, 7)
        for hit in await library.recall.passages("jasmine tea", wanted, 7, offset=skipped)
    ]
    assert paged == whole
    (first, *_) = await library.recall.passages(
        "jasmine submarine factory quarterly revenue", wanted, 1, "fts"
    )
    assert first.relevance.word_match < 0.3
