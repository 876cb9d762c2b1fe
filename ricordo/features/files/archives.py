"""Export and restore a user's folders, files and workspace, as files of the memory archive.

The record of a file contains its text. After a restore, the text is cut into chunks and embedded
again.
"""

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from ricordo.domain.clock import stamp, to_micros
from ricordo.domain.egress import LABEL, NOBODY_AT_ALL
from ricordo.domain.passage import Archive
from ricordo.domain.scope import Scope, User
from ricordo.domain.text import Json
from ricordo.errors import Conflict, Invalid
from ricordo.features.files.folders import queries as folder_queries
from ricordo.features.files.folders.ingestion import add_ingestion
from ricordo.features.files.folders.records import READABLE, File, Folder
from ricordo.features.files.folders.texts import lines_in
from ricordo.features.files.workspaces import queries as workspace_queries
from ricordo.features.files.workspaces.queries import Space
from ricordo.features.files.workspaces.service import LARGEST, path_of, write
from ricordo.plugins import UserFile
from ricordo.storage import archives
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction

_FOLDERS, _FILES, _WORKSPACE = "folders.jsonl", "files.jsonl", "workspace.jsonl"
_PORTION = 20
_LONGEST = 1_000


_Text = Annotated[str, Field(max_length=_LONGEST)]
_Id = Annotated[str, Field(pattern=r"^[a-z]+-[0-9a-f-]{36}$")]


class FolderRecord(BaseModel):
    """A folder without its files."""

    model_config = ConfigDict(extra="ignore")
    # No model sees a folder whose egress policy cannot be read.
    later_words: ClassVar[Mapping[str, Any]] = {"egress": NOBODY_AT_ALL}

    id: _Id
    name: Annotated[str, Field(min_length=1, max_length=_LONGEST)]
    description: str | None = None
    instructions: str | None = None
    metadata: dict[str, Any]
    egress: Annotated[str, Field(max_length=4000, pattern=LABEL)] | None = None
    created_at: AwareDatetime


class FileRecord(BaseModel):
    """A file of a folder, with its text. `size` is the size of the upload in bytes."""

    model_config = ConfigDict(extra="ignore")

    id: _Id
    folder_id: _Id
    name: Annotated[str, Field(min_length=1, max_length=_LONGEST)]
    original_name: _Text
    type: _Text | None = None
    size: int = Field(ge=0)
    text: str
    created_at: AwareDatetime


class WorkspaceRecord(BaseModel):
    """A file of a workspace: its path, and its content in Base64."""

    model_config = ConfigDict(extra="ignore")

    path: Annotated[str, Field(min_length=1, max_length=_LONGEST)]
    content: str


def read_folders(
    tx: Transaction, scope: Scope, user_id: str, after: str | None
) -> tuple[Sequence[Json], str | None]:
    """Return the next folders of the user, and the id of the last."""
    page = Page(limit=_PORTION, after=after, order="asc")
    folders = folder_queries.page_of_folders(tx, scope, page, user_id=user_id)
    records: list[Json] = [
        {
            "id": folder.id,
            "name": folder.name,
            "description": folder.description,
            "instructions": folder.instructions,
            "metadata": folder.metadata,
            "egress": folder.egress,
            "created_at": stamp(folder.created_at),
        }
        for folder in folders
    ]
    return records, folders[-1].id if folders else None


def store_folders(tx: Transaction, user: User, records: Iterable[FolderRecord]) -> int:
    """Store the folders of an archive. Raises Invalid, Conflict."""
    count = 0
    for record in records:
        if folder_queries.is_folder_there(tx, record.id):
            raise _known_here(f'the folder "{record.name}"')
        at = to_micros(record.created_at)
        organization = user.organization_id
        archives.insert_one(
            tx, Archive(record.id, organization, record.id, created_at=at, updated_at=at)
        )
        folder = Folder(
            record.id,
            organization,
            record.id,
            record.name,
            record.description,
            record.instructions,
            metadata=record.metadata,
            user_id=user.id,
            created_by=user.id,
            created_at=at,
            updated_at=at,
            egress=record.egress,
        )
        folder_queries.insert_folder(tx, folder)
        count += 1
    return count


def read_files(
    tx: Transaction, scope: Scope, user_id: str, after: str | None
) -> tuple[Sequence[Json], str | None]:
    """Return the next file of the user's folders with its text, and its id.

    There is no record of a file whose text cannot be read.
    """
    page = Page(limit=1, after=after, order="asc")
    files = folder_queries.page_of_users_files(tx, scope, user_id, page)
    records: list[Json] = [
        {
            "id": file.id,
            "folder_id": file.folder_id,
            "name": file.name,
            "original_name": file.original_name,
            "type": file.type,
            "size": file.size,
            "text": folder_queries.text_of(tx, file.id),
            "created_at": stamp(file.created_at),
        }
        for file in files
        if file.status in READABLE
    ]
    return records, files[-1].id if files else None


def store_files(tx: Transaction, user: User, records: Iterable[FileRecord]) -> int:
    """Store the files of an archive with their texts, and add the jobs that embed them.

    The folders have to be stored first. Raises Invalid, Conflict.
    """
    count = 0
    for record in records:
        folder = folder_queries.find_users_folder(tx, user.id, record.folder_id)
        if folder is None:
            raise Invalid(f"{_FILES}: {record.folder_id} is not a folder of this archive.")
        if folder_queries.is_file_there(tx, record.id):
            raise _known_here(f'the file "{record.name}"')
        text = record.text
        at = to_micros(record.created_at)
        file = File(
            id=record.id,
            organization_id=user.organization_id,
            folder_id=folder.id,
            name=record.name,
            original_name=record.original_name,
            type=record.type,
            size=record.size,
            lines=lines_in(text),
            characters=len(text),
            status="embedding",
            user_id=user.id,
            created_by=user.id,
            created_at=at,
            updated_at=at,
        )
        folder_queries.insert_file(tx, file)
        folder_queries.insert_pieces(tx, folder_queries.pieces_of_text(file.id, text))
        add_ingestion(tx, file)
        count += 1
    return count


def read_workspace(
    tx: Transaction, scope: Scope, user_id: str, after: str | None
) -> tuple[Sequence[Json], str | None]:
    """Return the next files of the user's workspace, and the path of the last; None at the end."""
    space = Space(scope.organization_id, user_id)
    records: list[Json] = []
    size = 0
    for file in workspace_queries.listed(tx, space):
        if after is not None and file.path <= after:
            continue
        if records and size + file.size > LARGEST:
            return records, records[-1]["path"]
        content = workspace_queries.content(tx, space, file.path) or b""
        records.append({"path": file.path, "content": base64.b64encode(content).decode()})
        size += file.size
    return records, None


def store_workspace(tx: Transaction, user: User, records: Iterable[WorkspaceRecord]) -> int:
    """Store the files of an archive in the user's workspace.

    Raises Invalid, PreconditionFailed for a file that the workspace already has, and TooLong.
    """
    space = Space(user.organization_id, user.id)
    count = 0
    for record in records:
        path = path_of(record.path)
        if path != record.path:
            raise Invalid(f"{_WORKSPACE}: {record.path} is not a path of a workspace.")
        try:
            content = base64.b64decode(record.content, validate=True)
        except binascii.Error:
            raise Invalid(f"{_WORKSPACE}: the content of {path} is not Base64.") from None
        write(tx, space, path, content, expected=[None])
        count += 1
    return count


def _known_here(what: str) -> Conflict:
    return Conflict(
        f"This server has {what} of this archive already, so another user here has it. Forget that "
        "user first, or restore on another server."
    )


FILES = (
    UserFile(_FOLDERS, read_folders, FolderRecord, store_folders),
    UserFile(_FILES, read_files, FileRecord, store_files),
    UserFile(_WORKSPACE, read_workspace, WorkspaceRecord, store_workspace),
)
