"""`ricordo db migrate-to`: moves everything to another database, and says what to set then. It shows no password."""

import typer

from ricordo.cli.progress import Progress
from ricordo.settings import Settings, load_settings
from ricordo.storage.copying import Choices, Moved, move
from ricordo.storage.database import address


def migrate_to(url: str, choices: Choices) -> None:
    """Copy the configured database to this address and compare. Raises RicordoError where it cannot be done."""
    source, _ = load_settings()
    target, _ = load_settings(database_url=url)
    typer.echo(f"From {address(source)}\nto   {address(target)}")
    progress = Progress()
    try:
        moved = move(source, target, choices, lambda phase, table, *done: progress.show(f"{phase} {table}", *done))
    finally:
        progress.end()
    _tell(source, target, moved)


def _tell(source: Settings, target: Settings, moved: Moved) -> None:
    tables = sum(1 for rows in moved.rows.values() if rows)
    typer.echo(
        f"\nMoved {sum(moved.rows.values()):,} rows in {tables} tables. Their numbers and their hashes are equal."
    )
    is_usual = target.postgres_url is None and target.database_path == target.data_dir / "ricordo.db"
    shown = address(target).replace(":***@", ":<password>@")
    how = "take RICORDO_DATABASE_URL away" if is_usual else f"set RICORDO_DATABASE_URL={shown}"
    typer.echo(f"To use the new database, {how} and start the server.")
    if moved.leaves_vectors:
        typer.echo("Vectors that lie in pgvector stay behind. Make them anew: ricordo search reindex --vectors-only")
    typer.echo(
        f"The old one, {address(source)}, is as it was. Keep it until you trust the new one, and start no server on it."
    )
