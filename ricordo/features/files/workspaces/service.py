"""Files of a workspace: paths, quotas, edits, and the workspace of an agent."""

import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ricordo.domain.agent import Agent, AgentState
from ricordo.domain.text import normal_name, spans_of
from ricordo.errors import Invalid, NotFound, PreconditionFailed, TooLong
from ricordo.features.files.workspaces import TOOLS, queries
from ricordo.features.files.workspaces.options import WorkspaceSettings
from ricordo.features.files.workspaces.queries import INSTRUCTIONS, Space, WorkspaceFile
from ricordo.plugins import PromptAddition
from ricordo.storage import organizations, users
from ricordo.storage.engine.store import Transaction

ANY_FILE = "*"  # instead of digests: any file, but not none
LARGEST = 5_000_000  # bytes of a file
_LONGEST_PATH = 500  # bytes
_LONGEST_PART = 120  # bytes of one name in a path
_DEEPEST = 12  # names in a path
_LONGEST_STEM = 60  # bytes of a name that gets a number
_LONGEST_SUFFIX = 30  # bytes; a longer suffix counts as part of the name
_LONGEST_INSTRUCTIONS = 20_000  # characters of CLAUDE.md in a prompt
Mode = Literal["none", "isolated", "shared"]


@dataclass(frozen=True, slots=True)
class SavedChanges:
    """The paths that a command changed.

    If others changed a file while the command ran, the command's version of it was stored under a
    new path, which is in `conflicts`. `left_out` are files that only teachers may change.
    """

    written: Sequence[str]
    deleted: Sequence[str]
    conflicts: Sequence[str]
    left_out: Sequence[str] = ()


def mode_of(agent: Agent) -> Mode:
    """Return the mode of the agent's workspace: its course's, else "isolated".

    "isolated" is one workspace for each user, "shared" one for all.

    Args:
        agent: The agent with its settings. A mode that is unknown here counts as "none".
    """
    course = agent.settings.get("course") or {}
    mode = course.get("workspace", "isolated")
    return mode if mode in ("isolated", "shared") else "none"


def space_of(agent: Agent, user_id: str | None) -> Space:
    """Return the agent's workspace in a conversation with this user.

    Args:
        agent: The agent, whose course sets the mode.
        user_id: The user of the conversation, or None. A shared workspace needs none.

    Raises:
        Invalid: if the agent has no workspace, or the conversation no user.
    """
    mode = mode_of(agent)
    if mode == "shared":
        return Space(agent.organization_id)
    if mode == "none":
        raise Invalid(
            'This agent has no workspace. Set workspace = "isolated" or "shared" in its course.'
        )
    if user_id is None:
        raise Invalid("This conversation is about no user, and files belong to users.")
    return Space(agent.organization_id, user_id)


def with_instructions(tx: Transaction, state: AgentState) -> AgentState:
    """Add the text of the workspace's CLAUDE.md to the state, in one statement.

    Args:
        tx: The transaction, or a read.
        state: The agent with its conversation. Without a workspace, the state is returned as it is.
    """
    try:
        space = space_of(state.agent, state.conversation.user_id)
    except Invalid:
        return state
    content = queries.content(tx, space, INSTRUCTIONS) or b""
    text = content.decode("utf-8", "replace").replace("\0", "").strip()
    if not text:
        return state
    if len(text) > _LONGEST_INSTRUCTIONS:
        text = f"{text[:_LONGEST_INSTRUCTIONS]}\n[cut: the file has {len(text)} characters]"
    return replace(state, instructions=text, is_others_instructions=space.is_shared)


def path_of(text: str) -> str:
    """Return the normal form of a file's path.

    Args:
        text: The path in the workspace, with slashes between folders. "./" or "/workspace/" at its
            beginning is removed.

    Raises:
        Invalid: The path leads out of the workspace, or some systems could not store it.
    """
    path = normal_name(text.strip())
    path = path.removeprefix("./").removeprefix("/workspace/")
    parts = path.split("/")
    short_path = path[:80]
    if (
        not path
        or path.startswith("/")
        or any(part in ("", ".", "..") for part in parts)
        or "\\" in path
    ):
        raise Invalid(
            f'"{short_path}" is not a path of a file here. Write it like "essays/draft.md".'
        )
    if any(unicodedata.category(letter).startswith("C") for letter in path):
        raise Invalid(f"{short_path!r} has a character that cannot be shown. Choose another name.")
    is_long = len(path.encode()) > _LONGEST_PATH or any(
        len(part.encode()) > _LONGEST_PART for part in parts
    )
    if is_long or len(parts) > _DEEPEST:
        raise Invalid(
            f'"{short_path}" is too long: {_LONGEST_PATH} bytes, {_LONGEST_PART} in each name, and '
            f"{_DEEPEST} names are allowed."
        )
    return path


def require(tx: Transaction, space: Space, path: str) -> WorkspaceFile:
    """Return the file.

    Args:
        tx: The transaction, or a read.
        space: The workspace.
        path: A path from `path_of`.

    Raises:
        NotFound: There is no such file.
    """
    file = queries.find(tx, space, path)
    if file is None:
        raise NotFound(f'There is no file "{path[:80]}" in this workspace.')
    return file


def read(tx: Transaction, space: Space, path: str) -> bytes:
    """Return the content of the file.

    Args:
        tx: The transaction, or a read.
        space: The workspace.
        path: A path from `path_of`.

    Raises:
        NotFound: There is no such file.
    """
    require(tx, space, path)
    return queries.content(tx, space, path) or b""


def read_text(tx: Transaction, space: Space, path: str) -> str:
    """Return the text of the file.

    Args:
        tx: The transaction, or a read.
        space: The workspace.
        path: A path from `path_of`.

    Raises:
        NotFound: There is no such file.
        Invalid: The file is not UTF-8 text, or has a NUL character.
    """
    try:
        text = read(tx, space, path).decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise Invalid(f'"{path[:80]}" is not text in UTF-8. Use a command to work with it.')
    return text


def _lock(tx: Transaction, space: Space) -> None:
    """Let only this transaction change the workspace until it ends.

    Call it before you read files that the transaction changes, and before you count files.
    """
    if space.user_id:
        users.lock(tx, space.user_id)
    else:
        organizations.lock(tx, space.organization_id)


def write(
    tx: Transaction,
    space: Space,
    path: str,
    content: bytes,
    *,
    expected: Collection[str | None] | None = None,
) -> WorkspaceFile:
    """Store the whole file.

    Args:
        tx: The transaction.
        space: The workspace, with the rights of the writer.
        path: A path from `path_of`.
        content: The whole content.
        expected: As in `_require_expected`.

    Raises:
        PreconditionFailed: if the file has another digest.
        TooLong: if the file or the workspace becomes too large.
        Invalid: if the path is a folder, or a file is in its way.
        Forbidden: if only teachers may change the file.
    """
    _lock(tx, space)
    stored = queries.find(tx, space, path)
    _require_expected(stored, path, expected)
    _require_room(tx, space, path, len(content), stored)
    _require_no_folder(tx, space, path)
    return queries.put(tx, space, path, content)


def _require_expected(
    stored: WorkspaceFile | None, path: str, expected: Collection[str | None] | None
) -> None:
    """Raise PreconditionFailed unless the present content is as expected.

    Args:
        stored: The file; None if there is none.
        path: Its path, for the error.
        expected: Digests of which the content must have one (`WorkspaceFile.digest`), or
            `ANY_FILE`; with None in it there may be no file. Without it everything is permitted.
    """
    if expected is None or (stored and ANY_FILE in expected):
        return
    if stored and None in expected:
        raise PreconditionFailed(
            f'"{path[:80]}" exists already in this workspace. Choose another name, or delete it first.'
        )
    if (stored.digest if stored else None) not in expected:
        raise PreconditionFailed(
            f'"{path[:80]}" was changed in the meantime. Read it again, then repeat your change.'
        )


def edit(
    tx: Transaction, space: Space, path: str, old: str, new: str, *, everywhere: bool = False
) -> int:
    """Replace text in a text file, and return the number of replacements.

    The texts are compared in normal form, but the file keeps its form and line ends.

    Args:
        tx: The transaction.
        space: The workspace, with the rights of the writer.
        path: A path from `path_of`.
        old: The text to find. It must occur once, unless `everywhere` is set.
        new: The text that replaces it. If all lines of the file end with CRLF, its lines do too.
        everywhere: Replace every occurrence.

    Raises:
        NotFound: if there is no file.
        Invalid: if the file is not UTF-8 text, or `old` is missing or occurs more than once.
        TooLong, Forbidden: as `write` does.
    """
    _lock(tx, space)
    text = read_text(tx, space, path)
    spans = spans_of(text, old)
    count = len(spans)
    if count == 0:
        raise Invalid(f'old_string is not in "{path[:80]}". Read the file, and copy it exactly.')
    if count > 1 and not everywhere:
        raise Invalid(
            f'old_string is {count} times in "{path[:80]}". Include more of the lines around it, '
            "or set replace_all."
        )
    if text.count("\r\n") == text.count("\n") > 0:
        new = new.replace("\r\n", "\n").replace("\n", "\r\n")
    parts = []
    position = 0
    for start, end in spans:
        parts += [text[position:start], new]
        position = end
    edited = "".join([*parts, text[position:]])
    write(tx, space, path, edited.encode("utf-8", "replace"))
    return count


def remove(
    tx: Transaction, space: Space, path: str, *, expected: Collection[str | None] | None = None
) -> None:
    """Delete the file.

    Args:
        tx: The transaction.
        space: The workspace, with the rights of the writer.
        path: A path from `path_of`.
        expected: As in `_require_expected`.

    Raises:
        PreconditionFailed: if the file has another digest.
        NotFound: if there is no file.
        Forbidden: if only teachers may change the file.
    """
    if expected is not None:
        _lock(tx, space)
        if stored := queries.find(tx, space, path):
            _require_expected(stored, path, expected)
    if not queries.remove(tx, space, path):
        raise NotFound(f'There is no file "{path[:80]}" in this workspace.')


def save_changes(
    tx: Transaction,
    space: Space,
    base: Mapping[str, str],
    *,
    changed: Mapping[str, bytes],
    deleted: Sequence[str],
) -> SavedChanges:
    """Store all changes of a command, or none.

    If a file was changed after the command began, that change stays, and the command's version
    gets a new path.

    Args:
        tx: The transaction.
        space: The workspace, with the rights of the writer.
        base: The digests of the files before the command, by path.
        changed: The contents of the files that it wrote, by path.
        deleted: The paths that it deleted.

    Raises:
        TooLong, Invalid: if a file cannot be stored.
    """
    _lock(tx, space)
    written: list[str] = []
    conflicts: list[str] = []
    removed: list[str] = []
    left_out = [path for path in (*changed, *deleted) if not space.may_change(path)]
    for path in deleted:
        if path in left_out:
            continue
        stored = queries.find(tx, space, path)
        if stored and stored.digest == base.get(path):
            queries.remove(tx, space, path)
            removed.append(path)
    for path, content in changed.items():
        if path in left_out:
            continue
        stored = queries.find(tx, space, path)
        is_others = stored is not None and stored.digest not in (
            base.get(path),
            queries.digest_of(content),
        )
        if is_others:
            target = free_path(tx, space, path)
            conflicts.append(target)
        else:
            target = path
            written.append(target)
        write(tx, space, target, content)
    return SavedChanges(written, removed, conflicts, tuple(left_out))


def free_path(tx: Transaction, space: Space, path: str) -> str:
    """Return an unused path like this one: "draft.md" becomes "draft (conflict 1).md".

    Args:
        tx: The transaction.
        space: The workspace.
        path: A path from `path_of`.

    Raises:
        Invalid: if there are too many such files.
    """
    folder, slash, name = path.rpartition("/")
    stem = name
    suffix = ""
    if "." in name.strip("."):
        stem, _, ending = name.rpartition(".")
        suffix = f".{ending}"
    if len(suffix.encode()) > _LONGEST_SUFFIX:
        stem = name
        suffix = ""
    # The new name must not exceed the limit in bytes, even in scripts with several bytes for a
    # letter.
    stem = stem.encode()[:_LONGEST_STEM].decode("utf-8", "ignore")
    for number in range(1, 1000):
        candidate = path_of(f"{folder}{slash}{stem} (conflict {number}){suffix}")
        if queries.find(tx, space, candidate) is None:
            return candidate
    raise Invalid(f'There are too many conflicts of "{path[:80]}". Delete some.')


def _require_room(
    tx: Transaction, space: Space, path: str, size: int, stored: WorkspaceFile | None
) -> None:
    settings = WorkspaceSettings()
    if size > LARGEST:
        raise TooLong(f'"{path[:80]}" has {size:,} bytes, and {LARGEST:,} are allowed. Shorten it.')
    files, used_bytes = queries.used(tx, space)
    if stored is None and files >= settings.workspace_files:
        raise TooLong(
            f"The workspace has {files} files, and no more are allowed. Delete some first."
        )
    if stored is not None:
        used_bytes -= stored.size
    if used_bytes + size > settings.workspace_mb * 1_000_000:
        raise TooLong(
            f'The workspace is full: with "{path[:80]}" it would hold more than '
            f"{settings.workspace_mb} MB, the limit. Delete some files first."
        )


def _require_no_folder(tx: Transaction, space: Space, path: str) -> None:
    """Raise Invalid if the path is a folder, or if a file's path would have to be a folder."""
    parts = path.split("/")
    above = ["/".join(parts[:end]) for end in range(1, len(parts))]
    if clash := next((folder for folder in above if queries.find(tx, space, folder)), None):
        raise Invalid(f'"{clash[:80]}" is a file, so there can be no "{path[:80]}".')
    if queries.has_within(tx, space, path):
        raise Invalid(f'"{path[:80]}" is a folder. Name a file in it.')


def with_all_instructions(tx: Transaction, states: Sequence[AgentState]) -> Sequence[AgentState]:
    """Add the text of the workspace's CLAUDE.md to each agent that has workspace tools.

    Args:
        tx: The transaction, or a read.
        states: Agents with their conversations, in the order of the result.
    """
    return [
        with_instructions(tx, state) if any(tool.name in TOOLS for tool in state.tools) else state
        for state in states
    ]


FILE_OF_INSTRUCTIONS = PromptAddition(with_all_instructions, tools=frozenset(TOOLS))
