"""Agent tools that read files: `open_files`, `grep_files` and `semantic_search_files`."""

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatch
from functools import partial
from typing import Annotated, Any

from pydantic import BaseModel, Field

from ricordo.errors import Invalid
from ricordo.features.files.folders import queries, windows
from ricordo.features.files.folders.line_search import (
    MOST_MATCHES,
    LineSearch,
    compiled_pattern,
)
from ricordo.features.files.folders.records import AgentFile, File
from ricordo.features.files.folders.windows import View
from ricordo.search.index import PassageFilter
from ricordo.storage.engine.store import Transaction
from ricordo.tools.toolbox import ServerTool, ToolContext

_LINE = "=" * 80
_NOTHING = "No files are currently attached to search"
_MOST_ALL = 200_000_000  # characters of one search
_BATCH = 8_000_000  # characters that are read at once
_LAST_LINE = 2**53  # larger numbers are not exact in JSON
_LONGEST_LINE = 500
_MOST_LINES = 20
_MOST_LISTED = 100


class FileRequest(BaseModel):
    """A file to open, and the range of its lines."""

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
    """Open files, so that your prompt shows their lines.

    If too many are open, the least recently used close.

    Args:
        file_requests: The files to open; one that is open already moves to these lines.
        close_all_others: Close all files that are not named here.
    """
    bounds_by_name = {request.file_name: _bounds(request) for request in file_requests}

    def work(tx: Transaction) -> str:
        view = _view(tx, context)
        # A file may be named twice, by its path and by its name; then the last range counts.
        by_id: dict[str, tuple[File, int | None, int | None]] = {}
        for name, bounds in bounds_by_name.items():
            file = windows.find_file(tx, view, name)
            by_id[file.id] = (file, *bounds)
        ranges = list(by_id.values())
        for file, start, _ in ranges:
            if start is not None and start >= max(file.lines, 1):
                raise Invalid(
                    f"{view.path_of(file)} has {file.lines} lines, so the offset {start} is behind "
                    "its end."
                )
        before, closed = windows.open_windows(tx, view, ranges, closes_others=close_all_others)
        opened = [
            _describe_opened(view, file, (start, end), previous)
            for (file, start, end), (_, previous) in zip(ranges, before, strict=True)
        ]
        lines = []
        if len(opened) == 1:
            lines.append(f"* Opened {opened[0]}")
        elif opened:
            lines.append(f"* Opened {len(opened)} files: {', '.join(opened)}")
        names = ", ".join(map(view.path_of, closed))
        if closed and close_all_others:
            lines.append(
                f"Note: Closed {len(closed)} file(s) due to close_all_others=True: {names}"
            )
        elif closed:
            lines.append(
                f"Note: Closed {len(closed)} least recently used file(s) due to open file limit: "
                f"{names}"
            )
        return "\n".join(lines) or "No files were named, so nothing changed."

    return await context.store.write(work)


def _bounds(request: FileRequest) -> tuple[int | None, int | None]:
    """Return the first line, and the line after the last one. Raises Invalid."""
    start = request.offset
    length = request.length
    if start is not None and start < 0:
        raise Invalid(f"offset must be 0 or more for {request.file_name}: it counts lines from 0.")
    if length is not None and length < 1:
        raise Invalid(f"length must be 1 or more for {request.file_name}.")
    if start is not None:
        start = min(start, _LAST_LINE)
    if length is None:
        return start, None
    return start, min((start or 0) + length, _LAST_LINE)


def _describe_opened(
    view: View,
    file: File,
    bounds: tuple[int | None, int | None],
    previous: AgentFile | None,
) -> str:
    text = f"{view.path_of(file)} ({_range(file, *bounds)})"
    if previous is None:
        return text
    return f"{text} (previously {_range(file, previous.start_line, previous.end_line)})"


def _range(file: File, start: int | None, end: int | None) -> str:
    if end is None:
        last = file.lines
    else:
        last = min(end, file.lines)
    return f"lines {(start or 0) + 1}-{last}"


async def grep_files(
    context: ToolContext,
    pattern: str,
    include: str | None = None,
    context_lines: int = 1,
    offset: int | None = None,
) -> str:
    """Find lines by a regular expression in all your files, open or closed.

    Case is ignored.

    Args:
        pattern: The regular expression, in RE2's syntax; each line is searched by itself.
        include: Only in files whose names match: "*.py", a part of the path, or a regular
            expression.
        context_lines: How many lines to show before and after each match.
        offset: How many matches to skip, to see the next ones.
    """
    search = LineSearch(pattern, max(offset or 0, 0), min(max(context_lines, 0), 10))

    def find(tx: Transaction) -> tuple[View, list[File]]:
        view = _view(tx, context)
        return view, [
            file for file in queries.readable_files(tx, view.folder_ids) if file.characters
        ]

    view, files = await context.store.read(find)
    if not files:
        return _NOTHING
    if include is not None:
        files = _filter_by_name(view, files, include)
    if not files:
        return f"No files match filter pattern '{include}'"
    batches, too_large = _batches(files)
    for batch in batches:
        pieces = await context.store.read(
            partial(queries.pieces_of, file_ids=[file.id for file in batch])
        )
        await search.search_files(batch, pieces)
        if search.is_full:
            break
    if matched := {match.file.id for match in search.matches}:
        await context.store.write(lambda tx: windows.touch(tx, view, matched))
    return _render_matches(search, view, too_large)


def _batches(files: Sequence[File]) -> tuple[list[list[File]], int]:
    """Group files into batches that are read at once, and count the rest.

    A file is left out if with it the search would exceed its limit of characters.
    """
    batches: list[list[File]] = [[]]
    remaining = _MOST_ALL
    count = size = 0
    for file in files:
        if file.characters <= remaining:
            count = count + 1
            remaining = remaining - file.characters
            size = size + file.characters
            batches[-1].append(file)
            if size >= _BATCH:
                batches.append([])
                size = 0
    return [batch for batch in batches if batch], len(files) - count


def _filter_by_name(view: View, files: Sequence[File], include: str) -> list[File]:
    """Return the files whose names match.

    The names match a wildcard or a part of the path, or else a regular expression.
    """
    paths = [(file, view.path_of(file)) for file in files]
    has_wildcard = not {*"*?["}.isdisjoint(include)
    if has_wildcard:
        named = [
            file for file, path in paths if fnmatch(path, include) or fnmatch(file.name, include)
        ]
    else:
        named = [file for file, path in paths if include in path]
    if named:
        return named
    try:
        pattern = compiled_pattern(include)
    except Invalid:  # such as *.py, which is not a valid regular expression
        return []
    return [file for file, path in paths if pattern.search(path) or pattern.search(file.name)]


def _render_matches(search: LineSearch, view: View, too_large: int) -> str:
    if too_large:
        skipped = [f"Note: Skipped {too_large} files due to size limits"]
    else:
        skipped = []
    if not search.total:
        return "\n".join([f"No matches found for pattern: '{search.pattern}'", *skipped])
    total = f"{search.total}{'+' if search.is_full else ''}"
    begin = search.skip
    stop = f"The search stops at {MOST_MATCHES} matches. Use a narrower pattern, or include."
    if not search.matches and search.is_full:
        return stop
    if not search.matches:
        return f"There are {total} matches, so there are none after the first {begin}."
    end = begin + len(search.matches)
    count = len(search.files)
    lines = [
        f"Found {total} total matches across {count} files "
        f"(showing matches {begin + 1}-{end} of {total})"
    ]
    lines += [_LINE, "Files with matches:"]
    lines += [
        f"  - {view.path_of(file)}: {search.counts[id]} matches"
        for id, file in search.files.items()
    ][:_MOST_LISTED]
    for match in search.matches:
        lines += ["", f"=== {view.path_of(match.file)}:{match.line + 1} ==="]
        lines += [
            f"{'>' if number == match.line else ' '} {number + 1}: {_short(text)}"
            for number, text in match.lines
        ]
    quoted = search.pattern.replace('"', '\\"')
    more = f'To see more matches, call: grep_files(pattern="{quoted}", offset={end})'
    if end >= search.total:
        more = stop if search.is_full else "No more matches to show."
    lines += ["", more]
    return "\n".join([*lines, *skipped])


async def semantic_search_files(context: ToolContext, query: str, limit: int = 5) -> str:
    """Find passages of all your files by meaning and words, also in closed files.

    Args:
        query: What to look for.
        limit: How many passages to show, 20 at most.
    """
    if not query.strip():
        raise Invalid("query is empty. Write what to search for.")
    view = await context.store.read(lambda tx: _view(tx, context))
    if not view.folders:
        return _NOTHING
    shown_limit = min(max(limit, 1), 20)
    passage_filter = PassageFilter(tuple(view.folder_ids), subject_id=view.scope.subject_id)
    # Five more, because some may belong to a file that is being deleted.
    hits = await context.recall.passages(query, passage_filter, shown_limit + 5)
    ids = [str(hit.passage.metadata.get("file_id")) for hit in hits]
    files = {
        file.id: file
        for file in await context.store.read(lambda tx: queries.files_by_ids(tx, view.scope, ids))
    }
    matches = [(files[id], hit.passage) for id, hit in zip(ids, hits, strict=True) if id in files][
        :shown_limit
    ]
    if not matches:
        return f"No semantic matches found for query: '{query}'"
    lines = [
        f"Found {len(matches)} semantic matches in {len({file.id for file, _ in matches})} files "
        f"for query: '{query}'",
        _LINE,
    ]
    for file, passage in matches:
        context.quoted.add(passage.id, is_untrusted=True)
        passage_lines = passage.text.split("\n")
        first = int(passage.metadata.get("line", 0)) + 1
        number = passage.metadata.get("number", 0) + 1
        lines += [
            "",
            f"=== {view.path_of(file)} (passage #{number}, from line {first}) ===",
        ]
        lines += map(_short, passage_lines[:_MOST_LINES])
        if len(passage_lines) > _MOST_LINES:
            lines.append(f"  … [truncated {len(passage_lines) - _MOST_LINES} more lines]")
    await context.store.write(lambda tx: windows.touch(tx, view, files))
    return "\n".join(lines)


def _view(tx: Transaction, context: ToolContext) -> View:
    view = windows.view_of(tx, context.state.agent, context.state.conversation.user_id)
    folders = tuple(
        folder
        for folder in view.folders
        if context.may_read(f"folder:{folder.name}", folder.egress)
    )
    return replace(view, folders=folders)


def _short(line: str) -> str:
    if len(line) <= _LONGEST_LINE:
        return line
    return f"{line[:_LONGEST_LINE]}… [line cut: {len(line)} characters]"


_READS: Any = {"brings_untrusted": True, "runs_in_parallel": True, "is_read_only": True}
TOOLS = (
    ServerTool(open_files, "letta_files_core"),
    ServerTool(grep_files, "letta_files_core", **_READS),
    ServerTool(semantic_search_files, "letta_files_core", **_READS),
)
