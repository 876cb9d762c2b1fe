"""`ricordo db migrate-to`: moves everything to another database, and says what to set then. It shows no password."""

import typer

app = typer.Typer(help="The database: move it to another.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Let the one command have its name."""


@app.command("migrate-to")
def migrate_to(
    url: str = typer.Argument(
        help="postgresql://user:password@host/database, or sqlite:///path. It must be empty."
    ),
    force: bool = typer.Option(
        False,
        "--force",
        help="Copy although servers use the old one. What they write meanwhile may be lost.",
    ),
    replace: bool = typer.Option(False, "--replace", help="Start an interrupted copy again."),
    replace_nul: bool = typer.Option(
        False,
        "--replace-nul",
        help="Write a sign for each NUL character, which PostgreSQL cannot keep.",
    ),
) -> None:
    """Move everything to another database. Proves that nothing was lost. The old one stays as it is."""
    from ricordo.cli.screen import ProgressLine
    from ricordo.features import FEATURES
    from ricordo.features.operations.move.service import MoveOptions, move_to
    from ricordo.plugins import load_plugins
    from ricordo.settings import load_settings
    from ricordo.storage.engine.database import address

    load_plugins(FEATURES).tables()  # they are moved too
    source, _ = load_settings()
    target, _ = load_settings(database_url=url)
    typer.echo(f"From {address(source)}\nto   {address(target)}")
    progress = ProgressLine()
    options = MoveOptions(force, replace, replace_nul)
    try:
        report = move_to(
            source,
            target,
            options,
            lambda phase, table, *done: progress.show(f"{phase} {table}", *done),
        )
    finally:
        progress.end()
    tables = sum(1 for rows in report.rows.values() if rows)
    count = f"{sum(report.rows.values()):,} rows in {tables} tables"
    typer.echo(f"\nMoved {count}. Their numbers and their hashes are equal.")
    is_usual = (
        target.postgres_url is None and target.database_path == target.data_dir / "ricordo.db"
    )
    shown = address(target).replace(":***@", ":<password>@")
    how = "take RICORDO_DATABASE_URL away" if is_usual else f"set RICORDO_DATABASE_URL={shown}"
    typer.echo(f"To use the new database, {how} and start the server.")
    if report.leaves_vectors:
        typer.echo(
            "Vectors in pgvector are not copied. Create them again with: ricordo search reindex --vectors-only"
        )
    typer.echo(
        f"The old one, {address(source)}, is as it was. Keep it until you trust the new one, and start no server on it."
    )
