"""Files of a workspace: paths, quotas, edits, and which workspace an agent works in."""

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ricordo.domain.agent import Agent, AgentState
from ricordo.domain.text import normal_name
from ricordo.errors import Invalid, NotFound, PreconditionFailed, TooLong
from ricordo.features.workspaces import queries
from ricordo.features.workspaces.options import WorkspaceSettings
from ricordo.features.workspaces.queries import Space, WorkspaceFile
from ricordo.storage.engine.store import Transaction

INSTRUCTIONS = "CLAUDE.md"
LARGEST = 5_000_000  # bytes of a file
_LONGEST_PATH = 500
_LONGEST_PART = 120
_DEEPEST = 12
_SHOWN = 20_000  # characters of CLAUDE.md
Mode = Literal["none", "isolated", "shared"]


@dataclass(frozen=True, slots=True)
class Edited:
    """The paths that a command wrote, those that it deleted, and those put beside what others wrote meanwhile."""

    written: Sequence[str]
    deleted: Sequence[str]
    conflicts: Sequence[str]


def mode_of(agent: Agent) -> Mode:
    """Return which workspace the agent works in: as its course says, else each user's own."""
    course = agent.settings.get("course") or {}
    mode = course.get("workspace", "isolated")
    return mode if mode in ("isolated", "shared") else "none"


def space_of(agent: Agent, user_id: str | None) -> Space:
    """Return the workspace in a conversation with this user. Raises Invalid where there is none."""
    mode = mode_of(agent)
    if mode == "shared":
        return Space(agent.organization_id)
    if mode == "none":
        raise Invalid(
            'This agent has no workspace. Its course says which: workspace = "isolated" or "shared".'
        )
    if user_id is None:
        raise Invalid("This conversation is about no user, and files belong to users.")
    return Space(agent.organization_id, user_id)


def with_instructions(tx: Transaction, state: AgentState) -> AgentState:
    """Return the state with what CLAUDE.md of the workspace says; one statement."""
    try:
        space = space_of(state.agent, state.conversation.user_id)
    except Invalid:
        return state
    data = queries.content(tx, space, INSTRUCTIONS)
    text = (data or b"").decode("utf-8", "replace").replace("\0", "").strip()
    if not text:
        return state
    cut = (
        text
        if len(text) <= _SHOWN
        else f"{text[:_SHOWN]}\n[cut: the file has {len(text)} characters]"
    )
    return replace(state, instructions=cut, is_others_instructions=space.is_shared)


def path_of(text: str) -> str:
    """Return the path as files are named by it. Raises Invalid for one that leads out, or that no system could store."""
    path = normal_name(text.strip())
    path = (
        path.removeprefix("./").removeprefix("/workspace/")
        if path.startswith(("./", "/workspace/"))
        else path
    )
    parts = path.split("/")
    shown = path[:80]
    if (
        not path
        or path.startswith("/")
        or any(part in ("", ".", "..") for part in parts)
        or "\\" in path
    ):
        raise Invalid(f'"{shown}" is no path of a file here. Write it as in "essays/draft.md".')
    if any(unicodedata.category(letter).startswith("C") for letter in path):
        raise Invalid(f"{shown!r} has a letter that cannot be shown. Choose another name.")
    is_long = len(path.encode()) > _LONGEST_PATH or any(
        len(part.encode()) > _LONGEST_PART for part in parts
    )
    if is_long or len(parts) > _DEEPEST:
        raise Invalid(
            f'"{shown}" is too long: {_LONGEST_PATH} bytes, {_LONGEST_PART} in each name, and {_DEEPEST} folders are the most.'
        )
    return path


def require(tx: Transaction, space: Space, path: str) -> WorkspaceFile:
    """Return the file. Raises NotFound."""
    found = queries.find(tx, space, path)
    if found is None:
        raise NotFound(f'There is no file "{path[:80]}" in this workspace.')
    return found


def read(tx: Transaction, space: Space, path: str) -> bytes:
    """Return what the file holds. Raises NotFound."""
    require(tx, space, path)
    return queries.content(tx, space, path) or b""


def read_text(tx: Transaction, space: Space, path: str) -> str:
    """Return the text of the file. Raises NotFound, and Invalid where it is none."""
    try:
        text = read(tx, space, path).decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise Invalid(f'"{path[:80]}" is no text in UTF-8. Use a command to work with it.')
    return text


def write(
    tx: Transaction, space: Space, path: str, data: bytes, *, expected: str | None = None
) -> WorkspaceFile:
    """Store the file whole. Raises TooLong, Invalid, and PreconditionFailed where it is not the `expected` one ("" : none) now."""
    stored = queries.find(tx, space, path)
    if expected is not None and (stored.digest if stored else "") != expected:
        raise PreconditionFailed(
            f'"{path[:80]}" was changed meanwhile. Read it again, and change that.'
        )
    _require_room(tx, space, path, len(data), stored)
    _require_no_folder(tx, space, path)
    return queries.put(tx, space, path, data)


def edit(
    tx: Transaction, space: Space, path: str, old: str, new: str, *, everywhere: bool = False
) -> int:
    """Put new words in the place of old ones, which stand there once or are meant everywhere; returns how often. Raises Invalid."""
    text = read_text(tx, space, path)
    count = text.count(old) if old else 0
    if count == 0:
        raise Invalid(f'old_string is not in "{path[:80]}". Read the file, and copy it exactly.')
    if count > 1 and not everywhere:
        raise Invalid(
            f'old_string is {count} times in "{path[:80]}". Give more of the lines around it, or set replace_all.'
        )
    write(tx, space, path, text.replace(old, new).encode("utf-8", "replace"))
    return count


def remove(tx: Transaction, space: Space, path: str) -> None:
    """Delete the file. Raises NotFound."""
    if not queries.remove(tx, space, path):
        raise NotFound(f'There is no file "{path[:80]}" in this workspace.')


def take_back(
    tx: Transaction,
    space: Space,
    base: Mapping[str, str],
    changed: Mapping[str, bytes],
    deleted: Sequence[str],
) -> Edited:
    """Store what a command left, all or nothing. `base` are the digests it began with, by path.

    What somebody else changed meanwhile stays, and the command's goes beside it. Raises TooLong, Invalid.
    """
    written: list[str] = []
    conflicts: list[str] = []
    gone: list[str] = []
    for path in deleted:
        stored = queries.find(tx, space, path)
        if stored and stored.digest == base.get(path):
            queries.remove(tx, space, path)
            gone.append(path)
    for path, data in changed.items():
        stored = queries.find(tx, space, path)
        is_others = stored is not None and stored.digest not in (
            base.get(path),
            queries.digest_of(data),
        )
        target = free_path(tx, space, path) if is_others else path
        write(tx, space, target, data)
        (conflicts if is_others else written).append(target)
    return Edited(written, gone, conflicts)


def free_path(tx: Transaction, space: Space, path: str) -> str:
    """Return a path beside this one at which nothing is: "draft.md" becomes "draft (conflict 1).md"."""
    folder, slash, name = path.rpartition("/")
    stem, dot, ending = name.rpartition(".") if "." in name.strip(".") else (name, "", "")
    for number in range(1, 1000):
        found = path_of(f"{folder}{slash}{stem[:60]} (conflict {number}){dot}{ending}")
        if queries.find(tx, space, found) is None:
            return found
    raise Invalid(f'There are too many conflicts of "{path[:80]}". Delete some.')


def _require_room(
    tx: Transaction, space: Space, path: str, size: int, stored: WorkspaceFile | None
) -> None:
    settings = WorkspaceSettings()
    if size > LARGEST:
        raise TooLong(f'"{path[:80]}" has {size:,} bytes, and {LARGEST:,} are the most.')
    files, taken = queries.used(tx, space)
    if stored is None and files >= settings.workspace_files:
        raise TooLong(f"The workspace has {files} files, and that is the most. Delete some first.")
    if taken - (stored.size if stored else 0) + size > settings.workspace_mb * 1_000_000:
        raise TooLong(
            f"The workspace is full: it holds {settings.workspace_mb} MB at most. Delete some files first."
        )


def _require_no_folder(tx: Transaction, space: Space, path: str) -> None:
    """Raise Invalid where the path is a folder of files, or a file stands where it needs a folder."""
    parts = path.split("/")
    above = ["/".join(parts[:end]) for end in range(1, len(parts))]
    if clash := next((one for one in above if queries.find(tx, space, one)), None):
        raise Invalid(f'"{clash[:80]}" is a file, so there can be no "{path[:80]}".')
    if queries.has_within(tx, space, path):
        raise Invalid(f'"{path[:80]}" is a folder. Name a file in it.')
