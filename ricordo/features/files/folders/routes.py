"""Folders and their files over HTTP. The older name of a folder is source: each route answers at
both.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated

from fastapi import File as Sent
from fastapi import HTTPException, Query, Response, UploadFile

from ricordo.api.call import Paged, RequestContext, embedding_of, note
from ricordo.api.models.archives import PassageResponse
from ricordo.api.models.base import Json, NoteResponse
from ricordo.api.routing import Routes, needs
from ricordo.domain.passage import Passage
from ricordo.errors import NotFound
from ricordo.features.files.folders import queries, service
from ricordo.features.files.folders.models import (
    FileResponse,
    FileSizeResponse,
    FolderRequest,
    FolderResponse,
    FolderSizeResponse,
    FolderUpdate,
    SizesResponse,
)
from ricordo.features.files.folders.records import File, Folder
from ricordo.features.files.folders.service import Duplicates, Upload
from ricordo.features.files.folders.texts import PARSED, is_readable
from ricordo.storage import archives, users
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction

_MOST_TEXT = 1_000_000  # characters of content in a list
_MOST_COUNTED = 10_000


def folder_json(context: RequestContext, folder: Folder) -> Json:
    return FolderResponse.of(folder, embedding_config=embedding_of(context, folder.embedding))


def create(
    tx: Transaction, context: RequestContext, body: FolderRequest, embedding: str | None
) -> Folder:
    owner = users.require(tx, context.scope, body.user).id if body.user else context.scope.subject
    folder = Folder(
        id="",
        organization_id=context.scope.organization_id,
        archive_id="",
        name=body.name,
        description=body.description,
        instructions=body.instructions,
        embedding=embedding,
        metadata=body.metadata or {},
        user_id=owner,
    )
    return service.create_folder(tx, context.scope, folder)


async def create_folder(context: RequestContext, body: FolderRequest) -> Json:
    """Make a folder. A user's is that user's alone: others do not see it, and it is erased with
    them.
    """
    embedding = await context.runtime.models.embedders.choose(body.embedding_handle)
    return folder_json(
        context,
        await context.store.write(partial(create, context=context, body=body, embedding=embedding)),
    )


def list_folders(
    tx: Transaction, context: RequestContext, paging: Paged, name: str | None = None
) -> list[Json]:
    """Folders, by default newest first; or those with this very name."""
    return [
        folder_json(context, one)
        for one in queries.page_of_folders(tx, context.scope, paging.page(), name=name)
    ]


def count_folders(tx: Transaction, context: RequestContext) -> int:
    """How many folders there are."""
    return queries.count_folders(tx, context.scope)


def read_sizes(
    tx: Transaction, context: RequestContext, include_detailed_per_source_metadata: bool = False
) -> Json:
    """How much all folders hold."""
    found = queries.page_of_folders(tx, context.scope, Page(limit=_MOST_COUNTED, order="asc"))
    stored = queries.page_of_files(
        tx, context.scope, [one.id for one in found], Page(limit=_MOST_COUNTED, order="asc")
    )
    files: dict[str, list[File]] = {one.id: [] for one in found}
    for file in stored:
        files[file.folder_id].append(file)
    detailed = [
        FolderSizeResponse.of(
            one,
            source_id=one.id,
            source_name=one.name,
            file_count=len(files[one.id]),
            total_size=sum(file.size for file in files[one.id]),
            files=[FileSizeResponse.of(file) for file in files[one.id]],
        )
        for one in (found if include_detailed_per_source_metadata else ())
    ]
    return SizesResponse.of(
        None,
        total_sources=len(found),
        total_files=len(stored),
        total_size=sum(file.size for file in stored),
        sources=detailed,
    )


def find_id(tx: Transaction, context: RequestContext, folder_name: str) -> str:
    """The id of the folder with this name; the caller's own before the organization's."""
    owners = dict.fromkeys((context.scope.subject, None))
    found = (
        queries.find_folder(tx, context.scope.organization_id, folder_name, owner)
        for owner in owners
    )
    folder = next((one for one in found if one), None)
    if folder is None:
        raise NotFound(f"There is no folder named {folder_name[:100]}.")
    return folder.id


def retrieve(tx: Transaction, context: RequestContext, folder_id: str) -> Json:
    """One folder."""
    return folder_json(context, queries.get_folder(tx, context.scope, folder_id))


def modify(tx: Transaction, context: RequestContext, folder_id: str, body: FolderUpdate) -> Json:
    """Change a folder; fields that are left out stay."""
    folder = queries.get_folder(tx, context.scope, folder_id)
    sent = {
        name: getattr(body, name)
        for name in ("description", "instructions")
        if name in body.model_fields_set
    }
    changed = replace(
        folder,
        name=body.name or folder.name,
        metadata=folder.metadata if body.metadata is None else body.metadata,
        **sent,
    )
    return folder_json(context, service.update_folder(tx, context.scope, changed))


def delete(tx: Transaction, context: RequestContext, folder_id: str) -> Json:
    """Delete a folder with its files; agents that have it lose it at once."""
    service.delete_folder(tx, context.scope, folder_id)
    return note(f"Folder id={folder_id} successfully deleted")


async def upload(
    context: RequestContext,
    folder_id: str,
    file: Annotated[UploadFile, Sent()],
    duplicate_handling: Annotated[
        Duplicates, Query(description="Of a name that is there already.")
    ] = "suffix",
    name: Annotated[
        str | None, Query(description="Its name in the folder, instead of the file's own.")
    ] = None,
) -> Json:
    """Put a file into the folder. It is read in the background: its `processing_status` says how
    far that is.
    """
    # One that may not write is told so before anything about the file.
    folder = await context.store.read(lambda tx: queries.get_folder(tx, context.scope, folder_id))
    service.require_may_write(context.scope, folder.user_id)
    given, data = service.name_of(name or file.filename or ""), await file.read()
    if not is_readable(given, data):
        types = ", ".join(sorted(suffix[1:] for suffix in PARSED))
        raise HTTPException(
            415,
            f"Files such as {given[-40:]} cannot be read. Here are: text of all kinds, and {types}.",
        )
    sent = Upload(given, data, duplicate_handling)
    return FileResponse.of(
        await context.store.write(lambda tx: service.add_file(tx, context.scope, folder_id, sent))
    )


def list_agents(
    tx: Transaction, context: RequestContext, folder_id: str, paging: Paged
) -> list[str]:
    """The ids of the agents that have the folder."""
    queries.get_folder(tx, context.scope, folder_id)
    return queries.page_of_agents(tx, context.scope, folder_id, paging.page())


def list_passages(
    tx: Transaction, context: RequestContext, folder_id: str, paging: Paged
) -> list[Json]:
    """The chunks of the folder's files."""
    folder = queries.get_folder(tx, context.scope, folder_id)
    found: Sequence[Passage] = archives.page_of_passages(
        tx, [folder.archive_id], paging.page(default=100)
    )
    named = {
        file.id: file.name
        for file in queries.files_by_ids(tx, context.scope, [*{file_of(one) for one in found}])
    }
    return [
        PassageResponse.of(
            one,
            source_id=folder_id,
            archive_id=None,
            file_id=file_of(one),
            file_name=named[file_of(one)],
        )
        for one in found
        if file_of(one) in named
    ]


def list_files(
    tx: Transaction,
    context: RequestContext,
    folder_id: str,
    paging: Paged,
    include_content: bool = False,
) -> list[Json]:
    """The files of the folder; with their text where that is asked for, as far as a million
    characters go.
    """
    queries.get_folder(tx, context.scope, folder_id)
    found = queries.page_of_files(tx, context.scope, [folder_id], paging.page(default=1000))
    left = _MOST_TEXT
    made = []
    for one in found:
        is_shown = include_content and one.characters <= left
        left -= one.characters if is_shown else 0
        made.append(file_json(tx, one, has_content=is_shown))
    return made


def retrieve_file(
    tx: Transaction,
    context: RequestContext,
    folder_id: str,
    file_id: str,
    include_content: bool = False,
) -> Json:
    """One file; with its text where that is asked for."""
    return file_json(
        tx, queries.get_file(tx, context.scope, file_id, folder_id), has_content=include_content
    )


def delete_file(tx: Transaction, context: RequestContext, folder_id: str, file_id: str) -> Response:
    """Delete a file; agents lose it at once."""
    service.remove_file(tx, context.scope, folder_id, file_id)
    return Response(status_code=204)


def file_json(tx: Transaction, file: File, *, has_content: bool = False) -> Json:
    return FileResponse.of(file, content=queries.text_of(tx, file.id) if has_content else None)


def file_of(passage: Passage) -> str:
    return str(passage.metadata.get("file_id"))


def _routes(prefix: str, tag: str) -> Routes:
    made = Routes(prefix=f"/v1/{prefix}", tags=[tag], scope="archives")
    writes, reads = needs("archives:write", "memory:write"), needs("archives:read", "memory:read")
    made.post("/", response_model=FolderResponse)(writes(create_folder))
    made.get("/", response_model=list[FolderResponse])(reads(list_folders))
    made.get("/count", response_model=int)(reads(count_folders))
    made.get("/metadata", response_model=SizesResponse)(reads(read_sizes))
    made.get("/name/{folder_name}", response_model=str)(reads(find_id))
    made.get("/{folder_id}", response_model=FolderResponse)(reads(retrieve))
    made.patch("/{folder_id}", response_model=FolderResponse)(writes(modify))
    made.delete("/{folder_id}", response_model=NoteResponse)(writes(delete))
    made.post("/{folder_id}/upload", response_model=FileResponse)(writes(upload))
    made.get("/{folder_id}/agents", response_model=list[str])(reads(list_agents))
    made.get("/{folder_id}/passages", response_model=list[PassageResponse])(reads(list_passages))
    made.get("/{folder_id}/files", response_model=list[FileResponse])(reads(list_files))
    made.get("/{folder_id}/files/{file_id}", response_model=FileResponse)(reads(retrieve_file))
    made.delete("/{folder_id}/{file_id}", status_code=204, response_class=Response)(
        writes(delete_file)
    )
    return made


router = _routes("folders", "folders")
router.routes += _routes("sources", "sources").routes
