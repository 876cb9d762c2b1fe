"""What an agent sees of the files in its folders: which are open, and at which lines.

Which files are open is kept apart for each user whom the agent talks with, so that none learns from another what was looked at.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID, uuid5

from ricordo.domain.agent import Agent, AgentState, OpenFile, PromptDirectory
from ricordo.domain.scope import NOBODY, Scope
from ricordo.domain.text import normal_name
from ricordo.errors import Conflict, Invalid, NotFound
from ricordo.features.files import queries
from ricordo.features.files.records import AgentFile, File, Folder
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction

MOST_NAMED = 100  # files that a prompt names
_CUT = "...[TRUNCATED]\n# NOTE: This block is truncated, use functions to view the full content."
_SHARE, _CHARACTERS = 2, 4  # open files have half of the context window; so many characters are about a token


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
    """Return the files that are or were open with their windows, the one that was not looked at for longest first."""
    windows = queries.opened_by_agent(tx, view.agent.id, view.user_id)
    stored = queries.files_by_ids(tx, view.scope, [one.file_id for one in windows]) if windows else []
    known = {one.id: one for one in stored if one.folder_id in view.folder_ids}
    return [(one, known[one.file_id]) for one in windows if one.file_id in known]


def open_windows(
    tx: Transaction, view: View, wanted: Sequence[tuple[File, int | None, int | None]], *, closes_others: bool = False
) -> tuple[list[tuple[File, AgentFile | None]], list[File]]:
    """Open these files at these lines, and close those that were not looked at for longest where too many are open.

    Returns each with its window as it was, if it was open, and the files that were closed.
    """
    most = view.agent.max_files_open
    if len(wanted) > most:
        raise Invalid(f"{len(wanted)} files are too many to open at once: {most} are the most. Ask for fewer.")
    now = tx.clock.now()
    before = {file.id: (window, file) for window, file in windows_of(tx, view)}
    opened = [
        replace(view.window_of(file.id), is_open=True, start_line=start, end_line=end, last_accessed_at=now + place)
        for place, (file, start, end) in enumerate(wanted)
    ]
    asked = {one.file_id for one in opened}
    others = [(window, file) for window, file in before.values() if window.is_open and file.id not in asked]
    count = len(others) if closes_others else max(0, len(others) + len(opened) - most)
    queries.save_opened(tx, *(replace(window, is_open=False) for window, _ in others[:count]), *opened)
    was = {id: window for id, (window, _) in before.items() if window.is_open}
    return [(file, was.get(file.id)) for file, _, _ in wanted], [file for _, file in others[:count]]


def close_windows(tx: Transaction, view: View, file_id: str | None = None) -> list[File]:
    """Close this file, or all; returns those that were open."""
    found = [(window, file) for window, file in windows_of(tx, view) if window.is_open and file_id in (None, file.id)]
    queries.save_opened(tx, *(replace(window, is_open=False) for window, _ in found))
    return [file for _, file in found]


def touch(tx: Transaction, view: View, file_ids: Iterable[str]) -> None:
    """Note that these files were just looked at, where they have windows."""
    ids, now = {*file_ids}, tx.clock.now()
    queries.save_opened(
        tx, *(replace(window, last_accessed_at=now) for window, file in windows_of(tx, view) if file.id in ids)
    )


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
        some = queries.page_of_files(tx, view.scope, view.folder_ids, Page(limit=10)) if view.folders else []
        there = f"Some that are: {', '.join(map(view.path_of, some))}." if some else "No files are attached."
        raise NotFound(f'No file named "{name[:200]}" is attached. {there}')
    return require_readable(view, named[0])


def require_readable(view: View, file: File) -> File:
    """Return the file. Raises NotFound where it is in none of these folders, Conflict where it has no text yet."""
    if file.folder_id not in view.folder_ids:
        raise NotFound(f"File with ID {file.id} is in no folder of this agent")
    if file.status == "error":
        raise Conflict(f"{view.path_of(file)} could not be read when it was uploaded: {file.error_message}")
    if file.status in ("pending", "parsing"):
        raise Conflict(f"{view.path_of(file)} was just uploaded and is not read yet. Try again in a moment.")
    return file


def shown(tx: Transaction, file: File, window: AgentFile, limit: int) -> str:
    """Return what a prompt shows of an open file: a line that says which lines these are, then each with its number, from 1."""
    start = min(window.start_line or 0, file.lines)
    end = file.lines if window.end_line is None else min(window.end_line, file.lines)
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
    windows = windows_of(tx, view)
    newest = queries.page_of_files(tx, view.scope, view.folder_ids, Page(limit=MOST_NAMED))
    return replace(state, directories=_directories(tx, view, windows, newest, queries.count_files(tx, view.folder_ids)))


def with_all_directories(tx: Transaction, states: Sequence[AgentState]) -> list[AgentState]:
    """Return the states of a list with their folders: four statements for all, and one more for each open file."""
    having = [state.agent.id for state in states if state.agent.settings.get("has_folders")]
    attached, opened = queries.folders_of_agents(tx, having), queries.opened_by_agents(tx, having)
    newest, counts = queries.newest_files(tx, [one.id for some in attached.values() for one in some], MOST_NAMED)
    ids = [one.file_id for some in opened.values() for one in some]
    known = (
        {one.id: one for one in queries.files_by_ids(tx, Scope(states[0].agent.organization_id), ids)} if ids else {}
    )
    made = []
    for state in states:
        agent, user_id = state.agent, state.conversation.user_id
        scope = Scope(agent.organization_id, subject_id=user_id or NOBODY)
        folders = [one for one in attached.get(agent.id, ()) if one.organization_id == agent.organization_id]
        view = View(agent, scope, user_id, tuple(one for one in folders if scope.sees(one.user_id)))
        seen = {
            id: file for id, file in known.items() if file.folder_id in view.folder_ids and scope.sees(file.user_id)
        }
        own = [one for one in opened.get(agent.id, ()) if one.user_id == user_id and one.file_id in seen]
        windows = [(one, seen[one.file_id]) for one in own]
        named = [one for one in newest if one.folder_id in view.folder_ids and scope.sees(one.user_id)][:MOST_NAMED]
        made.append(replace(state, directories=_directories(tx, view, windows, named, counts)))
    return made


def _directories(
    tx: Transaction,
    view: View,
    opened: Sequence[tuple[AgentFile, File]],
    newest: Sequence[File],
    counts: Mapping[str, int],
) -> tuple[PromptDirectory, ...]:
    windows = {file.id: (window, file) for window, file in opened}
    limit = view.agent.file_char_limit
    left = view.agent.context_window * _CHARACTERS // _SHARE
    contents: dict[str, str] = {}
    for id, (window, file) in reversed(windows.items()):
        if window.is_open:
            contents[id] = shown(tx, file, window, min(limit, left))
            left = max(0, left - len(contents[id]))
    still_open = [windows[id][1] for id in contents]
    named = sorted({file.id: file for file in (*newest, *still_open)}.values(), key=lambda file: file.name)
    made = []
    for folder in view.folders:
        own = [file for file in named if file.folder_id == folder.id]
        entries = tuple(
            OpenFile(view.path_of(file), file.id in contents, limit, content=contents.get(file.id, ""), id=file.id)
            for file in own
        )
        more = counts.get(folder.id, 0) - len(own)
        made.append(PromptDirectory(folder.name, entries, folder.description, folder.instructions, more, folder.id))
    return tuple(made)
