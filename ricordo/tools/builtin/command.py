"""The tool `memory`: one tool with several commands, for models that were trained to edit memory that way.

Blocks are named by paths such as `/memories/human`. The texts of results and errors are wire facts of the retired Letta V1 server.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from inspect import Parameter, Signature
from typing import Any, Literal, get_type_hints

from ricordo.errors import Invalid, NotFound
from ricordo.tools.builtin.memory import memory_insert, memory_replace, refuse_line_numbers
from ricordo.tools.toolbox import ToolContext

_FOLDER = "/memories/"
_NOW_ACTIVE = "and is now active in your context."


@dataclass(frozen=True, slots=True)
class MemoryCommand:
    """The arguments of `memory`; which of them count depends on the command."""

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


def _with_fields_as_arguments(function: Callable[[ToolContext, MemoryCommand], str]) -> Callable[..., str]:
    """The function as a tool that takes the command's fields one by one, which are more than a signature of ours may hold."""

    def tool(context: ToolContext, **arguments: Any) -> str:
        return function(context, MemoryCommand(**arguments))

    hints = get_type_hints(MemoryCommand)
    parameters = [Parameter("context", Parameter.POSITIONAL_OR_KEYWORD)]
    for field in fields(MemoryCommand):
        default = Parameter.empty if field.name == "command" else field.default
        parameters.append(Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=hints[field.name]))
    tool.__name__, tool.__doc__ = function.__name__, function.__doc__
    tool.__annotations__ = hints
    tool.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return tool


@_with_fields_as_arguments
def memory(context: ToolContext, order: MemoryCommand) -> str:
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
    return _COMMANDS[order.command](context, order)


def _create(context: ToolContext, order: MemoryCommand) -> str:
    label = _label(order.path, "create", "path")
    refuse_line_numbers("file_text", order.file_text or "")
    context.memory.create(label, order.file_text or "", order.description, context.call_id)
    return (
        f"Successfully created memory block '{label}'. Your system prompt has been recompiled with the new memory block "
        f"{_NOW_ACTIVE}"
    )


def _str_replace(context: ToolContext, order: MemoryCommand) -> str:
    label = _text_label(context, order, "str_replace")
    old = _given(order.old_string, "str_replace", "old_string")
    return memory_replace(context, label, old, order.new_string or "")


def _insert(context: ToolContext, order: MemoryCommand) -> str:
    label = _text_label(context, order, "insert")
    line = -1 if order.insert_line is None else order.insert_line
    return memory_insert(context, label, _given(order.insert_text, "insert", "insert_text"), line)


def _delete(context: ToolContext, order: MemoryCommand) -> str:
    label = _label(order.path, "delete", "path")
    if context.memory.find(label) is None:
        raise NotFound(f"Memory block '{label}' is not attached to agent '{context.state.agent.name}'")
    context.memory.remove(label, context.call_id)
    return (
        f"Successfully deleted memory block '{label}'. Your system prompt has been recompiled without this memory block "
        f"{_NOW_ACTIVE}"
    )


def _rename(context: ToolContext, order: MemoryCommand) -> str:
    if order.old_path or order.new_path:
        old = _label(order.old_path or order.path, "rename", "old_path")
        new = _label(order.new_path, "rename", "new_path")
        _require_found(context, old)
        with context.memory.as_one():
            context.memory.rename(old, new, context.call_id)
            if order.description is not None:
                context.memory.describe(new, order.description, context.call_id)
        return (
            f"Successfully renamed memory block '{old}' to '{new}'. Your system prompt has been recompiled with the renamed "
            f"memory block {_NOW_ACTIVE}"
        )
    label = _label(order.path, "rename", "old_path and new_path, or path")
    _require_found(context, label)
    context.memory.describe(label, _given(order.description, "rename", "description"), context.call_id)
    return (
        f"Successfully updated description of memory block '{label}'. Your system prompt has been recompiled with the updated "
        f"description {_NOW_ACTIVE}"
    )


_COMMANDS: dict[str, Callable[[ToolContext, MemoryCommand], str]] = {
    "create": _create,
    "str_replace": _str_replace,
    "insert": _insert,
    "delete": _delete,
    "rename": _rename,
}


def _label(path: str | None, command: str, name: str) -> str:
    """The label a path names: all that follows `/memories/`, slashes too. A bare label is understood as well."""
    label = _given(path, command, name)
    return label.removeprefix(_FOLDER) if label.startswith(_FOLDER) else label.removeprefix("/")


def _text_label(context: ToolContext, order: MemoryCommand, command: str) -> str:
    label = _label(order.path, command, "path")
    if context.memory.find(label) is None:
        raise NotFound(f"Error: Memory block '{label}' does not exist")
    return label


def _require_found(context: ToolContext, label: str) -> None:
    if context.memory.find(label) is None:
        raise NotFound(f"Memory block '{label}' not found for agent '{context.state.agent.name}'")


def _given(value: str | None, command: str, name: str) -> str:
    if value is None:
        raise Invalid(f"The command {command} needs {name}. Call the tool again with it.")
    return value
