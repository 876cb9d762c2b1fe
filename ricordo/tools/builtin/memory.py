"""Tools by which an agent edits its own memory blocks. The texts of their errors are wire facts of the retired Letta V1 server."""

import re

from ricordo.errors import Invalid
from ricordo.prompt.memory import LINE_NUMBER_WARNING
from ricordo.tools.toolbox import ToolContext

_LINE_NUMBER = re.compile(r"^[ \t]*\d+→[ \t]*", re.MULTILINE)


def memory_insert(context: ToolContext, label: str, new_string: str, insert_line: int = -1) -> str:
    """Insert text into a memory block, after a given line. Returns the block's new value.

    Args:
        label: Label of the block to edit.
        new_string: Text to insert, as one or more whole lines. Do not write line numbers.
        insert_line: The line after which to insert: 0 puts the text first, -1 puts it last.
    """
    refuse_line_numbers("new_string", new_string)
    value = context.memory.block(label).value
    lines = value.split("\n") if value else []
    if insert_line == -1:
        insert_line = len(lines)
    if not 0 <= insert_line <= len(lines):
        raise Invalid(
            f"Invalid `insert_line` parameter: {insert_line}. It should be within the range of lines of the memory block: "
            f"[0, {len(lines)}], or -1 to append to the end of the memory block."
        )
    lines[insert_line:insert_line] = new_string.split("\n")
    return context.memory.write(label, "\n".join(lines), context.call_id)


def memory_replace(context: ToolContext, label: str, old_string: str, new_string: str) -> str:
    """Replace one piece of text in a memory block, or delete it by putting nothing in its place. Returns the block's new value.

    Args:
        label: Label of the block to edit.
        old_string: The text to replace, word for word, with enough of its surroundings to stand only once in the block. Do not
            write line numbers.
        new_string: The text to put in its place.
    """
    refuse_line_numbers("old_string", old_string)
    refuse_line_numbers("new_string", new_string)
    value = context.memory.block(label).value
    if not old_string or old_string not in value:
        raise Invalid(
            f"No replacement was performed, old_string `{old_string}` did not appear verbatim in memory block with label `{label}`."
        )
    if value.count(old_string) > 1:
        lines = lines_with(value, old_string)
        raise Invalid(
            f"No replacement was performed. Multiple occurrences of old_string `{old_string}` in lines {lines}. "
            "Please ensure it is unique."
        )
    return context.memory.write(label, value.replace(old_string, new_string), context.call_id)


def memory_rethink(context: ToolContext, label: str, new_memory: str) -> str:
    """Rewrite a whole memory block, to put it in order or to take in much at once. Returns the block's new value.

    Args:
        label: Label of the block to rewrite.
        new_memory: The block's whole new text: whatever it leaves out is gone. Do not write line numbers.
    """
    refuse_line_numbers("new_memory", new_memory)
    return context.memory.write(label, new_memory, context.call_id)


def core_memory_append(context: ToolContext, label: str, content: str) -> str:
    """Add text at the end of a memory block. Returns the block's new value.

    Args:
        label: Label of the block to edit.
        content: The text to add, on a new line.
    """
    value = context.memory.block(label).value
    return context.memory.write(label, f"{value}\n{content}" if value else content, context.call_id)


def core_memory_replace(context: ToolContext, label: str, old_content: str, new_content: str) -> str:
    """Replace text in a memory block wherever it stands. Returns the block's new value.

    Args:
        label: Label of the block to edit.
        old_content: The text to replace, word for word.
        new_content: The text to put in its place; leave it empty to delete.
    """
    value = context.memory.block(label).value
    if not old_content or old_content not in value:
        raise Invalid(f"Old content '{old_content}' not found in memory block '{label}'")
    return context.memory.write(label, value.replace(old_content, new_content), context.call_id)


def memory_finish_edits(context: ToolContext) -> str:  # noqa: ARG001 - every tool takes a context
    """Say that you are done with editing memory. Call it when nothing is left to change, and at once if there was nothing."""
    return "Memory edits finished."


def refuse_line_numbers(name: str, text: str) -> None:
    """Raise Invalid where a text repeats the line numbers, or the note on them, that only the prompt has."""
    if LINE_NUMBER_WARNING in text:
        raise Invalid(
            f"{name} contains a line number warning, which is not allowed. Do not include line number information when "
            "calling memory tools (line numbers are for display purposes only)."
        )
    if _LINE_NUMBER.search(text):
        raise Invalid(
            f"{name} contains a line number prefix, which is not allowed. Do not include line numbers when calling memory "
            "tools (line numbers are for display purposes only)."
        )


def lines_with(value: str, piece: str) -> list[int]:
    """The numbers of the lines on which an occurrence of the piece begins, counted from 1."""
    starts = [match.start() for match in re.finditer(re.escape(piece), value)]
    return sorted({value.count("\n", 0, start) + 1 for start in starts})
