"""The command line: commands and their options.

Other modules of this folder and of features do the work. A command imports them when it runs, so
that `ricordo --help` is fast.
"""

import gc
import io
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from ricordo import __version__
from ricordo.errors import NO_ROOM, RicordoError
from ricordo.features import FEATURES
from ricordo.plugins import load_commands

FAULT = 2
INTERRUPTED = 130


class PlainErrors(TyperGroup):
    """Ends a command that failed with the sentence of a RicordoError instead of a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except RicordoError as error:
            from ricordo.cli.screen import as_typed

            typer.echo(f"ricordo: {as_typed(str(error))}", err=True)
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
    cls=PlainErrors,
    help="Ricordo: AI agents whose memory belongs to the people it is about.",
    epilog="List all settings with: ricordo settings",
    no_args_is_help=True,
    add_completion=False,
    # Rich help would take twice the time of everything else here.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

memory = typer.Typer(help="Users' memory: review, audit, remotes, erasure.", no_args_is_help=True)
app.add_typer(memory, name="memory")
agent = typer.Typer(help="Agents and their models.", no_args_is_help=True)
app.add_typer(agent, name="agent")
search = typer.Typer(help="The search index.", no_args_is_help=True)
app.add_typer(search, name="search")


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


@app.command("serve")
def run_server(
    host: str | None = typer.Option(None, help="Address to listen on.  [127.0.0.1]"),
    port: int | None = typer.Option(None, help="Port to listen on; 0 takes a free one.  [8283]"),
    data_dir: Path | None = typer.Option(None, help="Folder for all data.  [~/.ricordo]"),
    database_url: str | None = typer.Option(
        None, help="Address of the database.  [ricordo.db in the data folder]"
    ),
) -> None:
    """Start the server."""
    # The collector would examine the imported modules again and again, a sixth of the start.
    # `serve` switches it on.
    gc.disable()
    from ricordo.settings import load_settings

    settings, providers = load_settings(
        host=host, port=port, data_dir=data_dir, database_url=database_url
    )
    from ricordo.cli.sockets import listening

    # Before the slow imports, so that a port in use is reported at once.
    with listening(settings.host, settings.port) as sockets:
        from ricordo.cli.serve import serve

        serve(settings, providers, sockets)


@app.command("chat")
def run_chat(
    agent: str | None = typer.Option(
        None, help="Name or id of the agent.  [ricordo, created at first use]"
    ),
    model: str | None = typer.Option(None, help="Handle of the model to give the agent."),
    server: str | None = typer.Option(
        None, help="Address of the server.  [the one of RICORDO_HOST and RICORDO_PORT]"
    ),
) -> None:
    """Talk with an agent. If no server is running, one is started for this chat."""
    from ricordo.cli.chat import chat

    all_answered = chat(agent=agent, model=model, server=server)
    raise typer.Exit(0 if all_answered else 1)


@agent.command("model")
def run_agent_model(
    name: str = typer.Argument(help="Name or id of the agent."),
    handle: str | None = typer.Argument(
        None, help="Handle of the model to give it.  [shows the one it has]"
    ),
    server: str | None = typer.Option(
        None, help="Address of the server.  [the one of RICORDO_HOST and RICORDO_PORT]"
    ),
) -> None:
    """Show the model of an agent, or change it. Its memory and messages stay."""
    from ricordo.cli.chat import set_model

    set_model(name, handle, server)


@app.command("doctor")
def run_doctor(
    subject: str | None = typer.Argument(
        None, metavar="[WHAT]", help="models: try the models, and show which can run an agent."
    ),
    model: str | None = typer.Option(
        None, help="Handle of one model to try, such as openai/gpt-4.1."
    ),
    repair: bool = typer.Option(
        False,
        "--repair",
        help="Repair conversations whose agents could not answer. Stop the server first.",
    ),
) -> None:
    """Check this installation and report problems."""
    if subject not in (None, "models"):
        raise typer.BadParameter(
            f"{subject} cannot be checked. Leave it out, or use: doctor models"
        )
    if repair and (subject or model):
        raise typer.BadParameter("--repair repairs conversations and calls no model. Use it alone.")
    if repair:
        from ricordo.cli.doctor import repair_database

        is_well = repair_database()
    elif subject or model:
        import asyncio

        from ricordo.cli.doctor_models import examine_models

        is_well = asyncio.run(examine_models(model))
    else:
        from ricordo.cli.doctor import examine, show

        is_well = show(examine())
    raise typer.Exit(0 if is_well else 1)


@app.command("settings")
def list_settings() -> None:
    """List all settings with their values and meanings."""
    from ricordo.cli.settings_list import show_settings

    is_valid = show_settings()
    raise typer.Exit(0 if is_valid else 1)


@search.command("reindex")
def rebuild_index(
    vectors_only: bool = typer.Option(
        False, "--vectors-only", help="Rebuild only the vectors, not the words."
    ),
    partition: list[str] = typer.Option(
        [], help="Id of an agent or archive; can be repeated.  [all]"
    ),
) -> None:
    """Rebuild the search index from messages and passages.

    Searches use the old one until the new one is ready.
    """
    from ricordo.cli.search import reindex

    is_whole = reindex(partition, vectors_only=vectors_only)
    raise typer.Exit(0 if is_whole else 1)


def add_plugin_commands() -> None:
    """Add the commands of features and plugins.

    A plugin that cannot be loaded is named on standard error.
    """
    offered, fault = load_commands(FEATURES)
    if fault:
        typer.echo(f"ricordo: {fault}", err=True)
    groups = {group.name: group.typer_instance for group in app.registered_groups}
    for commands in offered:
        added: typer.Typer = import_module(commands.module).app
        group = groups.get(commands.name) if commands.name else app
        if group is None:
            groups[commands.name] = added
            app.add_typer(added, name=commands.name)
        else:
            group.registered_commands += added.registered_commands
            group.registered_groups += added.registered_groups


add_plugin_commands()
