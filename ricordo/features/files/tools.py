"""The tools by which agents read files: `open_files`, `grep_files` and `semantic_search_files`."""

from collections.abc import Sequence
from fnmatch import fnmatch
from functools import partial
from typing import Annotated

from pydantic import BaseModel, Field

from ricordo.errors import Invalid
from ricordo.features.files import queries, windows
from ricordo.features.files.line_search import LineSearch, compiled_pattern
from ricordo.features.files.records import AgentFile, File
from ricordo.features.files.windows import View
from ricordo.search.index import PassageFilter
from ricordo.storage.engine.store import Transaction
from ricordo.tools.toolbox import ToolContext

_LINE = "=" * 80
_NOTHING = "No files are currently attached to search"
_MOST_ALL, _BATCH = 200_000_000, 8_000_000  # characters of one search, and of those read at once
_LONGEST_LINE, _MOST_LINES, _MOST_LISTED = 500, 20, 100


class FileRequest(BaseModel):
    """A file to open, and which of its lines."""

    file_name: str = Field(description="Its name, as your prompt shows it.")
    offset: int | None = Field(
        None, description="The first line to see, counted from 0. Left out: the first."
    )
    length: int | None = Field(
        None, description="How many lines to see. Left out: all that follow."
    )


async def open_files(
    context: ToolContext,
    file_requests: Annotated[list[FileRequest], Field(max_length=100)],
    close_all_others: bool = False,
) -> str:
    """Open files, so that your prompt shows their lines. Where too many are open, those not looked at for longest are closed.

    Args:
        file_requests: The files to open; one that is open already moves to these lines.
        close_all_others: Close all files that are not named here.
    """
    bounds = {request.file_name: _bounds(request) for request in file_requests}

    def work(tx: Transaction) -> str:
        view = _view(tx, context)
        found = {name: windows.find_file(tx, view, name) for name in bounds}
        wanted = [(file, *bounds[name]) for name, file in found.items()]
        for file, start, _ in wanted:
            if start is not None and start >= max(file.lines, 1):
                raise Invalid(
                    f"{view.path_of(file)} has {file.lines} lines, so none begins at the offset {start}."
                )
        before, closed = windows.open_windows(tx, view, wanted, closes_others=close_all_others)
        told = [
            _opened(view, file, *bounds[name], was)
            for name, (file, was) in zip(found, before, strict=True)
        ]
        lines = (
            [
                f"* Opened {told[0]}"
                if len(told) == 1
                else f"* Opened {len(told)} files: {', '.join(told)}"
            ]
            if told
            else []
        )
        names = ", ".join(map(view.path_of, closed))
        if closed and close_all_others:
            lines.append(
                f"Note: Closed {len(closed)} file(s) due to close_all_others=True: {names}"
            )
        elif closed:
            lines.append(
                f"Note: Closed {len(closed)} least recently used file(s) due to open file limit: {names}"
            )
        return "\n".join(lines) or "No files were named, and none were open."

    return await context.store.write(work)


def _bounds(request: FileRequest) -> tuple[int | None, int | None]:
    """The first line and the one behind the last. Raises Invalid."""
    start, length = request.offset, request.length
    if start is not None and start < 0:
        raise Invalid(f"offset must be 0 or more for {request.file_name}: it counts lines from 0.")
    if length is not None and length < 1:
        raise Invalid(f"length must be 1 or more for {request.file_name}.")
    start = None if start is None else min(start, 2**53)
    return start, None if length is None else min((start or 0) + length, 2**53)


def _opened(
    view: View, file: File, start: int | None, end: int | None, was: AgentFile | None
) -> str:
    text = f"{view.path_of(file)} ({_range(file, start, end)})"
    return f"{text} (previously {_range(file, was.start_line, was.end_line)})" if was else text


def _range(file: File, start: int | None, end: int | None) -> str:
    last = file.lines if end is None else min(end, file.lines)
    return f"lines {(start or 0) + 1}-{last}"


async def grep_files(
    context: ToolContext,
    pattern: str,
    include: str | None = None,
    context_lines: int = 1,
    offset: int | None = None,
) -> str:
    """Find lines by a regular expression in all your files, also in closed ones. Upper and lower case are the same.

    Args:
        pattern: The regular expression, in RE2's syntax; each line is searched by itself.
        include: Only in files whose names match: "*.py", a part of the path, or a regular expression.
        context_lines: How many lines to show before and after each match.
        offset: How many matches to pass over, to see the next ones.
    """
    search = LineSearch(pattern, max(offset or 0, 0), min(max(context_lines, 0), 10))

    def find(tx: Transaction) -> tuple[View, list[File]]:
        view = _view(tx, context)
        return view, [
            file for file in queries.readable_files(tx, view.folder_ids) if file.characters
        ]

    view, found = await context.store.read(find)
    wanted = found if include is None else _included(view, found, include)
    if not found:
        return _NOTHING
    if not wanted:
        return f"No files match filter pattern '{include}'"
    batches, too_large = _batches(wanted)
    for batch in batches:
        pieces = await context.store.read(
            partial(queries.pieces_of, file_ids=[file.id for file in batch])
        )
        await search.through(batch, pieces)
        if search.is_full:
            break
    if matched := {match.file.id for match in search.shown}:
        await context.store.write(lambda tx: windows.touch(tx, view, matched))
    return _told(search, view, too_large)


def _batches(files: Sequence[File]) -> tuple[list[list[File]], int]:
    """The files in portions that are read at once, and how many are left out because of their size."""
    batches: list[list[File]] = [[]]
    left = _MOST_ALL
    taken = size = 0
    for file in files:
        if file.characters <= left:
            taken, left, size = taken + 1, left - file.characters, size + file.characters
            batches[-1].append(file)
            if size >= _BATCH:
                batches.append([])
                size = 0
    return [batch for batch in batches if batch], len(files) - taken


def _included(view: View, files: Sequence[File], include: str) -> list[File]:
    """Return the files whose names match: as with wildcards or as a part of the path, else as a regular expression."""
    paths = [(file, view.path_of(file)) for file in files]
    has_wildcard = not {*"*?["}.isdisjoint(include)
    named = [
        file
        for file, path in paths
        if (
            fnmatch(path, include) or fnmatch(file.name, include)
            if has_wildcard
            else include in path
        )
    ]
    if named:
        return named
    try:
        pattern = compiled_pattern(include)
    except Invalid:  # such as *.py, which no file has
        return []
    return [file for file, path in paths if pattern.search(path) or pattern.search(file.name)]


def _told(search: LineSearch, view: View, too_large: int) -> str:
    skipped = f"Note: Skipped {too_large} files due to size limits" if too_large else ""
    if not search.total:
        return "\n".join(
            filter(None, (f"No matches found for pattern: '{search.pattern}'", skipped))
        )
    total, begin = f"{search.total}{'+' if search.is_full else ''}", search.skip
    if not search.shown:
        return f"There are {total} matches, so none stands behind the first {begin}."
    end = begin + len(search.shown)
    count = len(search.files)
    lines = [
        f"Found {total} total matches across {count} files (showing matches {begin + 1}-{end} of {total})"
    ]
    lines += [_LINE, "Files with matches:"]
    lines += [
        f"  - {view.path_of(file)}: {search.counts[id]} matches"
        for id, file in search.files.items()
    ][:_MOST_LISTED]
    for match in search.shown:
        lines += ["", f"=== {view.path_of(match.file)}:{match.line + 1} ==="]
        lines += [
            f"{'>' if each == match.line else ' '} {each + 1}: {_short(text)}"
            for each, text in match.lines
        ]
    quoted = search.pattern.replace('"', '\\"')
    more = f'To see more matches, call: grep_files(pattern="{quoted}", offset={end})'
    lines += ["", more if end < search.total else "No more matches to show."]
    return "\n".join([*lines, skipped] if skipped else lines)


async def semantic_search_files(context: ToolContext, query: str, limit: int = 5) -> str:
    """Find passages of all your files by their meaning and their words, also in closed files.

    Args:
        query: What to look for.
        limit: How many passages to show, 20 at most.
    """
    if not query.strip():
        raise Invalid("Say what to look for: query is empty.")
    view = await context.store.read(lambda tx: _view(tx, context))
    if not view.folders:
        return _NOTHING
    most = min(max(limit, 1), 20)
    wanted = PassageFilter(tuple(view.folder_ids), subject_id=view.scope.subject_id)
    hits = await context.recall.passages(
        query, wanted, most + 5
    )  # some may be of a file that is being deleted
    ids = [str(hit.passage.metadata.get("file_id")) for hit in hits]
    found = {
        file.id: file
        for file in await context.store.read(lambda tx: queries.files_by_ids(tx, view.scope, ids))
    }
    kept = [(found[id], hit.passage) for id, hit in zip(ids, hits, strict=True) if id in found][
        :most
    ]
    if not kept:
        return f"No semantic matches found for query: '{query}'"
    lines = [
        f"Found {len(kept)} semantic matches in {len({file.id for file, _ in kept})} files for query: '{query}'",
        _LINE,
    ]
    for file, passage in kept:
        context.quoted.add(passage.id, is_untrusted=True)
        shown = passage.text.split("\n")
        first = int(passage.metadata.get("line", 0)) + 1
        lines += [
            "",
            f"=== {view.path_of(file)} (passage #{passage.metadata.get('number', 0) + 1}, from line {first}) ===",
        ]
        lines += map(_short, shown[:_MOST_LINES])
        lines += (
            [f"  … [truncated {len(shown) - _MOST_LINES} more lines]"]
            if len(shown) > _MOST_LINES
            else []
        )
    await context.store.write(lambda tx: windows.touch(tx, view, found))
    return "\n".join(lines)


def _view(tx: Transaction, context: ToolContext) -> View:
    return windows.view_of(tx, context.state.agent, context.state.conversation.user_id)


def _short(line: str) -> str:
    return (
        line
        if len(line) <= _LONGEST_LINE
        else f"{line[:_LONGEST_LINE]}… [line cut: {len(line)} characters]"
    )
