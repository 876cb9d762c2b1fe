"""`ricordo backup`, `ricordo restore` and `ricordo upgrade`."""

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

import typer

from ricordo.cli.screen import ProgressLine
from ricordo.features import FEATURES
from ricordo.features.operations.audit_log.service import recorded_command
from ricordo.features.operations.backups import service
from ricordo.features.operations.move.service import MoveReport, Report
from ricordo.plugins import load_plugins
from ricordo.settings import load_settings
from ricordo.storage.engine.database import address
from ricordo.storage.engine.seal import UNSEALED

app = typer.Typer()
_KILO = 1_000
# Tables whose rows a summary counts, with the nouns that it uses.
_SUMMARY = {
    "users": "users",
    "agents": "agents",
    "conversations": "conversations",
    "messages": "messages",
    "blocks": "memory blocks",
    "commits": "versions",
    "passages": "passages",
}


@app.command("backup")
def backup(
    file: Path = typer.Argument(
        help="The file to write, such as ricordo-2026-01-31.db. It must be new."
    ),
) -> None:
    """Write the whole database into a file.

    Servers may use the database meanwhile. The file is read back and compared, to prove that
    nothing is missing.
    """
    settings, _ = load_settings()
    with recorded_command(settings, "ricordo backup") as problems:
        copied = _copy_with_progress(lambda report: service.back_up(settings, file, report))
    typer.echo(
        f"{file.absolute()} ({_size(file.stat().st_size)}) holds {sum(copied.rows.values()):,} "
        f"rows of {address(settings)}: {_content(copied.rows)}."
    )
    typer.echo(
        "The numbers of rows and their hashes are equal. Restore it with: "
        f"ricordo restore {shlex.quote(str(file))}"
    )
    typer.echo(
        f"Keep {settings.data_dir / 'secret.key'} too, at another location: without it the stored "
        "keys cannot be decrypted."
    )
    _print_problems(problems)


@app.command("restore")
def restore(
    file: Path = typer.Argument(help="A file that `ricordo backup` wrote."),
    replace: bool = typer.Option(
        False,
        "--replace",
        help="Replace an SQLite database that has content, which is lost. On PostgreSQL: only "
        "start an interrupted restore again.",
    ),
) -> None:
    """Replace the database by a backup.

    The settings name the database. Stop the server first.
    """
    settings, _ = load_settings()
    with recorded_command(settings, "ricordo restore") as problems:
        copied = _copy_with_progress(
            lambda report: service.restore(file, settings, report, replace=replace)
        )
    typer.echo(
        f"{address(settings)} holds {sum(copied.rows.values()):,} rows now, equal to the backup's: "
        f"{_content(copied.rows)}."
    )
    if not copied.was_sealed:
        typer.echo(f"About {file}: {UNSEALED}")
    if copied.leaves_vectors:
        typer.echo(
            "Vectors in pgvector are not copied. Create them again with: "
            "ricordo search reindex --vectors-only"
        )
    _print_problems(problems)


@app.command("upgrade")
def upgrade() -> None:
    """Bring the database to this version of Ricordo.

    The database is backed up before and checked after. A server that starts makes the same backup
    and upgrade, but no check. Stop the server first.
    """
    settings, _ = load_settings()
    tables = load_plugins(FEATURES).tables()
    with recorded_command(settings, "ricordo upgrade") as problems:
        upgraded = service.upgrade(settings, tables)
    if upgraded.before == upgraded.after:
        typer.echo(f"{address(settings)} has schema {upgraded.after}, which is this Ricordo's.")
    elif not upgraded.before:
        typer.echo(f"{address(settings)} was empty, and has schema {upgraded.after} now.")
    else:
        typer.echo(
            f"{address(settings)} had schema {upgraded.before}, "
            f"and has schema {upgraded.after} now."
        )
        if upgraded.backup:
            typer.echo(f"The database before the upgrade is in {upgraded.backup}.")
        else:
            typer.echo("There is no backup of the database before the upgrade: install pg_dump.")
    typer.echo(
        f"Checked: {upgraded.tables} tables with all columns, {upgraded.rows:,} rows, none lost."
    )
    _print_problems(problems)


def _content(rows: Mapping[str, int]) -> str:
    """Return the counts by which a person can recognize the backup."""
    counts = [f"{rows[table]:,} {noun}" for table, noun in _SUMMARY.items() if table in rows]
    return ", ".join(counts)


def _size(size: int) -> str:
    for unit in ("bytes", "kB", "MB"):
        if size < _KILO:
            return f"{size:,.0f} {unit}"
        size = round(size / _KILO)
    return f"{size:,} GB"


def _print_problems(problems: "list[str]") -> None:
    for problem in problems:
        typer.echo(problem, err=True)


def _copy_with_progress(copy: "Callable[[Report], MoveReport]") -> "MoveReport":
    load_plugins(FEATURES).tables()  # registers the tables of features, so that they are copied
    progress = ProgressLine(has_parts=True)
    try:
        return copy(lambda phase, table, *counts: progress.show(f"{phase} {table}", *counts))
    finally:
        progress.end()
