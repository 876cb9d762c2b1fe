"""The table of workspaces' files. They are rows, so that backups, erasure and several servers need nothing of their own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from sqlalchemy import Column, LargeBinary, Text, bindparam, delete, func, insert, select

from ricordo.domain.ids import new_id
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
    # None: of the workspace that is shared.
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


@dataclass(frozen=True, slots=True)
class Space:
    """Whose files are meant: a user's, or (None) those that all share."""

    organization_id: str
    user_id: str | None = None

    @property
    def is_shared(self) -> bool:
        return self.user_id is None


@dataclass(frozen=True, slots=True)
class WorkspaceFile:
    """A file without its content. `size` is in bytes, `digest` the SHA-256 of the content in hex; times are microseconds."""

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
_OWN = {
    False: (_ORGANIZATION & equal(workspace_files, "user_id")),
    True: (_ORGANIZATION & _files.user_id.is_(None)),
}
_LISTED = {shared: _ROWS.select.where(own) for shared, own in _OWN.items()}
_AT = {shared: own & (_files.path == bindparam("at")) for shared, own in _OWN.items()}
_FOUND = {shared: _ROWS.select.where(at) for shared, at in _AT.items()}
_CONTENT = {shared: select(_files.content).where(at) for shared, at in _AT.items()}
_CONTENTS = {shared: select(_files.path, _files.content).where(own) for shared, own in _OWN.items()}
_DELETE = {shared: delete(workspace_files).where(at) for shared, at in _AT.items()}
_USED = {
    shared: select(
        func.count().label("files"), func.coalesce(func.sum(_files.size), 0).label("bytes")
    ).where(own)
    for shared, own in _OWN.items()
}
_begin = bindparam("begin", type_=Text)
_WITHIN = {
    shared: select(_files.id)
    .where(own, func.substr(_files.path, 1, func.length(_begin)) == _begin)
    .limit(1)
    for shared, own in _OWN.items()
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
    return sha256(content).hexdigest()


def listed(tx: Transaction, space: Space) -> Sequence[WorkspaceFile]:
    """Return the files by their paths."""
    return sorted(
        _ROWS.all(tx, _LISTED[space.is_shared], _values(space)), key=lambda file: file.path
    )


def find(tx: Transaction, space: Space, path: str) -> WorkspaceFile | None:
    return _ROWS.first(tx, _FOUND[space.is_shared], _values(space, path))


def content(tx: Transaction, space: Space, path: str) -> bytes | None:
    row = tx.first(_CONTENT[space.is_shared], _values(space, path))
    return None if row is None else bytes(row.content)


def contents(tx: Transaction, space: Space) -> dict[str, bytes]:
    """Return all files with their contents by their paths."""
    return {
        row.path: bytes(row.content) for row in tx.all(_CONTENTS[space.is_shared], _values(space))
    }


def used(tx: Transaction, space: Space) -> tuple[int, int]:
    """Return how many files there are, and how many bytes they hold."""
    row = tx.all(_USED[space.is_shared], _values(space))[0]
    return int(row.files), int(row.bytes)


def has_within(tx: Transaction, space: Space, folder: str) -> bool:
    """Return whether any file lies in this folder."""
    return tx.first(_WITHIN[space.is_shared], {**_values(space), "begin": f"{folder}/"}) is not None


def put(tx: Transaction, space: Space, path: str, data: bytes) -> WorkspaceFile:
    """Store the content of a file, made where it is not there."""
    stored = find(tx, space, path)
    now = tx.clock.now()
    made = stored or WorkspaceFile(
        new_id("wsfile"), space.organization_id, space.user_id, path, 0, "", now, now
    )
    made = replace(made, size=len(data), digest=digest_of(data), updated_at=now)
    values = {"content": data, "size": made.size, "digest": made.digest, "updated_at": now}
    if stored:
        tx.run(_CHANGE, {**new_values(values), "this_id": made.id})
    else:
        tx.run(_INSERT, {**_ROWS.values(made), **values})
    return made


def remove(tx: Transaction, space: Space, path: str) -> bool:
    """Delete the file; False where it is not there."""
    return tx.run(_DELETE[space.is_shared], _values(space, path)) > 0


def _values(space: Space, path: str | None = None) -> Mapping[str, str | None]:
    named = {"organization_id": space.organization_id}
    if not space.is_shared:
        named["user_id"] = space.user_id or ""
    return named if path is None else {**named, "at": path}
