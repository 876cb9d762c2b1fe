"""`ricordo openwebui pipe`: prints the function that shows agents as models in Open WebUI."""

from importlib import resources

import typer

app = typer.Typer(help="Open WebUI: its pipe to this server.", no_args_is_help=True)


@app.callback()
def openwebui() -> None:
    """Keep the name of the command; typer drops it from a group of one."""


@app.command()
def pipe() -> None:
    """Print the function that an administrator adds to Open WebUI."""
    typer.echo(resources.files(__package__).joinpath("pipe.py").read_text("utf-8"), nl=False)
