"""`ricordo guardian`: link guardians with students.

A link alone shows nothing, except levels in courses that show them to guardians. Students decide on
their page what each guardian sees.
"""

from pathlib import Path
from typing import Any
from urllib.parse import quote

import typer

from ricordo.cli.client import any_server
from ricordo.cli.named_files import read_file
from ricordo.domain.csv_text import csv_rows
from ricordo.domain.text import decoded
from ricordo.errors import Invalid, RicordoError

app = typer.Typer(help="Guardians: who sees a student's skills.", no_args_is_help=True)
_COLUMNS = ("student", "guardian")
_Server = typer.Option(None, help="Address of the server.  [the configured one, started if needed]")
_Student = typer.Argument(help="The student's id or identifier.")
_Guardian = typer.Argument(help="The guardian's id or identifier.")


@app.command("add")
def add(
    student: str | None = typer.Argument(None, help="The student; not with --csv."),
    guardian: str | None = typer.Argument(None, help="The guardian; not with --csv."),
    csv: Path | None = typer.Option(
        None, "--csv", help="Many pairs: a file with the columns student and guardian."
    ),
    server: str | None = _Server,
) -> None:
    """Make users guardians of students. A pair that is already linked does not change.

    The exit code is 1 if a pair could not be linked. The other pairs are linked anyway.
    """
    if csv is not None and student is None:
        pairs = _pairs_in(csv)
    elif csv is None and student and guardian:
        pairs = [(student, guardian)]
    else:
        raise Invalid("Name a student and a guardian, or a file with --csv.")
    failures = 0
    with any_server(server, lambda _: None) as client:
        for student_name, guardian_name in pairs:
            try:
                client.ask("PUT", _path(student_name, guardian_name))
            except RicordoError as error:
                failures += 1
                typer.echo(f"{student_name}, {guardian_name}: {error}", err=True)
            else:
                typer.echo(f"{guardian_name} is a guardian of {student_name}.")
    if failures:
        raise typer.Exit(1)


@app.command("list")
def list_guardians(student: str = _Student, server: str | None = _Server) -> None:
    """Show a student's guardians, and what each may see."""
    with any_server(server, lambda _: None) as client:
        guardians: list[dict[str, Any]] = client.ask("GET", _path(student))
    for guardian in guardians:
        typer.echo(f"{guardian['identifier'] or guardian['user_id']}  sees {guardian['sees']}")
    if not guardians:
        typer.echo(f"{student} has no guardians. Add one with: ricordo guardian add {student} NAME")


@app.command("remove")
def remove(
    student: str = _Student, guardian: str = _Guardian, server: str | None = _Server
) -> None:
    """End a guardianship."""
    with any_server(server, lambda _: None) as client:
        client.ask("DELETE", _path(student, guardian))
    typer.echo(f"{guardian} is no longer a guardian of {student}.")


def _path(student: str, guardian: str = "") -> str:
    path = f"/v1/users/{quote(student, safe='')}/guardians"
    return f"{path}/{quote(guardian, safe='')}" if guardian else path


def _pairs_in(file: Path) -> list[tuple[str, str]]:
    """Return the pairs in a CSV file. Raises Invalid for missing columns and cells."""
    text = decoded(read_file(file))
    rows = ((line, cells) for line, cells in csv_rows(text) if any(map(str.strip, cells)))
    header = [cell.strip().casefold() for cell in next(rows, (0, []))[1]]
    if not set(_COLUMNS) <= set(header):
        raise Invalid("The first line must name the columns: student,guardian")
    positions = [header.index(column) for column in _COLUMNS]
    pairs = []
    for line, row in rows:
        names = [row[position].strip() if position < len(row) else "" for position in positions]
        if not all(names):
            raise Invalid(f"Line {line} names no student or no guardian.")
        pairs.append((names[0], names[1]))
    return pairs
