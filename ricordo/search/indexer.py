"""The jobs of the index: flush buffers, remove deleted documents, embed new ones.

Each step is a short transaction that leaves the index complete, so a killed job can continue.
Models and external indexes are called between transactions.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ricordo.domain.egress import DEFAULT_NETWORKS, Clearance, LocalNetworks, permits
from ricordo.domain.job import Job, Report
from ricordo.errors import Conflict, ModelError, NotFound
from ricordo.llm.chat import Embedder
from ricordo.llm.egress import Payer, embed
from ricordo.llm.registry.models import Embedders
from ricordo.search import partitions, write_buffer
from ricordo.search.partitions import NEW, EmbeddingBatch
from ricordo.search.vector_index import VectorIndex, VectorRecord
from ricordo.storage.engine.store import Store, Transaction
from ricordo.storage.jobs import FencedStore

log = logging.getLogger(__name__)
EMBEDDED_AT_ONCE = 256
SWEPT_AT_ONCE = 500
# Rows of a write buffer that are scanned together for deletions.
DELETIONS_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class Indexer:
    """The work of the index's jobs.

    Attributes:
        store: The database; for a job, its fenced store (see `fenced`).
        embedders: The embedding models.
        indexes: External vector indexes by name.
        messages_index: The name of the external index for messages; None: there is none.
        pause: The seconds for which a flush waits for more rows.
        networks: The addresses that egress policies call local.
        payer: The account that pays for embeddings by a provider.
    """

    store: Store
    embedders: Embedders
    indexes: Mapping[str, VectorIndex]
    messages_index: str | None = None
    pause: float = 1.0
    networks: LocalNetworks = DEFAULT_NETWORKS
    payer: Payer | None = None

    def fenced(self, job: Job, payer: Payer | None = None) -> "Indexer":
        """Return the indexer for this job.

        Args:
            job: The job. After another server has taken it over, nothing more is written.
            payer: The account that pays for the job's embeddings; None: it makes none.
        """
        return replace(self, store=FencedStore(self.store, job), payer=payer)

    async def flush(self, job: Job, report: Report) -> None:
        """Remove deleted documents, and flush the rest of the buffer.

        If an embedding model is configured, a job is added that embeds the flushed documents.

        Args:
            job: A job of the kind `search.flush`. Its payload names the partition's `owner_id`.
            report: Gets the number of finished rows twice: as the number done, and as the total.
        """
        # Imports numpy, which a server loads at its first search or flush.
        from ricordo.search.flush import FLUSHED_AT_ONCE, pack_rows, write_rows

        owner_id = job.payload["owner_id"]
        row_count = 0
        while True:
            if deleted := await self._delete_documents(owner_id):
                row_count += deleted
                report(row_count, row_count)
                continue
            waiting = await self.store.read(lambda tx: write_buffer.count(tx, owner_id))
            if row_count and 0 < waiting < FLUSHED_AT_ONCE:
                # One flush of many rows costs less than many small ones, and leaves more time for
                # partitions with fewer writes.
                await asyncio.sleep(self.pause)
            if packed := await self.store.read(lambda tx: pack_rows(tx, owner_id)):
                if await self.store.write(lambda tx, packed=packed: write_rows(tx, packed)):  # type: ignore[misc]
                    row_count += len(packed.rows)
                    report(row_count, row_count)
            elif not waiting:
                break
        if self.embedders.default_handle():
            await self.store.write(
                lambda tx: partitions.add_embed_job(tx, job.organization_id, owner_id)
            )

    async def embed(self, job: Job, report: Report) -> None:
        """Embed the partition's documents that have no vector of the owner's model yet.

        Until all documents have vectors of the new model, searches use those of the earlier model.
        Then the earlier model's vectors are deleted.

        Args:
            job: A job of the kind `search.embed`. Its payload names the partition's `owner_id`.
            report: Gets the number of embedded positions, and the number of all. Each part of a
                text has a position.
        """
        # Imports numpy, which a server loads at its first search or flush.
        from ricordo.search.vectors import drop_vectors

        owner_id = job.payload["owner_id"]
        owner = await self.store.read(lambda tx: partitions.owner_of(tx, owner_id))
        if owner:
            handle = self.choose_model(owner.embedding)
        else:
            handle = None
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
        """Add jobs for missing flushes and vectors, for example after a kill or new settings."""
        after = ""
        while ids := await self.store.read(
            lambda tx, after=after: partitions.owner_ids(tx, after, SWEPT_AT_ONCE)  # type: ignore[misc]
        ):
            await self.store.write(
                lambda tx, ids=ids: partitions.add_missing_jobs(tx, ids, self.choose_model)  # type: ignore[misc]
            )
            after = ids[-1]
        report(1, 1)

    def choose_model(self, embedding: str | None) -> str | None:
        """Return the handle of the model that embeds the owner's texts.

        It is the owner's model, or the default model if the owner's is not configured. Returns None
        if no model is configured.
        """
        default = self.embedders.default_handle()
        if default is None or not embedding:
            return default
        try:
            return self.embedders.get(embedding).handle
        except NotFound:
            return default

    def index_of(self, owner: Any) -> VectorIndex | None:
        """Return the external index of the owner's vectors, if there is one.

        `owner` is None if the owner was purged.
        """
        return self.indexes.get((owner.vector_db if owner else None) or self.messages_index or "")

    async def make_vectors(
        self, name: str, embedding: str, owner: Any, report: Report, earlier_progress: int = 0
    ) -> None:
        """Embed the partition's documents that have no vector.

        Args:
            name: The partition: its owner's id, with the suffix `NEW` for an index that is being
                rebuilt.
            embedding: The handle of the model, with the suffix `NEW` if its vectors are to replace
                those of the same model.
            owner: The row of the partition's owner, as `partitions.owner_of` returns it.
            report: Gets the number of embedded positions, and the number of all. Each part of a
                text has a position.
            earlier_progress: The number of steps that the job has done before; both numbers are
                raised by it.
        """
        # Imports numpy, which a server loads at its first search or flush.
        from ricordo.search.vectors import add_vectors, drop_vectors, next_batch

        def read(tx: Transaction) -> EmbeddingBatch | None:
            return next_batch(tx, name, embedding, EMBEDDED_AT_ONCE)

        index = self.index_of(owner)
        is_complete = False
        while not is_complete and (batch := await self.store.read(read)):
            vectors, size = await self._vectors_for(batch, index)
            try:
                is_complete = await self.store.write(
                    lambda tx, b=batch, v=vectors, s=size: add_vectors(tx, b, v, s)  # type: ignore[misc]
                )
            except Conflict:
                # Another server stored them first, or the size of the model's vectors has changed.
                if await self.store.read(read) == batch:
                    log.warning(
                        "the model's vectors have a new size: embedding all texts again",
                        extra={"embedding": embedding},
                    )
                    await self.store.write(lambda tx: drop_vectors(tx, name, embedding))
            embedded = min(batch.start + len(batch.documents), batch.total)
            report(earlier_progress + embedded, earlier_progress + batch.total)

    async def _vectors_for(
        self, batch: EmbeddingBatch, index: VectorIndex | None
    ) -> tuple[dict[tuple[int, int], Sequence[float]], int]:
        """Return the vectors of a batch by document and part, and their size.

        An external index has one vector for each document, made from its whole text.
        """
        # Imports numpy, which a server loads at its first search or flush.
        from ricordo.search.vectors import documents_of

        embedder = self.embedders.get(batch.embedding.removesuffix(NEW))
        clearance = Clearance(self.networks)
        destination = clearance.networks.of_model(embedder.info)
        documents = await self.store.read(
            lambda tx: documents_of(
                tx,
                batch,
                in_parts=index is None,
                may_embed=lambda label: permits(label, destination),
            )
        )
        records = await _embed(embedder, documents, clearance, self.payer)
        if index is None:
            if records:
                size = len(records[0].vector)
            else:  # no text of the batch was embedded, but the vectors' size must be known
                size = len((await embed(embedder, [""], clearance, self.payer))[0])
            return {(record.document, record.part): record.vector for record in records}, size
        await index.upsert(batch.owner_id.removesuffix(NEW), embedder.handle, records)
        # The vectors are in the external index. Zeros of one dimension are stored here, only to
        # count the embedded documents.
        return {}, 1

    async def _delete_documents(self, owner_id: str) -> int:
        """Remove deleted documents from a partition; return the number of buffer rows for them."""
        # Imports numpy, which a server loads at its first search or flush.
        from ricordo.search.flush import next_deletion

        deletion = await self.store.read(lambda tx: next_deletion(tx, owner_id, DELETIONS_AT_ONCE))
        if deletion is None:
            return 0
        if self.indexes:
            await self._remove_outside(owner_id, deletion.documents)
        for step in deletion.steps():
            if not await self.store.write(lambda tx, step=step: deletion.run(tx, step)):  # type: ignore[misc]
                break
        return len(deletion.rows)

    async def _remove_outside(self, owner_id: str, documents: Sequence[int]) -> None:
        """Remove documents from the external index.

        Call it before the buffer's rows are deleted. After a kill, the remaining rows cause a
        second call.
        """
        owner = await self.store.read(lambda tx: partitions.owner_of(tx, owner_id))
        index = self.index_of(owner)
        if index is None:
            return
        for model in await self.store.read(lambda tx: partitions.models_of(tx, owner_id)):
            await index.remove(owner_id, model, documents)


async def _embed(
    embedder: Embedder,
    documents: Sequence[tuple[str, VectorRecord]],
    clearance: Clearance,
    payer: Payer | None,
    *,
    is_usable: bool = False,
) -> list[VectorRecord]:
    """Return the records with vectors; texts that the provider refuses are left out.

    `is_usable` says that the model was already tested with a plain text. Raises ModelError if the
    model refuses that text too, or if a call fails for another reason.
    """
    if not documents:
        return []
    try:
        vectors = await embed(embedder, [text for text, _ in documents], clearance, payer)
        return [
            replace(record, vector=vector)
            for (_, record), vector in zip(documents, vectors, strict=True)
        ]
    except ModelError as error:
        if error.kind != "llm_bad_request":
            raise
    if not is_usable:
        # Test the model with a plain text. If the model refuses that text too, it was withdrawn or
        # changed. Then the error is raised, since the documents are not the cause.
        await embed(embedder, ["words"], clearance, payer)
    if len(documents) == 1:
        number = documents[0][1].document
        log.warning(
            "a text cannot be embedded", extra={"embedding": embedder.handle, "document": number}
        )
        return []
    half = len(documents) // 2
    first = await _embed(embedder, documents[:half], clearance, payer, is_usable=True)
    return [*first, *await _embed(embedder, documents[half:], clearance, payer, is_usable=True)]
