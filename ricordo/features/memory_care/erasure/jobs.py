"""The job that erases a user, step by step.

Each step finds rows by reads and erases them in short writes. The steps that erase rows are
repeated until a round changes nothing, since a turn or an import may add rows meanwhile. Each write
saves its counts in the same transaction, so a kill does not count anything twice.
"""

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from ricordo.agents.conversations import recompile_system
from ricordo.agents.deletion import drop_outside
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.scope import Scope, User
from ricordo.errors import RicordoError, Unavailable
from ricordo.features.memory_care.erasure import queries, receipts, service
from ricordo.features.memory_care.erasure.files import erase_files, without_password
from ricordo.features.memory_care.erasure.receipts import Erasure
from ricordo.features.memory_care.erasure.work import PortionedWork
from ricordo.runtime import Runtime
from ricordo.secret import Secret
from ricordo.storage import runs
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import conversations
from ricordo.storage.schema.memory_tables import chains

log = logging.getLogger(__name__)
SWEEP = "erasure.sweep"
ROUNDS = 20
_TRIES = 300
_PAUSE = 0.1  # seconds between two tries
_ID = re.compile(r"[\w-]+")


class ErasureWork(PortionedWork[Erasure]):
    """An erasure in progress."""

    def __init__(self, runtime: Runtime, job: Job, report: Report) -> None:
        super().__init__(runtime, job, report, Erasure.model_validate(job.payload))
        # Ids that jobs may refer to, even after their rows are erased.
        self._known = {self.state.user_id, *self.state.own_agents, *self.state.own_archives}

    async def run(self) -> Erasure:
        """Do the remaining steps, and return the finished erasure.

        Raises Unavailable if a step must be tried again.
        """
        if not self.state.is_erased:
            await self._stop_jobs()
            for at_erasure in self._runtime.plugins.at_erasure():
                remains = await at_erasure(self._runtime, self.state.user_id)
                await self._note_elsewhere(remains)
            await self._erase_rows()
            for id in (*self.state.own_agents, *self.state.own_archives):
                await drop_outside(self._runtime, id)
                await self._repeat(partial(queries.purge_owner, id=id))
            await self._cover_rest()
            for owner_id in sorted(self.state.partitions):
                await self._flush(owner_id)
            await self._erase_files()
            remaining = {
                str(column): len(await self._named(column))
                for column in queries.columns_that_remain()
            }
            remaining["messages.name"] = len(await self._find(service.named_like(self.state)))
            await self._write(partial(queries.erase_user, remaining=+Counter(remaining)))
        if self.state.finished_at is None:
            touched = (*self.state.removed, *self.state.changed)
            await self._finish([name.partition(".")[0] for name in touched])
        return self.state

    async def _erase_rows(self) -> None:
        for _ in range(ROUNDS):
            before = self.state
            await self._round()
            if self.state == before:
                return
        raise Unavailable(
            "New rows of this user are still being written. The erasure is tried again."
        )

    async def _round(self) -> None:
        await self._write(service.hide_memory)
        user_id = self.state.user_id
        conversation_ids = await self._hide_conversations()
        is_sent = service.said_as(self.state)
        rows_by_table = [
            (table, await self._find(queries.rows_of(table, user_id, is_sent)))
            for table in queries.tables_of_rows()
        ]
        ids = {row.id for _, rows in rows_by_table for row in rows if "id" in row._fields}
        if ids:
            quoting = await self._find(
                queries.QUOTES, lambda row: queries.quotes(row, ids) and row.id not in ids
            )
            await self._each(partial(queries.cover_quotes, erased=ids), [row.id for row in quoting])
        remotes = [
            remote
            for remote in await self._store.read(queries.remotes)
            if remote.chain_id in self.state.chains
        ]
        kinds = {without_password(remote.address): remote.kind for remote in remotes}
        await self._note(remotes=kinds)
        self._known |= {*ids, *conversation_ids, *self.state.chains}
        self._known |= {remote.id for remote in remotes}
        await self._stop_jobs()
        own_ids = conversation_ids - self.state.defaults
        for table, rows in rows_by_table:
            await self._each(partial(queries.purge_rows, table=table, own_ids=own_ids), rows)
        await self._each(queries.purge_proposals, await self._find(queries.proposals_of(user_id)))
        await self._each(partial(queries.purge_by_id, table=conversations), sorted(own_ids))
        await self._each(partial(queries.purge_by_id, table=chains), list(self.state.chains))

    async def _hide_conversations(self) -> set[str]:
        """Hide the user's conversations, and forks of them that belong to no user.

        Returns the ids of the hidden conversations, and of the user's default conversations.
        """
        user_id = self.state.user_id
        rows = await self._find(queries.conversations_of(user_id))
        ids = [row.id for row in rows]
        own_ids, others = await self._store.read(lambda tx: queries.with_forks(tx, ids, user_id))
        await self._note(shown_in=others, defaults=[row.id for row in rows if row.is_default])
        await self._each(service.hide_conversations, sorted(own_ids))
        return own_ids

    async def _stop_jobs(self) -> None:
        for _ in range(_TRIES):
            rows = await self._find(queries.JOBS, lambda row: _names(row, self._known))
            if not rows:
                return
            await self._each(queries.stop_jobs, [row.id for row in rows])
            # A running job stops within seconds.
            await asyncio.sleep(_PAUSE)
        raise Unavailable("A job of this user does not stop. The erasure is tried again.")

    async def _cover_rest(self) -> None:
        """Remove the user's texts and id from rows that stay.

        Such rows are windows, summaries, prompts, and rows with the user's id. Traces of model
        calls are deleted.
        """
        archives = [id for id, kind in self.state.partitions.items() if kind == "passages"]
        seeing = await self._store.read(lambda tx: queries.conversations_showing(tx, archives))
        agents = {*self.state.agents, *seeing.values()}
        now = self._store.clock.now()
        await self._wait(
            lambda tx: (
                not any(
                    run.agent_id in agents and run.created_at <= now for run in runs.open_runs(tx)
                )
            ),
            "Turns that read messages of this user still run. The erasure is tried again after them.",
        )
        await self._repeat(queries.purge_traces)
        shown_in = {*self.state.shown_in, *self.state.defaults}
        await self._each(queries.cover_conversation, sorted(shown_in), size=1)
        await self._each(queries.cover_messages, sorted({*seeing} - shown_in), size=1)
        for column in queries.columns_to_blank():
            await self._each(
                partial(queries.blank_column, column=column), await self._named(column)
            )
        scope = Scope(self.state.organization_id)
        await self._runtime.organization_providers.of(scope.organization_id)
        for id in sorted({*shown_in, *seeing}):
            # If a turn is running or the model is missing, the conversation's next turn renders the
            # prompt.
            with suppress(RicordoError):
                await recompile_system(self._runtime, scope, id)

    async def _erase_files(self) -> None:
        others = [row.address for row in await self._store.read(queries.remotes)]
        settings = self._runtime.settings
        if settings.postgres_url:
            database = None
        else:
            database = settings.database_path
        await self._sweep_copies()
        work = partial(erase_files, settings.data_dir, database, self.state, others)
        updated = await asyncio.to_thread(work)

        def note(_tx: Transaction, erasure: Erasure) -> None:
            erasure.files = updated.files
            erasure.elsewhere = updated.elsewhere
            erasure.remotes = {}

        await self._write(note)

    async def _named(self, column: Any) -> list[Any]:
        return await self._find(queries.rows_with(column, self.state.user_id))

    async def _find(self, statement: Any, keeps: Callable[[Any], object] = bool) -> list[Any]:
        """Return all rows of the statement that `keeps` accepts."""
        rows: list[Any] = []
        after = 0
        is_more = True
        while is_more:
            portion, is_more = await self._store.read(
                partial(queries.find_portion, statement=statement, after=after, keeps=keeps)
            )
            rows += portion
            after += queries.AT_ONCE
        return rows

    async def _note(self, **more: Any) -> None:
        await self._write(
            lambda _tx, erasure: [getattr(erasure, name).update(new) for name, new in more.items()]
        )


def _names(job: Any, ids: set[str]) -> bool:
    return not ids.isdisjoint((job.user_id, job.key, *_ID.findall(str(job.payload))))


async def _erase(runtime: Runtime, job: Job, report: Report) -> None:
    erasure = await ErasureWork(runtime, job, report).run()
    data_dir = runtime.settings.data_dir
    await asyncio.to_thread(
        lambda: receipts.write(data_dir, receipts.receipt_of(Secret(data_dir), erasure))
    )
    log.info("a user was forgotten", extra={"receipt": erasure.id})


async def _sweep(runtime: Runtime, _job: Job, _report: Report) -> None:
    """Resume erasures whose job failed, or was cancelled or deleted.

    None of this ends an erasure.
    """

    def new(user_id: str, organization_id: str) -> Erasure:
        scope = Scope(organization_id, user_id)
        return service.begin(runtime, scope, User(user_id, organization_id, "", None, 0), user_id)

    await asyncio.to_thread(Secret(runtime.settings.data_dir).derive, "")
    if count := await runtime.store.write(lambda tx: queries.take_up(tx, new)):
        log.warning("unfinished erasures were resumed", extra={"erasures": count})


HANDLERS = (JobHandler(queries.JOB, _erase), JobHandler(SWEEP, _sweep, every_seconds=600.0))
