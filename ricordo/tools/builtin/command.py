"""The tool `memory`: one tool with several commands.

Some models were trained to edit memory this way. Blocks are named by paths such as
`/memories/human`. wire fact: the texts of results and errors are those of the retired Letta V1
server.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, Literal, get_type_hints

from ricordo.errors import Invalid, NotFound
from ricordo.memory.matching import with_line_breaks
from ricordo.tools.builtin.memory import (
    memory_insert,
    memory_replace,
    now_active,
    refuse_line_numbers,
)
from ricordo.tools.toolbox import ToolContext

_FOLDER = "/memories/"


@dataclass(frozen=True, slots=True)
class MemoryCommand:
    """The arguments of `memory`; each command uses some of them."""

    command: Literal["create", "str_replace", "insert", "delete", "rename"]
    path: str | None = None
    file_text: str | None = None
    description: str | None = None
    old_string: str | None = None
    new_string: str | None = None
    insert_line: int | None = None
    insert_text: str | None = None
    old_path: str | None = None
    new_path: str | None = None


def _with_fields_as_arguments(
    function: Callable[[ToolContext, MemoryCommand], str],
) -> Callable[..., str]:
    """Return the function as a tool that takes the command's fields as arguments.

    A function in this code base may not have so many parameters.
    """

    @wraps(function)
    def tool(context: ToolContext, **arguments: Any) -> str:
        return function(context, MemoryCommand(**arguments))

    context = Parameter("context", Parameter.POSITIONAL_OR_KEYWORD)
    tool.__annotations__ = get_type_hints(MemoryCommand)
    tool.__signature__ = Signature([context, *signature(MemoryCommand).parameters.values()])  # type: ignore[attr-defined]
    return tool


@_with_fields_as_arguments
def memory(context: ToolContext, arguments: MemoryCommand) -> str:
    """Manage your memory blocks: make and delete them, edit their text, rename or describe them.

    create: path, description, and file_text for what it shall hold. str_replace: path, old_string, new_string.
    insert: path, insert_text, insert_line. delete: path. rename: old_path and new_path for another name, or path and description
    for another description.

    Args:
        command: What to do.
        path: The block, as /memories/ and its label.
        file_text: The text of a new block. Do not write line numbers.
        description: What the block is for and how it shall guide you.
        old_string: The text to replace, word for word, with enough of its surroundings to stand only once in the block.
        new_string: The text to put in its place; without it the old text is deleted.
        insert_line: The line after which to insert: 0 puts the text first, -1 or nothing puts it last.
        insert_text: The text to insert, as one or more whole lines.
        old_path: The block to rename.
        new_path: Its new path.
    """
    return _COMMANDS[arguments.command](context, arguments)


def _create(context: ToolContext, arguments: MemoryCommand) -> str:
    label = _label(arguments.path, "create", "path")
    refuse_line_numbers("file_text", arguments.file_text or "")
    context.memory.create(
        label, with_line_breaks(arguments.file_text or ""), arguments.description, context.call_id
    )
    return (
        f"Successfully created memory block '{label}'. "
        f"{now_active(context, 'with the new memory block')}"
    )


def _str_replace(context: ToolContext, arguments: MemoryCommand) -> str:
    label = _existing(context, arguments.path, "str_replace")
    old_string = _require_argument(arguments.old_string, "str_replace", "old_string")
    return memory_replace(context, label, old_string, arguments.new_string or "")


def _insert(context: ToolContext, arguments: MemoryCommand) -> str:
    label = _existing(context, arguments.path, "insert")
    if arguments.insert_line is None:
        line = -1
    else:
        line = arguments.insert_line
    return memory_insert(
        context, label, _require_argument(arguments.insert_text, "insert", "insert_text"), line
    )


def _delete(context: ToolContext, arguments: MemoryCommand) -> str:
    label = _existing(
        context, arguments.path, "delete", missing="Memory block '{}' is not attached to agent '{}'"
    )
    context.memory.remove(label, context.call_id)
    return (
        f"Successfully deleted memory block '{label}'. "
        f"{now_active(context, 'without this memory block')}"
    )


def _rename(context: ToolContext, arguments: MemoryCommand) -> str:
    missing = "Memory block '{}' not found for agent '{}'"
    if not (arguments.old_path or arguments.new_path):
        label = _existing(
            context, arguments.path, "rename", "old_path and new_path, or path", missing=missing
        )
        context.memory.describe(
            label,
            _require_argument(arguments.description, "rename", "description"),
            context.call_id,
        )
        return (
            f"Successfully updated description of memory block '{label}'. "
            f"{now_active(context, 'with the updated description')}"
        )
    new_label = _label(arguments.new_path, "rename", "new_path")
    old_label = _existing(
        context, arguments.old_path or arguments.path, "rename", "old_path", missing=missing
    )
    with context.memory.as_one():
        context.memory.rename(old_label, new_label, context.call_id)
        if arguments.description is not None:
            context.memory.describe(new_label, arguments.description, context.call_id)
    return (
        f"Successfully renamed memory block '{old_label}' to '{new_label}'. "
        f"{now_active(context, 'with the renamed memory block')}"
    )


_COMMANDS = {
    "create": _create,
    "str_replace": _str_replace,
    "insert": _insert,
    "delete": _delete,
    "rename": _rename,
}


def _label(path: str | None, command: str, name: str) -> str:
    """Return the label in a path: everything after `/memories/`, including slashes.

    A label alone is accepted too.
    """
    label = _require_argument(path, command, name)
    if label.startswith(_FOLDER):
        return label.removeprefix(_FOLDER)
    return label.removeprefix("/")


def _existing(
    context: ToolContext,
    path: str | None,
    command: str,
    name: str = "path",
    *,
    missing: str = "Error: Memory block '{}' does not exist",
) -> str:
    label = _label(path, command, name)
    if context.memory.find(label) is None:
        raise NotFound(missing.format(label, context.state.agent.name))
    return label


def _require_argument(argument: str | None, command: str, name: str) -> str:
    if argument is None:
        raise Invalid(f"The command {command} needs {name}. Call the tool again with it.")
    return argument
