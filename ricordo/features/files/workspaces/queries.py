"""The table of workspace files.

Files are rows, so backups, erasure and several servers need no extra code for them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from sqlalchemy import Column, LargeBinary, Text, bindparam, delete, func, insert, select

from ricordo.domain.ids import new_id
from ricordo.errors import Forbidden
from ricordo.storage.engine.repository import Repository, equal, new_values, setter
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.columns import (
    names,
    numbers,
    partial_index,
    root,
    strings,
    table,
    timestamps,
)

workspace_files = table(
    "workspace_files",
    *root(),
    # None: a file of the shared workspace.
    *strings("user_id"),
    *names("path", null=False),
    Column("content", LargeBinary, nullable=False),
    *numbers("size"),
    *strings("digest", null=False),
    *timestamps("created_at", "updated_at"),
    partial_index(
        "workspace_files_of_users",
        "organization_id",
        "user_id",
        "path",
        where="user_id IS NOT NULL",
        unique=True,
    ),
    partial_index(
        "workspace_files_shared", "organization_id", "path", where="user_id IS NULL", unique=True
    ),
    erasure="delete",
)


# The file of a workspace whose text agents get in their prompts.
INSTRUCTIONS = "CLAUDE.md"


@dataclass(frozen=True, slots=True)
class Space:
    """A workspace of a user, or the one that all users share (`user_id` None).

    `is_teachers` is set if a teacher writes. Only teachers may change the instructions that all
    users share.
    """

    organization_id: str
    user_id: str | None = None
    is_teachers: bool = False

    @property
    def is_shared(self) -> bool:
        return self.user_id is None

    def may_change(self, path: str) -> bool:
        """Return False for shared instructions, unless a teacher writes.

        A folder with the name of the instructions is refused too, since teachers could not write
        the file then.

        Args:
            path: A path from `service.path_of`.
        """
        if not self.is_shared or self.is_teachers:
            return True
        return path.split("/", 1)[0] != INSTRUCTIONS

    def require_may_change(self, path: str) -> None:
        """Raise Forbidden if the writer may not change this file.

        Args:
            path: A path from `service.path_of`.
        """
        if not self.may_change(path):
            raise Forbidden(
                f"{INSTRUCTIONS} of the shared workspace is part of every student's prompt, so "
                "only teachers may change it, on the page of shared files or over HTTP. Use "
                "another name."
            )


@dataclass(frozen=True, slots=True)
class WorkspaceFile:
    """A file without its content.

    `size` is in bytes, `digest` the SHA-256 of the content in hex; times are microseconds.
    """

    id: str
    organization_id: str
    user_id: str | None
    path: str
    size: int
    digest: str
    created_at: int
    updated_at: int


_ROWS = Repository(WorkspaceFile, workspace_files)
_files = workspace_files.c
_ORGANIZATION = equal(workspace_files, "organization_id")
_IN_SPACE = {
    False: (_ORGANIZATION & equal(workspace_files, "user_id")),
    True: (_ORGANIZATION & _files.user_id.is_(None)),
}
_LISTED = {shared: _ROWS.select.where(condition) for shared, condition in _IN_SPACE.items()}
_AT_PATH = {
    shared: condition & (_files.path == bindparam("at")) for shared, condition in _IN_SPACE.items()
}
_FIND = {shared: _ROWS.select.where(at) for shared, at in _AT_PATH.items()}
_CONTENT = {shared: select(_files.content).where(at) for shared, at in _AT_PATH.items()}
_CONTENTS = {
    shared: select(_files.path, _files.content).where(condition)
    for shared, condition in _IN_SPACE.items()
}
_DELETE = {shared: delete(workspace_files).where(at) for shared, at in _AT_PATH.items()}
_USED = {
    shared: select(
        func.count().label("files"), func.coalesce(func.sum(_files.size), 0).label("bytes")
    ).where(condition)
    for shared, condition in _IN_SPACE.items()
}
_begin = bindparam("begin", type_=Text)
_WITHIN = {
    shared: select(_files.id)
    .where(condition, func.substr(_files.path, 1, func.length(_begin)) == _begin)
    .limit(1)
    for shared, condition in _IN_SPACE.items()
}
_INSERT = insert(workspace_files)
_CHANGE = setter(
    workspace_files,
    "content",
    "size",
    "digest",
    "updated_at",
    where=_files.id == bindparam("this_id"),
)


def digest_of(content: bytes) -> str:
    """Return the digest of a file, as in `WorkspaceFile.digest`.

    Args:
        content: The whole content.
    """
    return sha256(content).hexdigest()


def listed(tx: Transaction, space: Space) -> Sequence[WorkspaceFile]:
    """Return the files of the workspace, sorted by path.

    Args:
        tx: The transaction, or a read.
        space: The workspace.
    """
    return sorted(
        _ROWS.all(tx, _LISTED[space.is_shared], _values(space)), key=lambda file: file.path
    )


def find(tx: Transaction, space: Space, path: str) -> WorkspaceFile | None:
    """Return the file at this path; None if there is none.

    Args:
        tx: The transaction, or a read.
        space: The workspace.
        path: A path from `service.path_of`.
    """
    return _ROWS.first(tx, _FIND[space.is_shared], _values(space, path))


def content(tx: Transaction, space: Space, path: str) -> bytes | None:
    """Return the content of a file; None if there is no file.

    Args:
        tx: The transaction, or a read.
        space: The workspace.
        path: A path from `service.path_of`.
    """
    row = tx.first(_CONTENT[space.is_shared], _values(space, path))
    if row is None:
        return None
    return bytes(row.content)


def contents(tx: Transaction, space: Space) -> dict[str, bytes]:
    """Return the contents of all files by path.

    Args:
        tx: The transaction, or a read.
        space: The workspace. Its quota limits the size of the result.
    """
    return {
        row.path: bytes(row.content) for row in tx.all(_CONTENTS[space.is_shared], _values(space))
    }


def used(tx: Transaction, space: Space) -> tuple[int, int]:
    """Return the number of files and of their bytes.

    Args:
        tx: The transaction, or a read.
        space: The workspace.
    """
    row = tx.all(_USED[space.is_shared], _values(space))[0]
    return int(row.files), int(row.bytes)


def has_within(tx: Transaction, space: Space, folder: str) -> bool:
    """Return True if a file is in this folder.

    Args:
        tx: The transaction.
        space: The workspace.
        folder: The folder's path, without a slash at its end. Folders below it count too.
    """
    return tx.first(_WITHIN[space.is_shared], {**_values(space), "begin": f"{folder}/"}) is not None


def put(tx: Transaction, space: Space, path: str, content: bytes) -> WorkspaceFile:
    """Store the content of a file, which is created if it does not exist.

    Quotas are not checked.

    Args:
        tx: The transaction.
        space: The workspace, with the rights of the writer.
        path: A path from `service.path_of`.
        content: The whole content.

    Raises:
        Forbidden: if only teachers may change the file.
    """
    space.require_may_change(path)
    stored = find(tx, space, path)
    now = tx.clock.now()
    file = stored or WorkspaceFile(
        id=new_id("wsfile"),
        organization_id=space.organization_id,
        user_id=space.user_id,
        path=path,
        size=0,
        digest="",
        created_at=now,
        updated_at=now,
    )
    file = replace(file, size=len(content), digest=digest_of(content), updated_at=now)
    changes = {"content": content, "size": file.size, "digest": file.digest, "updated_at": now}
    if stored:
        tx.run(_CHANGE, {**new_values(changes), "this_id": file.id})
    else:
        tx.run(_INSERT, {**_ROWS.values(file), **changes})
    return file


def remove(tx: Transaction, space: Space, path: str) -> bool:
    """Delete the file; return False if it does not exist.

    Args:
        tx: The transaction.
        space: The workspace, with the rights of the writer.
        path: A path from `service.path_of`.

    Raises:
        Forbidden: if only teachers may change the file.
    """
    space.require_may_change(path)
    return tx.run(_DELETE[space.is_shared], _values(space, path)) > 0


def _values(space: Space, path: str | None = None) -> Mapping[str, str | None]:
    parameters = {"organization_id": space.organization_id}
    if not space.is_shared:
        parameters["user_id"] = space.user_id or ""
    if path is not None:
        parameters["at"] = path
    return parameters
