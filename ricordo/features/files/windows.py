"""What an agent sees of the files in its folders: which are open, and at which lines.

Which files are open is kept apart for each user whom the agent talks with, so that none learns from another what was looked at.

Files are open from the start, as in the retired Letta V1 server 0.16.8: a file that was neither opened nor closed in a view is open
while fewer than `max_files_open` files have a stored window there, the newest files first. Nothing is stored for that until
the first change in the view, which stores all windows that are open.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID, uuid5

from ricordo.domain.agent import Agent, AgentState, OpenFile, PromptDirectory
from ricordo.domain.scope import NOBODY, Scope
from ricordo.domain.text import normal_name
from ricordo.errors import Conflict, Invalid, NotFound
from ricordo.features.files import queries
from ricordo.features.files.records import READABLE, AgentFile, File, Folder
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction

MOST_NAMED = 100  # files that a prompt names
_CUT = "...[TRUNCATED]\n# NOTE: This block is truncated, use functions to view the full content."
_SHARE, _CHARACTERS = (
    2,
    4,
)  # open files have half of the context window; so many characters are about a token


@dataclass(frozen=True, slots=True)
class View:
    """The folders of an agent in turns with one user, or with nobody, and the files that are open in them."""

    agent: Agent
    scope: Scope
    user_id: str | None
    folders: tuple[Folder, ...]

    @property
    def folder_ids(self) -> list[str]:
        return [one.id for one in self.folders]

    def path_of(self, file: File) -> str:
        """Return the name by which agents know the file: its folder's name, then its own."""
        folder = next(one for one in self.folders if one.id == file.folder_id)
        return f"{folder.name}/{file.name}"

    def window_of(self, file_id: str) -> AgentFile:
        """Return a new window, which is closed."""
        id = f"file_agent-{uuid5(UUID(file_id.removeprefix('file-')), f'{self.agent.id} {self.user_id}')}"
        return AgentFile(id, self.agent.id, file_id, self.user_id)


def view_of(tx: Transaction, agent: Agent, user_id: str | None) -> View:
    scope = Scope(agent.organization_id, subject_id=user_id or NOBODY)
    return View(agent, scope, user_id, tuple(queries.folders_of_agent(tx, scope, agent.id)))


def windows_of(tx: Transaction, view: View) -> list[tuple[AgentFile, File]]:
    """Return the stored windows of files, and those of the newest others; the one that was not looked at for longest first."""
    stored = _stored_windows(tx, view)
    return _by_access([*stored, *untouched_windows(view, stored, _newest(tx, view))])


def all_windows(tx: Transaction, view: View) -> list[tuple[AgentFile, File]]:
    """Return a window of each file that can be read, the one that was not looked at for longest first."""
    windows = windows_of(tx, view)
    known = {file.id for _, file in windows}
    others = (
        [file for file in queries.readable_files(tx, view.folder_ids) if file.id not in known]
        if view.folders
        else []
    )
    closed = [
        (replace(view.window_of(file.id), last_accessed_at=file.created_at), file)
        for file in others
    ]
    return _by_access([*closed, *windows])


def _stored_windows(tx: Transaction, view: View) -> list[tuple[AgentFile, File]]:
    windows = queries.opened_by_agent(tx, view.agent.id, view.user_id)
    stored = (
        queries.files_by_ids(tx, view.scope, [one.file_id for one in windows]) if windows else []
    )
    known = {one.id: one for one in stored if one.folder_id in view.folder_ids}
    return [(one, known[one.file_id]) for one in windows if one.file_id in known]


def _newest(tx: Transaction, view: View) -> list[File]:
    return (
        queries.page_of_files(tx, view.scope, view.folder_ids, Page(limit=MOST_NAMED))
        if view.folders
        else []
    )


def _by_access(windows: Iterable[tuple[AgentFile, File]]) -> list[tuple[AgentFile, File]]:
    return sorted(windows, key=lambda one: one[0].last_accessed_at)


def untouched_windows(
    view: View, stored: Sequence[tuple[AgentFile, File]], newest: Iterable[File]
) -> list[tuple[AgentFile, File]]:
    """Return windows of files that nobody opened or closed yet in this view; the first are open while there is room."""
    known = {file.id for _, file in stored}
    fresh = [file for file in newest if file.id not in known and file.status in READABLE]
    room = max(0, view.agent.max_files_open - len(stored))
    return [
        (
            replace(
                view.window_of(file.id), is_open=place < room, last_accessed_at=file.created_at
            ),
            file,
        )
        for place, file in enumerate(fresh)
    ]


def open_windows(
    tx: Transaction,
    view: View,
    wanted: Sequence[tuple[File, int | None, int | None]],
    *,
    closes_others: bool = False,
) -> tuple[list[tuple[File, AgentFile | None]], list[File]]:
    """Open these files at these lines, and close those that were not looked at for longest where too many are open.

    Returns each with its window as it was, if it was open, and the files that were closed.
    """
    most = view.agent.max_files_open
    if len(wanted) > most:
        raise Invalid(
            f"{len(wanted)} files are too many to open at once: {most} are the most. Ask for fewer."
        )
    now = tx.clock.now()
    before = {file.id: (window, file) for window, file in windows_of(tx, view)}
    opened = [
        replace(
            view.window_of(file.id),
            is_open=True,
            start_line=start,
            end_line=end,
            last_accessed_at=now + place,
        )
        for place, (file, start, end) in enumerate(wanted)
    ]
    asked = {one.file_id for one in opened}
    others = [
        (window, file)
        for window, file in before.values()
        if window.is_open and file.id not in asked
    ]
    count = len(others) if closes_others else max(0, len(others) + len(opened) - most)
    closed = [replace(window, is_open=False) for window, _ in others[:count]]
    queries.save_opened(tx, *closed, *(window for window, _ in others[count:]), *opened)
    was = {id: window for id, (window, _) in before.items() if window.is_open}
    return [(file, was.get(file.id)) for file, _, _ in wanted], [file for _, file in others[:count]]


def close_windows(tx: Transaction, view: View, file_id: str | None = None) -> list[File]:
    """Close this file, or all; returns those that were open."""
    is_open = [(window, file) for window, file in windows_of(tx, view) if window.is_open]
    closed = [(window, file) for window, file in is_open if file_id in (None, file.id)]
    ids = {file.id for _, file in closed}
    queries.save_opened(
        tx, *(replace(window, is_open=file.id not in ids) for window, file in is_open)
    )
    return [file for _, file in closed]


def touch(tx: Transaction, view: View, file_ids: Iterable[str]) -> None:
    """Note that these files were just looked at, where they have windows."""
    ids, now = {*file_ids}, tx.clock.now()
    stored = _stored_windows(tx, view)
    fresh = [one for one in untouched_windows(view, stored, _newest(tx, view)) if one[0].is_open]
    if not any(file.id in ids for _, file in (*stored, *fresh)):
        return
    kept = [window for window, file in fresh if file.id not in ids]
    touched = [
        replace(window, last_accessed_at=now)
        for window, file in (*stored, *fresh)
        if file.id in ids
    ]
    queries.save_opened(tx, *kept, *touched)


def find_file(tx: Transaction, view: View, name: str) -> File:
    """Return the file with this path, or with this name where one alone has it. Raises NotFound, Conflict."""
    own = normal_name(name).removeprefix("/")
    for folder in view.folders:
        if own.startswith(f"{folder.name}/"):
            found = queries.find_by_name(tx, folder.id, own[len(folder.name) + 1 :])
            if found is not None:
                return require_readable(view, found)
    named = [file for one in view.folders if (file := queries.find_by_name(tx, one.id, own))]
    if len(named) > 1:
        raise Conflict(
            f'Several folders have a file named "{own}": {", ".join(map(view.path_of, named))}. Name one of these.'
        )
    if not named:
        some = (
            queries.page_of_files(tx, view.scope, view.folder_ids, Page(limit=10))
            if view.folders
            else []
        )
        there = (
            f"Some that are: {', '.join(map(view.path_of, some))}."
            if some
            else "No files are attached."
        )
        raise NotFound(f'No file named "{name[:200]}" is attached. {there}')
    return require_readable(view, named[0])


def require_readable(view: View, file: File) -> File:
    """Return the file. Raises NotFound where it is in none of these folders, Conflict where it has no text yet."""
    if file.folder_id not in view.folder_ids:
        raise NotFound(f"File with ID {file.id} is in no folder of this agent")
    if file.status == "error":
        raise Conflict(
            f"{view.path_of(file)} could not be read when it was uploaded: {file.error_message}"
        )
    if file.status in ("pending", "parsing"):
        raise Conflict(
            f"{view.path_of(file)} was just uploaded and is not read yet. Try again in a moment."
        )
    return file


def beginnings_of(tx: Transaction, windows: Iterable[tuple[AgentFile, int]]) -> dict[str, str]:
    """Return the first characters, as many as the limits say, of the files whose open windows begin with the first line."""
    whole = {
        window.file_id: limit for window, limit in windows if window.is_open and _is_whole(window)
    }
    short = {id: limit for id, limit in whole.items() if limit <= queries.PIECE}
    return queries.beginnings_of(tx, sorted(short), max(short.values(), default=0))


def _is_whole(window: AgentFile) -> bool:
    return not window.start_line and window.end_line is None


def shown(
    tx: Transaction, file: File, window: AgentFile, limit: int, beginning: str | None = None
) -> str:
    """Return what a prompt shows of an open file: a line that says which lines these are, then each with its number, from 1.

    `beginning` has the first characters of a file of which all lines are seen, where they were read already.
    """
    start = min(window.start_line or 0, file.lines)
    end = file.lines if window.end_line is None else min(window.end_line, file.lines)
    if beginning is not None and _is_whole(window) and limit <= queries.PIECE:
        text, is_cut = beginning[:limit], file.characters > min(limit, len(beginning))
    else:
        text, is_cut = queries.read_lines(tx, file.id, start, end, limit)
    lines = text.removesuffix("\n").split("\n") if text else []
    is_whole = start == 0 and end >= file.lines
    heading = "file start" if is_whole else f"lines {start + 1} to {end}"
    numbered = "\n".join(f"{number}: {line}" for number, line in enumerate(lines, start + 1))
    made = f"[Viewing {heading} (out of {file.lines} lines)]\n{numbered}"
    return f"{made[: max(0, limit - len(_CUT))]}{_CUT}" if is_cut or len(made) > limit else made


def with_directories(tx: Transaction, state: AgentState) -> AgentState:
    """Return the state with the folders that its turn sees."""
    view = view_of(tx, state.agent, state.conversation.user_id)
    if not view.folders:
        return state
    newest, stored = _newest(tx, view), _stored_windows(tx, view)
    windows = _by_access([*stored, *untouched_windows(view, stored, newest)])
    beginnings = beginnings_of(tx, ((window, state.agent.file_char_limit) for window, _ in windows))
    named = _Named(windows, newest, queries.count_files(tx, view.folder_ids), beginnings)
    return replace(state, directories=_directories(tx, view, named))


def with_all_directories(tx: Transaction, states: Sequence[AgentState]) -> list[AgentState]:
    """Return the states of a list with their folders: five statements for all, and one for each file seen in part."""
    having = [state.agent.id for state in states if state.agent.settings.get("has_folders")]
    attached, opened = queries.folders_of_agents(tx, having), queries.opened_by_agents(tx, having)
    newest, counts = queries.newest_files(
        tx, [one.id for some in attached.values() for one in some], MOST_NAMED
    )
    ids = [one.file_id for some in opened.values() for one in some]
    known = (
        {
            one.id: one
            for one in queries.files_by_ids(tx, Scope(states[0].agent.organization_id), ids)
        }
        if ids
        else {}
    )
    views: list[tuple[View, list[tuple[AgentFile, File]], list[File]]] = []
    for state in states:
        agent, user_id = state.agent, state.conversation.user_id
        scope = Scope(agent.organization_id, subject_id=user_id or NOBODY)
        folders = [
            one
            for one in attached.get(agent.id, ())
            if one.organization_id == agent.organization_id
        ]
        view = View(agent, scope, user_id, tuple(one for one in folders if scope.sees(one.user_id)))
        seen = {
            id: file
            for id, file in known.items()
            if file.folder_id in view.folder_ids and scope.sees(file.user_id)
        }
        stored = [
            (one, seen[one.file_id])
            for one in opened.get(agent.id, ())
            if one.user_id == user_id and one.file_id in seen
        ]
        named = [
            one for one in newest if one.folder_id in view.folder_ids and scope.sees(one.user_id)
        ][:MOST_NAMED]
        views.append((view, _by_access([*stored, *untouched_windows(view, stored, named)]), named))
    limited = (
        (window, view.agent.file_char_limit) for view, windows, _ in views for window, _ in windows
    )
    beginnings = beginnings_of(tx, limited)
    return [
        replace(
            state, directories=_directories(tx, view, _Named(windows, named, counts, beginnings))
        )
        for state, (view, windows, named) in zip(states, views, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Named:
    """What a prompt names: windows of files, the newest files, how many each folder has, and first characters by file."""

    windows: Sequence[tuple[AgentFile, File]]
    newest: Sequence[File]
    counts: Mapping[str, int]
    beginnings: Mapping[str, str]


def _directories(tx: Transaction, view: View, named: _Named) -> tuple[PromptDirectory, ...]:
    limit = view.agent.file_char_limit
    left = view.agent.context_window * _CHARACTERS // _SHARE
    contents: dict[str, str] = {}
    still_open = []
    for window, file in reversed(named.windows):
        if window.is_open:
            text = shown(tx, file, window, min(limit, left), named.beginnings.get(file.id))
            contents[file.id] = text
            left = max(0, left - len(text))
            still_open.append(file)
    files = sorted(
        {file.id: file for file in (*named.newest, *still_open)}.values(),
        key=lambda file: file.name,
    )
    made = []
    for folder in view.folders:
        own = [file for file in files if file.folder_id == folder.id]
        entries = tuple(
            OpenFile(
                view.path_of(file),
                file.id in contents,
                limit,
                content=contents.get(file.id, ""),
                id=file.id,
            )
            for file in own
        )
        more = named.counts.get(folder.id, 0) - len(own)
        made.append(
            PromptDirectory(
                folder.name, entries, folder.description, folder.instructions, more, folder.id
            )
        )
    return tuple(made)
