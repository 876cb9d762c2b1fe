"""The windows through which an agent sees files in its folders.

Each user of the agent has separate windows, so no user learns which files another one opened.

As in the retired Letta V1 server 0.16.8, files are open from the start. A view is the agent's
folders in turns with one user. If fewer than `max_files_open` files have stored windows in a view,
the newest other files count as open too. Their windows are stored at the first change in the view,
together with all open windows.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID, uuid5

from ricordo.domain.agent import Agent, AgentState, OpenFile, PromptDirectory
from ricordo.domain.scope import NOBODY, Scope
from ricordo.domain.text import normal_name
from ricordo.errors import Conflict, Invalid, NotFound
from ricordo.features.files.folders import queries
from ricordo.features.files.folders.records import READABLE, AgentFile, File, Folder
from ricordo.plugins import PromptAddition
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction

MOST_NAMED = 100  # files that a prompt names
_CUT = "...[TRUNCATED]\n# NOTE: This block is truncated, use functions to view the full content."
_SHARE = 2  # open files get half of the context window
_CHARACTERS = 4  # about one token


@dataclass(frozen=True, slots=True)
class View:
    """The folders of an agent in turns with one user, or without a user."""

    agent: Agent
    scope: Scope
    user_id: str | None
    folders: tuple[Folder, ...]

    @property
    def folder_ids(self) -> list[str]:
        return [folder.id for folder in self.folders]

    def shows(self, file: File) -> bool:
        """Return True if the file is in one of the folders and visible in these turns.

        Args:
            file: Any file that is not deleted.
        """
        return file.folder_id in self.folder_ids and self.scope.sees(file.user_id)

    def path_of(self, file: File) -> str:
        """Return the file's name in prompts: its folder's name, a slash and the file's name.

        Args:
            file: A file in one of the view's folders.
        """
        folder = next(folder for folder in self.folders if folder.id == file.folder_id)
        return f"{folder.name}/{file.name}"

    def window_of(self, file_id: str) -> AgentFile:
        """Return a new, closed window.

        Args:
            file_id: The id of a file, "file-" and a UUID. The window's id is computed from it, the
                agent and the user.
        """
        digest = uuid5(UUID(file_id.removeprefix("file-")), f"{self.agent.id} {self.user_id}")
        return AgentFile(f"file_agent-{digest}", self.agent.id, file_id, self.user_id)


def view_of(tx: Transaction, agent: Agent, user_id: str | None) -> View:
    """Return the view of the agent's turns with this user.

    Args:
        tx: The transaction, or a read.
        agent: The agent.
        user_id: The user of the conversation; None for turns without a user.
    """
    scope = Scope(agent.organization_id, subject_id=user_id or NOBODY)
    return View(agent, scope, user_id, tuple(queries.folders_of_agent(tx, scope, agent.id)))


def windows_of(tx: Transaction, view: View) -> list[tuple[AgentFile, File]]:
    """Return the stored windows, and windows of the newest other files.

    The least recently used comes first.

    Args:
        tx: The transaction, or a read.
        view: The agent's folders in turns with one user.
    """
    stored = _stored_windows(tx, view)
    return _by_access([*stored, *untouched_windows(view, stored, _newest(tx, view))])


def all_windows(tx: Transaction, view: View) -> list[tuple[AgentFile, File]]:
    """Return a window of each file that can be read, least recently used first.

    Args:
        tx: The transaction, or a read.
        view: The agent's folders in turns with one user. The rows of all their files are read.
    """
    windows = windows_of(tx, view)
    file_ids = {file.id for _, file in windows}
    if view.folders:
        files = queries.readable_files(tx, view.folder_ids)
    else:
        files = []
    others = [file for file in files if file.id not in file_ids]
    closed = [
        (replace(view.window_of(file.id), last_accessed_at=file.created_at), file)
        for file in others
    ]
    return _by_access([*closed, *windows])


def _stored_windows(tx: Transaction, view: View) -> list[tuple[AgentFile, File]]:
    windows = queries.opened_by_agent(tx, view.agent.id, view.user_id)
    if not windows:
        return []
    files = {
        file.id: file
        for file in queries.files_by_ids(tx, view.scope, [window.file_id for window in windows])
        if file.folder_id in view.folder_ids
    }
    return [(window, files[window.file_id]) for window in windows if window.file_id in files]


def _newest(tx: Transaction, view: View) -> list[File]:
    if not view.folders:
        return []
    return queries.page_of_files(tx, view.scope, view.folder_ids, Page(limit=MOST_NAMED))


def _by_access(windows: Iterable[tuple[AgentFile, File]]) -> list[tuple[AgentFile, File]]:
    return sorted(windows, key=lambda pair: pair[0].last_accessed_at)


def untouched_windows(
    view: View, stored: Sequence[tuple[AgentFile, File]], newest: Iterable[File]
) -> list[tuple[AgentFile, File]]:
    """Return the windows of files that were neither opened nor closed in this view.

    The newest of them are open: as many as `max_files_open` is above the number of stored windows,
    open or closed.

    Args:
        view: The agent's folders in turns with one user.
        stored: The stored windows of the view, with their files.
        newest: The newest files of its folders, newest first; files with a stored window are
            skipped.
    """
    stored_ids = {file.id for _, file in stored}
    fresh = [file for file in newest if file.id not in stored_ids and file.status in READABLE]
    room = max(0, view.agent.max_files_open - len(stored))
    return [
        (
            replace(
                view.window_of(file.id), is_open=index < room, last_accessed_at=file.created_at
            ),
            file,
        )
        for index, file in enumerate(fresh)
    ]


def open_windows(
    tx: Transaction,
    view: View,
    ranges: Sequence[tuple[File, int | None, int | None]],
    *,
    closes_others: bool = False,
) -> tuple[list[tuple[File, AgentFile | None]], list[File]]:
    """Open these files at these lines; close the least recently used files beyond the limit.

    Args:
        tx: The transaction.
        view: The agent's folders in turns with one user.
        ranges: For each file its first line, counted from 0, and the line after its last one. None
            means the file's beginning or end. The files are readable and in the view.
        closes_others: Close all other files, not only those beyond the limit.

    Returns:
        Each file with its previous window, if that was open, and the files that were closed.

    Raises:
        Invalid: for more files than the agent may have open (`max_files_open`).
    """
    limit = view.agent.max_files_open
    if len(ranges) > limit:
        raise Invalid(f"{len(ranges)} files are too many to open at once. Open at most {limit}.")
    now = tx.clock.now()
    before = {file.id: (window, file) for window, file in windows_of(tx, view)}
    opened = [
        replace(
            view.window_of(file.id),
            is_open=True,
            start_line=start,
            end_line=end,
            last_accessed_at=now + index,
        )
        for index, (file, start, end) in enumerate(ranges)
    ]
    opened_ids = {window.file_id for window in opened}
    others = [
        (window, file)
        for window, file in before.values()
        if window.is_open and file.id not in opened_ids
    ]
    if closes_others:
        count = len(others)
    else:
        count = max(0, len(others) + len(opened) - limit)
    closed = [replace(window, is_open=False) for window, _ in others[:count]]
    queries.save_opened(tx, *closed, *(window for window, _ in others[count:]), *opened)
    previous = {id: window for id, (window, _) in before.items() if window.is_open}
    with_previous = [(file, previous.get(file.id)) for file, _, _ in ranges]
    return with_previous, [file for _, file in others[:count]]


def close_windows(tx: Transaction, view: View, file_id: str | None = None) -> list[File]:
    """Close files of this view, and return the files that were open.

    Args:
        tx: The transaction.
        view: The agent's folders in turns with one user.
        file_id: The file to close; None for all.
    """
    is_open = [(window, file) for window, file in windows_of(tx, view) if window.is_open]
    closed = [(window, file) for window, file in is_open if file_id in (None, file.id)]
    ids = {file.id for _, file in closed}
    queries.save_opened(
        tx, *(replace(window, is_open=file.id not in ids) for window, file in is_open)
    )
    return [file for _, file in closed]


def touch(tx: Transaction, view: View, file_ids: Iterable[str]) -> None:
    """Record that these files were just looked at, if they have windows.

    Args:
        tx: The transaction.
        view: The agent's folders in turns with one user.
        file_ids: The files; those without a window are skipped.
    """
    ids = {*file_ids}
    now = tx.clock.now()
    stored = _stored_windows(tx, view)
    untouched = untouched_windows(view, stored, _newest(tx, view))
    fresh = [(window, file) for window, file in untouched if window.is_open]
    if not any(file.id in ids for _, file in (*stored, *fresh)):
        return
    unchanged = [window for window, file in fresh if file.id not in ids]
    touched = [
        replace(window, last_accessed_at=now)
        for window, file in (*stored, *fresh)
        if file.id in ids
    ]
    queries.save_opened(tx, *unchanged, *touched)


def find_file(tx: Transaction, view: View, name: str) -> File:
    """Return the file with this path, or the only file with this name.

    Args:
        tx: The transaction.
        view: The agent's folders in turns with one user.
        name: A path as `View.path_of` gives it, or a file's name alone.

    Raises:
        NotFound: if there is none.
        Conflict: if several folders have a file of this name, or the file has no text.
    """
    path = normal_name(name).removeprefix("/")
    for folder in view.folders:
        if path.startswith(f"{folder.name}/"):
            file_in_folder = queries.find_by_name(tx, folder.id, path[len(folder.name) + 1 :])
            if file_in_folder is not None:
                return require_readable(view, file_in_folder)
    named = [file for folder in view.folders if (file := queries.find_by_name(tx, folder.id, path))]
    if len(named) > 1:
        raise Conflict(
            f'Several folders have a file named "{path}": '
            f"{', '.join(map(view.path_of, named))}. Name one of these."
        )
    if not named:
        raise NotFound(f'No file named "{name[:200]}" is attached. {_examples(tx, view)}')
    return require_readable(view, named[0])


def _examples(tx: Transaction, view: View) -> str:
    """Return a sentence that names some attached files, for an error."""
    files: list[File] = []
    if view.folders:
        files = queries.page_of_files(tx, view.scope, view.folder_ids, Page(limit=10))
    if not files:
        return "No files are attached."
    return f"Attached are, for example: {', '.join(map(view.path_of, files))}."


def require_readable(view: View, file: File) -> File:
    """Return the file if the view shows it and it has a text.

    Args:
        view: The agent's folders in turns with one user.
        file: A file that is not deleted.

    Raises:
        NotFound: if it is in none of the view's folders.
        Conflict: if it is not read yet, or could not be read.
    """
    if file.folder_id not in view.folder_ids:
        raise NotFound(f"File with ID {file.id} is in no folder of this agent")
    if file.status == "error":
        raise Conflict(
            f"{view.path_of(file)} could not be read when it was uploaded: {file.error_message}"
        )
    if file.status in ("pending", "parsing"):
        raise Conflict(
            f"{view.path_of(file)} was just uploaded and is still being read. Try again in a "
            "moment."
        )
    return file


def beginnings_of(tx: Transaction, windows: Iterable[tuple[AgentFile, int]]) -> dict[str, str]:
    """Return the first characters of files with an open window on the whole file.

    Each window has its limit of characters. Windows with a limit above one piece are left out.

    Args:
        tx: The transaction.
        windows: Windows, each with the most characters that are shown of its file.

    Returns:
        The texts by the files' ids, cut at the largest of the limits.
    """
    limits = {
        window.file_id: limit
        for window, limit in windows
        if window.is_open and _is_whole(window) and limit <= queries.PIECE
    }
    return queries.beginnings_of(tx, sorted(limits), max(limits.values(), default=0))


def _is_whole(window: AgentFile) -> bool:
    return not window.start_line and window.end_line is None


def render_window(
    tx: Transaction, file: File, window: AgentFile, limit: int, beginning: str | None = None
) -> str:
    """Render an open file for a prompt: a heading with the line range, then numbered lines.

    Args:
        tx: The transaction.
        file: The window's file.
        window: The lines to show.
        limit: The most characters of the result. A longer text ends with a note that it was cut; if
            the limit is shorter than this note, the result is the note.
        beginning: The file's first characters, from `beginnings_of`. It saves a query if the window
            shows the file from its first line to its last; otherwise it is not used.
    """
    start = min(window.start_line or 0, file.lines)
    if window.end_line is None:
        end = file.lines
    else:
        end = min(window.end_line, file.lines)
    if beginning is not None and _is_whole(window) and limit <= queries.PIECE:
        text = beginning[:limit]
        is_cut = file.characters > min(limit, len(beginning))
    else:
        text, is_cut = queries.read_lines(tx, file.id, start, end, limit)
    if text:
        lines = text.removesuffix("\n").split("\n")
    else:
        lines = []
    is_whole = start == 0 and end >= file.lines
    if is_whole:
        heading = "file start"
    else:
        heading = f"lines {start + 1} to {end}"
    numbered = "\n".join(f"{number}: {line}" for number, line in enumerate(lines, start + 1))
    rendered = f"[Viewing {heading} (out of {file.lines} lines)]\n{numbered}"
    if is_cut or len(rendered) > limit:
        return f"{rendered[: max(0, limit - len(_CUT))]}{_CUT}"
    return rendered


def with_directories(tx: Transaction, state: AgentState) -> AgentState:
    """Return the state with the folders that its turn sees.

    Args:
        tx: The transaction, or a read.
        state: The agent with its conversation, whose user selects the folders.
    """
    view = view_of(tx, state.agent, state.conversation.user_id)
    if not view.folders:
        return state
    newest = _newest(tx, view)
    stored = _stored_windows(tx, view)
    windows = _by_access([*stored, *untouched_windows(view, stored, newest)])
    beginnings = beginnings_of(tx, ((window, state.agent.file_char_limit) for window, _ in windows))
    named = _PromptFiles(windows, newest, queries.count_files(tx, view.folder_ids), beginnings)
    return replace(state, directories=_directories(tx, view, named))


def with_folders(tx: Transaction, states: Sequence[AgentState]) -> Sequence[AgentState]:
    """Return the agents with the files that their turns see.

    Args:
        tx: The transaction, or a read.
        states: Agents of one organization with their conversations, in the order of the result.
    """
    if len(states) == 1:
        return [with_directories(tx, states[0])]
    return with_all_directories(tx, states)


def _view_of(state: AgentState, folders: Iterable[Folder]) -> View:
    """Return the view of the conversation's user on these folders of the agent."""
    agent = state.agent
    user_id = state.conversation.user_id
    scope = Scope(agent.organization_id, subject_id=user_id or NOBODY)
    visible_folders = tuple(
        folder
        for folder in folders
        if folder.organization_id == agent.organization_id and scope.sees(folder.user_id)
    )
    return View(agent, scope, user_id, visible_folders)


def with_all_directories(tx: Transaction, states: Sequence[AgentState]) -> list[AgentState]:
    """Add the folders to the states of a list of agents.

    This takes at most five statements for all agents, and one more for each open file that is shown
    in part or may show more characters than one piece has.

    Args:
        tx: The transaction, or a read.
        states: Agents of one organization with their conversations, in the order of the result.
    """
    agent_ids = [state.agent.id for state in states if state.agent.settings.get("has_folders")]
    attached = queries.folders_of_agents(tx, agent_ids)
    opened = queries.opened_by_agents(tx, agent_ids)
    folder_ids = [folder.id for folders in attached.values() for folder in folders]
    newest, counts = queries.newest_files(tx, folder_ids, MOST_NAMED)
    file_ids = [window.file_id for windows in opened.values() for window in windows]
    files: dict[str, File] = {}
    if file_ids:
        organization = Scope(states[0].agent.organization_id)
        files = {file.id: file for file in queries.files_by_ids(tx, organization, file_ids)}
    views: list[tuple[View, list[tuple[AgentFile, File]], list[File]]] = []
    for state in states:
        view = _view_of(state, attached.get(state.agent.id, ()))
        named = [file for file in newest if view.shows(file)][:MOST_NAMED]
        views.append((view, _windows_of(view, opened, files, named), named))
    limited = (
        (window, view.agent.file_char_limit) for view, windows, _ in views for window, _ in windows
    )
    beginnings = beginnings_of(tx, limited)
    return [
        replace(
            state,
            directories=_directories(tx, view, _PromptFiles(windows, named, counts, beginnings)),
        )
        for state, (view, windows, named) in zip(states, views, strict=True)
    ]


def _windows_of(
    view: View,
    opened: Mapping[str, Sequence[AgentFile]],
    files: Mapping[str, File],
    named: Sequence[File],
) -> list[tuple[AgentFile, File]]:
    """Return the agent's windows with their files, least recently used first.

    `opened` are the stored windows by agent. `named` are files that the prompt names; a file
    without a stored window gets a new one.
    """
    stored = [
        (window, files[window.file_id])
        for window in opened.get(view.agent.id, ())
        if window.user_id == view.user_id
        if window.file_id in files and view.shows(files[window.file_id])
    ]
    return _by_access([*stored, *untouched_windows(view, stored, named)])


@dataclass(frozen=True, slots=True)
class _PromptFiles:
    """The files that a prompt names.

    These are the windows and the newest files, with the number of files by folder, and the first
    characters by file.
    """

    windows: Sequence[tuple[AgentFile, File]]
    newest: Sequence[File]
    counts: Mapping[str, int]
    beginnings: Mapping[str, str]


def _directories(tx: Transaction, view: View, named: _PromptFiles) -> tuple[PromptDirectory, ...]:
    limit = view.agent.file_char_limit
    remaining = view.agent.context_window * _CHARACTERS // _SHARE
    contents: dict[str, str] = {}
    still_open = []
    for window, file in reversed(named.windows):
        if window.is_open:
            text = render_window(
                tx, file, window, min(limit, remaining), named.beginnings.get(file.id)
            )
            contents[file.id] = text
            remaining = max(0, remaining - len(text))
            still_open.append(file)
    files = sorted(
        {file.id: file for file in (*named.newest, *still_open)}.values(),
        key=lambda file: file.name,
    )
    directories = []
    for folder in view.folders:
        folder_files = [file for file in files if file.folder_id == folder.id]
        entries = tuple(
            OpenFile(
                view.path_of(file),
                file.id in contents,
                limit,
                content=contents.get(file.id, ""),
                id=file.id,
            )
            for file in folder_files
        )
        more = named.counts.get(folder.id, 0) - len(folder_files)
        directories.append(
            PromptDirectory(
                name=folder.name,
                files=entries,
                description=folder.description,
                instructions=folder.instructions,
                more=more,
                id=folder.id,
                egress=folder.egress,
            )
        )
    return tuple(directories)


OPEN_FILES = PromptAddition(with_folders, setting="has_folders")
