"""Dolt remotes of users' memory: a Dolt server, or a file of doltlite, follows with rows, commits and branches, and is pulled from.

Each remote is a row, and a job with the remote's key brings it and the memory together. A sweep finds the remotes whose memory
moved, or where nobody looked for a while what the owner committed.
"""

import asyncio

from ricordo.domain.clock import SECOND
from ricordo.domain.ids import new_id
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.remote import Remote
from ricordo.domain.scope import Scope
from ricordo.errors import Conflict
from ricordo.integrations.dolt.following import follow
from ricordo.integrations.dolt.place import Place, read_place
from ricordo.runtime import Runtime
from ricordo.secret import Secret
from ricordo.storage import jobs, remotes
from ricordo.storage.fenced import FencedStore
from ricordo.storage.store import Store, Transaction

KIND = "dolt"
FOLLOW, SWEEP = "memory_dolt", "memory_dolt_sweep"
EVERY = 60.0  # seconds between sweeps
_LOOK_AFTER = 600 * SECOND


async def add_remote(store: Store, secret: Secret, scope: Scope, chain_id: str, place: Place) -> Remote:
    """Let a user's memory be followed at this place, from now on. Raises Invalid, and Conflict where it is already."""
    place.require_usable()
    sealed = await asyncio.to_thread(secret.encrypt, place.password) if place.password else None
    settings = {"password": sealed} if sealed else {}
    now = store.clock.now()
    remote = Remote(new_id("remote"), scope.organization_id, chain_id, KIND, place.address, settings, created_at=now)

    def work(tx: Transaction) -> None:
        if any((one.kind, one.address) == (KIND, place.address) for one in remotes.of_chain(tx, chain_id)):
            raise Conflict(f"{place.address} follows this memory already.")
        remotes.insert_one(tx, remote)
        jobs.add(tx, job_of(remote))

    await store.write(work)
    return remote


def job_of(remote: Remote) -> Job:
    """The job that brings a remote and its memory together."""
    payload = {"remote_id": remote.id}
    return Job(FOLLOW, remote.organization_id, payload, key=f"remote:{remote.id}", is_single=True)


def place_of(remote: Remote, secret: Secret, *, allow_private: bool) -> Place:
    """Where a remote is, with its password. Raises Unavailable where this server cannot read that."""
    sealed = remote.settings.get("password")
    return read_place(remote.address, secret.decrypt(sealed) if sealed else None, allow_private=allow_private)


async def _follow(runtime: Runtime, job: Job, _report: Report) -> None:
    settings = runtime.settings
    store = FencedStore(runtime.store, job)
    remote = await store.read(lambda tx: remotes.get(tx, Scope(job.organization_id), job.payload["remote_id"]))
    secret = Secret(settings.data_dir)
    place = await asyncio.to_thread(place_of, remote, secret, allow_private=settings.allow_private_callbacks)
    await follow(store, remote, place)


async def _sweep(runtime: Runtime, _job: Job, _report: Report) -> None:
    def work(tx: Transaction) -> None:
        for remote in remotes.due(tx, KIND, tx.clock.now() - _LOOK_AFTER):
            jobs.add(tx, job_of(remote))

    await runtime.store.write(work)


HANDLERS = (JobHandler(FOLLOW, _follow), JobHandler(SWEEP, _sweep, every_seconds=EVERY))
