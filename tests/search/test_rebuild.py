"""Rebuilding an index.

Every damaged part is found again, and nothing that happens meanwhile is lost.
"""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from sqlalchemy import delete, select, update

from ricordo.agents.deletion import purge_portion
from ricordo.domain.job import Job
from ricordo.domain.passage import Archive
from ricordo.domain.scope import LOCAL_ORGANIZATION, Scope
from ricordo.errors import ModelError
from ricordo.search import index, rebuild
from ricordo.search.index import MessageFilter, delete_passage, insert_passages
from ricordo.search.rebuild import reembed, reindex
from ricordo.storage import agents, archives, conversations, deletion
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Store, Transaction
from ricordo.storage.schema.core_tables import (
    search_buffer,
    search_documents,
    search_partitions,
    search_postings,
    search_terms,
    search_vectors,
)
from tests.seams import make
from tests.support.library import Interrupted, Library, unheard

TABLES = (
    search_partitions,
    search_buffer,
    search_documents,
    search_postings,
    search_terms,
    search_vectors,
)
QUERIES = ("jasmine tea", "rain in Lisbon", "note 77", "violin", "harbour notes of Tuesday", "Lisb")
Found = list[tuple[str, float]]


class Shelf(Library):
    """An agent with messages, and an archive, some of whose passages were added together.

    All are flushed and embedded, and the write buffer holds some texts.
    """

    agent_id: str
    archive: Archive

    async def fill(self) -> None:
        state = await make.stored_agent(self.store)
        agent, self.agent_id = state.agent, state.agent.id
        texts = [
            f"note {n} of {('rain in Lisbon', 'jasmine tea', 'a violin')[n % 3]}"
            for n in range(120)
        ]
        await make.stored_messages(
            self.store, *(make.message(agent, one, created_at=n) for n, one in enumerate(texts))
        )
        self.archive = await make.stored_archive(self.store, agent, *texts[:40], tags=("first",))
        await self.add("Tuesday in the harbour.", "A violin was heard.")
        for owner_id in (self.agent_id, self.archive.id):
            await self.index(owner_id)
        await self.add("Wednesday: jasmine.", "Lisboa again.")

    async def add(self, *texts: str) -> None:
        new = [make.passage(self.archive, text) for text in texts]
        await self.store.write(lambda tx: insert_passages(tx, self.archive, new))

    async def everything(self, mode: index.SearchMode = "hybrid") -> list[Found]:
        found = []
        for query in QUERIES:
            said = await self.recall.messages(query, MessageFilter((self.agent_id,)), 20, mode)
            known = await self.recall.passages(
                query, index.PassageFilter((self.archive.id,)), 20, mode
            )
            found.append([(hit.message.text, hit.relevance.score) for hit in said])
            found.append([(hit.passage.text, hit.relevance.score) for hit in known])
        return found

    async def rebuild(self, *owners: str, vectors_only: bool = False) -> None:
        for owner_id in owners or (self.agent_id, self.archive.id):
            job = Job("search.reindex", LOCAL_ORGANIZATION, {"owner_id": owner_id})
            await (reembed if vectors_only else reindex)(self.indexing, job, unheard)

    async def partitions(self) -> set[str]:
        rows = await self.store.read(lambda tx: tx.all(select(search_partitions.c.owner_id)))
        return {row.owner_id for row in rows}

    def forget(self) -> None:
        """Clear this process's caches of the index, as if another process had changed it."""
        self.store.cache.clear()  # type: ignore[attr-defined]

    async def count(self, table: object) -> int:
        return len(await self.store.read(lambda tx: tx.all(select(table))))  # type: ignore[call-overload]


@pytest.fixture
async def shelf(store: Store, tmp_path: Path) -> Shelf:
    filled = Shelf(store, tmp_path)
    await filled.fill()
    return filled


@pytest.mark.parametrize("damaged", ["deleted", "garbage"])
async def test_damaged_parts_are_found_again_with_the_same_scores(
    shelf: Shelf, damaged: str
) -> None:
    await shelf.rebuild()
    before = await shelf.everything()

    def damage(tx: Transaction) -> None:
        for table in TABLES if damaged == "deleted" else ():
            tx.run(delete(table))
        for table in (search_postings, search_vectors) if damaged == "garbage" else ():
            tx.run(update(table).values(data=b"\0" * 1024))

    messages_before = before[::2]
    await shelf.store.write(damage)
    shelf.forget()
    await shelf.rebuild()
    assert (await shelf.everything())[::2] == messages_before
    if damaged == "garbage":  # only the index knows which passages were added together
        assert await shelf.everything() == before


async def test_changes_during_a_rebuild_are_kept(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each batch is written, documents change, some of which the job has already read."""
    monkeypatch.setattr(rebuild, "AT_ONCE", 10)
    kept = {f"meanwhile {n}" for n in range(2, 4)}
    store, archive = shelf.store, shelf.archive
    whole = Page(limit=100, order="asc")
    first, *_, last = await store.read(
        lambda tx: archives.page_of_passages(tx, [archive.id], whole)
    )

    async def meddle() -> None:
        await shelf.add("meanwhile 1", "meanwhile 2", "meanwhile 3")
        forgotten = (await shelf.find(archive.id, "meanwhile 1"))[0].passage.id
        for deleted_id in (first.id, last.id, forgotten):
            await store.write(lambda tx, id=deleted_id: delete_passage(tx, Scope(), [archive], id))  # type: ignore[misc]

    meddling = replace(shelf.indexing, store=Interrupted(store, 1, meddle))  # type: ignore[arg-type]
    await reindex(
        meddling, Job("search.reindex", LOCAL_ORGANIZATION, {"owner_id": archive.id}), unheard
    )
    for _ in range(2):
        rows = await shelf.recall.passages("", index.PassageFilter((archive.id,)), 100)
        texts = [row.passage.text for row in rows]
        assert len(texts) == len(set(texts)) == 44 - 2 + 2
        assert kept <= set(texts)
        assert not {first.text, last.text, "meanwhile 1"} & set(texts)
        found = await shelf.recall.passages(
            "meanwhile", index.PassageFilter((archive.id,)), 5, "fts"
        )
        assert {row.passage.text for row in found} == kept
        await shelf.flush(archive.id)


async def test_searches_find_everything_during_a_rebuild(shelf: Shelf) -> None:
    before = await shelf.everything()
    for vectors_only in (False, True):
        building = asyncio.create_task(shelf.rebuild(shelf.agent_id, vectors_only=vectors_only))
        searches = 0
        while not building.done():
            assert (await shelf.everything())[::2] == before[::2]
            searches += 1
        await building
        assert searches
        assert (await shelf.everything())[::2] == before[::2]


async def test_a_failed_model_leaves_the_old_index_and_the_next_try_completes(
    shelf: Shelf,
) -> None:
    before = await shelf.everything()
    for vectors_only in (False, True):
        shelf.embedder.fails(ModelError("llm_error", "The model is away."))
        with pytest.raises(ModelError):
            await shelf.rebuild(shelf.agent_id, vectors_only=vectors_only)
        assert (await shelf.everything())[::2] == before[::2]
        await shelf.rebuild(shelf.agent_id, vectors_only=vectors_only)
        assert (await shelf.everything())[::2] == before[::2]
        assert await shelf.partitions() == {shelf.agent_id, shelf.archive.id}


async def test_vectors_can_be_rebuilt_alone(shelf: Shelf) -> None:
    before = await shelf.everything()
    await shelf.store.write(lambda tx: tx.run(update(search_vectors).values(data=bytes(64 * 2))))
    shelf.forget()
    assert await shelf.everything() != before
    for _ in range(2):
        await shelf.rebuild(vectors_only=True)
        assert await shelf.everything() == before
    rows = await shelf.store.read(lambda tx: tx.all(select(search_vectors.c.embedding).distinct()))
    assert [row.embedding for row in rows] == ["scripted/embedder"]
    # The same for an index without any vectors.
    await shelf.store.write(lambda tx: tx.run(delete(search_vectors)))
    await shelf.store.write(
        lambda tx: tx.run(update(search_partitions).values(embedding=None, vectors=0))
    )
    shelf.forget()
    await shelf.rebuild(vectors_only=True)
    assert await shelf.everything() == before


# The steps: remove leftovers of an older index, two portions of messages, the vectors, switch over,
# remove leftovers.
@pytest.mark.parametrize("write", range(6))
@pytest.mark.parametrize("kind", ["agent", "conversation"])
async def test_deleting_at_any_moment_of_a_rebuild_leaves_nothing(
    shelf: Shelf,
    monkeypatch: pytest.MonkeyPatch,
    kind: Literal["agent", "conversation"],
    write: int,
) -> None:
    monkeypatch.setattr(rebuild, "AT_ONCE", 70)
    agent = (await shelf.store.read(lambda tx: agents.load(tx, Scope(), shelf.agent_id))).agent
    await shelf.store.write(
        lambda tx: conversations.insert_one(tx, make.conversation(agent, id="conv-side"))
    )
    secrets = [
        make.message(agent, f"zebra {n}", conversation_id="conv-side", created_at=n * 10)
        for n in range(12)
    ]
    await make.stored_messages(shelf.store, *secrets)
    await shelf.flush(shelf.agent_id)
    hide, id = {
        "agent": (deletion.hide_agent, shelf.agent_id),
        "conversation": (deletion.hide_conversation, "conv-side"),
    }[kind]

    async def delete_it() -> None:
        await shelf.store.write(lambda tx: hide(tx, Scope(), id))
        while await shelf.store.write(lambda tx: purge_portion(tx, kind, id)):
            pass

    meddling = replace(shelf.indexing, store=Interrupted(shelf.store, write, delete_it))  # type: ignore[arg-type]
    await reindex(
        meddling, Job("search.reindex", LOCAL_ORGANIZATION, {"owner_id": shelf.agent_id}), unheard
    )
    if kind == "agent":
        assert await shelf.partitions() == {shelf.archive.id}
        rows = await shelf.store.read(
            lambda tx: tx.all(select(search_buffer.c.owner_id).distinct())
        )
        assert {row.owner_id for row in rows} <= {shelf.archive.id}
    for _ in range(2 if kind == "conversation" else 0):
        assert (
            await shelf.recall.messages("zebra", MessageFilter((shelf.agent_id,)), 20, "fts") == []
        )
        assert (
            len(await shelf.recall.messages("note", MessageFilter((shelf.agent_id,)), 200, "fts"))
            == 120
        )
        await shelf.flush(shelf.agent_id)
    terms = select(search_terms.c.term).where(search_terms.c.term == "zebra")
    assert await shelf.store.read(lambda tx: tx.all(terms)) == []
