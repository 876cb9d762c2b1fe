"""Tools by which an agent reads and edits memory blocks.

wire fact: the texts of their errors are those of the retired Letta V1 server.

Only the block's owner sees proposals, and no result here contains one. The agent only reads how
many of its proposals wait, and why others were rejected.
"""

import re
from typing import Any

from ricordo.errors import Invalid, NotFound
from ricordo.memory.edits import LONGEST_REASON, EditReason, replaced_piece
from ricordo.memory.matching import hint, search, with_line_breaks
from ricordo.prompt.system_prompt import LINE_NUMBER_WARNING
from ricordo.tools.toolbox import ToolContext

_SHOWN_LATER = "It holds from now on. Your system prompt shows it later."
_LINE_NUMBER = re.compile(r"^[ \t]*\d+→[ \t]*", re.MULTILINE)


def now_active(context: ToolContext, change: str) -> str:
    """Return the sentence that tells an agent when its system prompt shows a change of memory.

    wire fact: the first text is the retired Letta V1 server's. It is only true if the prompt is
    rendered before each step, as the retired server always did.

    Args:
        context: The context of the call; its step says when the prompt is rendered.
        change: A few English words about the change, which follow "recompiled".
    """
    if context.step.shows_edits:
        return f"Your system prompt has been recompiled {change} and is now active in your context."
    return _SHOWN_LATER


def memory_insert(context: ToolContext, label: str, new_string: str, insert_line: int = -1) -> str:
    r"""Insert text into a memory block, after a given line. Returns the block's new value.

    Args:
        label: Label of the block to edit.
        new_string: Text to insert, as one or more whole lines. Do not write line numbers. Where it has no line break, "\n" written
            out is one if an item of a list, a heading or a sentence follows.
        insert_line: The line after which to insert: 0 puts the text first, -1 puts it last.
    """
    refuse_line_numbers("new_string", new_string)
    text = context.memory.block(label).value
    lines = text.split("\n") if text else []
    if insert_line == -1:
        insert_line = len(lines)
    if not 0 <= insert_line <= len(lines):
        raise Invalid(
            f"Invalid `insert_line` parameter: {insert_line}. "
            "It should be within the range of lines of the memory block: "
            f"[0, {len(lines)}], or -1 to append to the end of the memory block."
        )
    lines[insert_line:insert_line] = with_line_breaks(new_string).split("\n")
    return context.memory.write(label, "\n".join(lines), context.call_id)


def memory_replace(context: ToolContext, label: str, old_string: str, new_string: str) -> str:
    """Replace one piece of text in a memory block, or delete it by putting nothing in its place. Returns the block's new value.

    Args:
        label: Label of the block to edit.
        old_string: The text to replace, word for word, with enough of its surroundings to stand only once in the block. Do not
            write line numbers. Only signs that look alike may differ: quotes, dashes, an ellipsis, blanks.
        new_string: The text to put in its place.
    """
    refuse_line_numbers("old_string", old_string)
    refuse_line_numbers("new_string", new_string)
    text = context.memory.block(label).value
    match = search(text, old_string, new_string)
    if match.replacement:
        return context.memory.write(label, match.replacement.apply(text), context.call_id)
    if match.count > 1:
        raise Invalid(
            f"No replacement was performed. Multiple occurrences of old_string `{old_string}` in "
            f"lines {list(match.lines)}. "
            f"Please ensure it is unique. It occurs {match.count} times."
        )
    raise Invalid(
        f"No replacement was performed, old_string `{old_string}` did not appear verbatim in "
        f"memory block with label `{label}`."
        f"{hint(text, old_string)}"
    )


def memory_rethink(context: ToolContext, label: str, new_memory: str) -> str:
    """Rewrite a whole memory block, to put it in order or to take in much at once. Returns the block's new value.

    Args:
        label: Label of the block to rewrite.
        new_memory: The block's whole new text. It replaces the old text. Do not write line numbers.
    """
    refuse_line_numbers("new_memory", new_memory)
    return context.memory.write(label, with_line_breaks(new_memory), context.call_id)


def core_memory_append(context: ToolContext, label: str, content: str) -> str:
    """Add text at the end of a memory block. Returns the block's new value.

    Args:
        label: Label of the block to edit.
        content: The text to add, on a new line.
    """
    text = context.memory.block(label).value
    content = with_line_breaks(content)
    return context.memory.write(label, f"{text}\n{content}" if text else content, context.call_id)


def core_memory_replace(
    context: ToolContext, label: str, old_content: str, new_content: str
) -> str:
    """Replace text in a memory block wherever it stands. Returns the block's new value.

    Args:
        label: Label of the block to edit.
        old_content: The text to replace, word for word.
        new_content: The text to put in its place; leave it empty to delete.
    """
    block = context.memory.block(label)
    if old_content and old_content in block.value:
        return context.memory.write(
            label, block.replaced(old_content, new_content), context.call_id
        )
    match = search(block.value, old_content, new_content)
    if match.replacement is None:
        if match.count:
            details = f" It fits {match.count} places."
        else:
            details = hint(block.value, old_content)
        raise Invalid(
            f"Old content '{old_content}' not found in memory block "
            f"'{label}'{details and '.'}{details}"
        )
    return context.memory.write(label, match.replacement.apply(block.value), context.call_id)


def memory_finish_edits(context: ToolContext) -> str:  # noqa: ARG001 - every tool takes a context
    """Say that you are done with editing memory. Call it when nothing is left to change, and at once if there was nothing."""
    return "Memory edits finished."


def list_memory_blocks(context: ToolContext) -> list[dict[str, Any]]:
    """List your memory blocks: label, what each is for, how long it is, and what becomes of your edits (policy).

    direct: applied at once. guarded: applied, unless you have read untrusted content; then proposed. explicit: applied where
    you quote the user's own words that ask for it, else proposed. propose: proposed to the owner. read_only: not yours to change.
    """
    return [
        {
            "label": block.shown_label,
            **({"title": block.title} if block.title else {}),
            "description": block.description or "",
            "characters": len(block.value),
            "limit": block.limit,
            "policy": block.rule,
            **({"shared": True} if block.shared else {}),
        }
        for block in context.memory.blocks()
    ]


def read_memory_block(context: ToolContext, label: str) -> str:
    """Read one memory block as it stands, word for word. What was only proposed does not stand in it.

    Args:
        label: Label of the block to read.
    """
    return _read(context, label) or f'Memory block "{label}" is empty.'


def edit_memory_block(
    context: ToolContext,
    label: str,
    old_string: str,
    new_string: str,
    reasoning: str,
    replace_all: bool = False,
    quote: str | None = None,
) -> str:
    """Replace one piece of text in a memory block, and say why. The block's policy decides whether that is applied or proposed.

    The result tells which of the two. A proposal waits for the block's owner, and the block stays as it is until then. If the owner
    rejects it and says why, you are told in a later turn.

    Args:
        label: Label of the block to edit.
        old_string: The text to replace, word for word, with enough of its surroundings to stand only once in the block. Leave it
            empty to fill an empty block. Do not write line numbers.
        new_string: The text to put in its place; leave it empty to delete.
        reasoning: Why, in a sentence or two. The owner reads it.
        replace_all: Whether to replace the text wherever it stands.
        quote: For a block with policy=explicit: the user's words of just now that ask for this, word for word.
    """
    text = _replaced(context, label, old_string, new_string, replace_all)
    edit_reason = EditReason(_reason(reasoning), quote=quote)
    context.memory.write(label, text, context.call_id, result_kind="version", reason=edit_reason)
    # The save of the step replaces this result by the edit's actual outcome.
    return f'Memory block "{label}" was edited.'


def propose_memory_edit(
    context: ToolContext,
    label: str,
    old_string: str,
    new_string: str,
    reasoning: str,
    replace_all: bool = False,
    confidence: float | None = None,
) -> str:
    """Propose to the owner of a memory block to replace one piece of text. The block stays as it is until the owner decides.

    In a conversation about a user you can propose a new block of the user's too: give a label that is not there, and its text.
    Go on without waiting, and do not propose the same again. If the owner rejects it and says why, you are told in a later turn.

    Args:
        label: Label of the block.
        old_string: The text to replace, word for word, with enough of its surroundings to stand only once in the block. Leave it
            empty to fill an empty block. Do not write line numbers.
        new_string: The text to put in its place; leave it empty to delete.
        reasoning: Why, in a sentence or two. The owner reads it and decides by it.
        replace_all: Whether to replace the text wherever it stands.
        confidence: How sure you are that this is right, from 0 to 1.
    """
    if confidence is not None and not 0 <= confidence <= 1:
        raise Invalid(f"confidence is a number from 0 to 1, not {confidence}. Correct it.")
    edit_reason = EditReason(_reason(reasoning), confidence=confidence, only_proposes=True)
    if context.memory.is_about_user and not old_string and context.memory.find(label) is None:
        refuse_line_numbers("new_string", new_string)
        context.memory.create(label, new_string, None, context.call_id, edit_reason)
        return f'A new memory block "{label}" was proposed.'
    text = _replaced(context, label, old_string, new_string, replace_all)
    context.memory.write(label, text, context.call_id, result_kind="version", reason=edit_reason)
    return f'A change of memory block "{label}" was proposed.'


def refuse_line_numbers(name: str, text: str) -> None:
    """Raise Invalid if a text repeats the prompt's line numbers or their note.

    Args:
        name: The name of the argument, for the message.
        text: The value of the argument.

    Raises:
        Invalid: The text has a line number with an arrow, or the note about such numbers.
    """
    rest = "when calling memory tools (line numbers are for display purposes only)."
    if LINE_NUMBER_WARNING in text:
        raise Invalid(
            f"{name} contains a line number warning, which is not allowed. "
            f"Do not include line number information {rest}"
        )
    if _LINE_NUMBER.search(text):
        raise Invalid(
            f"{name} contains a line number prefix, which is not allowed. "
            f"Do not include line numbers {rest}"
        )


def _read(context: ToolContext, label: str) -> str:
    texts = {block.shown_label: block.value for block in context.memory.blocks()}
    if label not in texts:
        raise NotFound(
            f'There is no memory block "{label}" here. Blocks you have: '
            f"{', '.join(texts) or 'none'}."
        )
    return texts[label]


def _replaced(context: ToolContext, label: str, old: str, new: str, replace_all: bool) -> str:
    """Return the block's text with one piece replaced, or every equal piece.

    Raises NotFound for an unknown label, Invalid for an edit that cannot be applied, and TooLong
    above the block's limit.
    """
    refuse_line_numbers("old_string", old)
    refuse_line_numbers("new_string", new)
    _read(context, label)
    return replaced_piece(context.memory.block(label), old, new, everywhere=replace_all)


def _reason(reasoning: str) -> str:
    reason = reasoning.strip()
    if not reason:
        raise Invalid("reasoning is empty. Say why the block should change: its owner reads it.")
    if len(reason) > LONGEST_REASON:
        raise Invalid(
            f"reasoning has {len(reason)} characters, and {LONGEST_REASON} are allowed. Shorten it."
        )
    return reason
