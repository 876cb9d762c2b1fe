"""`ricordo openwebui`: prints functions that an administrator adds to Open WebUI."""

from importlib import resources

import typer

app = typer.Typer(help="Open WebUI: its pipe to this server.", no_args_is_help=True)


@app.callback()
def openwebui() -> None:
    """Functions for Open WebUI."""


@app.command()
def pipe() -> None:
    """Print the pipe, which shows agents as models."""
    _print("pipe.py")


@app.command()
def deleted_chats() -> None:
    """Print the function that also deletes a chat on this server.

    Open WebUI calls it when a user deletes a chat there.
    """
    _print("deleted_chats.py")


def _print(file: str) -> None:
    typer.echo(resources.files(__package__).joinpath(file).read_text("utf-8"), nl=False)
