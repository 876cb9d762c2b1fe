"""The search index in tests.

Its jobs are run directly, with models that embed without a network, and can be interrupted.
"""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import select

from ricordo.domain.job import Job
from ricordo.domain.passage import Archive
from ricordo.domain.scope import LOCAL_ORGANIZATION
from ricordo.llm.registry.models import Models
from ricordo.llm.scripted import ScriptedEmbedder
from ricordo.memory.recall import FoundPassage, Recall
from ricordo.search.index import PassageFilter
from ricordo.search.indexer import Indexer
from ricordo.settings import ProviderSettings, Settings
from ricordo.storage.engine.store import Store, Transaction
from ricordo.storage.schema.core_tables import jobs
from tests.seams import make


def unheard(_done: int, _total: int) -> None:
    pass


class Interrupted:
    """A store in which something happens right before the write with this number."""

    def __init__(self, store: Store, write: int, meanwhile: Callable[[], Awaitable[None]]) -> None:
        self.clock, self.read, self._store = store.clock, store.read, store
        self._left, self._meanwhile = write, meanwhile

    async def write(self, work: Callable[[Transaction], Any]) -> Any:
        self._left -= 1
        if self._left == -1:
            await self._meanwhile()
        return await self._store.write(work)


class Library:
    """The index of a store with its jobs, recall, and scripted embedding models."""

    def __init__(
        self, store: Store, folder: Path, indexes: Mapping[str, Any] | None = None
    ) -> None:
        settings = Settings(data_dir=folder, find_local_models=False, embedding="scripted/embedder")
        self.store = store
        self.embedders = Models(settings, ProviderSettings.model_construct(), []).embedders
        self.embedder, self.other = (
            ScriptedEmbedder(),
            ScriptedEmbedder(name="other", dimensions=32),
        )
        self.embedders.add(self.embedder)
        self.embedders.add(self.other)
        self.indexing = Indexer(store, self.embedders, indexes or {}, pause=0)
        self.recall = Recall(store, self.embedders, indexes or {}, payer=None)

    async def flush(self, owner_id: str) -> None:
        await self.indexing.flush(self.job(owner_id), unheard)

    async def flushed(self, *texts: str) -> Archive:
        state = await make.stored_agent(self.store)
        archive = await make.stored_archive(self.store, state.agent, *texts)
        await self.flush(archive.id)
        return archive

    async def embedded(self, *texts: str) -> Archive:
        archive = await self.flushed(*texts)
        await self.embed(archive.id)
        return archive

    async def embed(self, owner_id: str) -> None:
        await self.indexing.embed(self.job(owner_id), unheard)

    async def index(self, owner_id: str) -> None:
        """Flush and embed all texts."""
        await self.flush(owner_id)
        await self.embed(owner_id)

    def job(self, owner_id: str) -> Job:
        return Job("search", LOCAL_ORGANIZATION, {"owner_id": owner_id})

    async def find(self, archive_id: str, query: str) -> list[FoundPassage]:
        return await self.recall.passages(query, PassageFilter((archive_id,)), 3)

    async def waiting(self, kind: str) -> list[Job]:
        rows = await self.store.read(
            lambda tx: tx.all(
                select(jobs)
                .where(jobs.c.kind == kind, jobs.c.status == "waiting")
                .order_by(jobs.c.seq)
            )
        )
        return [
            Job(kind, row.organization_id, row.payload, not_before=row.not_before) for row in rows
        ]
