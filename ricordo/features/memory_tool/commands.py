"""The six commands of Anthropic's memory tool (`memory_20250818`) on a user's blocks.

Each block is a file: the block `human` is `/memories/human.md`, and `plans/week` is
`/memories/plans/week.md`. The sentences of the results are those in Anthropic's documentation of
the tool, because models know them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ricordo.domain.block import Block
from ricordo.errors import Invalid, NotFound
from ricordo.memory import submission, user_memory
from ricordo.memory.submission import Submission, SubmissionOutcome
from ricordo.memory.user_memory import PutOptions, UserMemory
from ricordo.storage.engine.store import Transaction

ROOT = "/memories"
_SUFFIX = ".md"
_LEVELS = 2
_NUMBER_WIDTH = 6
_SNIPPET = 2  # lines before and after a change
_KB = 1024
WAITS = (
    "The change was proposed to the user, who decides about it. Until then the memory stays as it "
    "is. Do not try again."
)


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The text for the model, and the ids of proposals that the command made."""

    content: str
    is_error: bool = False
    proposal_ids: tuple[str, ...] = ()


class Directory:
    """A user's blocks in the form of files below `/memories`.

    Args:
        tx: A transaction that writes.
        memory: The user's memory.
        edit: The author of the changes, and the lifetime of proposals.
    """

    def __init__(self, tx: Transaction, memory: UserMemory, edit: Submission) -> None:
        self._tx = tx
        self._memory = memory
        self._edit = edit
        rows = user_memory.listed(tx, memory)
        self._blocks = {block.label: block for block in rows if not block.hidden}

    def run(self, command: str, arguments: Mapping[str, Any]) -> CommandResult:
        """Run one command.

        Args:
            command: `view`, `create`, `str_replace`, `insert`, `delete` or `rename`.
            arguments: The other fields of the tool's input; unknown ones are ignored.

        Raises:
            Invalid: An argument is missing or does not fit.
            NotFound: There is no such file.
            RicordoError: The memory refuses the change, for example with Forbidden by a policy.
        """
        commands: dict[str, Callable[[Mapping[str, Any]], CommandResult]] = {
            "view": self._view,
            "create": self._create,
            "str_replace": self._replace,
            "insert": self._insert,
            "delete": self._delete,
            "rename": self._rename,
        }
        return commands[command](arguments)

    def _view(self, arguments: Mapping[str, Any]) -> CommandResult:
        path = _path(arguments)
        block = self._find(path)
        if block is None:
            return CommandResult(self._list(path))
        lines = block.value.split("\n")
        first, last = _range(arguments.get("view_range"), len(lines))
        numbered = _numbered(lines, first, last)
        header = f"Here's the content of {path} with line numbers:"
        return CommandResult(f"{header}\n{numbered}")

    def _list(self, path: str) -> str:
        """Return the files and folders up to two levels below a folder, with their sizes."""
        folder = _label(path)
        beginning = f"{folder}/" if folder else ""
        sizes: dict[str, int] = {}
        total = 0
        for label, block in sorted(self._blocks.items()):
            if not label.startswith(beginning):
                continue
            size = len(block.value.encode())
            total += size
            parts = _file_name(label).removeprefix(beginning).split("/")
            for depth in range(1, min(len(parts), _LEVELS) + 1):
                is_folder = depth < len(parts)
                name = "/".join(parts[:depth]) + ("/" if is_folder else "")
                sizes[name] = sizes.get(name, 0) + size
        if not sizes and folder:
            raise NotFound(f"The path {path} does not exist. Please provide a valid path.")
        path = path.rstrip("/")
        rows = [f"{_size(total)}\t{path}"]
        rows += [f"{_size(size)}\t{path}/{name}" for name, size in sorted(sizes.items())]
        header = (
            f"Here're the files and directories up to {_LEVELS} levels deep in {path}, excluding "
            "hidden items and node_modules:"
        )
        return "\n".join([header, *rows])

    def _create(self, arguments: Mapping[str, Any]) -> CommandResult:
        path = _path(arguments)
        if self._find(path) is not None:
            raise Invalid(f"File {path} already exists")
        label = _label(path).removesuffix(_SUFFIX)
        text = _argument(arguments, "file_text")
        return self._put(label, text, f"File created successfully at: {path}")

    def _replace(self, arguments: Mapping[str, Any]) -> CommandResult:
        path = _path(arguments)
        block = self._file(path)
        old = _argument(arguments, "old_str")
        new = arguments.get("new_str") or ""
        starts = _occurrences(block.value, old)
        if not starts:
            raise Invalid(
                f"No replacement was performed, old_str `{old}` did not appear verbatim in {path}."
            )
        numbers = [block.value.count("\n", 0, start) + 1 for start in starts]
        if len(starts) > 1:
            shown = ", ".join(map(str, numbers))
            raise Invalid(
                f"No replacement was performed. Multiple occurrences of old_str `{old}` in lines: "
                f"{shown}. Please ensure it is unique"
            )
        text = block.value[: starts[0]] + new + block.value[starts[0] + len(old) :]
        lines = text.split("\n")
        first = max(1, numbers[0] - _SNIPPET)
        last = min(len(lines), numbers[0] + new.count("\n") + _SNIPPET)
        done = (
            "The memory file has been edited. Here is the snippet showing the change "
            f"(with line numbers):\n{_numbered(lines, first, last)}"
        )
        return self._put(block.label, text, done)

    def _insert(self, arguments: Mapping[str, Any]) -> CommandResult:
        path = _path(arguments)
        block = self._file(path)
        ends_with_newline = block.value.endswith("\n")
        lines = block.value.removesuffix("\n").split("\n") if block.value else []
        position = arguments.get("insert_line")
        if position is None or not 0 <= position <= len(lines):
            raise Invalid(
                f"Invalid `insert_line` parameter: {position}. It should be within the range of "
                f"lines of the file: [0, {len(lines)}]"
            )
        inserted = _argument(arguments, "insert_text").removesuffix("\n")
        lines[position:position] = inserted.split("\n")
        text = "\n".join(lines) + ("\n" if ends_with_newline else "")
        return self._put(block.label, text, f"The file {path} has been edited.")

    def _delete(self, arguments: Mapping[str, Any]) -> CommandResult:
        path = _path(arguments)
        if not _label(path):
            raise Invalid(f"Cannot delete the {ROOT} directory itself")
        outcomes = [
            submission.remove(self._tx, block, self._edit) for block in self._at(path).values()
        ]
        return _result(f"Successfully deleted {path}", outcomes)

    def _rename(self, arguments: Mapping[str, Any]) -> CommandResult:
        old_path = _path(arguments, "old_path")
        new_path = _path(arguments, "new_path")
        if not _label(old_path) or not _label(new_path):
            raise Invalid(f"Cannot rename the {ROOT} directory itself")
        found = self._at(old_path)
        if self._find(new_path) is not None or self._below(new_path):
            raise Invalid(f"The destination {new_path} already exists")
        is_folder = self._find(old_path) is None
        outcomes = []
        for label in found:
            if is_folder:
                new_label = _label(new_path) + label.removeprefix(_label(old_path))
            else:
                new_label = _label(new_path).removesuffix(_SUFFIX)
            if new_label != label:
                outcomes.append(
                    submission.rename(self._tx, self._memory, label, new_label, self._edit)
                )
        return _result(f"Successfully renamed {old_path} to {new_path}", outcomes)

    def _put(self, label: str, text: str, done: str) -> CommandResult:
        outcome = submission.put(
            self._tx, self._memory, label, text=text, options=PutOptions(), edit=self._edit
        )
        return _result(done, [outcome])

    def _find(self, path: str) -> Block | None:
        """Return the block of a file; None for a folder, and for a path that does not exist."""
        label = _label(path)
        return self._blocks.get(label) or self._blocks.get(label.removesuffix(_SUFFIX))

    def _file(self, path: str) -> Block:
        block = self._find(path)
        if block is None:
            raise NotFound(f"The path {path} does not exist. Please provide a valid path.")
        return block

    def _below(self, path: str) -> dict[str, Block]:
        beginning = f"{_label(path)}/"
        return {
            label: block for label, block in self._blocks.items() if label.startswith(beginning)
        }

    def _at(self, path: str) -> dict[str, Block]:
        """Return the block of a file, or the blocks below a folder. Raises NotFound."""
        block = self._find(path)
        found = {block.label: block} if block else self._below(path)
        if not found:
            raise NotFound(f"The path {path} does not exist")
        return found


def _result(done: str, outcomes: list[SubmissionOutcome]) -> CommandResult:
    proposal_ids = tuple(outcome.proposal.id for outcome in outcomes if outcome.proposal)
    if proposal_ids:
        return CommandResult(WAITS, proposal_ids=proposal_ids)
    return CommandResult(done)


def _argument(arguments: Mapping[str, Any], name: str) -> str:
    if name not in arguments:
        raise Invalid(f"The argument {name} is missing.")
    return str(arguments[name])


def _path(arguments: Mapping[str, Any], name: str = "path") -> str:
    """Return a path below `/memories`. Raises Invalid for any other path."""
    path = _argument(arguments, name)
    parts = path.split("/")
    if parts[:2] != ["", ROOT[1:]] or ".." in parts or "." in parts:
        raise Invalid(f"Path must start with {ROOT}, got: {path}")
    return path


def _label(path: str) -> str:
    """Return the path below `/memories`; empty for `/memories` itself."""
    return path.removeprefix(ROOT).strip("/")


def _file_name(label: str) -> str:
    """Return the name of a block's file: its label, with `.md` if it has no other ending."""
    _, dot, ending = label.rpartition("/")[2].rpartition(".")
    if dot and ending.isalnum():
        return label
    return label + _SUFFIX


def _range(view_range: list[int] | None, count: int) -> tuple[int, int]:
    """Return the first and the last line, counted from 1; a last line of -1 means the end."""
    if not view_range:
        return 1, count
    first = max(1, view_range[0])
    last = view_range[1] if len(view_range) > 1 else count
    return first, count if last == -1 else min(last, count)


def _numbered(lines: list[str], first: int, last: int) -> str:
    return "\n".join(
        f"{number:>{_NUMBER_WIDTH}}\t{lines[number - 1]}" for number in range(first, last + 1)
    )


def _occurrences(text: str, piece: str) -> list[int]:
    starts: list[int] = []
    start = text.find(piece) if piece else -1
    while start >= 0:
        starts.append(start)
        start = text.find(piece, start + 1)
    return starts


def _size(count: int) -> str:
    """Return a number of bytes in the form of `du -h`."""
    if count < _KB:
        return f"{count}B"
    return f"{count / _KB:.1f}K"
