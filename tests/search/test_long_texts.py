"""Long texts are indexed and embedded in parts.

A hit is the whole text, with the part that matches.
"""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select

from ricordo.domain.message import Message, TextPart
from ricordo.memory.recall import FoundMessage
from ricordo.search import index, vectors, write_buffer
from ricordo.search.index import MessageFilter, PassageFilter
from ricordo.search.partitions import partition_of
from ricordo.search.reader import DOCUMENT
from ricordo.search.rebuild import reindex
from ricordo.search.scoring import PAUSE
from ricordo.search.text_parts import (
    MOST_CHARACTERS,
    MOST_PARTS,
    PART_CHARACTERS,
    part_of_text,
    parts_of,
)
from ricordo.storage import messages
from ricordo.storage.engine.store import Store, Transaction
from ricordo.storage.schema.core_tables import (
    search_buffer,
    search_documents,
    search_postings,
    search_terms,
)
from tests.conftest import BOTH
from tests.seams import make
from tests.seams.stores import START
from tests.support.library import Library, unheard

DATABASES = BOTH
AGENT = make.agent(id="agent-1")
SENTENCE = "The weather report for region{n} names wind, clouds and a little rain before noon. "


def long_text(topic: str, subjects: int = 6) -> str:
    """Return a text of about 700 characters for each subject, with a unique word for each."""
    return "\n\n".join(
        f"{topic}subject{number} opens this paragraph. "
        + "".join(SENTENCE.format(n=f"{topic}{number}x{line}") for line in range(8))
        for number in range(subjects)
    )


@pytest.fixture
def library(store: Store, tmp_path: Path) -> Library:
    return Library(store, tmp_path)


async def found(library: Library, query: str, limit: int = 5, **more: object) -> list[FoundMessage]:
    return await library.recall.messages(query, MessageFilter((AGENT.id,), **more), limit)  # type: ignore[arg-type]


async def stored(library: Library, *texts: str) -> list[Message]:
    await make.stored_agent(library.store, AGENT)
    return await make.stored_messages(
        library.store,
        *(
            make.message(AGENT, text, id=f"message-{n}", created_at=START + 2 * n * PAUSE)
            for n, text in enumerate(texts)
        ),
    )


@given(
    st.lists(
        st.sampled_from(["word ", "Ende. ", "\n\n", "雨が降る。", "x" * 400, "é"]), max_size=900
    )
    .map("".join)
    .flatmap(lambda text: st.sampled_from([text, text * 3]))
)
def test_a_text_is_split_in_order_into_parts_of_bounded_size(text: str) -> None:
    parts = parts_of(text)
    assert "".join(parts) == text[:MOST_CHARACTERS]
    assert len(parts) <= MOST_PARTS
    if len(parts) > 1:
        assert all(len(part) > PART_CHARACTERS / 4 for part in parts)
        assert [part_of_text(text, n) for n in range(1, len(parts) + 1)] == [
            part.strip() for part in parts
        ]
    assert all(len(part) <= 3 * max(PART_CHARACTERS, len(text) / MOST_PARTS) for part in parts)
    assert part_of_text(text, 0) is None
    assert part_of_text(text, len(parts) + 1) is None


def test_prose_is_split_at_the_ends_of_sentences_and_paragraphs() -> None:
    parts = parts_of(long_text("tea"))
    assert len(parts) > 4
    assert all(part.rstrip()[-1] in ".!?" for part in parts)


async def test_a_long_message_is_one_hit_with_the_matching_part(library: Library) -> None:
    texts = [long_text(topic) for topic in ("tea", "violin", "harbour", "garden")]
    await stored(library, *texts, "A short note about tea.")
    for place in ("buffer", "index", "vectors"):
        if place == "index":
            await library.flush(AGENT.id)
        elif place == "vectors":
            await library.embed(AGENT.id)
        for number, topic in enumerate(("tea", "violin", "harbour", "garden")):
            for subject in (0, 3, 5):
                hits = await found(library, f"{topic}subject{subject} opens this paragraph", 10)
                assert hits[0].message.id == f"message-{number}", (place, topic, subject)
                assert f"{topic}subject{subject}" in (hits[0].excerpt or "")
                assert len(hits[0].excerpt or "") < 2 * PART_CHARACTERS
                assert hits[0].relevance.fts_rank == 1
                ids = [hit.message.id for hit in hits]
                assert len(ids) == len(set(ids))
        newest = await found(library, "", 10)
        assert [hit.message.id for hit in newest] == [f"message-{n}" for n in (4, 3, 2, 1, 0)]
        assert len(await found(library, "weather report", 4)) == 4
        (short,) = await found(library, "note", 1)
        assert (short.message.id, short.excerpt) == ("message-4", None)


async def test_each_part_of_a_long_text_has_a_vector(
    library: Library,
) -> None:
    text = long_text("tea")
    await stored(library, text, "A short note.")
    await library.index(AGENT.id)
    count = len(parts_of(text))
    assert count > 1
    assert library.embedder.asked == [[*parts_of(text), "A short note."]]
    partition = await library.store.read(lambda tx: partition_of(tx, AGENT.id))
    assert (partition.documents, partition.vectors) == (count + 1, count + 1)


async def test_the_turn_before_a_long_answer_is_the_question(library: Library) -> None:
    await make.stored_agent(library.store, AGENT)
    await make.stored_messages(
        library.store,
        make.message(AGENT, "What do you know of it?", id="message-0"),
        make.message(AGENT, long_text("tea"), id="message-1", role="assistant"),
        make.message(AGENT, "Thanks a lot.", id="message-2"),
    )
    for flushes in (False, True):
        if flushes:
            await library.flush(AGENT.id)
        (hit,) = await found(library, "teasubject4", 1, reads_before=True)
        assert (hit.message.id, hit.before and hit.before.id) == ("message-1", "message-0")
        (thanks,) = await found(library, "thanks", 1, reads_before=True)
        assert thanks.before
        assert thanks.before.id == "message-1"


async def test_a_long_answer_is_similar_to_its_question(library: Library) -> None:
    """Of two equal answers, the answer to a similar question comes first."""
    await make.stored_agent(library.store, AGENT)
    # The answers are so long that none of their parts is near the words of the question.
    said = ("harbour " * 80, long_text("tea"), "violin " * 80, long_text("tea"))
    await make.stored_messages(
        library.store,
        *(
            make.message(AGENT, text, id=f"message-{n}", created_at=START + n // 2 * 2 * PAUSE + n)
            for n, text in enumerate(said)
        ),
    )
    await library.index(AGENT.id)
    filters = MessageFilter((AGENT.id,))
    for query, question, answer in (("harbour", 0, 1), ("violin", 2, 3)):
        hits = await library.recall.messages(query, filters, 4, "vector")
        ids = [hit.message.id for hit in hits]
        assert ids[0] == f"message-{question}"
        assert ids.index(f"message-{answer}") < ids.index(f"message-{4 - answer}")


@pytest.mark.parametrize("is_flushed", [False, True])
@pytest.mark.parametrize("was_uncut", [False, True])
async def test_nothing_is_left_of_a_deleted_long_text(
    library: Library, monkeypatch: pytest.MonkeyPatch, is_flushed: bool, was_uncut: bool
) -> None:
    secret = "秘密" * 900  # without a space, so that a cut goes through a word
    with monkeypatch.context() as patch:
        if was_uncut:
            patch.setattr(write_buffer, "parts_of", lambda text: [text])
        await stored(library, f"{secret} {long_text('tea')}", "A short note about tea.")
        if is_flushed:
            await library.flush(AGENT.id)
    await library.store.write(lambda tx: index.unindex_messages(tx, ["message-0"]))
    await library.flush(AGENT.id)

    def left(tx: Transaction) -> tuple[set[str], int]:
        terms = {row.term for row in tx.all(select(search_postings.c.term))}
        terms |= {row.term for row in tx.all(select(search_terms.c.term))}
        return terms, len(tx.all(select(search_buffer.c.seq)))

    terms, waiting = await library.store.read(left)
    assert terms == {"a", "short", "note", "about", "tea"}
    assert waiting == 0
    assert [hit.message.id for hit in await found(library, "tea rain")] == ["message-1"]


async def test_an_edited_text_is_found_only_by_its_new_parts(library: Library) -> None:
    (message, *_) = await stored(library, long_text("tea"), "A short note about tea.")
    await library.index(AGENT.id)
    for topic, subjects in (("violin", 9), ("harbour", 1), ("garden", 4)):
        changed = replace(message, parts=(TextPart(long_text(topic, subjects)),))
        await library.store.write(lambda tx, m=changed: index.rewrite_message(tx, m))  # type: ignore[misc]
        for _ in range(2):
            hits = await found(library, f"{topic}subject0")
            assert hits[0].message.id == "message-0"
            assert (hits[0].excerpt is None) == (subjects == 1)
            assert [hit.message.id for hit in hits].count("message-0") == 1
            for old in {"tea", "violin", "harbour", "garden"} - {topic}:
                best = (await found(library, f"{old}subject0"))[:1]
                assert (
                    not best
                    or not best[0].relevance.matches_well
                    or (best[0].message.id != "message-0")
                )
            await library.index(AGENT.id)


async def test_a_text_indexed_in_one_part_is_found_and_split_by_a_rebuild(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(write_buffer, "parts_of", lambda text: [text])
        patch.setattr(vectors, "parts_of", lambda text: [text])
        await stored(library, long_text("tea"), "A short note about tea.")
        await library.index(AGENT.id)
    (hit, *_) = await found(library, "teasubject4")
    assert (hit.message.id, hit.excerpt) == ("message-0", None)
    await reindex(library.indexing, library.job(AGENT.id), unheard)
    (hit, *_) = await found(library, "teasubject4")
    assert hit.message.id == "message-0"
    assert "teasubject4" in (hit.excerpt or "")


async def test_a_passage_of_an_archive_is_split_too(library: Library) -> None:
    archive = await library.embedded(long_text("tea"), "A short note about tea.")
    (hit, *_) = await library.recall.passages("teasubject2", PassageFilter((archive.id,)), 3)
    assert "teasubject2" in (hit.excerpt or "")
    assert hit.passage.text == long_text("tea")


@pytest.mark.parametrize("is_split", [False, True])
async def test_results_do_not_depend_on_what_is_flushed(library: Library, is_split: bool) -> None:
    """The same texts give the same hits from the write buffer or both, and from the index."""
    texts = [long_text(topic, size) for topic, size in (("tea", 3), ("violin", 5), ("tea", 1))]
    queries = ("teasubject0", "weather wind", "violinsubject4 rain", "teasubject2 region")
    await make.stored_agent(library.store, AGENT)
    new = [
        make.message(AGENT, text, id=f"message-{n}", created_at=START + 2 * n * PAUSE)
        for n, text in enumerate(texts)
    ]
    made = await make.stored_messages(library.store, *new[:-1])
    if is_split:
        await library.flush(AGENT.id)
    made += await make.stored_messages(library.store, *new[-1:])
    seen = []
    for _ in range(2):
        seen.append(
            [
                [
                    (hit.message.id, hit.excerpt, hit.relevance.score)
                    for hit in await found(library, q)
                ]
                for q in queries
            ]
        )
        await library.flush(AGENT.id)
    assert seen[0] == seen[1]
    rows = await library.store.read(lambda tx: tx.all(select(search_documents.c.data)))
    records = np.frombuffer(b"".join(row.data for row in rows), dtype=DOCUMENT)
    stored_messages = await library.store.read(lambda tx: messages.by_ids(tx, [m.id for m in made]))
    assert len(records) == sum(len(parts_of(text)) for text in texts)
    assert set(records["number"].tolist()) == {message.seq for message in stored_messages}


def test_a_very_long_text_is_split_at_words_into_the_largest_number_of_parts() -> None:
    assert len(parts_of("word " * 1_000_000)) == MOST_PARTS
    assert re.fullmatch(r"(word )+", parts_of("word " * 1_000_000)[5])
