"""Files of workspaces over HTTP: a user's own, and the shared ones."""

from collections.abc import Collection, Sequence

from fastapi import Response

from ricordo.api.call import RequestContext, for_user, note, scope_of_user
from ricordo.api.models.base import NoteResponse, ResponseModel, Timestamp, binary
from ricordo.api.models.entity_tags import IfMatch, IfNoneMatch, strong_tags
from ricordo.api.routing import Routes, needs
from ricordo.domain.scope import IMPERSONATE
from ricordo.domain.text import Json
from ricordo.features.files.workspaces import queries, service
from ricordo.features.files.workspaces.queries import Space, WorkspaceFile

router = Routes(tags=["workspaces"], scope="memory")
_OF_USER = "/users/{user_id}/workspace/files"
_SHARED = "/v1/workspace/files"
_BYTES = "application/octet-stream"
# A file may be a page with a script, so browsers may only save it.
_HEADERS = {
    "x-content-type-options": "nosniff",
    "content-security-policy": "sandbox",
    "content-disposition": "attachment",
}


class WorkspaceFileResponse(ResponseModel):
    """A file of a workspace, with its size in bytes.

    `digest` is the SHA-256 of its content in hex.
    """

    path: str
    size: int
    digest: str
    created_at: Timestamp
    updated_at: Timestamp


@router.get(_OF_USER, response_model=list[WorkspaceFileResponse])
async def list_files(context: RequestContext, user_id: str) -> Sequence[WorkspaceFile]:
    """List the files of the user's workspace, by path."""
    space = await _user_space(context, user_id)
    return await context.store.read(lambda tx: queries.listed(tx, space))


@router.get(_OF_USER + "/{file_path:path}", response_class=Response, responses=binary(_BYTES))
async def download(context: RequestContext, user_id: str, file_path: str) -> Response:
    """Return the content of a file of the user."""
    return await _content(context, await _user_space(context, user_id), file_path)


@router.put(_OF_USER + "/{file_path:path}", response_model=WorkspaceFileResponse)
async def upload(
    context: RequestContext,
    user_id: str,
    file_path: str,
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
) -> WorkspaceFile:
    """Store the request's body as a file of the user.

    A new user is created.

    `If-Match` takes the digest of the file's present content.
    """
    return await _store(
        context, await _user_space(context, user_id, makes=True), file_path, if_match, if_none_match
    )


@router.delete(_OF_USER + "/{file_path:path}", response_model=NoteResponse)
async def delete(
    context: RequestContext, user_id: str, file_path: str, if_match: IfMatch = None
) -> Json:
    """Delete a file of the user.

    `If-Match` takes the digest of the file's present content.
    """
    return await _remove(context, await _user_space(context, user_id), file_path, if_match)


@router.get(_SHARED, response_model=list[WorkspaceFileResponse])
@needs("agents:read")
async def list_shared(context: RequestContext) -> Sequence[WorkspaceFile]:
    """List the files that all users share, by path."""
    return await context.store.read(lambda tx: queries.listed(tx, _shared(context)))


@router.get(_SHARED + "/{shared_path:path}", response_class=Response, responses=binary(_BYTES))
@needs("agents:read")
async def download_shared(context: RequestContext, shared_path: str) -> Response:
    """Return the content of a shared file."""
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
async def delete_shared(
    context: RequestContext, shared_path: str, if_match: IfMatch = None
) -> Json:
    """Delete a shared file."""
    return await _remove(context, _shared(context), shared_path, if_match)


async def _user_space(context: RequestContext, user: str, *, makes: bool = False) -> Space:
    """Return the workspace of this user. Raises NotFound, Forbidden."""
    if makes and context.scope.subject_id is None and context.scope.may(IMPERSONATE):
        await scope_of_user(context.store, context.scope, user, makes=True)
    context = await for_user(context, user, reads=not makes)
    return Space(context.scope.organization_id, context.scope.subject or "")


def _shared(context: RequestContext) -> Space:
    is_teachers = context.scope.role in ("admin", "developer") and context.scope.may("agents:write")
    return Space(context.scope.organization_id, is_teachers=is_teachers)


async def _content(context: RequestContext, space: Space, path: str) -> Response:
    file_path = service.path_of(path)
    content = await context.store.read(lambda tx: service.read(tx, space, file_path))
    return Response(
        content, headers={**_HEADERS, "etag": f'"{queries.digest_of(content)}"'}, media_type=_BYTES
    )


async def _store(
    context: RequestContext,
    space: Space,
    path: str,
    if_match: str | None,
    if_none_match: str | None,
) -> WorkspaceFile:
    file_path = service.path_of(path)
    content = await context.request.body()
    expected: Collection[str | None] | None = None
    if if_match is not None:
        expected = strong_tags(if_match)
    elif if_none_match == service.ANY_FILE:
        expected = [None]
    return await context.store.write(
        lambda tx: service.write(tx, space, file_path, content, expected=expected)
    )


async def _remove(context: RequestContext, space: Space, path: str, if_match: str | None) -> Json:
    file_path = service.path_of(path)
    expected = None if if_match is None else strong_tags(if_match)
    await context.store.write(lambda tx: service.remove(tx, space, file_path, expected=expected))
    return note(f'File "{file_path}" deleted.')
