"""Tools for memory that belongs to somebody: to read it, and to edit or propose with a reason.

What is proposed is seen by the block's owner alone. It is in no result here, and the agent is never told what became of it.
"""

from typing import Any

from ricordo.domain.block import Block
from ricordo.errors import Invalid, NotFound
from ricordo.memory.working_memory import EditReason
from ricordo.tools.builtin.memory import lines_with, refuse_line_numbers
from ricordo.tools.toolbox import ToolContext

_LONGEST_REASON = 4_000  # characters
# What the calls say until the step is saved, when each is told what really became of its edit.
_EDITED = 'Memory block "{}" was edited.'
_PROPOSED = 'A change of memory block "{}" was proposed.'
_EMPTY = 'Memory block "{}" is empty.'


def list_memory_blocks(context: ToolContext) -> list[dict[str, Any]]:
    """List your memory blocks: label, what each is for, how long it is, and what becomes of your edits (policy).

    direct: applied at once. guarded: applied, unless you have read untrusted content; then proposed. explicit: applied where
    you quote the user's own words that ask for it, else proposed. propose: proposed to the owner. read_only: not yours to change.
    """
    return [
        {
            "label": block.label,
            **({"title": block.title} if block.title else {}),
            "description": block.description or "",
            "characters": len(block.value),
            "limit": block.limit,
            "policy": block.rule,
        }
        for block in context.memory.blocks()
    ]


def read_memory_block(context: ToolContext, label: str) -> str:
    """Read one memory block as it stands, word for word. What was only proposed does not stand in it.

    Args:
        label: Label of the block to read.
    """
    return _existing(context, label).value or _EMPTY.format(label)


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

    The result tells which of the two. A proposal waits for the block's owner: the block stays as it is until then, and you will not
    be told what the owner decides.

    Args:
        label: Label of the block to edit.
        old_string: The text to replace, word for word, with enough of its surroundings to stand only once in the block. Leave it
            empty to fill an empty block. Do not write line numbers.
        new_string: The text to put in its place; leave it empty to delete.
        reasoning: Why, in a sentence or two. The owner reads it.
        replace_all: Whether to replace the text wherever it stands.
        quote: For a block with policy=explicit: the user's words of just now that ask for this, word for word.
    """
    value = _replaced(context, label, old_string, new_string, replace_all)
    given = EditReason(_reason(reasoning), quote=quote)
    context.memory.write(label, value, context.call_id, shown="version", reason=given)
    return _EDITED.format(label)


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

    You will not be told what the owner decides: go on without waiting, and do not propose the same again.

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
    value = _replaced(context, label, old_string, new_string, replace_all)
    given = EditReason(_reason(reasoning), confidence=confidence, only_proposes=True)
    context.memory.write(label, value, context.call_id, shown="version", reason=given)
    return _PROPOSED.format(label)


def _existing(context: ToolContext, label: str) -> Block:
    blocks = context.memory.blocks()
    block = next((block for block in blocks if block.label == label), None)
    if block is None:
        labels = ", ".join(block.label for block in blocks) or "none"
        raise NotFound(f'There is no memory block "{label}" here. Blocks you have: {labels}.')
    return block


def _replaced(context: ToolContext, label: str, old: str, new: str, replace_all: bool) -> str:
    """The block's text with the one piece replaced, or every piece that is like it; raises NotFound, Invalid."""
    refuse_line_numbers("old_string", old)
    refuse_line_numbers("new_string", new)
    if context.memory.find(label) is None:
        _existing(context, label)
    value = context.memory.block(label).value
    if old == new:
        raise Invalid("Nothing to do: old_string and new_string are the same.")
    if not old:
        if value:
            raise Invalid(
                f'Memory block "{label}" is not empty. Name in old_string the text to replace; to add a line, name the one before '
                "it and repeat that in new_string."
            )
        return new
    count = value.count(old)
    if not count:
        raise Invalid(
            f'old_string does not occur word for word in memory block "{label}". Read the block and copy the text from it. '
            "Proposed changes are not in it."
        )
    if count > 1 and not replace_all:
        raise Invalid(
            f'old_string occurs {count} times in memory block "{label}", in lines {lines_with(value, old)}. '
            "Give more of its surroundings, or set replace_all."
        )
    return value.replace(old, new)


def _reason(reasoning: str) -> str:
    reason = reasoning.strip()
    if not reason:
        raise Invalid("reasoning is empty. Say why the block should change: its owner reads it.")
    if len(reason) > _LONGEST_REASON:
        raise Invalid(f"reasoning has {len(reason)} characters, and {_LONGEST_REASON} is the most. Say it shorter.")
    return reason
