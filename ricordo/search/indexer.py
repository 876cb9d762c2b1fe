"""The jobs behind the index: they flush write buffers, delete what was deleted, and embed what has no vectors yet.

Each step is a short transaction that leaves the index whole, so a killed job continues where it was. Models and
outside indexes are called between transactions.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ricordo.domain.job import Job, Report
from ricordo.errors import Conflict, ModelError, NotFound
from ricordo.llm.chat import Embedder
from ricordo.llm.registry.models import Embedders
from ricordo.search import partitions, write_buffer
from ricordo.search.partitions import NEW, EmbeddingBatch
from ricordo.search.vector_index import VectorIndex, VectorRecord
from ricordo.storage.engine.store import Store, Transaction
from ricordo.storage.jobs import FencedStore

log = logging.getLogger(__name__)
EMBEDDED_AT_ONCE = 256
SWEPT_AT_ONCE = 500
# So many rows of a write buffer are looked at together for deletions.
DELETIONS_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class Indexer:
    """The parts that keep an index in order: `messages_index` is outside; a flush waits `pause` seconds for more rows."""

    store: Store
    embedders: Embedders
    indexes: Mapping[str, VectorIndex]
    messages_index: str | None = None
    pause: float = 1.0

    def fenced(self, job: Job) -> "Indexer":
        return replace(self, store=FencedStore(self.store, job))

    async def flush(self, job: Job, report: Report) -> None:
        """Delete what was deleted and flush the rest of a partition's buffer, then ask for the vectors of what was flushed."""
        from ricordo.search.flush import FLUSHED_AT_ONCE, pack_rows, write_rows

        owner_id = job.payload["owner_id"]
        done = 0
        while True:
            if deleted := await self._delete_documents(owner_id):
                done += deleted
                report(done, done)
                continue
            waiting = await self.store.read(lambda tx: write_buffer.count(tx, owner_id))
            if done and 0 < waiting < FLUSHED_AT_ONCE:
                # While many come in, many together cost less than a few at a time, and hold up those who write less often.
                await asyncio.sleep(self.pause)
            if packed := await self.store.read(lambda tx: pack_rows(tx, owner_id)):
                if await self.store.write(lambda tx, packed=packed: write_rows(tx, packed)):  # type: ignore[misc]
                    done += len(packed.rows)
                    report(done, done)
            elif not waiting:
                break
        if self.embedders.default_handle():
            await self.store.write(
                lambda tx: partitions.add_embed_job(tx, job.organization_id, owner_id)
            )

    async def embed(self, job: Job, report: Report) -> None:
        """Embed the documents of a partition that have no vector of its model; that may be another than the one that serves."""
        from ricordo.search.vectors import drop_vectors

        owner_id = job.payload["owner_id"]
        owner = await self.store.read(lambda tx: partitions.owner_of(tx, owner_id))
        handle = self.wanted_model(owner.embedding) if owner else None
        if owner is None or handle is None:
            return
        await self.make_vectors(owner_id, handle, owner, report)
        index = self.index_of(owner)
        partition = await self.store.read(lambda tx: partitions.partition_of(tx, owner_id))
        models = await self.store.read(lambda tx: partitions.models_of(tx, owner_id))
        for model in models if partition and partition.embedding else ():
            if model != partition.embedding:
                if index:
                    await index.drop(owner_id, model)
                await self.store.write(lambda tx, model=model: drop_vectors(tx, owner_id, model))  # type: ignore[misc]

    async def sweep(self, _job: Job, report: Report) -> None:
        """Add jobs for the flushes and vectors that partitions lack, as after a kill or a change of settings."""
        after = ""
        while ids := await self.store.read(
            lambda tx, after=after: partitions.owner_ids(tx, after, SWEPT_AT_ONCE)  # type: ignore[misc]
        ):
            await self.store.write(
                lambda tx, ids=ids: partitions.add_missing_jobs(tx, ids, self.wanted_model)  # type: ignore[misc]
            )
            after = ids[-1]
        report(1, 1)

    def wanted_model(self, embedding: str | None) -> str | None:
        """The handle of the model for a partition whose owner names this one: that, where it can be used here, else the default."""
        if self.embedders.default_handle() is None:
            return None
        try:
            return (
                self.embedders.get(embedding).handle
                if embedding
                else self.embedders.default_handle()
            )
        except NotFound:
            return self.embedders.default_handle()

    def index_of(self, owner: Any) -> VectorIndex | None:
        """The outside index in which the owner's vectors are kept, if they are; None stands for an owner that was deleted."""
        return self.indexes.get((owner.vector_db if owner else None) or self.messages_index or "")

    async def make_vectors(
        self, name: str, embedding: str, owner: Any, report: Report, done: int = 0
    ) -> None:
        """Embed the partition's documents without a vector, into an outside index if there is one; `done` is earlier progress."""
        from ricordo.search.vectors import add_vectors, drop_vectors, next_batch

        def read(tx: Transaction) -> EmbeddingBatch | None:
            return next_batch(tx, name, embedding, EMBEDDED_AT_ONCE)

        index, is_complete = self.index_of(owner), False
        while not is_complete and (batch := await self.store.read(read)):
            vectors, size = await self._vectors_for(batch, index)
            try:
                is_complete = await self.store.write(
                    lambda tx, b=batch, v=vectors, s=size: add_vectors(tx, b, v, s)  # type: ignore[misc]
                )
            except Conflict:
                # Another server was quicker, or the model's vectors have another size than those it made before.
                if await self.store.read(read) == batch:
                    log.warning(
                        "the model's vectors changed their size: embedding again",
                        extra={"embedding": embedding},
                    )
                    await self.store.write(lambda tx: drop_vectors(tx, name, embedding))
            report(done + min(batch.start + len(batch.documents), batch.total), done + batch.total)

    async def _vectors_for(
        self, batch: EmbeddingBatch, index: VectorIndex | None
    ) -> tuple[dict[int, Sequence[float]], int]:
        """The vectors of a batch by document, and their size."""
        from ricordo.search.vectors import documents_of

        documents = await self.store.read(lambda tx: documents_of(tx, batch))
        embedder = self.embedders.get(batch.embedding.removesuffix(NEW))
        records = await _embedded(embedder, documents)
        if index is None:
            # Also where nothing is left to embed the size must be known, and a text without words has a vector too.
            size = len(records[0].vector if records else (await embedder.embed([""]))[0])
            return {record.document: record.vector for record in records}, size
        await index.upsert(batch.owner_id.removesuffix(NEW), embedder.handle, records)
        # The vectors are elsewhere; here it is only noted how far they go.
        return {}, 1

    async def _delete_documents(self, owner_id: str) -> int:
        """Take deleted documents out of a partition; returns how many rows of its buffer said that they were."""
        from ricordo.search.flush import next_deletion

        deletion = await self.store.read(lambda tx: next_deletion(tx, owner_id, DELETIONS_AT_ONCE))
        if deletion is None:
            return 0
        if self.indexes and (
            index := self.index_of(
                await self.store.read(lambda tx: partitions.owner_of(tx, owner_id))
            )
        ):
            # First, while the rows of the buffer are there: an outside index must not keep what was deleted.
            for model in await self.store.read(lambda tx: partitions.models_of(tx, owner_id)):
                await index.remove(owner_id, model, deletion.documents)
        for step in deletion.steps():
            if not await self.store.write(lambda tx, step=step: deletion.run(tx, step)):  # type: ignore[misc]
                break
        return len(deletion.rows)


async def _embedded(
    embedder: Embedder, documents: Sequence[tuple[str, VectorRecord]], *, is_usable: bool = False
) -> list[VectorRecord]:
    """The records with vectors, without texts the provider refuses. Raises ModelError where the model refuses everything."""
    if not documents:
        return []
    try:
        vectors = await embedder.embed([text for text, _ in documents], purpose="document")
        return [
            replace(record, vector=vector)
            for (_, record), vector in zip(documents, vectors, strict=True)
        ]
    except ModelError as error:
        if error.kind != "llm_bad_request":
            raise
    if not is_usable:
        # A model that was withdrawn or changed refuses this too. Else every document would go without its vector for good.
        await embedder.embed(["words"], purpose="document")
    if len(documents) == 1:
        number = documents[0][1].document
        log.warning(
            "a text cannot be embedded", extra={"embedding": embedder.handle, "document": number}
        )
        return []
    half = len(documents) // 2
    first = await _embedded(embedder, documents[:half], is_usable=True)
    return [*first, *await _embedded(embedder, documents[half:], is_usable=True)]
