"""Maintenance of the index: flushes, vectors, a change of the model, outside indexes, and kills."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from sqlalchemy import select

from ricordo.domain.clock import SECOND
from ricordo.domain.job import Job
from ricordo.domain.scope import LOCAL_ORGANIZATION, Scope
from ricordo.errors import ModelError
from ricordo.llm.scripted import ScriptedEmbedder
from ricordo.search import index, indexer, partitions, write_buffer
from ricordo.search.flush import pack_rows, write_rows
from ricordo.search.index import PassageFilter, delete_passage, insert_passages
from ricordo.search.vector_index import VectorFilter, VectorRecord
from ricordo.search.write_buffer import FLUSH, FLUSH_DELAY, LONG_BUFFER, QUICK_DELAY, QUICK_FLUSHES
from ricordo.storage import archives
from ricordo.storage.engine.store import Store
from ricordo.storage.schema.core_tables import jobs, search_partitions, search_vectors
from tests.seams import make
from tests.seams.stores import ManualClock
from tests.support.library import Library, unheard


@pytest.fixture(autouse=True)
def _as_on_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the delay of a quick flush, which other tests remove."""
    monkeypatch.setattr(write_buffer, "QUICK_DELAY", QUICK_DELAY)


class Outside:
    """A vector index in memory that records its calls."""

    name = "qdrant"

    def __init__(self) -> None:
        self.held: dict[tuple[str, str], dict[int, VectorRecord]] = {}

    async def upsert(self, partition: str, model: str, records: Sequence[VectorRecord]) -> None:
        self.held.setdefault((partition, model), {}).update(
            {record.document: record for record in records}
        )

    async def remove(self, partition: str, model: str, documents: Sequence[int]) -> None:
        for document in documents:
            self.held.get((partition, model), {}).pop(document, None)

    async def drop(self, partition: str, model: str) -> None:
        self.held.pop((partition, model), None)

    async def search(
        self, partition: str, model: str, vector: Sequence[float], limit: int, _wanted: VectorFilter
    ) -> list[tuple[int, float]]:
        scored = [
            (document, sum(a * b for a, b in zip(record.vector, vector, strict=True)))
            for document, record in self.held.get((partition, model), {}).items()
        ]
        return sorted(scored, key=lambda one: -one[1])[:limit]

    async def close(self) -> None:
        pass


@pytest.fixture
def library(store: Store, tmp_path: Path) -> Library:
    return Library(store, tmp_path, {"qdrant": Outside()})


async def test_an_idle_server_flushes_a_text_soon_and_a_long_buffer_at_once(
    library: Library, clock: ManualClock
) -> None:
    state = await make.stored_agent(library.store)
    await make.stored_messages(
        library.store, make.message(state.agent, "one"), make.message(state.agent, "two")
    )
    (asked,) = await library.waiting(FLUSH)
    assert asked.payload == {"owner_id": state.agent.id}
    assert 0 <= asked.not_before - clock.now() <= QUICK_DELAY
    await make.stored_messages(
        library.store, *(make.message(state.agent, f"note {n}") for n in range(LONG_BUFFER))
    )
    assert len(await library.waiting(FLUSH)) == 1
    assert (await library.waiting(FLUSH))[0].not_before <= clock.now()


async def test_a_busy_server_flushes_later_and_an_idle_one_soon_again(
    library: Library, clock: ManualClock
) -> None:
    agents = [(await make.stored_agent(library.store)).agent for _ in range(QUICK_FLUSHES + 2)]
    for agent in agents:
        await make.stored_messages(library.store, make.message(agent, "one"))
    waits = {
        job.payload["owner_id"]: job.not_before - clock.now()
        for job in await library.waiting(FLUSH)
    }
    quick = [agent.id for agent in agents if waits[agent.id] <= QUICK_DELAY]
    assert quick == [agent.id for agent in agents[:QUICK_FLUSHES]]
    assert all(waits[agent.id] > FLUSH_DELAY - SECOND for agent in agents[QUICK_FLUSHES:])
    # An owner with many writes adds one job, and no more.
    clock.advance(10)
    for number in range(20):
        await make.stored_messages(library.store, make.message(agents[-1], f"note {number}"))
    assert len(await library.waiting(FLUSH)) == len(agents)
    newcomer = (await make.stored_agent(library.store)).agent
    await make.stored_messages(library.store, make.message(newcomer, "one"))
    (late,) = [
        job for job in await library.waiting(FLUSH) if job.payload["owner_id"] == newcomer.id
    ]
    assert late.not_before - clock.now() > FLUSH_DELAY - SECOND
    # Some seconds later the server counts as idle again.
    clock.advance(20.1)
    await make.stored_messages(library.store, make.message(newcomer, "two"))
    (late,) = [
        job for job in await library.waiting(FLUSH) if job.payload["owner_id"] == newcomer.id
    ]
    assert late.not_before - clock.now() <= QUICK_DELAY


async def test_of_two_flushes_of_the_same_rows_only_one_writes(library: Library) -> None:
    state = await make.stored_agent(library.store)
    archive = await make.stored_archive(library.store, state.agent, "tea", "coffee")
    first, second = [
        await library.store.read(lambda tx: pack_rows(tx, archive.id)) for _ in range(2)
    ]
    assert first is not None
    assert second is not None
    assert await library.store.write(lambda tx: write_rows(tx, first))
    assert not await library.store.write(lambda tx: write_rows(tx, second))
    await library.store.write(
        lambda tx: insert_passages(tx, archive, [make.passage(archive, "milk")])
    )
    assert not await library.store.write(lambda tx: write_rows(tx, second))
    await library.flush(archive.id)
    assert {hit.passage.text for hit in await library.find(archive.id, "milk")} >= {"milk"}
    found = await library.recall.passages("tea coffee milk", PassageFilter((archive.id,)), 9, "fts")
    assert sorted(hit.passage.text for hit in found) == ["coffee", "milk", "tea"]


async def test_a_word_that_was_deleted_and_returns_is_found_inside_others_again(
    library: Library,
) -> None:
    archive = await library.flushed("Donaudampfschifffahrt", "tea")
    for _ in range(2):
        hit, *_ = await library.recall.passages(
            "dampfschiff", PassageFilter((archive.id,)), 9, "fts"
        )
        assert hit.passage.text == "Donaudampfschifffahrt"
        await library.store.write(
            lambda tx, hit=hit: delete_passage(tx, Scope(), [archive], hit.passage.id)  # type: ignore[misc]
        )
        await library.flush(archive.id)
        assert (
            await library.recall.passages("dampfschiff", PassageFilter((archive.id,)), 9, "fts")
            == []
        )
        again = make.passage(archive, "Donaudampfschifffahrt")
        await library.store.write(lambda tx, again=again: insert_passages(tx, archive, [again]))  # type: ignore[misc]
        await library.flush(archive.id)


async def test_after_a_kill_the_remaining_texts_are_embedded_and_none_twice(
    library: Library,
) -> None:
    archive = await library.flushed(*(f"note {n}" for n in range(600)))
    first = library.embedder.embed
    calls = 0

    async def dies_on_the_second(texts: Sequence[str], **options: object) -> list[list[float]]:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise asyncio.CancelledError
        return await first(texts)

    library.embedder.embed = dies_on_the_second  # type: ignore[assignment, method-assign]
    with pytest.raises(asyncio.CancelledError):
        await library.embed(archive.id)
    assert (await library.find(archive.id, "note 3"))[0].relevance.vector_rank is not None
    library.embedder.embed = first  # type: ignore[method-assign]
    library.embedder.asked.clear()
    await library.embed(archive.id)
    assert (
        sum(len(call) for call in library.embedder.asked if call != ["note 3"])
        == 600 - indexer.EMBEDDED_AT_ONCE
    )


def refuse(library: Library, is_refused: Callable[[str], bool]) -> list[Sequence[str]]:
    """Let the model's provider refuse such texts; return the texts that it gets."""
    made, asked = library.embedder.embed, list[Sequence[str]]()

    async def refuses(texts: Sequence[str], **_options: object) -> list[list[float]]:
        asked.append(texts)
        if any(map(is_refused, texts)):
            raise ModelError("llm_bad_request", "There is no such model.")
        return await made(texts)

    library.embedder.embed = refuses  # type: ignore[assignment, method-assign]
    return asked


async def test_after_a_failed_embedding_every_document_gets_its_vector_later(
    library: Library,
) -> None:
    # First the model's provider cannot be reached, and then it has withdrawn the model.
    archive = await library.flushed(*(f"note {n}" for n in range(40)))
    library.embedder.fails(ModelError("llm_error", "It is away."))
    with pytest.raises(ModelError):
        await library.embed(archive.id)
    made = library.embedder.embed
    asked = refuse(library, lambda text: bool(text.strip()))
    with pytest.raises(ModelError, match="no such model"):
        await library.embed(archive.id)
    assert len(asked) < 5
    library.embedder.embed = made  # type: ignore[method-assign]
    await library.embed(archive.id)
    assert (await library.find(archive.id, "note 17"))[0].relevance.vector_rank == 1


async def test_a_text_that_the_provider_refuses_does_not_keep_others_from_their_vectors(
    library: Library,
) -> None:
    archive = await library.flushed(*(f"note {n}" for n in range(40)), "forbidden")
    refuse(library, lambda text: text == "forbidden")
    await library.embed(archive.id)
    assert (await library.find(archive.id, "note 17"))[0].relevance.vector_rank == 1
    assert (await library.find(archive.id, "forbidden"))[0].passage.text == "forbidden"
    (partition,) = await library.store.read(lambda tx: tx.all(select(search_partitions)))
    assert partition.vectors == 41


async def test_a_new_model_takes_over_when_complete_and_searches_work_meanwhile(
    library: Library,
) -> None:
    archive = await library.embedded(*(f"note {n}" for n in range(600)))
    seen: list[str] = []
    library.other.delay = 0.02
    library.embedders._settings = library.embedders._settings.model_copy(
        update={"embedding": "scripted/other"}
    )
    switching = asyncio.create_task(library.embed(archive.id))
    while not switching.done():
        hits = await library.find(archive.id, "note 417")
        assert hits[0].passage.text == "note 417"
        assert hits[0].relevance.vector_rank is not None
        seen.append(hits[0].relevance.mode)
        await asyncio.sleep(0.005)
    await switching
    assert set(seen) == {"hybrid"}
    (partition,) = await library.store.read(lambda tx: tx.all(select(search_partitions)))
    assert (partition.embedding, partition.vectors) == ("scripted/other", 600)
    models = await library.store.read(
        lambda tx: tx.all(select(search_vectors.c.embedding).distinct())
    )
    assert [row.embedding for row in models] == ["scripted/other"]
    library.embedder.asked.clear()
    assert (await library.find(archive.id, "note 5"))[0].passage.text == "note 5"
    assert library.embedder.asked == []


async def test_a_model_whose_dimensions_changed_embeds_everything_again(library: Library) -> None:
    archive = await library.embedded("one")
    library.embedders.add(ScriptedEmbedder(dimensions=48))
    await library.store.write(
        lambda tx: insert_passages(tx, archive, [make.passage(archive, "two")])
    )
    await library.flush(archive.id)
    await library.embed(archive.id)
    rows = await library.store.read(lambda tx: tx.all(select(search_vectors)))
    assert [(row.dimensions, len(row.data)) for row in rows] == [(48, 2 * 48 * 2)]
    assert (await library.find(archive.id, "two"))[0].passage.text == "two"


async def test_a_deleted_text_leaves_no_vector(library: Library) -> None:
    archive = await library.embedded("one", "two", "three")
    hits = await library.find(archive.id, "two")
    await library.store.write(lambda tx: index.unindex_passages(tx, [hits[0].passage.id]))
    await library.flush(archive.id)
    (row,) = await library.store.read(lambda tx: tx.all(select(search_vectors)))
    width = row.dimensions * 2
    assert [set(row.data[n * width : (n + 1) * width]) == {0} for n in range(3)] == [
        False,
        True,
        False,
    ]


async def test_an_archive_with_an_outside_index_keeps_its_vectors_there(
    library: Library,
) -> None:
    state = await make.stored_agent(library.store)
    archive = make.archive("Outside", vector_db="qdrant")
    await library.store.write(lambda tx: archives.insert_one(tx, archive, owner=state.agent.id))
    new = [make.passage(archive, text, tags=("red",)) for text in ("jasmine tea", "a walk")]
    await library.store.write(lambda tx: insert_passages(tx, archive, new))
    await library.flush(archive.id)
    await library.embed(archive.id)
    held = library.indexing.indexes["qdrant"].held[archive.id, "scripted/embedder"]
    assert [record.tags for record in held.values()] == [("red",), ("red",)]
    hits = await library.find(archive.id, "jasmine")
    assert hits[0].passage.text == "jasmine tea"
    assert hits[0].relevance.vector_rank == 1
    await library.store.write(lambda tx: index.unindex_passages(tx, [hits[0].passage.id]))
    await library.flush(archive.id)
    assert len(held) == 1


async def test_a_sweep_adds_jobs_that_were_missed(library: Library, clock: ManualClock) -> None:
    archive = await library.flushed("one")
    agent = (await make.stored_agent(library.store)).agent
    await make.stored_messages(library.store, make.message(agent, "said"))
    await library.store.write(lambda tx: tx.run(jobs.delete().where(jobs.c.seq > 0), {"unused": 0}))
    await library.indexing.sweep(Job(partitions.SWEEP, LOCAL_ORGANIZATION), unheard)
    assert [job.payload["owner_id"] for job in await library.waiting(FLUSH)] == [agent.id]
    assert [job.payload["owner_id"] for job in await library.waiting(partitions.EMBED)] == [
        archive.id
    ]
