"""`ricordo serve`."""

import gc
from pathlib import Path

import typer

from ricordo.cli.sockets import listening
from ricordo.settings import load_settings

app = typer.Typer()


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
    # The garbage collector is off during the imports, since scanning the modules repeatedly would
    # take a sixth of the time of the start. `serve` switches it on.
    gc.disable()
    settings, providers = load_settings(
        host=host, port=port, data_dir=data_dir, database_url=database_url
    )
    with listening(settings.host, settings.port) as sockets:
        # Import `serve` after the port is bound. The import takes a second, and a port in use is
        # then reported at once.
        from ricordo.cli.serve import serve

        serve(settings, providers, sockets)
