"""Keeping the index in order behind the searches: flushing buffers, embedding what has no vectors yet, changing models.

Each function does a job that may be killed anywhere and run again. Every write is short; model and outside indexes are called in
between.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ricordo.domain.job import Job, Report
from ricordo.errors import Conflict, ModelError, NotFound
from ricordo.llm.chat import Embedder
from ricordo.llm.embedding.registry import Embedders
from ricordo.search import partitions
from ricordo.search.partitions import Document, Home
from ricordo.search.query import Batch
from ricordo.search.vector_index import VectorIndex, VectorRecord
from ricordo.storage.jobs import FencedStore
from ricordo.storage.store import Store

if TYPE_CHECKING:
    from ricordo.search.removing import State, Step

log = logging.getLogger(__name__)
EMBEDDED_AT_ONCE = 256
SWEPT_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Indexing:
    """The parts that keep an index in order. `messages_index` names the outside index that messages go to, if they do.

    `pause` is how many seconds a flush waits, after its first rows, for more of them to come.
    """

    store: Store
    embedders: Embedders
    indexes: Mapping[str, VectorIndex]
    messages_index: str | None = None
    pause: float = 1.0

    def fenced(self, job: Job) -> "Indexing":
        """The same, for this job alone: once it was taken over or cancelled, its writes raise LeaseLost and change nothing."""
        return replace(self, store=FencedStore(self.store, job))

    async def flush(self, job: Job, report: Report) -> None:
        """Pack the buffer of a partition, then see to it that what was packed gets its vectors."""
        kind, owner_id = job.payload["kind"], job.payload["owner_id"]
        done = 0
        while True:
            await self._remove_outside(owner_id)
            if deleted := await self._take_out(owner_id):
                done += deleted
                report(done, done)
                continue
            if done and await self.store.read(lambda tx: partitions.has_few_waiting(tx, owner_id)):
                # While many come in, many together cost less than a few at a time, and hold up those who write less often.
                await asyncio.sleep(self.pause)
            if not (packed := await self.store.read(lambda tx: partitions.packed(tx, kind, owner_id))):
                break
            if await self.store.write(lambda tx, packed=packed: partitions.write_packed(tx, packed)):  # type: ignore[misc]
                done += len(packed.rows)
                report(done, done)
        if self.embedders.default_handle():
            await self.store.write(lambda tx: partitions.ask_to_embed(tx, job.organization_id, owner_id))

    async def embed(self, job: Job, report: Report) -> None:
        """Embed the documents of a partition that have no vector of its model; that may be another than the one that serves."""
        owner_id = job.payload["owner_id"]
        home = await self.store.read(lambda tx: partitions.home_of(tx, owner_id))
        handle = self.wanted_model(home.embedding) if home else None
        if home is None or handle is None:
            return
        index = self.index_of(home)
        while batch := await self.next_batch(owner_id, handle):
            try:
                await self._embed_batch(batch, index)
            except Conflict:
                # Another server was quicker, or the model's vectors have another size than those it made before.
                if await self.next_batch(owner_id, handle) == batch:
                    log.warning("the model's vectors changed their size: embedding anew", extra={"embedding": handle})
                    await self.store.write(lambda tx: partitions.drop_vectors_of(tx, owner_id, handle))
            report(min(batch.start + len(batch.documents), batch.total), batch.total)
        for model in await self.store.read(lambda tx: partitions.other_models(tx, owner_id)):
            if index:
                await index.drop(owner_id, model)
            await self.store.write(lambda tx, model=model: partitions.drop_vectors_of(tx, owner_id, model))  # type: ignore[misc]

    async def sweep(self, _job: Job, report: Report) -> None:
        """Ask for the flushes and vectors that partitions lack, as after a kill or a change of settings."""
        after = ""
        while owners := await self.store.read(lambda tx, after=after: partitions.owners(tx, after, SWEPT_AT_ONCE)):  # type: ignore[misc]
            await self.store.write(lambda tx, owners=owners: partitions.ask_where_needed(tx, owners, self.wanted_model))  # type: ignore[misc]
            after = owners[-1]
        report(1, 1)

    def wanted_model(self, embedding: str | None) -> str | None:
        """The handle of the model for a partition whose owner names this one: that, where it can be used here, else the default."""
        if self.embedders.default_handle() is None:
            return None
        try:
            return self.embedders.get(embedding).handle if embedding else self.embedders.default_handle()
        except NotFound:
            return self.embedders.default_handle()

    def index_of(self, home: Home | None) -> VectorIndex | None:
        """The outside index in which the owner's vectors are kept, if they are; None stands for an owner that is deleted."""
        return self.indexes.get((home.vector_db if home else None) or self.messages_index or "")

    async def next_batch(self, owner_id: str, handle: str) -> Batch | None:
        """The next documents of a partition to embed with this model; None where all have their vectors."""
        return await self.store.read(lambda tx: partitions.next_batch(tx, owner_id, handle, EMBEDDED_AT_ONCE))

    async def _embed_batch(self, batch: Batch, index: VectorIndex | None) -> None:
        vectors, size = await self.vectors_for(batch, batch.owner_id, batch.embedding, index)
        await self.store.write(lambda tx: partitions.add_vectors(tx, batch, vectors, size))

    async def vectors_for(
        self, batch: Batch, owner_id: str, handle: str, index: VectorIndex | None
    ) -> tuple[dict[int, Sequence[float]], int]:
        """The vectors of a batch by document, and their size; with an outside index they go there, under the owner's id."""
        documents = await self.store.read(lambda tx: partitions.documents_of(tx, batch))
        made = await _embedded(self.embedders.get(handle), documents)
        if index is None:
            # Also where nothing is left to embed the size must be known, and a text without words has a vector too.
            size = len(next(iter(made.values()), None) or (await self.embedders.get(handle).embed([""]))[0])
            return made, size
        await index.upsert(owner_id, handle, [_record(d, made[d.number]) for d in documents if d.number in made])
        # The vectors lie elsewhere; here it is only noted how far they go.
        return {}, 1

    async def _take_out(self, owner_id: str) -> int:
        """Take out of a partition what was deleted; returns how many rows of its buffer told of that."""
        leaving = await self.store.read(lambda tx: partitions.taking_out(tx, owner_id, is_told=bool(self.indexes)))
        if leaving is None:
            return 0
        for step in leaving.steps():
            if not await self._do(owner_id, step):
                break
        return len(leaving.rows)

    async def _do(self, owner_id: str, step: "Step") -> bool:
        """Do one step; False where the partition is another by now, and all of it begins anew."""
        while made := await self.store.read(step.make):
            state: State | None = made.state
            for write in made.writes:
                if state is not None:
                    state = await self.store.write(
                        lambda tx, state=state, write=write: partitions.write_step(tx, owner_id, state, write)  # type: ignore[misc]
                    )
            if state is not None:
                return True
        return False

    async def _remove_outside(self, owner_id: str) -> None:
        if not self.indexes:
            return
        index = self.index_of(await self.store.read(lambda tx: partitions.home_of(tx, owner_id)))
        if index is None:
            return
        # Before the flush forgets them here: an outside index must not keep what was deleted.
        deleted, models = await self.store.read(lambda tx: partitions.leaving(tx, owner_id))
        for model in models if deleted else ():
            await index.remove(owner_id, model, deleted)


async def _embedded(embedder: Embedder, documents: Sequence[Document]) -> dict[int, Sequence[float]]:
    """The vectors by document, without those of texts that the model's provider refuses: these are found by their words.

    Raises ModelError where it is not a text that is refused, but all that this model is asked.
    """
    if not documents:
        return {}
    try:
        return await _all_embedded(embedder, documents)
    except ModelError as error:
        if error.kind != "llm_bad_request":
            raise
    # A model that was withdrawn or changed refuses this too. Else every document would go without its vector for good.
    await embedder.embed(["words"], purpose="document")
    return await _embedded_by_halves(embedder, documents)


async def _embedded_by_halves(embedder: Embedder, documents: Sequence[Document]) -> dict[int, Sequence[float]]:
    if len(documents) == 1:
        log.warning("a text cannot be embedded", extra={"embedding": embedder.handle, "document": documents[0].number})
        return {}
    half = len(documents) // 2
    made: dict[int, Sequence[float]] = {}
    for part in (documents[:half], documents[half:]):
        try:
            made |= await _all_embedded(embedder, part)
        except ModelError as error:
            if error.kind != "llm_bad_request":
                raise
            made |= await _embedded_by_halves(embedder, part)
    return made


async def _all_embedded(embedder: Embedder, documents: Sequence[Document]) -> dict[int, Sequence[float]]:
    made = await embedder.embed([document.text for document in documents], purpose="document")
    return {document.number: vector for document, vector in zip(documents, made, strict=True)}


def _record(document: Document, vector: Sequence[float]) -> VectorRecord:
    return VectorRecord(
        document.number,
        vector,
        document.created_at,
        document.role,
        document.thread,
        document.user_id or "",
        document.tags,
    )
