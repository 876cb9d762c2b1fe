"""The tools by which agents work with files of a workspace, and run commands on them in the sandbox."""

from typing import Any

from ricordo.errors import Invalid, Unavailable
from ricordo.features.sandbox.process import program_beside
from ricordo.features.sandbox.service import SandboxLimits, SandboxResult, sandbox_of
from ricordo.features.workspaces import exchange, queries, service
from ricordo.features.workspaces.options import WorkspaceSettings
from ricordo.features.workspaces.queries import Space
from ricordo.offload import offload
from ricordo.storage.engine.store import Transaction
from ricordo.tools.toolbox import ToolContext

_MOST_LISTED = 500
_MOST_LINES = 1000
_MOST_FOUND = 100
_LONGEST_LINE = 300
_LONGEST_TEXT = 60_000  # characters of one answer
_SECONDS = 120.0
_SHOWN = 20_000  # characters of what a command writes


async def list_workspace(context: ToolContext, folder: str = "") -> str:
    """List the files of the workspace, with their sizes.

    Args:
        folder: Only what lies in this folder.
    """
    space = _space(context)
    begin = _within(folder)
    files = [
        one
        for one in await context.store.read(lambda tx: queries.listed(tx, space))
        if one.path.startswith(begin)
    ]
    if not files:
        return "There are no files here."
    more = [f"… and {len(files) - _MOST_LISTED} more"] if len(files) > _MOST_LISTED else []
    return "\n".join([*(f"{one.path} ({one.size:,} bytes)" for one in files[:_MOST_LISTED]), *more])


async def search_workspace(context: ToolContext, query: str, folder: str = "") -> str:
    """Find lines with these words, in whatever case, in the text files of the workspace.

    Args:
        query: The words, as they stand in one line.
        folder: Only what lies in this folder.
    """
    if not (wanted := query.casefold().strip()):
        raise Invalid("Say what to search for.")
    space = _space(context)
    begin = _within(folder)
    held = await context.store.read(lambda tx: queries.contents(tx, space))
    chosen = {
        path: data
        for path, data in sorted(held.items())
        if path.startswith(begin) and b"\0" not in data
    }
    size = sum(map(len, chosen.values()))
    found = await offload(lambda: _lines_with(chosen, wanted), size)
    return "\n".join(found) if found else "No line has these words."


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
    named = service.path_of(path)
    text = await context.store.read(lambda tx: service.read_text(tx, space, named))
    every = text.split("\n")
    begin = max(first_line, 1) - 1
    shown = every[begin : begin + min(max(lines, 1), _MOST_LINES)]
    if not shown:
        raise Invalid(
            f"{named} has {len(every)} lines, so there is none with the number {first_line}."
        )
    cut = "\n".join(shown)[:_LONGEST_TEXT]
    last = begin + cut.count("\n") + 1
    return f"[{named}, lines {begin + 1} to {last} of {len(every)}]\n{cut}"


async def write_workspace_file(context: ToolContext, path: str, content: str) -> str:
    """Write a whole file. What it held before is gone; to change a part of it, edit it.

    Args:
        path: The file, as in "drafts/one.md". Folders need not be made before.
        content: All of its text.
    """
    space = _space(context)
    named = service.path_of(path)
    data = content.encode("utf-8", "replace")
    made = await context.store.write(lambda tx: service.write(tx, space, named, data))
    return f"Wrote {made.path} ({made.size:,} bytes)."


async def edit_workspace_file(
    context: ToolContext, path: str, old_string: str, new_string: str, replace_all: bool = False
) -> str:
    """Put new words in the place of old ones in a text file.

    Args:
        path: The file, as in "drafts/one.md".
        old_string: The words to replace, exactly as they stand there, with enough around them to be there once.
        new_string: The words to put there.
        replace_all: Replace them wherever they stand.
    """
    space = _space(context)
    named = service.path_of(path)

    def work(tx: Transaction) -> int:
        return service.edit(tx, space, named, old_string, new_string, everywhere=replace_all)

    count = await context.store.write(work)
    return f"Changed {named}{f' in {count} places' if count > 1 else ''}."


async def run_in_workspace(context: ToolContext, command: str) -> dict[str, Any]:
    """Run a shell command in a sandbox that holds the files of the workspace, and nothing else. There is no network.

    What it changes in the files is kept when it ends by itself, within two minutes.

    Args:
        command: The command, as for sh.
    """
    space = _space(context)
    held = await context.store.read(lambda tx: queries.contents(tx, space))
    base = {path: queries.digest_of(data) for path, data in held.items()}
    size = sum(map(len, held.values()))
    request = await offload(lambda: exchange.packed({"command": command}, held), size)
    limits = SandboxLimits(
        seconds=_SECONDS, cpu_seconds=60, file_mb=_room() // 500_000, output_kb=_room() // 1000
    )
    sandbox = sandbox_of(context.settings)
    result = await sandbox.run_python(program_beside(__file__), request, limits=limits)
    if result.stopped_by or result.reason:
        return _told(
            result, error=f"{result.reason} The files of the workspace are as they were before."
        )
    try:
        header, files = await offload(lambda: exchange.unpacked(result.answer), len(result.answer))
    except ValueError as error:
        raise Unavailable(
            "The command ended before its files could be read. They are as they were before."
        ) from error
    changed, odd = _usable(files)
    deleted = [path for path in header.get("deleted") or () if path in base]

    def keep(tx: Transaction) -> service.Edited:
        return service.take_back(tx, space, base, changed, deleted)

    kept = await context.store.write(keep)
    told = _told(result, exit_code=int(header.get("exit_code") or 0))
    for name, paths in (
        ("written", kept.written),
        ("deleted", kept.deleted),
        ("conflicts", kept.conflicts),
    ):
        told |= {name: list(paths)[:_MOST_LISTED]} if paths else {}
    if left_out := [*odd, *map(str, header.get("left_out") or ())]:
        told["left_out"] = left_out[:_MOST_LISTED]
    return told


def _space(context: ToolContext) -> Space:
    return service.space_of(
        context.state.agent, context.scope.subject or context.state.conversation.user_id
    )


def _within(folder: str) -> str:
    """What paths in the folder begin with."""
    return f"{service.path_of(folder.strip().rstrip('/'))}/" if folder.strip("./ ") else ""


def _room() -> int:
    """Bytes that a command may write and answer with: twice what a workspace holds."""
    return WorkspaceSettings().workspace_mb * 2_000_000


def _lines_with(files: dict[str, bytes], wanted: str) -> list[str]:
    found = []
    for path, data in files.items():
        for number, line in enumerate(data.decode("utf-8", "replace").split("\n"), 1):
            if wanted in line.casefold():
                found.append(f"{path}:{number}: {line.strip()[:_LONGEST_LINE]}")
                if len(found) == _MOST_FOUND:
                    return [*found, f"[only the first {_MOST_FOUND} are shown]"]
    return found


def _usable(files: dict[str, bytes]) -> tuple[dict[str, bytes], list[str]]:
    """The files with paths that can be kept, and the paths of others."""
    usable = {}
    odd = []
    for path, data in files.items():
        try:
            usable[service.path_of(path)] = data
        except Invalid:
            odd.append(path[:100])
    return usable, odd


def _told(result: SandboxResult, *, exit_code: int = 0, error: str = "") -> dict[str, Any]:
    told: dict[str, Any] = {"status": "error" if error or exit_code else "success"}
    for name, data in (("stdout", result.stdout), ("stderr", result.stderr)):
        if text := data.decode("utf-8", "replace").rstrip("\n"):
            told[name] = (
                text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… [cut: {len(text)} characters]"
            )
    if exit_code:
        told["exit_code"] = exit_code
    return told | ({"error": error.strip()} if error else {})
