"""`ricordo search reindex`: rebuilds the search index.

Jobs do the work, so the next server finishes an interrupted rebuild.
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

_LOOK_EVERY = 0.2  # seconds
_ASKED_AT_ONCE = 100


def reindex(partitions: Sequence[str], *, vectors_only: bool) -> bool:
    """Rebuild these partitions, or all; return True if all were rebuilt.

    Raises NotFound, and Conflict if a server has the file open.
    """
    return asyncio.run(_reindex(partitions, vectors_only=vectors_only))


async def _reindex(partitions: Sequence[str], *, vectors_only: bool) -> bool:
    settings, providers = load_settings()
    require_database(settings, "nothing to index")
    set_up_quiet_logs(settings)
    async with open_runtime(settings, providers) as runtime:
        if vectors_only and runtime.models.embedders.default_handle() is None:
            raise NotFound("There is no embedding model. Name one in RICORDO_EMBEDDING.")
        wanted = await _wanted(runtime.store, partitions)
        documents = await runtime.store.read(
            lambda tx: {id: rebuild.count_documents(tx, id) for id, _ in wanted}
        )
        typer.echo(
            f"{sum(documents.values()):,} documents in {len(wanted):,} partitions of "
            f"{address(settings)}"
        )
        is_whole = True
        watch = _IndexWatch(runtime.store, documents)
        try:
            for some in portions(wanted, _ASKED_AT_ONCE):
                is_whole &= await watch.build(some, vectors_only=vectors_only)
        finally:
            watch.progress.end()
    typer.echo(
        "The index is rebuilt."
        if is_whole
        else "Where it failed, the old index stays in use. Correct the cause, then repeat."
    )
    return is_whole


async def _wanted(store: Store, partitions: Sequence[str]) -> list[tuple[str, str]]:
    """Return the partitions by owner, with the organization of each."""
    wanted: list[tuple[str, str]] = []
    after = ""
    while found := await store.read(lambda tx, after=after: rebuild.some_owners(tx, after)):  # type: ignore[misc]
        wanted += [one for one in found if not partitions or one[0] in partitions]
        after = found[-1][0]
    if missing := set(partitions) - {owner_id for owner_id, _ in wanted}:
        raise NotFound(f"No agent and no archive has this id: {', '.join(sorted(missing))}.")
    return wanted


class _IndexWatch:
    """A rebuild of partitions with its progress.

    `documents` is the number of documents of each.
    """

    def __init__(self, store: Store, documents: Mapping[str, int]) -> None:
        self.progress = ProgressLine()
        self._store = store
        self._documents = documents
        self._done = 0
        self._told: set[str] = set()

    async def build(self, partitions: Sequence[tuple[str, str]], *, vectors_only: bool) -> bool:
        """Rebuild these partitions; return True if all were rebuilt."""

        def ask(tx: Transaction) -> list[Job]:
            return [
                rebuild.add_job(tx, owner_id, home, vectors_only=vectors_only)
                for owner_id, home in partitions
            ]

        found = await self._store.write(ask)
        ids = [job.id for job in found]
        while not all(job.status in ENDED for job in found):
            await asyncio.sleep(_LOOK_EVERY)
            found = await self._store.read(lambda tx: rebuild.read_jobs(tx, ids))
            self._show(found)
        self._done += sum(self._documents[owner_id] for owner_id, _ in partitions)
        return len(found) == len(ids) and all(job.status == "done" for job in found)

    def _show(self, found: Sequence[Job]) -> None:
        done = sum(self._documents[job.payload["owner_id"]] * _share(job) for job in found)
        self.progress.show("indexed", self._done + int(done), sum(self._documents.values()))
        for job in found:
            if job.error and job.status != "done" and job.id not in self._told:
                self._told.add(job.id)
                self.progress.end()
                again = "" if job.status in ENDED else " It is retried."
                typer.echo(f"{job.payload['owner_id']}: {job.error['message']}{again}", err=True)


def _share(job: Job) -> float:
    if job.status in ENDED:
        return 1
    return job.progress["done"] / max(job.progress["total"], 1) if job.progress else 0
