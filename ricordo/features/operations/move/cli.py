"""`ricordo db migrate-to`: move all data to another database.

It prints the settings for the new database, without a password.
"""

import typer

from ricordo.cli.screen import ProgressLine
from ricordo.features import FEATURES
from ricordo.features.operations.move.service import MoveOptions, move_to
from ricordo.plugins import load_plugins
from ricordo.settings import load_settings
from ricordo.storage.engine.database import address

app = typer.Typer(help="The database: move it to another.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Do nothing; with this callback, a group with a single command keeps the command's name."""


@app.command("migrate-to")
def migrate_to(
    url: str = typer.Argument(
        help="postgresql://user:password@host/database, or sqlite:///path. "
        "The database must be empty."
    ),
    force: bool = typer.Option(
        False,
        "--force",
        help="Copy while servers use the old database. Their writes may be lost.",
    ),
    replace: bool = typer.Option(
        False, "--replace", help="Repeat an interrupted copy from its start."
    ),
    replace_nul: bool = typer.Option(
        False,
        "--replace-nul",
        help="Replace each NUL character with a visible sign, because PostgreSQL cannot store it.",
    ),
) -> None:
    """Move all data to another database, and verify each row.

    The old database is not changed.
    """
    load_plugins(FEATURES).tables()  # registers the tables of features, so that they are moved
    source, _ = load_settings()
    target, _ = load_settings(database_url=url)
    typer.echo(f"From {address(source)}\nto   {address(target)}")
    progress = ProgressLine(has_parts=True)
    options = MoveOptions(force=force, replace=replace, replace_nul=replace_nul)
    try:
        report = move_to(
            source,
            target,
            options,
            lambda phase, table, *counts: progress.show(f"{phase} {table}", *counts),
        )
    finally:
        progress.end()
    tables = sum(1 for rows in report.rows.values() if rows)
    count = f"{sum(report.rows.values()):,} rows in {tables} tables"
    typer.echo(
        f"\nMoved {count}. The rows were checked in both databases. "
        "Their numbers and their hashes are equal."
    )
    is_default = (
        target.postgres_url is None and target.database_path == target.data_dir / "ricordo.db"
    )
    if is_default:
        step = "unset RICORDO_DATABASE_URL"
    else:
        new_url = address(target).replace(":***@", ":<password>@")
        step = f"set RICORDO_DATABASE_URL={new_url}"
    typer.echo(f"To use the new database, {step} and start the server.")
    if report.leaves_vectors:
        typer.echo(
            "Vectors in pgvector are not copied. Create them again with: "
            "ricordo search reindex --vectors-only"
        )
    typer.echo(
        f"The old one, {address(source)}, is unchanged. Keep it until you trust the new one, and "
        "start no server on it."
    )
