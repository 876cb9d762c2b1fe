"""Folders of files that agents may open, and an agent's view of one."""

from dataclasses import dataclass, field
from typing import Any, Literal

FileStatus = Literal["pending", "parsing", "embedding", "completed", "error"]


@dataclass(frozen=True, slots=True)
class Folder:
    """A named set of files, with instructions on what they are for."""

    id: str
    organization_id: str
    name: str
    description: str | None = None
    instructions: str | None = None
    embedding: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    created_at: int = 0
    updated_at: int = 0


@dataclass(frozen=True, slots=True)
class File:
    """One file. `size` is in bytes, chunks are counted; `user_id` is whom it is about (None: shared)."""

    id: str
    organization_id: str
    folder_id: str
    name: str
    media_type: str
    size: int
    status: FileStatus = "pending"
    error: str | None = None
    chunk_count: int = 0
    embedded_count: int = 0
    user_id: str | None = None
    created_at: int = 0
    updated_at: int = 0


@dataclass(frozen=True, slots=True)
class FileView:
    """A file as one agent has it: open or closed, and which lines are in view (from 1, both ends included)."""

    file_id: str
    agent_id: str
    is_open: bool
    content: str = ""
    start_line: int | None = None
    end_line: int | None = None
    last_accessed_at: int = 0
