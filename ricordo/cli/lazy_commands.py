"""Commands that are known by name and imported when they run, so that `ricordo --help` is fast."""

from collections.abc import Iterable
from importlib import import_module
from typing import Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from ricordo.plugins import Commands

Command = TyperCommand | TyperGroup


class LazyCommand(TyperCommand):
    """A command, or a group of commands, of a typer app that is imported when it runs."""

    def __init__(self, name: str, commands: Commands, help: str) -> None:
        super().__init__(name, callback=None, help=help)
        self._commands = commands

    def load(self) -> Command:
        """Import the typer app and return the command."""
        group = _group_of(self._commands)
        if self._commands.name == self.name:
            return group
        command = group.commands[str(self.name)]
        return cast("Command", command)

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return the declared help, or else that of the imported command.

        Args:
            limit: The most characters of the line.
        """
        if self.help:
            return super().get_short_help_str(limit)
        return self.load().get_short_help_str(limit)

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Return a context in which the imported command runs.

        Args:
            *arguments: The arguments of click's method.
            **options: Its options.
        """
        return self.load().make_context(*arguments, **options)


def command_tree(offered: Iterable[Commands]) -> dict[str, Command]:
    """Return these commands and groups by name. Commands of the same group become one group.

    Args:
        offered: The commands of features and plugins. If two have one name, the later one counts.
    """
    by_group: dict[str, list[Commands]] = {}
    for commands in offered:
        by_group.setdefault(commands.name, []).append(commands)
    tree = _members(by_group.pop("", []))
    for name, parts in by_group.items():
        if len(parts) == 1 and not parts[0].commands:
            tree[name] = LazyCommand(name, parts[0], parts[0].help)
        else:
            help = next((part.help for part in parts if part.help), None)
            tree[name] = TyperGroup(
                name=name,
                commands=_members(parts),
                help=help,
                no_args_is_help=True,
                rich_markup_mode=None,
            )
    return tree


def _members(parts: Iterable[Commands]) -> dict[str, Any]:
    """Return the commands in a group. Those without declared names are imported."""
    members: dict[str, Any] = {}
    for part in parts:
        if part.commands:
            members |= {name: LazyCommand(name, part, help) for name, help in part.commands.items()}
        else:
            members |= _group_of(part).commands
    return members


def _group_of(commands: Commands) -> TyperGroup:
    """Import the typer app of these commands and return it as a group."""
    module, _, attribute = commands.module.partition(":")
    app: typer.Typer = getattr(import_module(module), attribute or "app")
    app.rich_markup_mode = None
    group = typer.main.get_group(app)
    group.name = commands.name
    return group
