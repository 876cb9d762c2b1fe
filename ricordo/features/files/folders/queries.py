"""Queries of folders, files and texts, and of the agents that use them.

A function with a `scope` finds a user's rows only in that user's scope and in a scope without a
subject. A function without one finds the rows of any user, so its caller checks the rights. Deleted
files that are not purged yet are found only by functions that say so.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Integer, Select, bindparam, delete, func, insert, select, update

from ricordo.domain.scope import Scope
from ricordo.errors import NotFound
from ricordo.features.files.folders.records import READABLE, AgentFile, File, FilePiece, Folder
from ricordo.features.files.folders.tables import (
    file_pieces,
    file_uploads,
    files,
    files_agents,
    folders,
    folders_agents,
)
from ricordo.storage import agent_lookup, deletion
from ricordo.storage.deletion import BeforePurge, purge
from ricordo.storage.engine.repository import (
    Missing,
    Page,
    Repository,
    equal,
    in_scope,
    one_of,
)
from ricordo.storage.engine.store import Transaction

# The most characters of a piece of text. A longer line is cut into several pieces.
PIECE = 128 * 1024

_FOLDERS = Repository(Folder, folders)
_FILES = Repository(File, files)
_PIECES = Repository(FilePiece, file_pieces)
_OPENED = Repository(AgentFile, files_agents)
_EXISTS = files.c.deleted_at.is_(None)
_COUNTED = (
    func.count().label("files"),
    func.coalesce(func.sum(files.c.size), 0).label("bytes"),
)
get_folder = _FOLDERS.get
get_folder_for_change = _FOLDERS.get_for_change
insert_folder = _FOLDERS.insert
update_folder = _FOLDERS.updates(
    "name", "description", "instructions", "metadata", "updated_by", "updated_at"
)
insert_file = _FILES.insert
update_file = _FILES.updates(
    *(name for name in _FILES.changeable() if name not in ("folder_id", "user_id"))
)
_FIND = _FILES.select.where(equal(files, "id"), _EXISTS)
_LOCK = _FIND.with_for_update()
_LOCK_FOLDER = select(folders.c.id).where(equal(folders, "id")).with_for_update(key_share=True)
_HIDE = (
    update(files)
    .where(one_of(files.c.id, "file_ids"))
    .values(deleted_at=bindparam("now"), name=files.c.id)
)
_ALL_PIECES = _PIECES.select.where(one_of(file_pieces.c.file_id, "file_ids")).order_by(
    file_pieces.c.file_id, file_pieces.c.number
)
_SOME_PIECES = (
    _PIECES.select.where(
        equal(file_pieces, "file_id"),
        file_pieces.c.first_line < bindparam("end"),
        file_pieces.c.last_line >= bindparam("start"),
    )
    .order_by(file_pieces.c.number)
    .limit(bindparam("limit"))
)
_BEGINNINGS = select(
    file_pieces.c.file_id,
    func.substr(file_pieces.c.text, 1, bindparam("limit", type_=Integer)).label("text"),
).where(one_of(file_pieces.c.file_id, "file_ids"), file_pieces.c.number == 0)
_DELETE_PIECES = delete(file_pieces).where(equal(file_pieces, "file_id"))
_UPLOAD = (
    select(file_uploads.c.data)
    .where(equal(file_uploads, "file_id"))
    .order_by(file_uploads.c.number)
)
_DELETE_UPLOAD = delete(file_uploads).where(equal(file_uploads, "file_id"))


# Folders


def page_of_folders(
    tx: Transaction,
    scope: Scope,
    page: Page,
    *,
    name: str | None = None,
    user_id: str | None = None,
) -> list[Folder]:
    """Return a page of folders that the caller sees.

    Args:
        tx: The transaction.
        scope: The caller.
        page: The part of the list.
        name: Only folders with exactly this name; None for any.
        user_id: Only this user's folders; None for all.
    """
    return _FOLDERS.page(tx, scope, page, name=name, user_id=user_id)


def find_users_folder(tx: Transaction, user_id: str, folder_id: str) -> Folder | None:
    """Return the folder if it is this user's, or else None.

    Args:
        tx: The transaction, or a read.
        user_id: The user, who must own the folder.
        folder_id: The folder, of any organization.
    """
    statement = _FOLDERS.select.where(folders.c.id == folder_id, folders.c.user_id == user_id)
    return next(iter(_FOLDERS.all(tx, statement)), None)


def is_folder_there(tx: Transaction, folder_id: str) -> bool:
    """Return True if any folder has this id, also a deleted one.

    Args:
        tx: The transaction, or a read.
        folder_id: The id to look for, in all organizations.
    """
    return tx.first(select(folders.c.seq).where(folders.c.id == folder_id)) is not None


def count_folders(tx: Transaction, scope: Scope) -> int:
    """Return the number of folders that the caller sees.

    Args:
        tx: The transaction, or a read.
        scope: The caller.
    """
    return _FOLDERS.count(tx, scope)


def find_folder(
    tx: Transaction, organization_id: str, name: str, user_id: str | None
) -> Folder | None:
    """Return the folder of this owner with exactly this name.

    Args:
        tx: The transaction.
        organization_id: The organization.
        name: The folder's name.
        user_id: The owner; None for a folder of the organization.
    """
    if user_id:
        is_owned = folders.c.user_id == user_id
    else:
        is_owned = folders.c.user_id.is_(None)
    statement = _FOLDERS.select.where(
        folders.c.organization_id == organization_id, folders.c.name == name, is_owned
    )
    return next(iter(_FOLDERS.all(tx, statement)), None)


def hide_folder(tx: Transaction, folder_id: str, organization_id: str) -> None:
    """Move the folder to the organization for deleted rows, and free its name.

    Args:
        tx: The transaction.
        folder_id: The folder.
        organization_id: The organization for deleted rows (`deletion.DELETED`).
    """
    tx.run(
        update(folders)
        .where(folders.c.id == folder_id)
        .values(organization_id=organization_id, name=folder_id)
    )


def agents_of(tx: Transaction, folder_id: str, organization_id: str, limit: int) -> list[str]:
    """Return the ids of some agents that have the folder attached.

    Args:
        tx: The transaction, or a read.
        folder_id: The folder, which may be hidden.
        organization_id: The organization of the agents.
        limit: The most agents.
    """
    return agent_lookup.ids_among(tx, organization_id, _agents_with(folder_id), limit)


def page_of_agents(tx: Transaction, scope: Scope, folder_id: str, page: Page) -> list[str]:
    """Return one page of the ids of the agents that have the folder attached.

    Args:
        tx: The transaction.
        scope: The caller; agents that the caller may not use are left out.
        folder_id: The folder. This function does not check that the caller sees it.
        page: The part of the list, by the creation of the agents.
    """
    return agent_lookup.page_of_ids(tx, scope, page, _agents_with(folder_id))


def _agents_with(folder_id: str) -> Select[Any]:
    return select(folders_agents.c.agent_id).where(folders_agents.c.folder_id == folder_id)


# Files


def get_file(tx: Transaction, scope: Scope, file_id: str, folder_id: str | None = None) -> File:
    """Return the file.

    Args:
        tx: The transaction.
        scope: The caller.
        file_id: The file.
        folder_id: The folder that must contain it; None for any folder.

    Raises:
        NotFound: if the caller does not see it, or it is deleted or in another folder.
    """
    file = _FILES.get(tx, scope, file_id)
    if file.deleted_at is not None or folder_id not in (None, file.folder_id):
        raise NotFound(f"File with ID {file_id} not found")
    return file


def find_file(tx: Transaction, file_id: str) -> File | None:
    """Return any user's file; None if it is deleted.

    Args:
        tx: The transaction, or a read.
        file_id: The file, of any organization.
    """
    return _FILES.first(tx, _FIND, {"id": file_id})


def is_file_there(tx: Transaction, file_id: str) -> bool:
    """Return True if any file has this id, also a deleted one.

    Args:
        tx: The transaction, or a read.
        file_id: The id to look for, in all organizations.
    """
    return tx.first(select(files.c.seq).where(files.c.id == file_id)) is not None


def page_of_users_files(tx: Transaction, scope: Scope, user_id: str, page: Page) -> list[File]:
    """Return a page of the files in this user's folders.

    Args:
        tx: The transaction.
        scope: The caller; only files that the caller sees are returned.
        user_id: The owner of the folders.
        page: The part of the list.
    """
    return _FILES.page(tx, scope, page, _EXISTS, user_id=user_id)


def chunks_of_hidden(tx: Transaction, file_id: str) -> int:
    """Return the number of chunks of a deleted file.

    It is 0 if the file is purged or not deleted.

    Args:
        tx: The transaction, or a read.
        file_id: The file.
    """
    hidden = select(files.c.total_chunks).where(
        files.c.id == file_id, files.c.deleted_at.is_not(None)
    )
    return sum(row.total_chunks for row in tx.all(hidden))


def lock_file(tx: Transaction, file_id: str) -> File | None:
    """Lock the file until this transaction ends; return None if it is deleted.

    Args:
        tx: The transaction.
        file_id: The file of any user.
    """
    return _FILES.first_locked(tx, _LOCK, {"id": file_id})


def hide_files(tx: Transaction, file_ids: Sequence[str]) -> None:
    """Hide these files at once, free their names, and close them for every agent.

    Their rows are purged later.

    Args:
        tx: The transaction.
        file_ids: The files, of any users; may be empty.
    """
    if file_ids:
        tx.run(_HIDE, {"file_ids": list(file_ids), "now": tx.clock.now()})
        tx.run(_CLOSE_FILES, {"file_ids": list(file_ids)})


def ids_of_hidden_files(tx: Transaction, folder_id: str) -> list[str]:
    """Return the ids of the folder's deleted files that are not purged yet."""
    hidden = select(files.c.id).where(
        files.c.folder_id == folder_id, files.c.deleted_at.is_not(None)
    )
    return [row.id for row in tx.all(hidden)]


def ids_of_files(tx: Transaction, folder_id: str) -> list[str]:
    """Return the ids of the folder's files, without deleted ones.

    Args:
        tx: The transaction, or a read.
        folder_id: The folder.
    """
    return [
        row.id for row in tx.all(select(files.c.id).where(files.c.folder_id == folder_id, _EXISTS))
    ]


def files_by_ids(tx: Transaction, scope: Scope, ids: Sequence[str]) -> list[File]:
    """Return the files with these ids that the scope sees, in their order.

    Args:
        tx: The transaction, or a read.
        scope: The caller.
        ids: Ids of files; those of deleted files are skipped.
    """
    return [
        file
        for file in _FILES.by_ids(tx, ids)
        if file.organization_id == scope.organization_id
        and file.deleted_at is None
        and scope.sees(file.user_id)
    ]


def page_of_files(
    tx: Transaction, scope: Scope, folder_ids: Sequence[str], page: Page
) -> list[File]:
    """Return one page of the files in these folders that the caller sees.

    Args:
        tx: The transaction, or a read.
        scope: The caller.
        folder_ids: The folders; with none the page is empty.
        page: The part of the list, by creation.
    """
    return _FILES.page(tx, scope, page, _EXISTS, files.c.folder_id.in_(folder_ids))


def readable_files(tx: Transaction, folder_ids: Sequence[str]) -> list[File]:
    """Return all files of these folders whose text can be read, by name.

    Args:
        tx: The transaction, or a read.
        folder_ids: The folders. This function does not check that the caller sees them.
    """
    is_read = files.c.status.in_(READABLE)
    statement = _FILES.select.where(files.c.folder_id.in_(folder_ids), _EXISTS, is_read)
    return _FILES.all(tx, statement.order_by(files.c.name, files.c.seq))


def find_by_name(tx: Transaction, folder_id: str, name: str) -> File | None:
    """Return the folder's file with exactly this name, or None.

    Args:
        tx: The transaction, or a read.
        folder_id: The folder.
        name: The name of the file in the folder, without the folder's name.
    """
    statement = _FILES.select.where(equal(files, "folder_id", "name"), _EXISTS)
    return _FILES.first(tx, statement, {"folder_id": folder_id, "name": name})


def names_in(tx: Transaction, folder_id: str, start: str) -> set[str]:
    """Return the names of the folder's files that begin with this text.

    Args:
        tx: The transaction.
        folder_id: The folder.
        start: The beginning of the names; it has no wildcards.
    """
    begins = files.c.name.startswith(start, autoescape=True)
    return {
        row.name
        for row in tx.all(
            select(files.c.name).where(files.c.folder_id == folder_id, _EXISTS, begins)
        )
    }


def count_files(tx: Transaction, folder_ids: Sequence[str]) -> dict[str, int]:
    """Return the number of files by folder.

    Args:
        tx: The transaction, or a read.
        folder_ids: The folders; those without files are left out of the result.
    """
    return {id: count for id, (count, _) in sizes_by_folder(tx, folder_ids).items()}


def sizes_by_folder(tx: Transaction, folder_ids: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return the number of files and of their bytes by folder.

    Args:
        tx: The transaction, or a read.
        folder_ids: The folders; those without files are left out of the result.
    """
    counted = select(files.c.folder_id, *_COUNTED).where(
        one_of(files.c.folder_id, "folder_ids"), _EXISTS
    )
    rows = tx.all(counted.group_by(files.c.folder_id), {"folder_ids": list(folder_ids)})
    return {row.folder_id: (row.files, int(row.bytes)) for row in rows}


def size_of_all(tx: Transaction, scope: Scope) -> tuple[int, int]:
    """Return the number of all files that the caller sees, and of their bytes."""
    row = tx.all(select(*_COUNTED).where(*in_scope(files, scope), _EXISTS))[0]
    return row.files, int(row.bytes)


# The text of files


def pieces_of_text(file_id: str, text: str) -> list[FilePiece]:
    """Cut a text into pieces at line ends.

    Only a line longer than a piece is cut.

    Args:
        file_id: The file, for the pieces.
        text: Its whole text, with line feeds as line ends.
    """
    pieces: list[FilePiece] = []
    start = line = 0
    while start < len(text):
        end = start + PIECE
        if end < len(text):
            end = text.rfind("\n", start, end) + 1 or end
        part = text[start:end]
        newlines = part.count("\n")
        last = line + newlines - (1 if part.endswith("\n") else 0)
        pieces.append(FilePiece(file_id, len(pieces), line, last, part))
        start = end
        line = line + newlines
    return pieces


def insert_pieces(tx: Transaction, pieces: Iterable[FilePiece]) -> None:
    """Store pieces of text.

    Args:
        tx: The transaction.
        pieces: The pieces, from `pieces_of_text`; may be empty.
    """
    if rows := [*pieces]:
        _PIECES.insert(tx, *rows)


def pieces_of(tx: Transaction, file_ids: Sequence[str]) -> list[FilePiece]:
    """Return the whole texts of these files, by file and in order.

    All these texts are in memory at once, so ask for a few megabytes at a time (see
    `File.characters`).

    Args:
        tx: The transaction, or a read.
        file_ids: The files of any users, in any order.
    """
    return _PIECES.all(tx, _ALL_PIECES, {"file_ids": list(file_ids)})


def text_of(tx: Transaction, file_id: str) -> str:
    """Return the whole text of a file.

    Args:
        tx: The transaction, or a read.
        file_id: The file of any user; one without a text gives "".
    """
    return "".join(piece.text for piece in pieces_of(tx, [file_id]))


def read_lines(
    tx: Transaction, file_id: str, start: int = 0, end: int | None = None, limit: int = 1_000_000
) -> tuple[str, bool]:
    """Return the lines from `start` to before `end`, and True if some text was cut.

    Args:
        tx: The transaction.
        file_id: A file of any user.
        start: The first line, counted from 0.
        end: The line after the last one; None for the end of the text.
        limit: The most characters. A long line may be cut.
    """
    piece_limit = limit // PIECE + 3
    parameters = {
        "file_id": file_id,
        "start": start,
        "end": 2**62 if end is None else end,
        "limit": piece_limit,
    }
    pieces = _PIECES.all(tx, _SOME_PIECES, parameters)
    if not pieces:
        return "", False
    text = "".join(piece.text for piece in pieces)
    first = pieces[0].first_line
    begin = _line_start(text, start - first)
    if end is None:
        stop = len(text)
    else:
        stop = _line_start(text, end - first)
    is_cut = stop - begin > limit or (len(pieces) == piece_limit and stop == len(text))
    return text[begin : min(stop, begin + limit)], is_cut


def beginnings_of(tx: Transaction, file_ids: Sequence[str], limit: int) -> dict[str, str]:
    """Return the first `limit` characters of each file's text, at most its first piece.

    Args:
        tx: The transaction.
        file_ids: The files; those without a text are left out of the result.
        limit: The most characters of each text.
    """
    if file_ids:
        rows = tx.all(_BEGINNINGS, {"file_ids": list(file_ids), "limit": limit})
    else:
        rows = ()
    return {row.file_id: row.text for row in rows}


def _line_start(text: str, lines: int) -> int:
    """Return the offset after this many line breaks.

    It is the text's end if there are fewer.
    """
    offset = 0
    for _ in range(lines):
        offset = text.find("\n", offset) + 1
        if not offset:
            return len(text)
    return offset


def replace_text(tx: Transaction, file_id: str, pieces: Sequence[FilePiece]) -> None:
    """Replace the text of a file.

    Args:
        tx: The transaction.
        file_id: The file.
        pieces: All pieces of the new text, from `pieces_of_text`.
    """
    tx.run(_DELETE_PIECES, {"file_id": file_id})
    insert_pieces(tx, pieces)


def insert_upload(tx: Transaction, file_id: str, parts: Sequence[bytes]) -> None:
    """Store the bytes of an upload until it is ingested.

    Args:
        tx: The transaction.
        file_id: The new file.
        parts: The bytes, cut into rows.
    """
    rows = [
        {"file_id": file_id, "number": number, "data": part} for number, part in enumerate(parts)
    ]
    tx.run(insert(file_uploads), rows)


def read_upload(tx: Transaction, file_id: str) -> bytes:
    """Return the bytes of a file's upload, which are empty after it was ingested.

    Args:
        tx: The transaction, or a read.
        file_id: The file.
    """
    return b"".join(row.data for row in tx.all(_UPLOAD, {"file_id": file_id}))


def delete_upload(tx: Transaction, file_id: str) -> None:
    """Delete the bytes of a file's upload; its text remains.

    Args:
        tx: The transaction.
        file_id: The file.
    """
    tx.run(_DELETE_UPLOAD, {"file_id": file_id})


def purge_file(tx: Transaction, file_id: str, before: BeforePurge) -> bool:
    """Delete a portion of the rows that depend on the file; the file comes last.

    Args:
        tx: The transaction.
        file_id: The file.
        before: Called with rows before their deletion, such as `agents.deletion.before_purge`.

    Returns:
        False if nothing was left.
    """
    return purge(tx, files, "id", keys=[file_id], before=before, counts=Counter())


# Agents: which folders are attached, and which files are open

_ATTACH = Missing(folders_agents)
_DETACH = delete(folders_agents).where(equal(folders_agents, "agent_id", "folder_id"))
# A deleted folder is detached from its agents in portions.
_IS_SHOWN = folders.c.organization_id != deletion.DELETED
_ATTACHED = (
    _FOLDERS.select.join(folders_agents, folders_agents.c.folder_id == folders.c.id)
    .where(equal(folders_agents, "agent_id"), _IS_SHOWN)
    .order_by(folders_agents.c.seq)
)
_ATTACHED_TO_ANY = (
    _FOLDERS.select.add_columns(folders_agents.c.agent_id)
    .join(folders_agents, folders_agents.c.folder_id == folders.c.id)
    .where(one_of(folders_agents.c.agent_id, "agent_ids"), _IS_SHOWN)
    .order_by(folders_agents.c.seq)
)
_NEWEST_FIRST = (files.c.created_at.desc(), files.c.seq.desc())
_OF_ONE = (files.c.folder_id, files.c.user_id)
_RANKED = (
    _FILES.select.add_columns(
        files.c.seq,
        func.row_number().over(partition_by=_OF_ONE, order_by=_NEWEST_FIRST).label("place"),
        func.count().over(partition_by=files.c.folder_id).label("files"),
    )
    .where(one_of(files.c.folder_id, "folder_ids"), _EXISTS)
    .subquery()
)
_NEWEST = (
    select(*(_RANKED.c[column.name] for column in _FILES.columns), _RANKED.c.files)
    .where(_RANKED.c.place <= bindparam("limit"))
    .order_by(_RANKED.c.created_at.desc(), _RANKED.c.seq.desc())
)
_OF_AGENTS = _OPENED.select.where(one_of(files_agents.c.agent_id, "agent_ids")).order_by(
    files_agents.c.last_accessed_at
)
_OF_AGENT = _OPENED.select.where(equal(files_agents, "agent_id")).order_by(
    files_agents.c.last_accessed_at
)
_INSERT_OPENED = Missing(files_agents)
_update_opened = _OPENED.updates(
    "is_open", "start_line", "end_line", "last_accessed_at", locked=None
)
_CLOSE_FILES = delete(files_agents).where(one_of(files_agents.c.file_id, "file_ids"))
_CLOSE_FOLDER = delete(files_agents).where(
    equal(files_agents, "agent_id"),
    files_agents.c.file_id.in_(select(files.c.id).where(equal(files, "folder_id"))),
)


def attach_folder(tx: Transaction, agent_id: str, folder_id: str) -> None:
    """Attach the folder to the agent, if it is not attached already.

    Args:
        tx: The transaction.
        agent_id: The agent.
        folder_id: The folder; the caller has checked the rights.
    """
    tx.run(_ATTACH, {"agent_id": agent_id, "folder_id": folder_id, "created_at": tx.clock.now()})


def detach_folder(tx: Transaction, agent_id: str, folder_id: str) -> bool:
    """Detach the folder, and close its files for the agent.

    Args:
        tx: The transaction.
        agent_id: The agent. The files are closed for all its users.
        folder_id: The folder. It need not be attached.

    Returns:
        False if it was not attached.
    """
    tx.run(_CLOSE_FOLDER, {"agent_id": agent_id, "folder_id": folder_id})
    return tx.run(_DETACH, {"agent_id": agent_id, "folder_id": folder_id}) > 0


def set_egress(tx: Transaction, folder_id: str, label: str | None) -> None:
    """Set the folder's egress label.

    Args:
        tx: The transaction, which has locked the folder with `lock_folder`.
        folder_id: The folder.
        label: The label; None for no limit.
    """
    tx.run(update(folders).where(folders.c.id == folder_id).values(egress=label))


def lock_folder(tx: Transaction, folder_id: str) -> None:
    """Lock a folder for a change of its policy, which `egress_of` waits for.

    Args:
        tx: The transaction.
        folder_id: The folder.
    """
    tx.lock(_LOCK_FOLDER, {"id": folder_id})


def egress_of(tx: Transaction, folder_id: str) -> str | None:
    """Return the folder's egress label, which cannot change until this transaction ends.

    Args:
        tx: The transaction. It must be able to write, since the row is locked.
        folder_id: The folder. If it does not exist, the label is None.
    """
    statement = select(folders.c.egress).where(folders.c.id == folder_id)
    row = tx.first(statement.with_for_update(read=True), {})
    return row.egress if row else None


def folders_by_ids(tx: Transaction, scope: Scope, ids: Sequence[str]) -> list[Folder]:
    """Return the existing folders with these ids that the scope sees.

    Args:
        tx: The transaction, or a read.
        scope: The caller.
        ids: Ids of folders, in the order of the result.
    """
    return _visible(_FOLDERS.by_ids(tx, ids) if ids else [], scope)


def folders_of_agent(tx: Transaction, scope: Scope, agent_id: str) -> list[Folder]:
    """Return the attached folders that the scope sees, in the order of attachment.

    Args:
        tx: The transaction, or a read.
        scope: The caller, or the scope of the agent's turn.
        agent_id: The agent.
    """
    return _visible(_FOLDERS.all(tx, _ATTACHED, {"agent_id": agent_id}), scope)


def _visible(rows: Iterable[Folder], scope: Scope) -> list[Folder]:
    return [
        folder
        for folder in rows
        if folder.organization_id == scope.organization_id and scope.sees(folder.user_id)
    ]


def folders_of_agents(tx: Transaction, agent_ids: Sequence[str]) -> dict[str, list[Folder]]:
    """Return all attached folders by agent, in the order of attachment, for any user.

    Args:
        tx: The transaction, or a read.
        agent_ids: The agents; those without folders are left out of the result.
    """
    folders_by_agent: dict[str, list[Folder]] = {}
    for row in tx.all(_ATTACHED_TO_ANY, {"agent_ids": list(agent_ids)}):
        folders_by_agent.setdefault(row[-1], []).append(_FOLDERS.of(row[:-1]))
    return folders_by_agent


def newest_files(
    tx: Transaction, folder_ids: Sequence[str], limit: int
) -> tuple[list[File], dict[str, int]]:
    """Return the newest files, and the number of files per folder.

    Args:
        tx: The transaction.
        folder_ids: The folders; those without files are left out of the counts.
        limit: The most files per folder and user.
    """
    rows = tx.all(_NEWEST, {"folder_ids": list(folder_ids), "limit": limit})
    return [_FILES.of(row[:-1]) for row in rows], {row.folder_id: row[-1] for row in rows}


def opened_by_agents(tx: Transaction, agent_ids: Sequence[str]) -> dict[str, list[AgentFile]]:
    """Return the windows of each agent for all users, least recently used first.

    Args:
        tx: The transaction, or a read.
        agent_ids: The agents; those without windows are left out of the result.
    """
    windows_by_agent: dict[str, list[AgentFile]] = {}
    for window in _OPENED.all(tx, _OF_AGENTS, {"agent_ids": list(agent_ids)}):
        windows_by_agent.setdefault(window.agent_id, []).append(window)
    return windows_by_agent


def page_of_agents_folders(
    tx: Transaction, scope: Scope, agent_id: str, page: Page
) -> list[Folder]:
    """Return one page of the agent's folders that the caller sees.

    Args:
        tx: The transaction, or a read.
        scope: The caller.
        agent_id: The agent. This function does not check that the caller may use it.
        page: The part of the list, by the creation of the folders.
    """
    attached = select(folders_agents.c.folder_id).where(folders_agents.c.agent_id == agent_id)
    return _FOLDERS.page(tx, scope, page, folders.c.id.in_(attached))


def opened_by_agent(tx: Transaction, agent_id: str, user_id: str | None) -> list[AgentFile]:
    """Return the agent's windows for this user, least recently used first.

    A window is a file that the agent has or had open; the file may be deleted.

    Args:
        tx: The transaction.
        agent_id: The agent.
        user_id: The user of the turns; None for turns without a user.
    """
    windows = _OPENED.all(tx, _OF_AGENT, {"agent_id": agent_id})
    return [window for window in windows if window.user_id == user_id]


def save_opened(tx: Transaction, *opened: AgentFile) -> None:
    """Store these windows, each new or changed.

    Args:
        tx: The transaction.
        *opened: The windows.
    """
    for window in opened:
        if not tx.run(_INSERT_OPENED, _OPENED.values(window)):
            _update_opened(tx, window)
