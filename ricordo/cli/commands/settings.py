"""`ricordo settings`."""

import typer

from ricordo.cli.settings_list import show_settings

app = typer.Typer()


@app.command("settings")
def list_settings() -> None:
    """List all settings with their values and meanings."""
    is_valid = show_settings()
    raise typer.Exit(0 if is_valid else 1)
