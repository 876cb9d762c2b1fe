"""The tool `memory_apply_patch`: edits blocks by a unified diff or by `***` operations.

A diff is for one block; operations under `***` headers may be for several. wire fact: the texts of
results and errors are those of the retired Letta V1 server.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import dropwhile, pairwise

from ricordo.errors import Invalid, NotFound
from ricordo.memory.matching import folded_line, hint
from ricordo.prompt.system_prompt import LINE_NUMBER_WARNING
from ricordo.tools.builtin.memory import now_active
from ricordo.tools.toolbox import ToolContext

_LINE_NUMBER = re.compile(r"^[-+ ]?[ \t]*\d+→", re.MULTILINE)
_HEADER = re.compile(
    r"\*\*\* (Begin Patch|End Patch|Add Block:|Delete Block:|Update Block:|Move to:)(.*)"
)
_HUNK = re.compile(r"@@ -(\d+)")
# The beginning of a patch's line, after a line break that is written out as `\n`.
_ESCAPED_LINE = re.compile(r"\\n(?:[-+ ]|@@|\*\*\* )")
_SHOWN_LINES = 4
# The lines of the block, counted once for each hunk. Ten hunks in a block of 100,000 lines take a
# second.
_MOST_LINES = 1_000_000
_NO_HUNKS = "No applicable hunks found in patch. Ensure lines start with ' ', '-', or '+'."
_NO_OPERATIONS = (
    "No operations found. Provide at least one of: *** Add Block, *** Delete Block, *** Update "
    "Block."
)
_NO_MOVE = "*** Move to: must follow an Add/Update/Delete header"


_Hunk = tuple[int | None, list[str], list[str]]
"""The header's line number (for a hunk that only adds lines), the old lines, and the new lines."""


@dataclass(slots=True)
class _Operation:
    """One `***` header with the lines below it."""

    kind: str
    label: str
    lines: list[str] = field(default_factory=list)
    move_to: str | None = None


def memory_apply_patch(context: ToolContext, patch: str, label: str | None = None) -> str:
    """Edit memory blocks by a patch, all of it or nothing.

    For one block: its label, and a unified diff whose lines begin with ' ' (kept), '-' (removed) or '+' (added); '@@' begins
    another place. For several: '*** Add Block: label' and its lines with '+', '*** Delete Block: label', '*** Update Block: label'
    and a diff, '*** Move to: new label' below a header to rename.

    Args:
        patch: The patch. Enough of the surroundings to find each place, and no line numbers.
        label: The block to edit, where the patch names none.
    """
    if LINE_NUMBER_WARNING in patch:
        raise Invalid(
            "Patch contains the line number warning banner, which is not allowed. "
            "Provide only the text to edit."
        )
    if _LINE_NUMBER.search(patch):
        raise Invalid(
            "Patch contains a line number prefix, which is not allowed. "
            "Do not include line numbers (they are for display only)."
        )
    lines = _with_line_breaks(patch).removesuffix("\n").split("\n")
    if any(_HEADER.fullmatch(line) for line in lines):
        operations = _operations(lines)
        with context.memory.as_one():
            outcomes = [
                outcome
                for operation in operations
                for outcome in _apply_operation(context, operation)
            ]
        listed = "\n".join(f"- {outcome}" for outcome in outcomes)
        return (
            "Successfully applied memory patch operations. "
            f"{now_active(context, 'with the updated memory contents')}"
            f"\n\nOperations completed:\n{listed}"
        )
    if not label:
        raise Invalid(
            "A patch without *** headers needs the label of the block it is for. "
            "Call the tool again with it."
        )
    return context.memory.write(label, _patched(_value(context, label), lines), context.call_id)


def _with_line_breaks(patch: str) -> str:
    r"""Return the patch with real line breaks for `\n` that was written out.

    Only a patch without line breaks is changed, since all of it would be read as one line.
    """
    is_escaped = "\n" not in patch and _ESCAPED_LINE.search(patch)
    if is_escaped:
        return patch.replace("\\n", "\n")
    return patch


def _operations(lines: Sequence[str]) -> list[_Operation]:
    operations: list[_Operation] = []
    for line in lines:
        header = _HEADER.fullmatch(line)
        if header is None:
            if operations:
                operations[-1].lines.append(line)
            elif line.strip():
                raise Invalid(_NO_OPERATIONS)
        elif header[1] == "Move to:":
            if not operations or operations[-1].lines or operations[-1].move_to:
                raise Invalid(_NO_MOVE)
            operations[-1].move_to = _require_text(
                header[2], "*** Move to: must specify a non-empty new label"
            )
        elif header[1].endswith("Block:"):
            name = _require_text(header[2], f"*** {header[1]} must specify a non-empty label")
            operations.append(_Operation(header[1].removesuffix(" Block:"), name))
    if not operations:
        raise Invalid(_NO_OPERATIONS)
    return operations


def _require_text(text: str, otherwise: str) -> str:
    if not text.strip():
        raise Invalid(otherwise)
    return text.strip()


def _value(context: ToolContext, label: str) -> str:
    block = context.memory.find(label)
    if block is None:
        raise NotFound(f"Error: Memory block '{label}' does not exist")
    return block.value


def _apply_operation(context: ToolContext, operation: _Operation) -> list[str]:
    memory = context.memory
    label = operation.label
    move_to = operation.move_to
    if operation.kind == "Add":
        label = move_to or label
        memory.create(label, "\n".join(_new_lines(operation.lines)), None, context.call_id)
        return [f"Created memory block '{label}'"]
    text = _value(context, label)
    if operation.kind == "Delete":
        if move_to:
            raise Invalid(f"Memory block '{label}' cannot be both deleted and moved. Choose one.")
        memory.remove(label, context.call_id)
        return [f"Deleted memory block '{label}'"]
    outcomes = []
    if move_to is None or any(line.strip() for line in operation.lines):
        memory.write(label, _patched(text, operation.lines), context.call_id, result_kind="nothing")
        outcomes.append(f"Updated memory block '{label}'")
    if move_to:
        memory.rename(label, move_to, context.call_id)
        outcomes.append(f"Renamed memory block '{label}' to '{move_to}'")
    return outcomes


def _new_lines(lines: Sequence[str]) -> list[str]:
    """Return the lines of a new block, without their `+`.

    If no line has one, all lines are used as they are.
    """
    text = _trimmed(lines)
    if not any(line.startswith("+") for line in text):
        return text
    if not all(line.startswith("+") or not line for line in text):
        raise Invalid("The lines of *** Add Block must all start with '+'. Correct the patch.")
    return [line[1:] for line in text]


def _patched(original: str, lines: Sequence[str]) -> str:
    """Return the text with every hunk applied.

    Raises Invalid if a hunk fits nowhere, or in several places.
    """
    text = original.split("\n") if original else []
    shift = 0
    hunks = _hunks(lines)
    if len(hunks) > 1 and len(hunks) * len(text) > _MOST_LINES:
        raise Invalid(
            f"The patch changes {len(hunks)} places, too many at once for a block of {len(text)} "
            "lines. Send fewer places with each call."
        )
    fold = cache(folded_line)
    for after, old, new in hunks:
        if old:
            start = _find_lines(text, old, fold)
            # Kept lines are not changed, even if the patch writes them with other signs.
            current_lines = dict(zip(old, text[start : start + len(old)], strict=True))
            new = [current_lines.get(line, line) for line in new]  # noqa: PLW2901
        elif after is None:
            start = len(text)
        else:
            start = max(0, min(after + shift, len(text)))
        text[start : start + len(old)] = new
        shift += len(new) - len(old)
    return "\n".join(text)


def _hunks(lines: Sequence[str]) -> list[_Hunk]:
    rest = list(dropwhile(lambda line: line.startswith(("diff ", "index ")), lines))
    match rest:  # the two lines that name the texts
        case [old, new, *following] if old.startswith("--- ") and new.startswith("+++ "):
            rest = following
    starts = [index for index, line in enumerate(rest) if line.startswith("@@")]
    bounds = [*dict.fromkeys([0, *starts]), len(rest)]
    hunks = [_hunk(_trimmed(rest[start:end])) for start, end in pairwise(bounds)]
    if not (changing := [hunk for hunk in hunks if hunk[1] or hunk[2]]):
        raise Invalid(_NO_HUNKS)
    return changing


def _hunk(lines: Sequence[str]) -> _Hunk:
    after: int | None = None
    old: list[str] = []
    new: list[str] = []
    for line in lines:
        if line.startswith("@@"):
            header = _HUNK.match(line)
            after = int(header[1]) if header else None
        elif line[:1] in ("", " ", "-", "+"):
            # An empty line counts as a kept line, since its leading space is easily lost.
            if line[:1] != "+":
                old.append(line[1:])
            if line[:1] != "-":
                new.append(line[1:])
        elif not line.startswith("\\ No newline"):
            raise Invalid(_NO_HUNKS)
    return after, old, new


def _find_lines(text: Sequence[str], old: list[str], fold: Callable[[str], str]) -> int:
    """Return the index of the first of these lines in the text."""
    starts = _match_starts(text, old) or _match_starts([*map(fold, text)], [*map(fold, old)])
    if not starts:
        near = hint("\n".join(text), "\n".join(old)).strip()
        raise Invalid(
            "Failed to apply patch: expected hunk context not found in the memory block. "
            "Verify the target lines exist and "
            "try providing more context. Expected start:\n"
            + "\n".join([*old[:_SHOWN_LINES], *filter(None, [near])])
        )
    if len(starts) > 1:
        raise Invalid(
            "Failed to apply patch: hunk context matched multiple places in the memory block. "
            "Please add more unique "
            "surrounding context to disambiguate."
        )
    return starts[0]


def _match_starts(text: Sequence[str], old: Sequence[str]) -> list[int]:
    """Return the indices at which the lines begin in the text, at most two.

    Knuth-Morris-Pratt search: each line of the text is compared about twice, however often the
    beginning of the lines repeats.
    """
    borders = _borders(old)
    starts: list[int] = []
    matched = 0
    for index, line in enumerate(text):
        while matched and (matched == len(old) or line != old[matched]):
            matched = borders[matched - 1]
        if line == old[matched]:
            matched += 1
        if matched == len(old):
            starts.append(index - matched + 1)
            if len(starts) > 1:
                break
    return starts


def _borders(lines: Sequence[str]) -> list[int]:
    """Return for each beginning of the lines the length of its longest proper border.

    A border is both a beginning and an end.
    """
    borders = [0] * len(lines)
    length = 0
    for index in range(1, len(lines)):
        while length and lines[index] != lines[length]:
            length = borders[length - 1]
        if lines[index] == lines[length]:
            length += 1
        borders[index] = length
    return borders


def _trimmed(lines: Sequence[str]) -> list[str]:
    """Return the lines without the empty ones at the end, before the next header."""
    end = len(lines)
    while end and not lines[end - 1]:
        end -= 1
    return list(lines[:end])
