"""Files of workspaces over HTTP: a user's own, and those that all users of an organization share."""

from collections.abc import Sequence

from fastapi import Response

from ricordo.api.call import RequestContext, for_user, note, scope_of_user
from ricordo.api.models.base import Json, NoteResponse, ResponseModel, Timestamp, binary
from ricordo.api.models.entity_tags import IfMatch, IfNoneMatch
from ricordo.api.routing import Routes, needs
from ricordo.domain.scope import IMPERSONATE
from ricordo.features.files.workspaces import queries, service
from ricordo.features.files.workspaces.queries import Space, WorkspaceFile

router = Routes(tags=["workspaces"], scope="memory")
_OWN, _SHARED = "/users/{user_id}/workspace/files", "/v1/workspace/files"
_BYTES = "application/octet-stream"
# A file may be a page with a script in it: a browser only ever saves it.
_HEADERS = {
    "x-content-type-options": "nosniff",
    "content-security-policy": "sandbox",
    "content-disposition": "attachment",
}


class WorkspaceFileResponse(ResponseModel):
    """A file of a workspace: its path, its size in bytes, and the SHA-256 of its content in hex."""

    path: str
    size: int
    digest: str
    created_at: Timestamp
    updated_at: Timestamp


@router.get(_OWN, response_model=list[WorkspaceFileResponse])
async def list_files(context: RequestContext, user_id: str) -> Sequence[WorkspaceFile]:
    """The files of the user's workspace, by their paths."""
    space = await _own(context, user_id)
    return await context.store.read(lambda tx: queries.listed(tx, space))


@router.get(_OWN + "/{file_path:path}", response_class=Response, responses=binary(_BYTES))
async def download(context: RequestContext, user_id: str, file_path: str) -> Response:
    """What a file of the user's holds."""
    return await _content(context, await _own(context, user_id), file_path)


@router.put(_OWN + "/{file_path:path}", response_model=WorkspaceFileResponse)
async def upload(
    context: RequestContext,
    user_id: str,
    file_path: str,
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
) -> WorkspaceFile:
    """Store the body of the request as a file of the user's, who is made where new.

    `If-Match` takes the digest that was read.
    """
    return await _store(
        context, await _own(context, user_id, makes=True), file_path, if_match, if_none_match
    )


@router.delete(_OWN + "/{file_path:path}", response_model=NoteResponse)
async def delete(context: RequestContext, user_id: str, file_path: str) -> Json:
    """Delete a file of the user's."""
    return await _remove(context, await _own(context, user_id), file_path)


@router.get(_SHARED, response_model=list[WorkspaceFileResponse])
@needs("agents:read")
async def list_shared(context: RequestContext) -> Sequence[WorkspaceFile]:
    """The files that all users share, by their paths."""
    return await context.store.read(lambda tx: queries.listed(tx, _shared(context)))


@router.get(_SHARED + "/{shared_path:path}", response_class=Response, responses=binary(_BYTES))
@needs("agents:read")
async def download_shared(context: RequestContext, shared_path: str) -> Response:
    """What a shared file holds."""
    return await _content(context, _shared(context), shared_path)


@router.put(_SHARED + "/{shared_path:path}", response_model=WorkspaceFileResponse)
@needs("agents:write")
async def upload_shared(
    context: RequestContext,
    shared_path: str,
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
) -> WorkspaceFile:
    """Store the body of the request as a file that all users share."""
    return await _store(context, _shared(context), shared_path, if_match, if_none_match)


@router.delete(_SHARED + "/{shared_path:path}", response_model=NoteResponse)
@needs("agents:write")
async def delete_shared(context: RequestContext, shared_path: str) -> Json:
    """Delete a shared file."""
    return await _remove(context, _shared(context), shared_path)


async def _own(context: RequestContext, user: str, *, makes: bool = False) -> Space:
    """The workspace of this user. Raises NotFound, Forbidden."""
    if makes and context.scope.subject_id is None and context.scope.may(IMPERSONATE):
        await scope_of_user(context.store, context.scope, user, makes=True)
    context = await for_user(context, user, reads=not makes)
    return Space(context.scope.organization_id, context.scope.subject or "")


def _shared(context: RequestContext) -> Space:
    return Space(context.scope.organization_id)


async def _content(context: RequestContext, space: Space, path: str) -> Response:
    named = service.path_of(path)
    data = await context.store.read(lambda tx: service.read(tx, space, named))
    return Response(
        data, headers={**_HEADERS, "etag": f'"{queries.digest_of(data)}"'}, media_type=_BYTES
    )


async def _store(
    context: RequestContext,
    space: Space,
    path: str,
    if_match: str | None,
    if_none_match: str | None,
) -> WorkspaceFile:
    named, data = service.path_of(path), await context.request.body()
    expected = if_match.strip('"') if if_match else "" if if_none_match == "*" else None
    return await context.store.write(
        lambda tx: service.write(tx, space, named, data, expected=expected)
    )


async def _remove(context: RequestContext, space: Space, path: str) -> Json:
    named = service.path_of(path)
    await context.store.write(lambda tx: service.remove(tx, space, named))
    return note(f'File "{named}" deleted.')
