"""The backups in the data folder over HTTP, for administrators of the whole server: listed, made, checked, downloaded, deleted.

A name in a request is looked up among the files that are listed, and never becomes a path.
"""

import asyncio
import os
from pathlib import Path
from secrets import token_hex

from fastapi import Response
from fastapi.responses import FileResponse

from ricordo.api.call import RequestContext, note
from ricordo.api.models.base import Json, NoteResponse, ResponseModel, Timestamp, binary
from ricordo.api.models.jobs import JobResponse
from ricordo.api.routing import Routes, needs
from ricordo.domain.clock import SECOND, to_datetime
from ricordo.domain.job import Job
from ricordo.domain.scope import ADMIN, LOCAL_ORGANIZATION, Scope
from ricordo.errors import Conflict, Invalid, NotFound
from ricordo.features.identity.accounts.keys import require_operator
from ricordo.features.operations.backups.jobs import ATTEMPTS, MAKE
from ricordo.features.operations.backups.service import folder_of
from ricordo.storage import jobs, organizations
from ricordo.storage.engine.repository import found
from ricordo.storage.engine.seal import UNSEALED, require_sound
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/v1/backups", tags=["backups"])
_KINDS = (".db", ".dump")
_BYTES = "application/octet-stream"
_HEADERS = {"x-content-type-options": "nosniff"}


class BackupResponse(ResponseModel):
    """A backup, with its size in bytes. It `was_verified` before it got its name, but for a dump of PostgreSQL."""

    name: str
    size: int
    created_at: Timestamp
    was_verified: bool


@router.get("", response_model=list[BackupResponse])
@needs(ADMIN)
def list_backups(tx: Transaction, context: RequestContext) -> list[Json]:
    """The backups in the folder, the newest first: those that were made here, and those from before migrations."""
    _require_whole_server(tx, context.scope)
    return [
        BackupResponse.of(
            path,
            size=about.st_size,
            created_at=int(about.st_mtime * SECOND),
            was_verified=path.suffix == ".db",
        )
        for path, about in _listed(context)
    ]


@router.post("", response_model=JobResponse)
@needs(ADMIN)
def make(tx: Transaction, context: RequestContext) -> Job:
    """Begin a backup of the whole database. The job says how far it is; the file appears once it was read back and compared."""
    _require_whole_server(tx, context.scope)
    time = to_datetime(tx.clock.now()).strftime("%Y%m%dT%H%M%S")
    payload = {"name": f"ricordo-{time}-{token_hex(2)}.db"}
    added = jobs.add(
        tx, Job(MAKE, LOCAL_ORGANIZATION, payload, key=MAKE, is_single=True, most_attempts=ATTEMPTS)
    )
    if added is None:
        raise Conflict("A backup waits to be made already. Look at the jobs.")
    return added


@router.post("/{backup_name}/check", response_model=NoteResponse)
@needs(ADMIN)
async def check(context: RequestContext, backup_name: str) -> Json:
    """Read a backup again, whole; 400 says what is wrong with it."""
    path = await _find(context, backup_name)
    if path.suffix != ".db":
        raise Invalid(
            "This is a dump of PostgreSQL. Check it on the machine of the server: pg_restore --list FILE"
        )
    hashes = await asyncio.to_thread(require_sound, path)
    return note(
        f"{path.name} is whole." if hashes is not None else f"{path.name} is whole. {UNSEALED}"
    )


@router.get("/{backup_name}", response_class=Response, responses=binary(_BYTES))
@needs(ADMIN)
async def download(context: RequestContext, backup_name: str) -> Response:
    """The file. It holds everything but `secret.key`."""
    path = await _find(context, backup_name)
    return FileResponse(path, headers=_HEADERS, media_type=_BYTES, filename=path.name)


@router.delete("/{backup_name}", response_model=NoteResponse)
@needs(ADMIN)
async def delete(context: RequestContext, backup_name: str) -> Json:
    """Delete a backup."""
    (await _find(context, backup_name)).unlink(missing_ok=True)
    return note(f"Backup {backup_name} deleted.")


def _require_whole_server(tx: Transaction, scope: Scope) -> None:
    """Raise NotFound, Forbidden for whoever may not have all organizations, which a backup holds: of several the operator alone."""
    if scope.organization_id != LOCAL_ORGANIZATION:
        raise NotFound(
            "Backups belong to the first organization of the server. Take out agents and memory instead."
        )
    if len(organizations.every_id(tx)) > 1:
        require_operator(scope)


def _listed(context: RequestContext) -> list[tuple[Path, os.stat_result]]:
    there = [
        path for path in folder_of(context.runtime.settings).glob("*") if path.suffix in _KINDS
    ]
    files = [(path, path.stat()) for path in there if path.is_file() and not path.is_symlink()]
    return sorted(files, key=lambda one: (one[1].st_mtime, one[0].name), reverse=True)


async def _find(context: RequestContext, name: str) -> Path:
    """Return the file of this name among those that are listed. Raises Forbidden, NotFound."""
    await context.store.read(lambda tx: _require_whole_server(tx, context.scope))
    return found(
        next((path for path, _ in _listed(context) if path.name == name), None), "Backup", name
    )
