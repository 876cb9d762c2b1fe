"""Tables of folders and files: texts, uploads, and attachments to agents.

A folder has an archive with the same id; the routes of archives do not show it. Its passages are
the chunks of the folder's files. So they are indexed, embedded, searched, rebuilt and purged like
all passages. The rows of a user's folder, of its files and of its passages name the user.
"""

from sqlalchemy import Column, Index, LargeBinary, UniqueConstraint

from ricordo.storage.schema.columns import (
    flag,
    json_value,
    names,
    numbers,
    partial_index,
    public_id,
    reference,
    root,
    seq,
    strings,
    table,
    texts,
    timestamps,
)

folders = table(
    "folders",
    *root(),
    reference("archive_id", "archives"),
    *names("name", null=False),
    *texts("description", "instructions"),
    *strings("embedding", erasure="keep"),
    json_value("metadata"),
    *strings("user_id"),
    # The label of its egress policy. An older database gets the column by a migration of the core.
    *strings("egress", erasure="keep"),
    *strings("created_by", "updated_by", erasure="blank"),
    *timestamps("created_at", "updated_at"),
    UniqueConstraint("archive_id"),
    partial_index(
        "folders_by_name", "organization_id", "name", where="user_id IS NULL", unique=True
    ),
    partial_index("folders_of_users", "user_id", "name", where="user_id IS NOT NULL", unique=True),
    Index("folders_by_time", "organization_id", "created_at", "seq"),
    erasure="delete",
)
files = table(
    "files",
    *root(),
    reference("folder_id", "folders"),
    *names("name", "original_name", null=False),
    *strings("type", erasure="keep"),
    *numbers("size", "lines", "characters"),
    *strings("status", null=False, erasure="keep"),
    *strings("error_message"),
    *numbers("total_chunks", "chunks_done"),
    *strings("user_id"),
    *strings("created_by", erasure="blank"),
    *timestamps("created_at", "updated_at"),
    # A deleted file is hidden at once; its chunks and text are purged in portions.
    *timestamps("deleted_at", null=True),
    UniqueConstraint("folder_id", "name"),
    Index("files_by_time", "folder_id", "created_at", "seq"),
    erasure="delete",
)
# The text of a file in pieces of whole lines, so that a window or a search of many files reads few
# large rows.
file_pieces = table(
    "file_pieces",
    seq(),
    reference("file_id", "files"),
    *numbers("number", "first_line", "last_line"),
    *texts("text", null=False),
    UniqueConstraint("file_id", "number"),
    erasure="delete",
)
# The bytes of a file that is not parsed yet.
file_uploads = table(
    "file_uploads",
    seq(),
    reference("file_id", "files"),
    *numbers("number"),
    Column("data", LargeBinary, nullable=False),
    UniqueConstraint("file_id", "number"),
    erasure="delete",
)
folders_agents = table(
    "folders_agents",
    seq(),
    reference("agent_id", "agents"),
    reference("folder_id", "folders"),
    *timestamps("created_at"),
    UniqueConstraint("agent_id", "folder_id"),
    Index("folders_agents_by_folder", "folder_id"),
    erasure="keep",
)
# The files that an agent has or had open, in turns with one user or without a user. The id is
# derived from the agent, the file and the user. The agent sees the lines from `start_line` (counted
# from 0) to the one before `end_line`.
files_agents = table(
    "files_agents",
    seq(),
    public_id(),
    reference("agent_id", "agents"),
    reference("file_id", "files"),
    *strings("user_id"),
    flag("is_open"),
    *numbers("start_line", "end_line", null=True),
    *timestamps("last_accessed_at"),
    Index("files_agents_by_agent", "agent_id", "user_id"),
    Index("files_agents_by_file", "file_id"),
    erasure="delete",
)
TABLES = (folders, files, file_pieces, file_uploads, folders_agents, files_agents)
