"""The command line: `ricordo` and the list of its commands.

A command's module is imported when the command runs, so that `ricordo --help` is fast.
"""

import io
import sys
from functools import cache
from typing import Any

import typer
from typer.core import TyperGroup

from ricordo import __version__
from ricordo.cli.lazy_commands import Command, command_tree
from ricordo.cli.screen import as_typed
from ricordo.errors import NO_ROOM, RicordoError
from ricordo.features import FEATURES
from ricordo.plugins import Commands, load_commands

FAULT = 2
INTERRUPTED = 130
_COMMANDS = "ricordo.cli.commands"
CORE_COMMANDS = (
    Commands("", f"{_COMMANDS}.serve", commands={"serve": "Start the server."}),
    Commands("", f"{_COMMANDS}.chat", commands={"chat": "Talk with an agent."}),
    Commands(
        "",
        f"{_COMMANDS}.doctor",
        commands={"doctor": "Check this installation and report problems."},
    ),
    Commands(
        "",
        f"{_COMMANDS}.settings",
        commands={"settings": "List all settings with their values and meanings."},
    ),
    Commands("agent", f"{_COMMANDS}.chat:agent", help="Agents and their models."),
    Commands("search", f"{_COMMANDS}.search", help="The search index."),
)


@cache
def all_commands() -> dict[str, Command]:
    """Return the commands of the core, the features and plugins by name.

    A plugin that cannot be loaded is named on standard error.
    """
    offered, fault = load_commands(FEATURES)
    if fault:
        typer.echo(f"ricordo: {fault}", err=True)
    return command_tree([*CORE_COMMANDS, *offered])


class MainCommand(TyperGroup):
    """`ricordo` itself.

    If a command fails with a RicordoError, the error's sentence is printed instead of a traceback.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands.update(all_commands())

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except RicordoError as error:
            typer.echo(f"ricordo: {as_typed(str(error))}", err=True)
            raise typer.Exit(FAULT) from None
        except PermissionError as error:
            typer.echo(
                f"ricordo: {error.filename or 'A file'} cannot be used: {error.strerror}. Run this "
                "command as the user who owns it, or give this user the right to use it.",
                err=True,
            )
            raise typer.Exit(FAULT) from None
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            typer.echo(
                f"ricordo: {error.filename or 'A file'} cannot be written: {error.strerror}. Free "
                "some space.",
                err=True,
            )
            raise typer.Exit(FAULT) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    cls=MainCommand,
    help="Ricordo: AI agents whose memory belongs to the people it is about.",
    epilog="List all settings with: ricordo settings",
    no_args_is_help=True,
    add_completion=False,
    # Help by rich would take twice as long as everything else together.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"ricordo {__version__}")
        raise typer.Exit


@app.callback()
def prepare(
    version: bool = typer.Option(  # noqa: ARG001 - answered by its callback
        False, "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    """Ricordo: AI agents whose memory belongs to the people it is about."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        # A terminal that cannot show a character gets a question mark instead of an error.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
