"""Queries of folders and files: their rows and texts; then, for agents, which folders are attached and which files are open.

What is a user's is found in that user's scope, and in one without a subject, alone. Files that are being deleted are found nowhere.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from sqlalchemy import Integer, bindparam, delete, func, insert, select, update

from ricordo.domain.scope import Scope
from ricordo.errors import NotFound
from ricordo.features.files.records import READABLE, AgentFile, File, FilePiece, Folder
from ricordo.features.files.tables import (
    file_pieces,
    file_uploads,
    files,
    files_agents,
    folders,
    folders_agents,
)
from ricordo.storage.agent_access import may_use
from ricordo.storage.deletion import BeforePurge, purge
from ricordo.storage.engine.repository import (
    Missing,
    Page,
    Repository,
    equal,
    known_to,
    one_of,
    read_page,
)
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import agents, passages

# Characters of a piece of text; only a line that is longer is cut.
PIECE = 128 * 1024

_FOLDERS, _FILES = Repository(Folder, folders), Repository(File, files)
_PIECES, _OPENED = Repository(FilePiece, file_pieces), Repository(AgentFile, files_agents)
_IS_THERE = files.c.deleted_at.is_(None)
get_folder, insert_folder = _FOLDERS.get, _FOLDERS.insert
update_folder = _FOLDERS.updates(
    "name", "description", "instructions", "metadata", "updated_by", "updated_at"
)
insert_file = _FILES.insert
update_file = _FILES.updates(
    *(name for name in _FILES.changeable() if name not in ("folder_id", "user_id"))
)
_FIND = _FILES.select.where(equal(files, "id"), _IS_THERE)
_LOCK = _FIND.with_for_update()
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
    .limit(bindparam("most"))
)
_BEGINNINGS = select(
    file_pieces.c.file_id,
    func.substr(file_pieces.c.text, 1, bindparam("most", type_=Integer)).label("text"),
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
    tx: Transaction, scope: Scope, wanted: Page, *, name: str | None = None
) -> list[Folder]:
    return _FOLDERS.page(tx, scope, wanted, name=name)


def count_folders(tx: Transaction, scope: Scope) -> int:
    return _FOLDERS.count(tx, scope)


def find_folder(
    tx: Transaction, organization_id: str, name: str, user_id: str | None
) -> Folder | None:
    """Return the folder with this very name: this user's, or with None the organization's."""
    is_owned = folders.c.user_id == user_id if user_id else folders.c.user_id.is_(None)
    statement = _FOLDERS.select.where(
        folders.c.organization_id == organization_id, folders.c.name == name, is_owned
    )
    return next(iter(_FOLDERS.all(tx, statement)), None)


def hide_folder(tx: Transaction, folder_id: str, organization_id: str) -> None:
    """Move the folder to the organization that nobody belongs to, and free its name."""
    tx.run(
        update(folders)
        .where(folders.c.id == folder_id)
        .values(organization_id=organization_id, name=folder_id)
    )


def agents_of(tx: Transaction, folder: Folder) -> list[str]:
    """Return the ids of all agents that have the folder attached."""
    found = select(agents.c.id).join(folders_agents, folders_agents.c.agent_id == agents.c.id)
    is_there = agents.c.organization_id == folder.organization_id
    return [
        row.id for row in tx.all(found.where(folders_agents.c.folder_id == folder.id, is_there))
    ]


def page_of_agents(tx: Transaction, scope: Scope, folder_id: str, wanted: Page) -> list[str]:
    """Return the ids of one page of the agents that have the folder attached."""
    statement = (
        select(agents.c.id)
        .join(folders_agents, folders_agents.c.agent_id == agents.c.id)
        .where(
            folders_agents.c.folder_id == folder_id,
            agents.c.organization_id == scope.organization_id,
        )
        .where(*may_use(scope))
    )
    marks = known_to(agents, scope, lambda agent: may_use(scope, agent.c.id))
    return [row.id for row in read_page(tx, statement, agents, wanted, marks=marks)]


# Files


def get_file(tx: Transaction, scope: Scope, file_id: str, folder_id: str | None = None) -> File:
    """Return the file, of this folder where one is named. Raises NotFound."""
    file = _FILES.get(tx, scope, file_id)
    if file.deleted_at is not None or folder_id not in (None, file.folder_id):
        raise NotFound(f"File with ID {file_id} not found")
    return file


def find_file(tx: Transaction, file_id: str) -> File | None:
    """Return the file, whoever's it is; None where it is deleted."""
    return _FILES.first(tx, _FIND, {"id": file_id})


def chunks_of_hidden(tx: Transaction, file_id: str) -> int:
    """Return how many chunks a deleted file may have; 0 where it is gone, or not deleted."""
    hidden = select(files.c.total_chunks).where(
        files.c.id == file_id, files.c.deleted_at.is_not(None)
    )
    return sum(row.total_chunks for row in tx.all(hidden))


def lock_file(tx: Transaction, file_id: str) -> File | None:
    """Lock the file until this transaction ends; None where it is deleted."""
    return _FILES.first(tx, _LOCK, {"id": file_id})


def hide_files(tx: Transaction, file_ids: Sequence[str]) -> None:
    """Hide these files at once, free their names, and close them for every agent; their rows are purged later."""
    if file_ids:
        tx.run(_HIDE, {"file_ids": list(file_ids), "now": tx.clock.now()})
        tx.run(_CLOSE_FILES, {"file_ids": list(file_ids)})


def ids_of_files(tx: Transaction, folder_id: str) -> list[str]:
    return [
        row.id
        for row in tx.all(select(files.c.id).where(files.c.folder_id == folder_id, _IS_THERE))
    ]


def files_by_ids(tx: Transaction, scope: Scope, ids: Sequence[str]) -> list[File]:
    """Return the files with these ids that the scope sees, in their order."""
    found = _FILES.by_ids(tx, ids)
    return [
        file
        for file in found
        if file.organization_id == scope.organization_id
        and file.deleted_at is None
        and scope.sees(file.user_id)
    ]


def page_of_files(
    tx: Transaction, scope: Scope, folder_ids: Sequence[str], wanted: Page
) -> list[File]:
    return _FILES.page(tx, scope, wanted, _IS_THERE, files.c.folder_id.in_(folder_ids))


def readable_files(tx: Transaction, folder_ids: Sequence[str]) -> list[File]:
    """Return the files of these folders whose text can be read, by name."""
    is_read = files.c.status.in_(READABLE)
    wanted = _FILES.select.where(files.c.folder_id.in_(folder_ids), _IS_THERE, is_read)
    return _FILES.all(tx, wanted.order_by(files.c.name, files.c.seq))


def find_by_name(tx: Transaction, folder_id: str, name: str) -> File | None:
    statement = _FILES.select.where(equal(files, "folder_id", "name"), _IS_THERE)
    return _FILES.first(tx, statement, {"folder_id": folder_id, "name": name})


def names_in(tx: Transaction, folder_id: str, start: str) -> set[str]:
    """Return the names of the folder's files that begin with this."""
    begins = files.c.name.startswith(start, autoescape=True)
    return {
        row.name
        for row in tx.all(
            select(files.c.name).where(files.c.folder_id == folder_id, _IS_THERE, begins)
        )
    }


def count_files(tx: Transaction, folder_ids: Sequence[str]) -> dict[str, int]:
    counted = select(files.c.folder_id, func.count().label("count")).where(
        files.c.folder_id.in_(folder_ids), _IS_THERE
    )
    return {row.folder_id: row.count for row in tx.all(counted.group_by(files.c.folder_id))}


# The text of files


def pieces_of_text(file_id: str, text: str) -> list[FilePiece]:
    """Cut a text into pieces: at the end of a line, or where a line is longer than a piece, in it."""
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
        start, line = end, line + newlines
    return pieces


def insert_pieces(tx: Transaction, pieces: Iterable[FilePiece]) -> None:
    if rows := [*pieces]:
        _PIECES.insert(tx, *rows)


def pieces_of(tx: Transaction, file_ids: Sequence[str]) -> list[FilePiece]:
    """Return the whole texts of these files, by file and in order. Ask for some megabytes at a time (`File.characters`)."""
    return _PIECES.all(tx, _ALL_PIECES, {"file_ids": list(file_ids)})


def text_of(tx: Transaction, file_id: str) -> str:
    """Return the whole text of a file."""
    return "".join(piece.text for piece in pieces_of(tx, [file_id]))


def read_lines(
    tx: Transaction, file_id: str, start: int = 0, end: int | None = None, most: int = 1_000_000
) -> tuple[str, bool]:
    """Return the lines from `start` to before `end` (None: the last), counted from 0, and whether characters are left out.

    At most so many characters are returned, however long the lines are.
    """
    limit = most // PIECE + 3
    wanted = {
        "file_id": file_id,
        "start": start,
        "end": 2**62 if end is None else end,
        "most": limit,
    }
    pieces = _PIECES.all(tx, _SOME_PIECES, wanted)
    if not pieces:
        return "", False
    text, first = "".join(piece.text for piece in pieces), pieces[0].first_line
    place = _line_start(text, start - first)
    stop = len(text) if end is None else _line_start(text, end - first)
    is_cut = stop - place > most or (len(pieces) == limit and stop == len(text))
    return text[place : min(stop, place + most)], is_cut


def beginnings_of(tx: Transaction, file_ids: Sequence[str], most: int) -> dict[str, str]:
    """Return the first characters of the texts of these files, so many of each; at most those of the first piece."""
    rows = tx.all(_BEGINNINGS, {"file_ids": list(file_ids), "most": most}) if file_ids else ()
    return {row.file_id: row.text for row in rows}


def _line_start(text: str, lines: int) -> int:
    """The place behind so many newlines; the end where there are fewer."""
    place = 0
    for _ in range(lines):
        place = text.find("\n", place) + 1
        if not place:
            return len(text)
    return place


def replace_text(tx: Transaction, file_id: str, pieces: Sequence[FilePiece]) -> None:
    tx.run(_DELETE_PIECES, {"file_id": file_id})
    insert_pieces(tx, pieces)


def insert_upload(tx: Transaction, file_id: str, parts: Sequence[bytes]) -> None:
    rows = [
        {"file_id": file_id, "number": number, "data": part} for number, part in enumerate(parts)
    ]
    tx.run(insert(file_uploads), rows)


def read_upload(tx: Transaction, file_id: str) -> bytes:
    return b"".join(row.data for row in tx.all(_UPLOAD, {"file_id": file_id}))


def delete_upload(tx: Transaction, file_id: str) -> None:
    tx.run(_DELETE_UPLOAD, {"file_id": file_id})


def purge_chunks(tx: Transaction, ids: Sequence[str], before: BeforePurge) -> bool:
    """Delete a portion of these passages; whether there were some."""
    return purge(tx, passages, "id", ids, before, Counter())


def purge_file(tx: Transaction, file_id: str, before: BeforePurge) -> bool:
    """Delete a portion of what refers to this file, at last the file; whether there was something."""
    return purge(tx, files, "id", [file_id], before, Counter())


# Agents: which folders are attached, and which files are open

_ATTACH = Missing(folders_agents)
_DETACH = delete(folders_agents).where(equal(folders_agents, "agent_id", "folder_id"))
_ATTACHED = (
    _FOLDERS.select.join(folders_agents, folders_agents.c.folder_id == folders.c.id)
    .where(equal(folders_agents, "agent_id"))
    .order_by(folders_agents.c.seq)
)
_ATTACHED_TO_ANY = (
    _FOLDERS.select.add_columns(folders_agents.c.agent_id)
    .join(folders_agents, folders_agents.c.folder_id == folders.c.id)
    .where(one_of(folders_agents.c.agent_id, "agent_ids"))
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
    .where(one_of(files.c.folder_id, "folder_ids"), _IS_THERE)
    .subquery()
)
_NEWEST = (
    select(*(_RANKED.c[column.name] for column in _FILES.columns), _RANKED.c.files)
    .where(_RANKED.c.place <= bindparam("most"))
    .order_by(_RANKED.c.created_at.desc(), _RANKED.c.seq.desc())
)
_OF_AGENTS = _OPENED.select.where(one_of(files_agents.c.agent_id, "agent_ids")).order_by(
    files_agents.c.last_accessed_at
)
_OF_AGENT = _OPENED.select.where(equal(files_agents, "agent_id")).order_by(
    files_agents.c.last_accessed_at
)
_INSERT_OPENED = Missing(files_agents)
_update_opened = _OPENED.updates("is_open", "start_line", "end_line", "last_accessed_at")
_CLOSE_FILES = delete(files_agents).where(one_of(files_agents.c.file_id, "file_ids"))
_CLOSE_FOLDER = delete(files_agents).where(
    equal(files_agents, "agent_id"),
    files_agents.c.file_id.in_(select(files.c.id).where(equal(files, "folder_id"))),
)


def attach_folder(tx: Transaction, agent_id: str, folder_id: str) -> None:
    tx.run(_ATTACH, {"agent_id": agent_id, "folder_id": folder_id, "created_at": tx.clock.now()})


def detach_folder(tx: Transaction, agent_id: str, folder_id: str) -> None:
    """Detach the folder, and close its files for the agent."""
    tx.run(_CLOSE_FOLDER, {"agent_id": agent_id, "folder_id": folder_id})
    tx.run(_DETACH, {"agent_id": agent_id, "folder_id": folder_id})


def folders_by_ids(tx: Transaction, scope: Scope, ids: Sequence[str]) -> list[Folder]:
    """Return those of these folders that are there and that the scope sees."""
    found = _FOLDERS.by_ids(tx, ids) if ids else []
    return [
        one
        for one in found
        if one.organization_id == scope.organization_id and scope.sees(one.user_id)
    ]


def folders_of_agent(tx: Transaction, scope: Scope, agent_id: str) -> list[Folder]:
    """Return the attached folders that the scope sees, in the order of attachment."""
    found = _FOLDERS.all(tx, _ATTACHED, {"agent_id": agent_id})
    return [
        one
        for one in found
        if one.organization_id == scope.organization_id and scope.sees(one.user_id)
    ]


def folders_of_agents(tx: Transaction, agent_ids: Sequence[str]) -> dict[str, list[Folder]]:
    """Return the attached folders by agent, in the order of attachment, whoever may see them."""
    found: dict[str, list[Folder]] = {}
    for row in tx.all(_ATTACHED_TO_ANY, {"agent_ids": list(agent_ids)}):
        found.setdefault(row[-1], []).append(_FOLDERS.of(row[:-1]))
    return found


def newest_files(
    tx: Transaction, folder_ids: Sequence[str], most: int
) -> tuple[list[File], dict[str, int]]:
    """Return the newest files of each folder, so many of each user's, the newest first; and how many each folder has."""
    rows = tx.all(_NEWEST, {"folder_ids": list(folder_ids), "most": most})
    return [_FILES.of(row[:-1]) for row in rows], {row.folder_id: row[-1] for row in rows}


def opened_by_agents(tx: Transaction, agent_ids: Sequence[str]) -> dict[str, list[AgentFile]]:
    """Return what each agent has or had open, that which was not looked at for longest first."""
    found: dict[str, list[AgentFile]] = {}
    for one in _OPENED.all(tx, _OF_AGENTS, {"agent_ids": list(agent_ids)}):
        found.setdefault(one.agent_id, []).append(one)
    return found


def page_of_agents_folders(
    tx: Transaction, scope: Scope, agent_id: str, wanted: Page
) -> list[Folder]:
    attached = select(folders_agents.c.folder_id).where(folders_agents.c.agent_id == agent_id)
    return _FOLDERS.page(tx, scope, wanted, folders.c.id.in_(attached))


def opened_by_agent(tx: Transaction, agent_id: str, user_id: str | None) -> list[AgentFile]:
    """Return what the agent has or had open in turns with this user, that which was not looked at for longest first.

    None: in turns with nobody. Files may be deleted meanwhile.
    """
    return [
        one for one in _OPENED.all(tx, _OF_AGENT, {"agent_id": agent_id}) if one.user_id == user_id
    ]


def save_opened(tx: Transaction, *opened: AgentFile) -> None:
    """Store these, each new or changed."""
    for one in opened:
        if not tx.run(_INSERT_OPENED, _OPENED.values(one)):
            _update_opened(tx, one)
