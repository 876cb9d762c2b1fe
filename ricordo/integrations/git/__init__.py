"""Git remotes of users' memory: a bare repository in a folder of this machine or at an http address follows, and is pulled from.

Each remote is a row, and a job with the remote's key brings it and the memory together. A sweep finds the remotes whose memory
moved, or where nobody looked for a while what the owner committed.
"""

import asyncio
from pathlib import Path

from ricordo.domain.clock import SECOND
from ricordo.domain.ids import new_id
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.remote import Remote
from ricordo.domain.scope import Scope
from ricordo.errors import Conflict
from ricordo.integrations.git.following import follow
from ricordo.integrations.git.transport import Place
from ricordo.runtime import Runtime
from ricordo.secret import Secret
from ricordo.storage import jobs, remotes
from ricordo.storage.store import Store, Transaction

KIND = "git"
FOLLOW, SWEEP = "memory_git", "memory_git_sweep"
EVERY = 60.0  # seconds between sweeps
_LOOK_AFTER = 600 * SECOND


async def add_remote(
    store: Store, data_dir: Path, scope: Scope, chain_id: str, place: Place, *, shows_toml: bool = False
) -> Remote:
    """Let a user's memory be followed at this place, from now on; with `shows_toml` also as TOML, on a branch of its own.

    Raises Invalid, and Conflict where it is already.
    """
    place.require_usable()
    sealed = await asyncio.to_thread(Secret(data_dir).encrypt, place.password) if place.password else None
    settings = {"username": place.username, "password": sealed} if sealed else {}
    settings |= {"layout": "toml"} if shows_toml else {}
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


def place_of(remote: Remote, data_dir: Path, *, allow_private: bool) -> Place:
    """Where a remote is, with its password. Raises Unavailable where this server cannot read that."""
    sealed = remote.settings.get("password")
    password = Secret(data_dir).decrypt(sealed) if sealed else None
    return Place(remote.address, remote.settings.get("username", "git"), password, allow_private)


async def _follow(runtime: Runtime, job: Job, _report: Report) -> None:
    settings = runtime.settings
    remote = await runtime.store.read(lambda tx: remotes.get(tx, Scope(job.organization_id), job.payload["remote_id"]))
    place = await asyncio.to_thread(place_of, remote, settings.data_dir, allow_private=settings.allow_private_callbacks)
    await follow(runtime.store, settings.data_dir, remote, place)


async def _sweep(runtime: Runtime, _job: Job, _report: Report) -> None:
    def work(tx: Transaction) -> None:
        for remote in remotes.due(tx, KIND, tx.clock.now() - _LOOK_AFTER):
            jobs.add(tx, job_of(remote))

    await runtime.store.write(work)


HANDLERS = (JobHandler(FOLLOW, _follow), JobHandler(SWEEP, _sweep, every_seconds=EVERY))
