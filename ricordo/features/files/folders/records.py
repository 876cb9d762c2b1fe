"""Stored rows of folders and files as frozen values; `queries` reads and writes them."""

from dataclasses import dataclass, field
from typing import Any, Literal

FileStatus = Literal["pending", "parsing", "embedding", "completed", "error"]

# Statuses of a file whose text can be read.
READABLE: tuple[FileStatus, ...] = ("embedding", "completed")


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of files. `user_id` is its owner (None: the organization)."""

    id: str
    organization_id: str
    archive_id: str
    name: str
    description: str | None = None
    instructions: str | None = None
    embedding: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    user_id: str | None = None
    created_by: str | None = None
    updated_by: str | None = None
    created_at: int = 0
    updated_at: int = 0
    egress: str | None = None


@dataclass(frozen=True, slots=True)
class File:
    """A file of a folder, without its text.

    `name` is unique in the folder; `original_name` is the name before a number made it unique.
    `size` is in bytes as uploaded; `lines` and `characters` are those of its text. The text can be
    read from the status `embedding` on.
    """

    id: str
    organization_id: str
    folder_id: str
    name: str
    original_name: str
    type: str | None = None
    size: int = 0
    lines: int = 0
    characters: int = 0
    status: FileStatus = "pending"
    error_message: str | None = None
    total_chunks: int = 0
    chunks_done: int = 0
    user_id: str | None = None
    created_by: str | None = None
    created_at: int = 0
    updated_at: int = 0
    deleted_at: int | None = None


@dataclass(frozen=True, slots=True)
class FilePiece:
    """A part of a file's text: whole lines, except for a line that is longer than a piece.

    Lines count from 0; both ends are included.
    """

    file_id: str
    number: int
    first_line: int
    last_line: int
    text: str


@dataclass(frozen=True, slots=True)
class AgentFile:
    """A window: a file that an agent has or had open.

    It is open only in turns with this user (None: in turns without a user). The agent sees the
    lines from `start_line` up to but not including `end_line`. None means the first line, or the
    end.
    """

    id: str
    agent_id: str
    file_id: str
    user_id: str | None = None
    is_open: bool = False
    start_line: int | None = None
    end_line: int | None = None
    last_accessed_at: int = 0
