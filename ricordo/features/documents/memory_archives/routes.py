"""Routes of memory archives: export one person's whole memory, and restore it."""

from typing import Annotated

from fastapi import File, UploadFile
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from ricordo.api.call import RequestContext
from ricordo.api.models.base import ResponseModel, VersionId, binary
from ricordo.api.routing import Routes, needs
from ricordo.domain.scope import ADMIN
from ricordo.domain.text import Json
from ricordo.errors import Forbidden
from ricordo.features.documents.memory_archives.export import archive_of
from ricordo.features.documents.memory_archives.service import restore_archive
from ricordo.memory import user_memory

router = Routes(prefix="/users/{user_id}", tags=["users' memory"], scope="memory")
_imports = Routes(prefix="/v1/imports", tags=["imports"], scope="memory")
_ZIP = "application/zip"
# The most bytes of an unpacked archive over HTTP. There is a limit because a restore is one
# transaction, which on SQLite blocks all other writes.
_MOST_UNPACKED = 256 * 1024 * 1024


class ArchiveForm(BaseModel):
    """An archive, and the user who gets its memory."""

    model_config = ConfigDict(extra="forbid")

    file: UploadFile = Field(description="The memory.zip that a Ricordo server exported.")
    user: str | None = Field(
        None, description="The user who gets it, by id or name; by default the archive's user."
    )


class RestoredMemoryResponse(ResponseModel):
    """The user of a restored memory, the numbers of restored items, and the parts left out.

    `content` is the content hash of the archive. If nothing was left out, the next export of this
    memory has the same hash. `records` counts the records of other features by file. `left_out` has
    a sentence for each part that this server cannot store or use.
    """

    user_id: str
    content: str
    head: VersionId | None
    versions: int
    blocks: int
    proposals: int
    records: dict[str, int]
    left_out: list[str]


@router.get("/export", response_class=StreamingResponse, responses=binary(_ZIP))
async def export(context: RequestContext, user_id: str) -> StreamingResponse:
    """Return the user's whole memory as a zip archive, which another server can restore.

    It contains blocks as files. History, proposals and facts are lines of JSON.
    """
    owned = await context.store.read(lambda tx: user_memory.open_memory(tx, context.scope, user_id))
    headers = {"content-disposition": 'attachment; filename="memory.zip"'}
    archive = archive_of(context.runtime, context.scope, owned)
    return StreamingResponse(archive, media_type=_ZIP, headers=headers)


@_imports.post("/memory", response_model=RestoredMemoryResponse)
@needs("memory:approve", "memory:override")
async def restore(context: RequestContext, body: Annotated[ArchiveForm, File()]) -> Json:
    """Restore a person's whole memory; a failed restore changes nothing.

    The person must not have memory here yet. Versions, proposals and facts keep their ids, times
    and authors.
    """
    if context.scope.subject_id is not None or context.scope.role != ADMIN:
        raise Forbidden(
            "An archive names the authors of each change, so only an administrator may restore one. "
            "Ask the administrator of this server."
        )
    restored = await restore_archive(
        context.runtime, context.scope, body.file.file, body.user or None, _MOST_UNPACKED
    )
    return RestoredMemoryResponse.of(
        restored,
        user_id=restored.user.id,
        records=dict(restored.records),
        left_out=list(restored.left_out),
    )


router.routes += _imports.routes
