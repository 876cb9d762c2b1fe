"""A search embeds texts that have no vector yet, before the index's job does."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ricordo.domain.message import Message, TextPart
from ricordo.errors import Unavailable
from ricordo.search import index, scoring
from ricordo.search.index import MessageFilter, PassageFilter
from ricordo.storage import archives
from ricordo.storage.engine.store import Store, Transaction
from tests.conftest import BOTH
from tests.seams import make
from tests.seams.stores import START
from tests.support.library import Library

DATABASES = BOTH


@pytest.fixture
def library(store: Store, tmp_path: Path) -> Library:
    return Library(store, tmp_path)


async def test_a_search_first_embeds_new_texts_each_once(library: Library) -> None:
    agent = (await make.stored_agent(library.store)).agent
    await make.stored_messages(
        library.store,
        *(make.message(agent, f"harbour note{n}", created_at=START + n) for n in range(60)),
    )
    wanted = MessageFilter((agent.id,))
    (hit, *_) = await library.recall.messages("harbour note7 boats", wanted, 3)
    assert library.embedder.asked[0] == ["harbour note7 boats"]
    assert sorted(library.embedder.asked[1]) == sorted(f"harbour note{n}" for n in range(10, 60))
    assert hit.relevance.mode == "hybrid"
    for _ in range(2):
        await library.recall.messages("harbour note7 boats", wanted, 3)
        assert len(library.embedder.asked) == 2
        await library.flush(agent.id)
    (hit, *_) = await library.recall.messages("harbour note59", wanted, 1)
    assert hit.message.text == "harbour note59"
    assert hit.relevance.similarity == pytest.approx(1, abs=0.01)
    await library.embed(agent.id)
    asked = len(library.embedder.asked)
    (same, *_) = await library.recall.messages("harbour note59", wanted, 1)
    assert len(library.embedder.asked) == asked
    assert same.relevance.similarity == pytest.approx(hit.relevance.similarity, abs=0.002)


async def test_new_texts_that_cannot_be_embedded_are_found_by_words(library: Library) -> None:
    agent = (await make.stored_agent(library.store)).agent
    await make.stored_messages(library.store, make.message(agent, "jasmine tea"))
    wanted = MessageFilter((agent.id,))
    await library.recall.messages("", wanted, 1)
    await library.recall.messages("violin", wanted, 1, "fts")
    assert library.embedder.asked == []
    await library.recall.messages("jasmine", MessageFilter(("agent-2",)), 1)  # embeds the query
    library.embedder.fails(Unavailable("down"))
    (hit,) = await library.recall.messages("jasmine", wanted, 1)
    assert (hit.message.text, hit.relevance.vector_rank) == ("jasmine tea", None)
    asked = len(library.embedder.asked)
    await library.recall.messages("jasmine", wanted, 1)
    assert len(library.embedder.asked) == asked


async def test_an_edited_text_is_embedded_again_by_the_next_search(library: Library) -> None:
    agent = (await make.stored_agent(library.store)).agent
    (message,) = await make.stored_messages(library.store, make.message(agent, "jasmine tea"))
    wanted = MessageFilter((agent.id,))
    await library.recall.messages("violin", wanted, 1)
    changed = replace(message, parts=(TextPart("a violin by the window"),))
    await library.store.write(lambda tx: index.rewrite_message(tx, changed))
    (hit,) = await library.recall.messages("violin", wanted, 1)
    assert hit.relevance.similarity is not None
    assert hit.relevance.similarity > 0.3
    assert ["a violin by the window"] in library.embedder.asked


async def rewritten(library: Library, message: Message, text: str) -> None:
    changed = replace(message, parts=(TextPart(text),))
    await library.store.write(lambda tx: index.rewrite_message(tx, changed))


# The texts of a message, one after the other: each has six words, so their lengths do not differ.
SUBJECTS = ("violin", "harbour", "garden", "glacier")


@pytest.mark.parametrize("is_flushed", [False, True])
@pytest.mark.parametrize("is_long", [False, True])
async def test_an_edit_that_keeps_the_number_of_words_is_embedded_by_the_next_search(
    library: Library, is_flushed: bool, is_long: bool
) -> None:
    agent = (await make.stored_agent(library.store)).agent
    filler = "\n\n" + "The report names wind and a little rain. " * 60 if is_long else ""
    first, *others = [f"a {subject} was near the window.{filler}" for subject in SUBJECTS]
    (message,) = await make.stored_messages(library.store, make.message(agent, first))
    wanted = MessageFilter((agent.id,))
    await library.recall.messages(SUBJECTS[0], wanted, 1)
    for subject, text in zip(SUBJECTS[1:], others, strict=True):
        await rewritten(library, message, text)
        if is_flushed:
            await library.flush(agent.id)
        asked = len(library.embedder.asked)
        (hit,) = await library.recall.messages(subject, wanted, 1)
        embedded = [part for texts in library.embedder.asked[asked:] for part in texts]
        assert any(part.startswith(f"a {subject} was") for part in embedded), subject
        assert hit.relevance.similarity is not None
        (again,) = await library.recall.messages(subject, wanted, 1)
        assert again == hit
        await library.embed(agent.id)
        (stored,) = await library.recall.messages(subject, wanted, 1)
        assert stored.relevance.similarity == pytest.approx(hit.relevance.similarity, abs=0.002)


async def test_a_passage_edited_to_the_same_number_of_words_is_embedded_again(
    library: Library,
) -> None:
    archive = await library.flushed("a violin by the window")
    wanted = PassageFilter((archive.id,))
    (hit,) = await library.recall.passages("violin", wanted, 1)
    changed = replace(hit.passage, text="a harbour by the window")

    def rewrite(tx: Transaction) -> None:
        archives.lock_passages(tx, [changed.id])
        index.rewrite_passage(tx, changed)

    await library.store.write(rewrite)
    for _ in range(2):
        (hit,) = await library.recall.passages("harbour", wanted, 1)
        assert hit.relevance.similarity is not None
        assert ["a harbour by the window"] in library.embedder.asked
        await library.flush(archive.id)


async def test_a_search_that_embeds_new_texts_scores_once(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = (await make.stored_agent(library.store)).agent
    scored = []
    lexical = scoring.lexical
    monkeypatch.setattr(scoring, "lexical", lambda *columns: scored.append(1) or lexical(*columns))
    for number in range(3):
        await make.stored_messages(library.store, make.message(agent, f"harbour note{number}"))
        hits = await library.recall.messages("harbour", MessageFilter((agent.id,)), 5)
        assert len(hits) == number + 1
        assert all(hit.relevance.similarity is not None for hit in hits)
        assert len(scored) == number + 1


async def test_a_text_stored_while_new_texts_are_embedded_is_found_by_words(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = (await make.stored_agent(library.store)).agent
    await make.stored_messages(library.store, make.message(agent, "harbour note0"))
    embed = library.embedder.embed

    async def embed_late(texts: Sequence[str], **more: Any) -> list[list[float]]:
        if more.get("purpose") == "document":
            late = make.message(agent, f"harbour note{len(library.embedder.asked)}")
            await make.stored_messages(library.store, late)
        return await embed(texts, **more)

    monkeypatch.setattr(library.embedder, "embed", embed_late)
    hits = await library.recall.messages("harbour", MessageFilter((agent.id,)), 5)
    assert [hit.relevance.similarity is not None for hit in hits].count(True) == 1
    assert len(hits) == 2
