"""`ricordo search reindex`: rebuilds the search index.

Jobs do the work, so the next server completes an interrupted rebuild.
"""

import asyncio
from collections.abc import Mapping, Sequence

import typer

from ricordo.app import open_runtime
from ricordo.cli.client import require_database, set_up_quiet_logs
from ricordo.cli.screen import ProgressLine
from ricordo.domain.job import ENDED, Job
from ricordo.errors import NotFound
from ricordo.search import rebuild
from ricordo.search.vector_index import portions
from ricordo.settings import load_settings
from ricordo.storage.engine.database import address
from ricordo.storage.engine.store import Store, Transaction

_POLL_SECONDS = 0.2
_JOBS_AT_ONCE = 100
_TOMORROW = (
    "The budget of tokens for embeddings is nearly used up, so a server rebuilds it on the next day "
    "(UTC). Raise RICORDO_DAILY_TOKENS or the agent's budget to do it now."
)


def reindex(partitions: Sequence[str], *, vectors_only: bool) -> bool:
    """Rebuild these partitions, or all; return True if all were rebuilt.

    Args:
        partitions: Ids of agents and archives; empty for all.
        vectors_only: Compute the vectors again, and leave the index of words as it is.

    Raises:
        NotFound: There is no database, no such partition, or no embedding model for vectors.
        Conflict: On SQLite, a server has the database open.
    """
    return asyncio.run(_reindex(partitions, vectors_only=vectors_only))


async def _reindex(partitions: Sequence[str], *, vectors_only: bool) -> bool:
    settings, providers = load_settings()
    require_database(settings, "nothing to index")
    set_up_quiet_logs(settings)
    async with open_runtime(settings, providers) as runtime:
        if vectors_only and runtime.models.embedders.default_handle() is None:
            raise NotFound("There is no embedding model. Name one in RICORDO_EMBEDDING.")
        owners = await _owners(runtime.store, partitions)
        documents = await runtime.store.read(
            lambda tx: {owner_id: rebuild.count_documents(tx, owner_id) for owner_id, _ in owners}
        )
        typer.echo(
            f"{sum(documents.values()):,} documents in {len(owners):,} partitions of "
            f"{address(settings)}"
        )
        is_whole = True
        watch = _IndexWatch(runtime.store, documents)
        try:
            for portion in portions(owners, _JOBS_AT_ONCE):
                is_whole &= await watch.build(portion, vectors_only=vectors_only)
        finally:
            watch.progress.end()
    typer.echo(
        "The index is rebuilt."
        if is_whole
        else "Where it failed, the old index stays in use. Correct the cause, then repeat."
    )
    return is_whole


async def _owners(store: Store, partitions: Sequence[str]) -> list[tuple[str, str]]:
    """Return the owners of these partitions with their organizations.

    If `partitions` is empty, return the owners of all.
    """
    owners: list[tuple[str, str]] = []
    after = ""
    while page := await store.read(lambda tx, after=after: rebuild.some_owners(tx, after)):  # type: ignore[misc]
        owners += [owner for owner in page if not partitions or owner[0] in partitions]
        after = page[-1][0]
    if missing := set(partitions) - {owner_id for owner_id, _ in owners}:
        raise NotFound(f"No agent and no archive has this id: {', '.join(sorted(missing))}.")
    return owners


class _IndexWatch:
    """A rebuild of partitions that shows its progress.

    `documents` is the number of documents in each partition.
    """

    def __init__(self, store: Store, documents: Mapping[str, int]) -> None:
        self.progress = ProgressLine()
        self._store = store
        self._documents = documents
        self._indexed = 0
        self._reported_ids: set[str] = set()

    async def build(self, partitions: Sequence[tuple[str, str]], *, vectors_only: bool) -> bool:
        """Rebuild these partitions; return True if all were rebuilt.

        Args:
            partitions: Pairs of an owner's id and its organization's id. Each gets one job.
            vectors_only: Compute the vectors again, and leave the index of words as it is.
        """

        def add_jobs(tx: Transaction) -> list[Job]:
            return [
                rebuild.add_job(tx, owner_id, organization_id, vectors_only=vectors_only)
                for owner_id, organization_id in partitions
            ]

        jobs = await self._store.write(add_jobs)
        job_ids = [job.id for job in jobs]
        while not all(job.status in ENDED for job in jobs):
            await asyncio.sleep(_POLL_SECONDS)
            jobs = await self._store.read(lambda tx: rebuild.read_jobs(tx, job_ids))
            self._show(jobs)
        self._indexed += sum(self._documents[owner_id] for owner_id, _ in partitions)
        late = await self._store.read(lambda tx: rebuild.postponed_owners(tx, jobs))
        for owner_id in late:
            self.progress.end()
            typer.echo(f"{owner_id}: {_TOMORROW}", err=True)
        is_done = len(jobs) == len(job_ids) and all(job.status == "done" for job in jobs)
        return is_done and not late

    def _show(self, jobs: Sequence[Job]) -> None:
        indexed = sum(self._documents[job.payload["owner_id"]] * _share(job) for job in jobs)
        total = sum(self._documents.values())
        self.progress.show("indexed", self._indexed + int(indexed), total)
        for job in jobs:
            if job.error and job.status != "done" and job.id not in self._reported_ids:
                self._reported_ids.add(job.id)
                self.progress.end()
                retry = "" if job.status in ENDED else " It is retried."
                typer.echo(f"{job.payload['owner_id']}: {job.error['message']}{retry}", err=True)


def _share(job: Job) -> float:
    if job.status in ENDED:
        return 1
    return job.progress["done"] / max(job.progress["total"], 1) if job.progress else 0
