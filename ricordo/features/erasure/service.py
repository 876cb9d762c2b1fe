"""Forgetting a user: hidden from everyone at once, erased by a job behind that, and a signed receipt once nothing is left."""

import asyncio
import logging
from collections.abc import Collection

from ricordo.agents.run_end import close_run
from ricordo.domain.clock import to_datetime
from ricordo.domain.ids import new_id
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.run import Run
from ricordo.domain.scope import LOCAL_USER, Scope, User
from ricordo.errors import Conflict, NotFound
from ricordo.features.erasure import queries, receipts
from ricordo.features.erasure.jobs import ErasureWork
from ricordo.features.erasure.models import Erasure, Receipt
from ricordo.runtime import Runtime
from ricordo.secret import Secret
from ricordo.storage import runs, users
from ricordo.storage.store import Transaction

log = logging.getLogger(__name__)
SWEEP = "erasure.sweep"
# Of very many conversations the job hides the rest: it finds them again.
_HIDDEN_AT_ONCE = 250


async def forget(runtime: Runtime, scope: Scope, name: str, *, with_agents: bool = False) -> Receipt:
    """Forget the user with this id or identifier; returns the state of the erasure, or the receipt once it is done.

    Asked again, it gives the same. `with_agents` deletes the agents too that are the user's alone.

    Raises NotFound for a user that never was, Conflict for the local administrator.
    """
    user = await runtime.store.read(lambda tx: users.find(tx, scope, name))
    if user is None:
        return await _asked_before(runtime, scope, name)
    if user.id == LOCAL_USER:
        raise Conflict(
            "This is who runs the server, and nobody can act in her place. Delete her agents, or stop the server and remove its "
            "data folder."
        )
    about = {user.id, *await runtime.store.read(lambda tx: queries.ids_of_conversations(tx, user.id))}
    # Turns end by themselves where that is possible, and are saved with their end: then nothing of theirs comes later.
    await _cancel(runtime, await runtime.store.read(lambda tx: _running(tx, about)))
    erasure = await asyncio.to_thread(_begin, runtime, scope, user, name)

    def hide(tx: Transaction) -> tuple[Job, list[Run]]:
        hidden = erasure.model_copy(deep=True)
        users.lock(tx, user.id)
        if with_agents:
            queries.hide_agents(tx, scope, hidden)
        late = _running(tx, {*about, *hidden.own_agents})
        for run in late:
            close_run(tx, run, "cancelled")
        queries.hide_user(tx, scope, hidden)
        queries.hide_conversations(tx, hidden, sorted(about)[:_HIDDEN_AT_ONCE])
        return queries.add_job(tx, scope.organization_id, hidden), late

    job, late = await runtime.store.write(hide)
    await _cancel(runtime, late)
    log.info("a user is being forgotten", extra={"receipt": erasure.id, "job": job.id})
    return _state(erasure)


async def find_receipt(runtime: Runtime, scope: Scope, receipt_id: str) -> Receipt:
    """Return the receipt, or how far its erasure is. Raises NotFound."""
    known = await runtime.store.read(lambda tx: [one for one in queries.known(tx) if one[1].id == receipt_id])
    receipt = await asyncio.to_thread(_receipt, runtime, receipt_id, known)
    if receipt is None or receipt["organization_id"] != scope.organization_id:
        raise NotFound(f"Receipt with ID {receipt_id} not found")
    return receipt


async def _asked_before(runtime: Runtime, scope: Scope, name: str) -> Receipt:
    data_dir = runtime.settings.data_dir
    hashed = await asyncio.to_thread(receipts.hash_of_name, Secret(data_dir), scope.organization_id, name)
    known = await runtime.store.read(lambda tx: [one for one in queries.known(tx) if hashed in one[1].names])
    id = known[0][1].id if known else ""
    receipt = await asyncio.to_thread(_receipt, runtime, id, known)
    receipt = receipt or await asyncio.to_thread(receipts.find_by_name, data_dir, hashed)
    if receipt is None:
        raise NotFound(f'There is no user "{name[:255]}", and none was forgotten. Check the name.')
    return receipt


def _receipt(runtime: Runtime, id: str, known: list[tuple[Job, Erasure]]) -> Receipt | None:
    """The receipt in the data folder, or else the state of the newest of these erasures."""
    if (receipt := receipts.find(runtime.settings.data_dir, id)) or not known:
        return receipt
    job, erasure = known[0]
    # Another server has the file, perhaps; the same secret gives the same signature.
    return receipts.receipt_of(Secret(runtime.settings.data_dir), erasure) if job.status == "done" else _state(erasure)


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
    names = {name, user.id, *([user.identifier] if user.identifier else [])}
    return Erasure(
        id=new_id(receipts.PREFIX),
        user_id=user.id,
        organization_id=scope.organization_id,
        subject=receipts.subject_of(user.id),
        names=sorted(receipts.hash_of_name(secret, scope.organization_id, one) for one in names),
        asked_at=to_datetime(runtime.store.clock.now()).isoformat(),
        asked_by="" if scope.user_id == user.id else scope.user_id,
        database="postgresql" if runtime.settings.postgres_url else "sqlite",
    )


def _running(tx: Transaction, about: Collection[str]) -> list[Run]:
    return [run for run in runs.open_runs(tx) if {run.user_id, run.conversation_id, run.agent_id} & {*about}]


async def _cancel(runtime: Runtime, running: list[Run]) -> None:
    turns = [live for run in running if (live := runtime.live.get(run.id))]
    await asyncio.gather(*(turn.cancel() for turn in turns))
    streams = [recording for run in running if (recording := runtime.recordings.get(run.id))]
    await asyncio.gather(*(recording.finish() for recording in streams))


async def _erase(runtime: Runtime, job: Job, report: Report) -> None:
    erasure = await ErasureWork(runtime, job, report).run()
    data_dir = runtime.settings.data_dir
    await asyncio.to_thread(lambda: receipts.write(data_dir, receipts.receipt_of(Secret(data_dir), erasure)))
    log.info("a user was forgotten", extra={"receipt": erasure.id})


async def _sweep(runtime: Runtime, _job: Job, _report: Report) -> None:
    """Go on with erasures whose job somebody deleted: that only interrupts them."""

    def new(user_id: str, organization_id: str) -> Erasure:
        scope = Scope(organization_id, user_id)
        return _begin(runtime, scope, User(user_id, organization_id, "", None, 0), user_id)

    await asyncio.to_thread(Secret(runtime.settings.data_dir).derive, "")
    if count := await runtime.store.write(lambda tx: queries.take_up(tx, new)):
        log.warning("erasures that nobody worked on were taken up again", extra={"erasures": count})


HANDLERS = (JobHandler(queries.JOB, _erase), JobHandler(SWEEP, _sweep, every_seconds=600.0))
