"""Forgetting a user: gone at once for everyone, removed row by row behind that, and a signed receipt once nothing is left.

`forget` hides her and adds a job. The job finds what is hers and deletes it in portions, between which other writers have their
turn; it takes her words out of the index, out of threads of others and out of copies in the data folder, then has the database's
files written anew. What a kill interrupts, the job goes on with.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from ricordo.agents.erasing_work import Work
from ricordo.agents.run_end import close_run
from ricordo.domain.erasure import KIND, Erasure
from ricordo.domain.ids import new_id
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.run import Run
from ricordo.domain.scope import LOCAL_ORGANIZATION, LOCAL_USER, Scope, User
from ricordo.errors import Conflict, NotFound
from ricordo.memory import receipts
from ricordo.memory.receipts import Receipt
from ricordo.runtime import Runtime
from ricordo.secret import Secret
from ricordo.storage import erased_agents, erasing, runs, users
from ricordo.storage.store import Transaction

log = logging.getLogger(__name__)
SWEEP = "erasure.sweep"
_SWEPT_EVERY = 600.0


async def forget(runtime: Runtime, scope: Scope, name: str, *, with_agents: bool = False) -> Receipt:
    """Forget the user with this id or identifier; returns what is known of her erasure, the receipt itself where it is done.

    Asked again, it gives the same. `with_agents` deletes those too that are hers alone.

    Raises NotFound for who was never here, Conflict for the local administrator.
    """
    user = await runtime.store.read(lambda tx: users.find(tx, scope, name))
    if user is None:
        return await _asked_before(runtime, scope, name)
    if user.id == LOCAL_USER:
        raise Conflict(
            "This is who runs the server, and nobody can act in her place. Delete her agents, or stop the server and remove its "
            "data folder."
        )
    threads = await _threads_of(runtime, user)
    # Turns end by themselves where that is possible, and are saved with their end: then nothing of theirs comes later.
    await _cancel(runtime, await runtime.store.read(lambda tx: _running(tx, user, threads)))
    erasure = await asyncio.to_thread(_begin, runtime, scope, user, name)

    def hide(tx: Transaction) -> tuple[Job, list[Run]]:
        users.lock(tx, user.id)
        hers, others = erased_agents.judge(tx, scope, user.id) if with_agents else ([], {})
        late = _running(tx, user, threads, hers)
        for run in late:
            close_run(tx, run, "cancelled")
        # Of very many threads the job hides the rest: it looks for them anew.
        hidden = erasing.hide(tx, scope, user, erasure, threads[: erasing.HIDDEN_AT_ONCE])
        hidden = erased_agents.hide(tx, replace(hidden, kept_agents=others), hers)
        return erasing.ask(tx, scope, hidden), late

    job, late = await runtime.store.write(hide)
    await _cancel(runtime, late)
    log.info("a user is being forgotten", extra={"receipt": erasure.id, "job": job.id})
    return _state(erasure)


async def find_receipt(runtime: Runtime, scope: Scope, receipt_id: str) -> Receipt:
    """The receipt, or how far its erasure is. Raises NotFound."""
    kept = await asyncio.to_thread(receipts.kept, runtime.settings.data_dir, receipt_id)
    if kept is None and (begun := await runtime.store.read(lambda tx: erasing.begun(tx, receipt_id))):
        kept = await _told(runtime, *begun)
    if kept is None or kept["organization_id"] != scope.organization_id:
        raise NotFound(f"Receipt with ID {receipt_id} not found")
    return kept


async def _asked_before(runtime: Runtime, scope: Scope, name: str) -> Receipt:
    data_dir = runtime.settings.data_dir
    sign = await asyncio.to_thread(receipts.name_of, Secret(data_dir), scope.organization_id, name)
    begun = await runtime.store.read(lambda tx: [found for found in erasing.asked(tx) if sign in found[1].names])
    if begun:
        job, erasure = begun[0]
        kept = await asyncio.to_thread(receipts.kept, data_dir, erasure.id)
        return kept or await _told(runtime, job, erasure)
    if kept := await asyncio.to_thread(receipts.kept_for, data_dir, sign):
        return kept
    raise NotFound(f'There is no user "{name[:255]}", and none was forgotten. Check the name.')


async def _told(runtime: Runtime, job: Job, erasure: Erasure) -> Receipt:
    if job.status != "done":
        return _state(erasure)
    # Another server has the file, perhaps; the same secret gives the same signature.
    return await asyncio.to_thread(receipts.receipt_of, Secret(runtime.settings.data_dir), erasure)


def _state(erasure: Erasure) -> Receipt:
    return {
        "id": erasure.id,
        "status": "running",
        "organization_id": erasure.organization_id,
        "receipt": f"/v1/receipts/{erasure.id}",
        "removed": dict(erasure.removed),
    }


def _begin(runtime: Runtime, scope: Scope, user: User, name: str) -> Erasure:
    secret = Secret(runtime.settings.data_dir)
    called = {name, user.id, *([user.identifier] if user.identifier else [])}
    return Erasure(
        id=new_id(receipts.PREFIX),
        user_id=user.id,
        organization_id=scope.organization_id,
        subject=receipts.subject_of(user.id),
        names=tuple(sorted(receipts.name_of(secret, scope.organization_id, one) for one in called)),
        asked_at=runtime.store.clock.now(),
        asked_by="" if scope.user_id == user.id else scope.user_id,
        database="postgresql" if runtime.settings.postgres_url else "sqlite",
    )


async def _threads_of(runtime: Runtime, user: User) -> list[str]:
    look = erasing.LOOKS["threads"]
    last, after = await runtime.store.read(lambda tx: erasing.newest(tx, look.table)), 0
    found: list[str] = []
    while after < last:
        rows = await runtime.store.read(lambda tx, after=after: erasing.some(tx, look, user.id, after))  # type: ignore[misc]
        found += [row.id for row in rows]
        after += erasing.AT_ONCE
    return found


def _running(tx: Transaction, user: User, threads: Sequence[str], agents: Sequence[str] = ()) -> list[Run]:
    hers = {user.id, *threads, *agents}
    return [run for run in runs.open_runs(tx) if not hers.isdisjoint((run.user_id, run.conversation_id, run.agent_id))]


async def _cancel(runtime: Runtime, running: list[Run]) -> None:
    turns = [live for run in running if (live := runtime.live.get(run.id))]
    await asyncio.gather(*(turn.cancel() for turn in turns))
    streams = [recording for run in running if (recording := runtime.recordings.get(run.id))]
    await asyncio.gather(*(recording.finish() for recording in streams))


async def _erase(runtime: Runtime, job: Job, report: Report) -> None:
    erasure = await Work(runtime, job, report).run()
    path = await asyncio.to_thread(_keep, runtime, erasure)
    log.info("a user was forgotten", extra={"receipt": erasure.id, "file": str(path)})


def _keep(runtime: Runtime, erasure: Erasure) -> object:
    data_dir = runtime.settings.data_dir
    return receipts.keep(data_dir, receipts.receipt_of(Secret(data_dir), erasure))


async def _sweep(runtime: Runtime, _job: Job, _report: Report) -> None:
    """Let no erasure be forgotten itself: whoever deletes its job only interrupts it."""

    def make(user_id: str) -> Erasure:
        new = User(user_id, LOCAL_ORGANIZATION, "", None, 0)
        return replace(_begin(runtime, Scope(), new, user_id), asked_by="")

    await asyncio.to_thread(Secret(runtime.settings.data_dir).derive, "")
    if count := await runtime.store.write(lambda tx: erasing.take_up(tx, make)):
        log.warning("erasures that nobody worked on were taken up again", extra={"erasures": count})


HANDLERS = (JobHandler(KIND, _erase), JobHandler(SWEEP, _sweep, every_seconds=_SWEPT_EVERY))
