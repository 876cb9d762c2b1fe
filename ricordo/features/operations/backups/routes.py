"""Routes of backups in the server's folder for them, for administrators of the whole server.

A name in a request is only compared with the names of existing files, and never becomes a path.
"""

import asyncio
import os
import stat
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from fastapi import Response
from fastapi.responses import FileResponse

from ricordo.api.call import RequestContext, note
from ricordo.api.models.base import NoteResponse, ResponseModel, Timestamp, binary
from ricordo.api.models.jobs import JobResponse
from ricordo.api.routing import Routes, needs
from ricordo.domain.clock import SECOND, to_datetime
from ricordo.domain.job import Job
from ricordo.domain.scope import ADMIN, LOCAL_ORGANIZATION, Scope
from ricordo.domain.text import Json
from ricordo.errors import Conflict, Invalid, NotFound, Unavailable
from ricordo.features.identity.accounts.keys import require_operator
from ricordo.features.operations.backups.jobs import ATTEMPTS, MAKE
from ricordo.features.operations.backups.service import folder_of
from ricordo.storage import jobs, organizations
from ricordo.storage.engine.repository import require_found
from ricordo.storage.engine.seal import UNSEALED, require_sound, require_sound_dump
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/v1/backups", tags=["backups"])
_KINDS = (".db", ".dump")
_BYTES = "application/octet-stream"
_HEADERS = {"x-content-type-options": "nosniff"}


class BackupResponse(ResponseModel):
    """A backup, with its size in bytes.

    `was_verified` is true for a copy of SQLite, which is read back before it gets its name. It is
    false for a dump of PostgreSQL.
    """

    name: str
    size: int
    created_at: Timestamp
    was_verified: bool


@router.get("", response_model=list[BackupResponse])
@needs(ADMIN)
def list_backups(tx: Transaction, context: RequestContext) -> list[Json]:
    """List the backups in the folder, newest first.

    They were made on request, or before a migration.
    """
    _require_whole_server(tx, context.scope)
    return [
        BackupResponse.of(
            path,
            size=status.st_size,
            created_at=int(status.st_mtime * SECOND),
            was_verified=path.suffix == ".db",
        )
        for path, status in _listed(context)
    ]


@router.post("", response_model=JobResponse)
@needs(ADMIN)
def make(tx: Transaction, context: RequestContext) -> Job:
    """Begin a backup of the whole database.

    The job shows the progress. The file appears after it was read back and compared.
    """
    _require_whole_server(tx, context.scope)
    time = to_datetime(tx.clock.now()).strftime("%Y%m%dT%H%M%S")
    payload = {"name": f"ricordo-{time}-{token_hex(2)}.db"}
    job = jobs.add(
        tx, Job(MAKE, LOCAL_ORGANIZATION, payload, key=MAKE, is_single=True, most_attempts=ATTEMPTS)
    )
    if job is None:
        raise Conflict("A backup is already waiting to run. See the list of jobs.")
    return job


@router.post("/{backup_name}/check", response_model=NoteResponse)
@needs(ADMIN)
async def check(context: RequestContext, backup_name: str) -> Json:
    """Read and check a whole backup again; 400 explains the damage."""
    path = await _find(context, backup_name)
    if path.suffix == ".dump":
        if not await asyncio.to_thread(require_sound_dump, path):
            raise Invalid(
                "This dump of PostgreSQL has no hash: an older version made it, or its end is cut "
                "off. Check it on the machine of the server: pg_restore --list FILE"
            )
        return note(f"{path.name} is whole.")
    hashes = await asyncio.to_thread(require_sound, path)
    remark = "" if hashes is not None else f" {UNSEALED}"
    return note(f"{path.name} is whole.{remark}")


@router.get("/{backup_name}", response_class=Response, responses=binary(_BYTES))
@needs(ADMIN)
async def download(context: RequestContext, backup_name: str) -> Response:
    """Download a backup. It holds everything but `secret.key`."""
    path = await _find(context, backup_name)
    return FileResponse(path, headers=_HEADERS, media_type=_BYTES, filename=path.name)


@router.delete("/{backup_name}", response_model=NoteResponse)
@needs(ADMIN)
async def delete(context: RequestContext, backup_name: str) -> Json:
    """Delete a backup."""
    (await _find(context, backup_name)).unlink(missing_ok=True)
    return note(f"Backup {backup_name} deleted.")


def _require_whole_server(tx: Transaction, scope: Scope) -> None:
    """Raise NotFound or Forbidden if the caller may not read all organizations.

    A backup holds all of them. If there are several organizations, only the operator may.
    """
    if scope.organization_id != LOCAL_ORGANIZATION:
        raise NotFound(
            "Only the first organization of the server may have backups. Export agents and memory "
            "instead."
        )
    if not organizations.may_see_server(tx, scope):
        require_operator(scope)


def _listed(context: RequestContext) -> list[tuple[Path, os.stat_result]]:
    """Return the backups with their status, the newest first. Raises Unavailable."""
    folder = folder_of(context.runtime.settings)
    files: list[tuple[Path, os.stat_result]] = []
    try:
        # `glob` would return nothing for a folder that it may not read.
        paths = [path for path in folder.iterdir() if path.suffix in _KINDS]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise Unavailable(
            f"The folder {folder} cannot be read: {error.strerror}. Check its permissions."
        ) from error
    for path in paths:
        with suppress(OSError):
            status = path.lstat()
            if stat.S_ISREG(status.st_mode):
                files.append((path, status))
    return sorted(files, key=lambda file: (file[1].st_mtime, file[0].name), reverse=True)


async def _find(context: RequestContext, name: str) -> Path:
    """Return the listed file with this name. Raises Forbidden, NotFound, Unavailable."""
    await context.store.read(lambda tx: _require_whole_server(tx, context.scope))
    return require_found(
        next((path for path, _ in _listed(context) if path.name == name), None), "Backup", name
    )
