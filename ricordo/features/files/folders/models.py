"""Request and response models of folders and files."""

from typing import Annotated, ClassVar

from pydantic import Field

from ricordo.api.models.base import (
    IN_ONE_PROJECT,
    AuthorFields,
    From,
    RequestModel,
    ResponseModel,
    Timestamp,
)
from ricordo.api.models.models import EmbeddingConfigResponse, EmbeddingFields
from ricordo.domain.text import Json
from ricordo.features.files.folders.records import FileStatus

Name = Annotated[str, Field(min_length=1, max_length=256)]
LongText = Annotated[str, Field(max_length=20_000)]


class FolderUpdate(RequestModel):
    """Changes to a folder. An omitted field keeps its value."""

    ignored: ClassVar = IN_ONE_PROJECT | {
        "embedding_config": "Stored chunks keep the vectors of their embedding model."
    }

    name: Name | None = None
    description: LongText | None = None
    instructions: LongText | None = Field(
        None, description="How agents should use the folder. It is shown in their prompts."
    )
    metadata: Json | None = None


class FolderRequest(EmbeddingFields):
    """A folder to create."""

    ignored: ClassVar = IN_ONE_PROJECT | {
        "embedding_chunk_size": "Chunks end where lines and paragraphs end."
    }

    name: Name
    description: LongText | None = None
    instructions: LongText | None = None
    metadata: Json | None = None
    user: str | None = Field(
        None,
        max_length=500,
        description="The user who owns the folder, by id or name; by default the caller's user, or "
        "the organization.",
    )


class FolderResponse(AuthorFields):
    """A folder of files."""

    id: str
    name: str
    description: str | None
    instructions: str | None
    metadata: Json
    embedding_config: EmbeddingConfigResponse | None
    vector_db_provider: str = "native"
    user_id: Annotated[
        str | None, Field(description="The user who owns the folder; null: the organization.")
    ]
    created_at: Timestamp
    updated_at: Timestamp


for _request in (FolderUpdate, FolderRequest):
    _request.take_back(FolderResponse)


class FileResponse(ResponseModel):
    """A file of a folder with its progress.

    `content` is set on request.
    """

    id: str
    source_id: Annotated[str, From("folder_id")]
    folder_id: str
    file_name: Annotated[str, From("name")]
    original_file_name: Annotated[str, From("original_name")]
    file_path: str | None = None
    file_type: Annotated[str | None, From("type")]
    file_size: Annotated[int, From("size")]
    file_creation_date: str | None = None
    file_last_modified_date: str | None = None
    processing_status: Annotated[FileStatus, From("status")]
    error_message: str | None
    total_chunks: int
    chunks_embedded: Annotated[int, From("chunks_done")]
    content: str | None = None
    organization_id: str
    created_at: Timestamp
    updated_at: Timestamp


class FileSizeResponse(ResponseModel):
    """The size of one file, in bytes."""

    file_id: Annotated[str, From("id")]
    file_name: Annotated[str, From("name")]
    file_size: Annotated[int, From("size")]


class FolderSizeResponse(ResponseModel):
    """The size of one folder and of its files."""

    source_id: str
    source_name: str
    file_count: int
    total_size: int
    files: list[FileSizeResponse]


class SizesResponse(ResponseModel):
    """The size of all folders. `sources` is filled if details were requested."""

    total_sources: int
    total_files: int
    total_size: int
    sources: list[FolderSizeResponse]


class AgentFileResponse(ResponseModel):
    """A file of an agent's folders, and whether the agent has it open.

    Lines count from 1. `visible_content` is the text that the prompt shows of an open file.
    """

    id: str
    file_id: str
    file_name: str
    folder_id: str
    folder_name: str
    is_open: bool
    last_accessed_at: Timestamp
    visible_content: str | None
    start_line: int | None
    end_line: int | None


class AgentFilesResponse(ResponseModel):
    """One page of the files of an agent's folders."""

    files: list[AgentFileResponse]
    next_cursor: str | None
    has_more: bool
