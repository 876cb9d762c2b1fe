"""`ricordo audit verify` and `ricordo audit export`.

The commands only read the database, so a server may be running.
"""

import json
from dataclasses import replace

import typer

from ricordo.features.operations.audit_log import queries
from ricordo.features.operations.audit_log.service import exported, verify
from ricordo.settings import load_settings
from ricordo.storage.engine.database import read_beside
from ricordo.storage.engine.repository import Page

app = typer.Typer(help="The audit log of changes and refused requests.", no_args_is_help=True)
_SHOWN_PROBLEMS = 100


@app.command("verify")
def verify_log(
    expect: list[str] = typer.Option(
        [],
        help="Number and hash that an earlier check printed, such as 120:8f3a…. The check fails "
        "if that row changed. Repeatable.",
    ),
) -> None:
    """Check that no row was changed or removed. The exit code is 1 if one was."""
    with read_beside(load_settings()[0]) as tx:
        checks, missing = verify(tx, expect)
    for check in checks:
        row_count = check.last - check.first + 1
        typer.echo(
            f"{check.organization_id}: {row_count:,} rows, the last one {check.last}:{check.hash}"
        )
        for problem in check.problems[:_SHOWN_PROBLEMS]:
            typer.echo(f"  {problem}")
    for mark in missing:
        typer.echo(f"{mark} is in no chain.")
    if not checks:
        typer.echo("Nothing has been recorded yet.")
    if missing or any(check.problems for check in checks):
        typer.echo("Rows of the audit log were changed or removed.")
        raise typer.Exit(1)
    typer.echo("No row was changed or removed.")


@app.command("export")
def export_log() -> None:
    """Print the rows of all organizations as JSON lines.

    The oldest row comes first.
    """
    with read_beside(load_settings()[0]) as tx:
        for chain in queries.chains(tx):
            page = Page(limit=queries.AT_ONCE, order="asc")
            while rows := queries.page(tx, chain.organization_id, page, queries.AuditFilter()):
                for row in rows:
                    typer.echo(json.dumps(exported(row), ensure_ascii=False))
                page = replace(page, after=rows[-1]["id"])
