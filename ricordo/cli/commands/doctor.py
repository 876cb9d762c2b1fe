"""`ricordo doctor`."""

import asyncio

import typer

from ricordo.cli.doctor import examine, repair_database, show
from ricordo.cli.doctor_models import examine_models

app = typer.Typer()


@app.command("doctor")
def run_doctor(
    subject: str | None = typer.Argument(
        None, metavar="[WHAT]", help="models: try the models, and show which can run an agent."
    ),
    model: str | None = typer.Option(
        None, help="Handle of one model to try, such as openai/gpt-4.1."
    ),
    repair: bool = typer.Option(
        False,
        "--repair",
        help="Repair conversations whose agents could not answer. Stop the server first.",
    ),
) -> None:
    """Check this installation and report problems."""
    if subject not in (None, "models"):
        raise typer.BadParameter(
            f"{subject} cannot be checked. Leave it out, or use: doctor models"
        )
    if repair and (subject or model):
        raise typer.BadParameter(
            "--repair repairs conversations and tries no models. Use it without other arguments."
        )
    if repair:
        is_well = repair_database()
    elif subject or model:
        is_well = asyncio.run(examine_models(model))
    else:
        is_well = show(examine())
    raise typer.Exit(0 if is_well else 1)
