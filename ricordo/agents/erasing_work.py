"""The work of one erasure, step by step, as its job does it; see `erasing.py`.

Each step finds rows in reads and deletes them in short writes. It all runs again until a whole round finds nothing: a turn that
was about to be saved, or an import under way, may have added something meanwhile.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from ricordo.agents.deletion import drop_outside
from ricordo.agents.erasing_files import remove_files
from ricordo.agents.threads import recompile
from ricordo.domain.erasure import Erasure, erasure_of
from ricordo.domain.ids import unique
from ricordo.domain.job import Job, Report
from ricordo.domain.scope import Scope
from ricordo.errors import Collision, RicordoError, Unavailable
from ricordo.runtime import Runtime
from ricordo.search import rebuild
from ricordo.storage import erased_agents, erased_threads, erasing, jobs, runs, scrubbing
from ricordo.storage import erased_rows as rows
from ricordo.storage.erasing import LOOKS, MARKS, REMAINS, Look, Mark
from ricordo.storage.fenced import FencedStore
from ricordo.storage.store import Transaction

ROUNDS = 20
# A run may have many events and steps, so few are taken at a time.
_RUNS, _THREADS = 20, 20
_TRIES, _PAUSE = 300, 0.1
T = TypeVar("T")
Change = Callable[[Transaction, Erasure], Erasure]
Some = Callable[[Transaction, Erasure], tuple[Erasure, bool]]


class Work:
    """One erasure under way. `erasure` is how far it is, as its job keeps it."""

    def __init__(self, runtime: Runtime, job: Job, report: Report) -> None:
        self.erasure = erasure_of(job.payload)
        self._runtime = runtime
        self._store = FencedStore(runtime.store, job)
        self._job = job
        self._report = report
        # Ids of hers that jobs may name, also after their rows are gone.
        self._known: set[str] = {self.erasure.user_id, *self.erasure.chains, *self.erasure.own_agents}

    async def run(self) -> Erasure:
        """Do what is left to do, and return what there is to tell. Raises Unavailable where it has to be tried again."""
        if not self.erasure.is_bare:
            await self._remove_rows()
            await self._remove_agents()
            await self._remove_rest()
            for owner_id, kind in sorted(self.erasure.spaces.items()):
                await self._wait_for_vectors(owner_id)
                await self._merge(owner_id, kind)
            await self._remove_files()
            await self._bare()
        if self.erasure.finished_at is None:
            touched = [name.partition(".")[0] for name in (*self.erasure.removed, *self.erasure.changed)]
            left = await scrubbing.scrub(self._store, touched)
            now = self._store.clock.now()
            await self._write(lambda _tx, erasure: replace(erasure.told(left), finished_at=now))
        return self.erasure

    async def _remove_agents(self) -> None:
        """Delete the agents that are hers alone, also from outside indexes; nobody finds them any more."""
        filed = await self._store.read(lambda tx: erased_agents.archives_of(tx, self.erasure.own_agents))
        for owner_id in (*self.erasure.own_agents, *filed):
            await drop_outside(self._runtime, owner_id)
        await self._all_of(erased_agents.remove, self.erasure.own_agents)

    async def _remove_rows(self) -> None:
        for _ in range(ROUNDS):
            before = self.erasure
            await self._round()
            if self.erasure == before:
                return
        raise Unavailable("New rows of this user keep coming. It is tried again.")

    async def _round(self) -> None:
        await self._write(erasing.hide_chains)
        threads = await self._hide_threads()
        messages = [row.id for row in await self._find(LOOKS["messages"])]
        passages = [row.id for row in await self._find(LOOKS["passages"])]
        await self._cover_quotes(frozenset((*messages, *passages)))
        await self._in_portions(rows.remove_passages, passages)
        await self._in_portions(rows.remove_messages, messages)
        ended = [row.id for row in await self._find(LOOKS["runs"])]
        self._known |= {*ended, *threads, *self.erasure.chains, *await self._brought_elsewhere()}
        await self._remove_jobs()
        proposed = [row.seq for row in await self._find(LOOKS["proposals"])]
        await self._in_portions(rows.remove_proposals, proposed)
        await self._all_of(rows.remove_runs, _portions(ended, _RUNS))
        await self._in_portions(
            rows.remove_threads, [id for id in threads if id not in self.erasure.own_threads], _THREADS
        )
        await self._all_of(rows.remove_memory, self.erasure.chains)

    async def _hide_threads(self) -> list[str]:
        """Hide her threads and the forks of them that are nobody's; returns their ids, agents' own threads among them."""
        found = await self._find(LOOKS["threads"])
        own = tuple(sorted({*self.erasure.own_threads, *(row.id for row in found if row.is_default)}))
        threads = {row.id for row in found}
        fresh = sorted(threads)
        while fresh:
            hers, others = await self._store.read(
                lambda tx, fresh=fresh: erasing.forks_of(tx, fresh, self.erasure.user_id)  # type: ignore[misc]
            )
            fresh = [id for id in hers if id not in threads]
            threads.update(fresh)

            def adopt(
                tx: Transaction, erasure: Erasure, fresh: list[str] = fresh, others: list[str] = others
            ) -> Erasure:
                erasing.adopt(tx, fresh, erasure.user_id)
                return replace(erasure.shared(others), own_threads=own)

            await self._write(adopt)

        def hide(tx: Transaction, erasure: Erasure, some: Sequence[str]) -> Erasure:
            erasing.hide_threads(tx, some)
            return erasure

        await self._in_portions(hide, sorted(threads), erasing.HIDDEN_AT_ONCE)
        return sorted(threads)

    async def _cover_quotes(self, gone: frozenset[str]) -> None:
        if not gone:
            return
        quoting = await self._find(LOOKS["quotes"], keeps=lambda found: erased_threads.quoting(found, gone))

        def cover(tx: Transaction, erasure: Erasure, some: Sequence[str]) -> Erasure:
            return erased_threads.cover_quotes(tx, erasure, some, gone)

        await self._in_portions(cover, [id for id in quoting if id not in gone])

    async def _brought_elsewhere(self) -> list[str]:
        """The remotes of her memory and the archives of her agents: what their jobs send out now, nobody would remove there."""

        def read(tx: Transaction) -> list[str]:
            return rows.remotes_of(tx, self.erasure.chains) + erased_agents.archives_of(tx, self.erasure.own_agents)

        return await self._store.read(read)

    async def _remove_jobs(self) -> None:
        known = self._known
        for _ in range(_TRIES):
            found = await self._find(LOOKS["jobs"], keeps=lambda some: (row.id for row in some if _names(row, known)))
            if not found:
                return
            await self._in_portions(rows.remove_jobs, found)
            # One that runs stops within seconds.
            await asyncio.sleep(_PAUSE)
        raise Unavailable("A job of this user does not stop. It is tried again.")

    async def _remove_rest(self) -> None:
        """What shows something of hers in rows that stay: traces, windows, summaries, prompts, and her id."""
        since, archives = (
            self.erasure.began_at or 0,
            [id for id, kind in self.erasure.spaces.items() if kind == "passages"],
        )
        seeing = await self._store.read(lambda tx: erasing.seeing(tx, archives))
        await self._wait_for_turns({*self.erasure.agents, *seeing.values()})
        await self._repeat(rows.remove_traces)

        def tidy(tx: Transaction, erasure: Erasure, thread_id: str) -> Erasure:
            # An agent's own thread that was about her showed her memory from its beginning, also where nobody spoke in it.
            is_hers = thread_id in erasure.own_threads
            return erased_threads.tidy_thread(tx, erasure, thread_id, 0 if is_hers else since)

        def cover(tx: Transaction, erasure: Erasure, thread_id: str) -> Erasure:
            return erased_threads.cover_prompts(tx, erasure, thread_id, since)

        shown = unique((*self.erasure.threads, *self.erasure.own_threads))
        await self._each(tidy, shown)
        await self._each(cover, [id for id in seeing if id not in shown])
        await self._each(erased_threads.free_thread, self.erasure.own_threads)
        for mark in MARKS:

            def clear(tx: Transaction, erasure: Erasure, some: Sequence[int], mark: Mark = mark) -> Erasure:
                return rows.clear_marks(tx, erasure, mark, some)

            await self._in_portions(clear, [row.seq for row in await self._find(erasing.marked(mark.column))])
        await self._compile_prompts({*shown, *seeing})

    async def _wait_for_turns(self, agents: set[str]) -> None:
        """Wait until the turns of these agents have ended that began while she was there, and may still save what they read."""
        now = self._store.clock.now()
        for _ in range(_TRIES):
            running = await self._store.read(runs.open_runs)
            if not any(run.agent_id in agents and run.created_at <= now for run in running):
                return
            await asyncio.sleep(_PAUSE)
        raise Unavailable("Turns that had read what she said still run. It is tried again when they have ended.")

    async def _compile_prompts(self, threads: Iterable[str]) -> None:
        scope = Scope(self.erasure.organization_id)
        await self._runtime.organization_providers.of(scope.organization_id)
        for thread_id in sorted(threads):
            # Where a turn runs, or its model is not here, the thread's next turn does this.
            with suppress(RicordoError):
                await recompile(self._runtime, scope, thread_id)

    async def _merge(self, owner_id: str, kind: str) -> None:
        """Take her words out of this index, as the job that merges it does: never beside one that builds it anew."""
        job = await self._claim_merge(owner_id, kind)
        store = FencedStore(self._runtime.store, job)
        try:
            while await store.write(lambda tx: rebuild.drop_remains(tx, owner_id)):
                pass
            await self._runtime.indexing.fenced(job).flush(job, self._report)
        except BaseException:
            await self._runtime.store.write(lambda tx: jobs.put_back(tx, job))
            raise
        await self._runtime.store.write(lambda tx: jobs.finish(tx, job))

    async def _wait_for_vectors(self, owner_id: str) -> None:
        """Wait until what is being embedded is kept: what comes to an outside index later than this, no merge removes there."""
        for _ in range(_TRIES):
            if not await self._store.read(lambda tx: erasing.is_embedding(tx, owner_id)):
                return
            await asyncio.sleep(_PAUSE)
        raise Unavailable(f"What {owner_id} holds is being embedded. It is tried again after that.")

    async def _claim_merge(self, owner_id: str, kind: str) -> Job:
        organization_id, worker = self.erasure.organization_id, f"erasure-{self.erasure.id}"
        for _ in range(_TRIES):
            with suppress(Collision):
                if job := await self._store.write(
                    lambda tx: erasing.claim_merge(tx, kind, owner_id, organization_id, worker)
                ):
                    return job
            await asyncio.sleep(_PAUSE)
        raise Unavailable(f"The search index of {owner_id} is being built anew. It is tried again after that.")

    async def _remove_files(self) -> None:
        data_dir: Path = self._runtime.settings.data_dir
        current = None if self._runtime.settings.postgres_url else self._runtime.settings.database_path
        others = await self._store.read(rows.remote_addresses)
        done = await asyncio.to_thread(remove_files, data_dir, current, self.erasure, others)
        await self._write(
            lambda _tx, erasure: replace(
                erasure.told(done.elsewhere), files={**erasure.files, **done.files}, remotes={}
            )
        )

    async def _bare(self) -> None:
        """Delete the user herself, and forget whom this was about."""
        remaining = {}
        for column in REMAINS:
            if found := await self._find(erasing.marked(column)):
                remaining[f"{column.table.name}.{column.name}"] = len(found)

        def bare(tx: Transaction, erasure: Erasure) -> Erasure:
            removed = rows.remove_user(tx, erasure)
            return replace(removed, user_id="", is_bare=True, threads=(), own_threads=(), remaining=remaining)

        await self._write(bare)

    async def _find(self, look: Look, keeps: Callable[[Sequence[Any]], Iterator[Any]] = iter) -> list[Any]:
        """What `keeps` takes of the rows that are looked for, all over the table."""
        wanted = self.erasure.user_id
        last, after, found = await self._store.read(lambda tx: erasing.newest(tx, look.table)), 0, list[Any]()
        while after < last:
            found += await self._store.read(
                lambda tx, after=after: list(keeps(erasing.some(tx, look, wanted, after)))  # type: ignore[misc]
            )
            after += erasing.AT_ONCE
        return found

    async def _in_portions(
        self,
        change: Callable[[Transaction, Erasure, Sequence[Any]], Erasure],
        found: Sequence[Any],
        size: int = rows.PORTION,
    ) -> None:
        await self._each(change, _portions(found, size))

    async def _each(self, change: Callable[[Transaction, Erasure, T], Erasure], items: Iterable[T]) -> None:
        for item in items:
            await self._once(_of(lambda tx, erasure, one: (change(tx, erasure, one), False), item))

    async def _all_of(
        self, some: Callable[[Transaction, Erasure, T], tuple[Erasure, bool]], items: Iterable[T]
    ) -> None:
        """Call it for each item until nothing of that is left."""
        for item in items:
            await self._repeat(_of(some, item))

    async def _write(self, change: Change) -> None:
        await self._once(lambda tx, erasure: (change(tx, erasure), False))

    async def _repeat(self, some: Some) -> None:
        while await self._once(some):
            pass

    async def _once(self, some: Some) -> bool:
        """One transaction, with which is noted what it did."""
        before = self.erasure

        def work(tx: Transaction) -> tuple[Erasure, bool]:
            after, is_more = some(tx, before)
            if after != before:
                erasing.save(tx, self._job.id, after)
            return after, is_more

        work.__qualname__ = "erasure: a portion"
        self.erasure, is_more = await self._store.write(work)
        count = sum(self.erasure.removed.values())
        self._report(count, count)
        return is_more


def _of(some: Callable[[Transaction, Erasure, T], tuple[Erasure, bool]], item: T) -> Some:
    return lambda tx, erasure: some(tx, erasure, item)


def _portions(found: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (found[start : start + size] for start in range(0, len(found), size))


def _names(row: Any, known: set[str]) -> bool:
    """Whether a job is about somebody of whom these ids are."""
    return row.user_id in known or row.key in known or not known.isdisjoint(_words(row.payload))


def _words(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _words(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _words(inner)
