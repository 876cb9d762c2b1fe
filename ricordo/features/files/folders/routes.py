"""Folders and their files over HTTP.

Folders were formerly called sources, so each route exists under both names.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated

from fastapi import File as FormFile
from fastapi import HTTPException, Query, Response, UploadFile

from ricordo.api.call import Paged, RequestContext, embedding_of, note
from ricordo.api.models.archives import PassageResponse
from ricordo.api.models.base import NoteResponse
from ricordo.api.routing import Routes, needs
from ricordo.domain.passage import Passage
from ricordo.domain.text import Json
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
_MOST_LISTED = 10_000


def folder_json(context: RequestContext, folder: Folder) -> Json:
    """Return the response for a folder.

    Args:
        context: The caller's context.
        folder: The stored folder.
    """
    return FolderResponse.of(folder, embedding_config=embedding_of(context, folder.embedding))


def create(
    tx: Transaction, context: RequestContext, body: FolderRequest, embedding: str | None
) -> Folder:
    """Store the requested folder.

    Args:
        tx: The transaction.
        context: The caller's context.
        body: The request, which may name another owner.
        embedding: The handle of the embedding model to store; None for the server's default.

    Raises:
        NotFound: There is no user as the named owner.
        Forbidden: The caller may not create folders of this owner.
        Conflict: The owner has a folder of this name.
    """
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
    """Create a folder.

    A user's folder is seen by that user and by callers who see all users. It is erased with the
    user.
    """
    embedding = await context.runtime.models.embedders.choose(body.embedding_handle)
    return folder_json(
        context,
        await context.store.write(partial(create, context=context, body=body, embedding=embedding)),
    )


def list_folders(
    tx: Transaction, context: RequestContext, paging: Paged, name: str | None = None
) -> list[Json]:
    """List folders, by default newest first.

    With a name, list only folders with exactly this name.
    """
    return [
        folder_json(context, folder)
        for folder in queries.page_of_folders(tx, context.scope, paging.page(), name=name)
    ]


def count_folders(tx: Transaction, context: RequestContext) -> int:
    """Return the number of folders."""
    return queries.count_folders(tx, context.scope)


def read_sizes(
    tx: Transaction, context: RequestContext, include_detailed_per_source_metadata: bool = False
) -> Json:
    """Return the size of all folders.

    The details name the first 10,000 folders and the first 10,000 files. Numbers count all files.
    """
    file_count, total_size = queries.size_of_all(tx, context.scope)
    return SizesResponse.of(
        None,
        total_sources=queries.count_folders(tx, context.scope),
        total_files=file_count,
        total_size=total_size,
        sources=_detailed_sizes(tx, context) if include_detailed_per_source_metadata else [],
    )


def _detailed_sizes(tx: Transaction, context: RequestContext) -> list[Json]:
    page = Page(limit=_MOST_LISTED, order="asc")
    folders = queries.page_of_folders(tx, context.scope, page)
    folder_ids = [folder.id for folder in folders]
    sizes = queries.sizes_by_folder(tx, folder_ids)
    files: dict[str, list[File]] = {id: [] for id in folder_ids}
    for file in queries.page_of_files(tx, context.scope, folder_ids, page):
        files[file.folder_id].append(file)
    detailed = []
    for folder in folders:
        file_count, total_size = sizes.get(folder.id, (0, 0))
        response = FolderSizeResponse.of(
            folder,
            source_id=folder.id,
            source_name=folder.name,
            file_count=file_count,
            total_size=total_size,
            files=[FileSizeResponse.of(file) for file in files[folder.id]],
        )
        detailed.append(response)
    return detailed


def find_id(tx: Transaction, context: RequestContext, folder_name: str) -> str:
    """Return the id of the folder with this name; the caller's folder takes precedence."""
    owners = dict.fromkeys((context.scope.subject, None))
    for owner in owners:
        folder = queries.find_folder(tx, context.scope.organization_id, folder_name, owner)
        if folder is not None:
            return folder.id
    raise NotFound(f"There is no folder named {folder_name[:100]}.")


def retrieve(tx: Transaction, context: RequestContext, folder_id: str) -> Json:
    """Return one folder."""
    return folder_json(context, queries.get_folder(tx, context.scope, folder_id))


def modify(tx: Transaction, context: RequestContext, folder_id: str, body: FolderUpdate) -> Json:
    """Change a folder; omitted fields keep their values."""
    folder = queries.get_folder_for_change(tx, context.scope, folder_id)
    texts = {
        name: getattr(body, name)
        for name in ("description", "instructions")
        if name in body.model_fields_set
    }
    changed = replace(
        folder,
        name=body.name or folder.name,
        metadata=folder.metadata if body.metadata is None else body.metadata,
        **texts,
    )
    return folder_json(context, service.update_folder(tx, context.scope, changed))


def delete(tx: Transaction, context: RequestContext, folder_id: str) -> Json:
    """Delete a folder with its files; agents that have it lose it at once."""
    service.delete_folder(tx, context.scope, folder_id)
    return note(f"Folder id={folder_id} successfully deleted")


async def upload(
    context: RequestContext,
    folder_id: str,
    file: Annotated[UploadFile, FormFile()],
    duplicate_handling: Annotated[
        Duplicates, Query(description="What to do if the folder already has a file of this name.")
    ] = "suffix",
    name: Annotated[
        str | None,
        Query(description="Name for the file in the folder, instead of the uploaded file's name."),
    ] = None,
) -> Json:
    """Put a file into the folder.

    It is read in the background, and `processing_status` shows the progress.
    """
    # Check the permission first, so that a missing one is reported before a fault in the file.
    folder = await context.store.read(lambda tx: queries.get_folder(tx, context.scope, folder_id))
    service.require_may_write(context.scope, folder.user_id)
    file_name = service.name_of(name or file.filename or "")
    content = await file.read()
    if not is_readable(file_name, content):
        types = ", ".join(sorted(suffix[1:] for suffix in PARSED))
        raise HTTPException(
            415,
            f"Files such as {file_name[-40:]} cannot be read. Supported are text of all kinds, and "
            f"{types}.",
        )
    new = Upload(file_name, content, duplicate_handling)
    return FileResponse.of(
        await context.store.write(lambda tx: service.add_file(tx, context.scope, folder_id, new))
    )


def list_agents(
    tx: Transaction, context: RequestContext, folder_id: str, paging: Paged
) -> list[str]:
    """List the ids of the agents that have the folder."""
    queries.get_folder(tx, context.scope, folder_id)
    return queries.page_of_agents(tx, context.scope, folder_id, paging.page())


def list_passages(
    tx: Transaction, context: RequestContext, folder_id: str, paging: Paged
) -> list[Json]:
    """List the chunks of the folder's files."""
    folder = queries.get_folder(tx, context.scope, folder_id)
    # Chunks of deleted files are left out by the query, so that they shorten no page.
    hidden_ids = queries.ids_of_hidden_files(tx, folder_id)
    passages: Sequence[Passage] = archives.page_of_passages(
        tx,
        [folder.archive_id],
        paging.page(default=100),
        without={"file_id": hidden_ids} if hidden_ids else None,
    )
    file_ids = {file_of(passage) for passage in passages}
    names = {file.id: file.name for file in queries.files_by_ids(tx, context.scope, [*file_ids])}
    return [
        PassageResponse.of(
            passage,
            source_id=folder_id,
            archive_id=None,
            file_id=file_of(passage),
            file_name=names[file_of(passage)],
        )
        for passage in passages
        if file_of(passage) in names
    ]


def list_files(
    tx: Transaction,
    context: RequestContext,
    folder_id: str,
    paging: Paged,
    include_content: bool = False,
) -> list[Json]:
    """List the files of the folder.

    With `include_content` the list has their texts. A text that does not fit into a million
    characters together with the earlier ones is left out.
    """
    queries.get_folder(tx, context.scope, folder_id)
    files = queries.page_of_files(tx, context.scope, [folder_id], paging.page(default=1000))
    remaining = _MOST_TEXT
    responses = []
    for file in files:
        has_content = include_content and file.characters <= remaining
        if has_content:
            remaining -= file.characters
        responses.append(file_json(tx, file, has_content=has_content))
    return responses


def retrieve_file(
    tx: Transaction,
    context: RequestContext,
    folder_id: str,
    file_id: str,
    include_content: bool = False,
) -> Json:
    """Return one file, on request with its text."""
    return file_json(
        tx, queries.get_file(tx, context.scope, file_id, folder_id), has_content=include_content
    )


def delete_file(tx: Transaction, context: RequestContext, folder_id: str, file_id: str) -> Response:
    """Delete a file; agents lose it at once."""
    service.remove_file(tx, context.scope, folder_id, file_id)
    return Response(status_code=204)


def file_json(tx: Transaction, file: File, *, has_content: bool = False) -> Json:
    """Return the response for a file.

    Args:
        tx: The transaction, or a read.
        file: The stored file.
        has_content: Include the whole text.
    """
    return FileResponse.of(file, content=queries.text_of(tx, file.id) if has_content else None)


def file_of(passage: Passage) -> str:
    """Return the id of the file that a chunk came from.

    Args:
        passage: A passage in the archive of a folder.
    """
    return str(passage.metadata.get("file_id"))


def _routes(prefix: str, tag: str) -> Routes:
    routes = Routes(prefix=f"/v1/{prefix}", tags=[tag], scope="archives")
    writes = needs("archives:write", "memory:write")
    reads = needs("archives:read", "memory:read")
    routes.post("/", response_model=FolderResponse)(writes(create_folder))
    routes.get("/", response_model=list[FolderResponse])(reads(list_folders))
    routes.get("/count", response_model=int)(reads(count_folders))
    routes.get("/metadata", response_model=SizesResponse)(reads(read_sizes))
    routes.get("/name/{folder_name}", response_model=str)(reads(find_id))
    routes.get("/{folder_id}", response_model=FolderResponse)(reads(retrieve))
    routes.patch("/{folder_id}", response_model=FolderResponse)(writes(modify))
    routes.delete("/{folder_id}", response_model=NoteResponse)(writes(delete))
    routes.post("/{folder_id}/upload", response_model=FileResponse)(writes(upload))
    routes.get("/{folder_id}/agents", response_model=list[str])(reads(list_agents))
    routes.get("/{folder_id}/passages", response_model=list[PassageResponse])(reads(list_passages))
    routes.get("/{folder_id}/files", response_model=list[FileResponse])(reads(list_files))
    routes.get("/{folder_id}/files/{file_id}", response_model=FileResponse)(reads(retrieve_file))
    routes.delete("/{folder_id}/{file_id}", status_code=204, response_class=Response)(
        writes(delete_file)
    )
    return routes


router = _routes("folders", "folders")
router.routes += _routes("sources", "sources").routes
