"""Agent tools that work with files of a workspace and run commands on them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from ricordo.domain.text import text_key
from ricordo.errors import Invalid, Unavailable
from ricordo.features.files.workspaces import exchange, queries, service
from ricordo.features.files.workspaces.options import WorkspaceSettings
from ricordo.features.files.workspaces.queries import Space
from ricordo.offload import offload
from ricordo.sandbox.process import program_beside
from ricordo.sandbox.service import SandboxLimits, report_of
from ricordo.storage.engine.store import Transaction
from ricordo.tools.toolbox import ServerTool, ToolContext

_MOST_LISTED = 500
_MOST_LINES = 1000
_MOST_MATCHES = 100
_LONGEST_LINE = 300
_LONGEST_TEXT = 60_000  # characters of one answer
_SECONDS = 120.0


async def list_workspace(context: ToolContext, folder: str = "") -> str:
    """List the files of the workspace, with their sizes.

    Args:
        folder: Only files in this folder.
    """
    space = _space(context)
    begin = _within(folder)
    files = [
        file
        for file in await context.store.read(lambda tx: queries.listed(tx, space))
        if file.path.startswith(begin)
    ]
    if not files:
        return "There are no files here."
    lines = [f"{file.path} ({file.size:,} bytes)" for file in files[:_MOST_LISTED]]
    if len(files) > _MOST_LISTED:
        lines.append(f"… and {len(files) - _MOST_LISTED} more")
    return "\n".join(lines)


async def search_workspace(context: ToolContext, query: str, folder: str = "") -> str:
    """Find lines with these words in the text files of the workspace.

    Case is ignored.

    Args:
        query: The words, exactly as they stand in one line.
        folder: Only files in this folder.
    """
    needle = text_key(query).strip()
    if not needle:
        raise Invalid("query is empty. Write what to search for.")
    space = _space(context)
    begin = _within(folder)
    contents = await context.store.read(lambda tx: queries.contents(tx, space))
    texts = {
        path: content
        for path, content in sorted(contents.items())
        if path.startswith(begin) and b"\0" not in content
    }
    size = sum(map(len, texts.values()))
    lines = await offload(lambda: _lines_with(texts, needle), size)
    if lines:
        return "\n".join(lines)
    return "No line contains this text."


async def read_workspace_file(
    context: ToolContext, path: str, first_line: int = 1, lines: int = _MOST_LINES
) -> str:
    """Read lines of a text file.

    Args:
        path: The file, as in "drafts/one.md".
        first_line: The first line to read, counted from 1.
        lines: How many lines to read.
    """
    space = _space(context)
    file_path = service.path_of(path)
    text = await context.store.read(lambda tx: service.read_text(tx, space, file_path))
    all_lines = text.split("\n")
    begin = max(first_line, 1) - 1
    selected = all_lines[begin : begin + min(max(lines, 1), _MOST_LINES)]
    if not selected:
        raise Invalid(
            f"{file_path} has {len(all_lines)} lines, so there is none with the number "
            f"{first_line}."
        )
    cut = "\n".join(selected)[:_LONGEST_TEXT]
    last = begin + cut.count("\n") + 1
    return f"[{file_path}, lines {begin + 1} to {last} of {len(all_lines)}]\n{cut}"


async def write_workspace_file(context: ToolContext, path: str, content: str) -> str:
    """Write a whole file, and replace its former content.

    To change a part of a file, edit it.

    Args:
        path: The file, as in "drafts/one.md". Missing folders are created.
        content: The whole new text.
    """
    space = _space(context)
    file_path = service.path_of(path)
    encoded = content.encode("utf-8", "replace")
    file = await context.store.write(lambda tx: service.write(tx, space, file_path, encoded))
    return f"Wrote {file.path} ({file.size:,} bytes)."


async def edit_workspace_file(
    context: ToolContext, path: str, old_string: str, new_string: str, replace_all: bool = False
) -> str:
    """Replace text in a text file.

    Args:
        path: The file, as in "drafts/one.md".
        old_string: The text to replace, exactly as it stands in the file. Include enough of the
            text
            around it that it occurs only once.
        new_string: The new text.
        replace_all: Replace every occurrence.
    """
    space = _space(context)
    file_path = service.path_of(path)

    def work(tx: Transaction) -> int:
        return service.edit(tx, space, file_path, old_string, new_string, everywhere=replace_all)

    count = await context.store.write(work)
    if count > 1:
        return f"Changed {file_path} in {count} places."
    return f"Changed {file_path}."


async def run_in_workspace(context: ToolContext, command: str) -> dict[str, Any]:
    """Run a shell command in a sandbox with only the files of the workspace.

    There is no network.

    Its changes to the files are kept if it ends by itself within two minutes.

    Args:
        command: The command, as for sh.
    """
    space = _space(context)
    contents = await context.store.read(lambda tx: queries.contents(tx, space))
    base = {path: queries.digest_of(content) for path, content in contents.items()}
    size = sum(map(len, contents.values()))
    request = await offload(lambda: exchange.packed({"command": command}, contents), size)
    limits = SandboxLimits(
        seconds=_SECONDS, cpu_seconds=60, file_mb=_room() // 500_000, output_kb=_room() // 1000
    )
    outcome = await context.sandbox.run_python(program_beside(__file__), request, limits=limits)
    if outcome.stopped_by or outcome.reason:
        return report_of(
            outcome, error=f"{outcome.reason} The files of the workspace are as they were before."
        )
    try:
        header, files = await offload(
            lambda: exchange.unpacked(outcome.answer), len(outcome.answer)
        )
        ended = _ended(header)
    except ValueError as error:
        raise Unavailable(
            "The command ended before its files could be read. They are as they were before."
        ) from error
    changed, unusable = _usable(files)
    deleted = [path for path in ended.deleted if path in base]

    def save(tx: Transaction) -> service.SavedChanges:
        return service.save_changes(tx, space, base, changed=changed, deleted=deleted)

    changes = await context.store.write(save)
    report = report_of(outcome, exit_code=ended.exit_code)
    for name, paths in (
        ("written", changes.written),
        ("deleted", changes.deleted),
        ("conflicts", changes.conflicts),
        (
            "left_out",
            [*changes.left_out, *unusable, *ended.left_out],
        ),
    ):
        if paths:
            # A name that is not UTF-8 holds lone surrogates, which no result can hold.
            report[name] = [
                path.encode("utf-8", "replace").decode() for path in list(paths)[:_MOST_LISTED]
            ]
    return report


@dataclass(frozen=True, slots=True)
class _Ended:
    """The header of the program's answer, which a command may have written instead."""

    exit_code: int
    deleted: Sequence[str]
    left_out: Sequence[str]


def _ended(header: Mapping[str, Any]) -> _Ended:
    """Return the header. Raises ValueError if it has another form."""
    exit_code = header.get("exit_code")
    deleted = header.get("deleted")
    left_out = header.get("left_out")
    if not isinstance(exit_code, int) or not _are_texts(deleted) or not _are_texts(left_out):
        raise ValueError("This is no header.")
    return _Ended(exit_code, deleted, left_out)


def _are_texts(paths: Any) -> TypeGuard[list[str]]:
    return isinstance(paths, list) and all(isinstance(path, str) for path in paths)


def _space(context: ToolContext) -> Space:
    return service.space_of(
        context.state.agent, context.scope.subject or context.state.conversation.user_id
    )


def _within(folder: str) -> str:
    """Return the beginning of the paths in this folder."""
    if not folder.strip("./ "):
        return ""
    return f"{service.path_of(folder.strip().rstrip('/'))}/"


def _room() -> int:
    """Return twice the limit of a workspace in bytes.

    A command's answer may have so many bytes, and its files in the sandbox twice as many.
    """
    return WorkspaceSettings().workspace_mb * 2_000_000


def _lines_with(files: dict[str, bytes], needle: str) -> list[str]:
    matches = []
    for path, content in files.items():
        for number, line in enumerate(content.decode("utf-8", "replace").split("\n"), 1):
            if needle in text_key(line):
                matches.append(f"{path}:{number}: {line.strip()[:_LONGEST_LINE]}")
                if len(matches) == _MOST_MATCHES:
                    return [*matches, f"[only the first {_MOST_MATCHES} are shown]"]
    return matches


def _usable(files: dict[str, bytes]) -> tuple[dict[str, bytes], list[str]]:
    """Return the files with valid paths, and the beginnings of the other paths."""
    usable = {}
    unusable = []
    for path, content in files.items():
        try:
            usable[service.path_of(path)] = content
        except Invalid:
            unusable.append(path[:100])
    return usable, unusable


_READS: Any = {"brings_untrusted": True, "runs_in_parallel": True, "is_read_only": True}
TOOLS = (
    ServerTool(list_workspace, "letta_builtin", **_READS),
    ServerTool(search_workspace, "letta_builtin", **_READS),
    ServerTool(read_workspace_file, "letta_builtin", **_READS),
    ServerTool(write_workspace_file, "letta_builtin", acts_outside=True),
    ServerTool(edit_workspace_file, "letta_builtin", acts_outside=True),
    ServerTool(run_in_workspace, "letta_builtin", acts_outside=True, brings_untrusted=True),
)
