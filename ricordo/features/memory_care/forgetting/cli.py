"""`ricordo user forget`: list everything that mentions a fact, and remove it."""

from typing import Any
from urllib.parse import quote

import typer

from ricordo.cli.client import any_server, require_database
from ricordo.errors import Invalid
from ricordo.features.memory_care.erasure.cli import summary, wait_for_receipt


def forget_thing(
    user: str = typer.Argument(help="Id or name of the user whose memory is searched."),
    text: str = typer.Option(
        ..., "--text", help="The text to forget: a line, a sentence, or a subject."
    ),
    yes: bool = typer.Option(False, "--yes", help="Remove it; without this, only list it."),
    perhaps: bool = typer.Option(
        False,
        "--perhaps",
        help="Also remove texts with similar words or meaning, which perhaps say it.",
    ),
    ids: list[str] = typer.Option(
        [], "--id", help="Remove only this item of the list, by its id; repeatable."
    ),
    again: bool = typer.Option(
        False, "--allow-again", help="Allow agents to remember it again if the user says it again."
    ),
    server: str | None = typer.Option(
        None, help="Address of the server.  [from RICORDO_HOST and RICORDO_PORT]"
    ),
) -> None:
    """Forget one thing about a user, wherever it was said.

    Without --yes it only lists the items that mention it.
    """
    path = f"/users/{quote(user, safe='')}/forget"
    with any_server(
        server, lambda settings: require_database(settings, "nothing to forget")
    ) as client:
        listed = client.ask("POST", path, body={"text": text})
        _show(listed)
        if not yes:
            typer.echo("Nothing was removed. Repeat the command with --yes to remove it.")
            return
        if not (listed["items"] or (perhaps and listed["perhaps"]) or ids):
            raise Invalid("No stored text says it, so nothing was removed.")
        choice = {"ids": list(ids)} if ids else {"all": True, "perhaps": perhaps}
        body = {"text": text, "never_again": not again, **choice}
        receipt = wait_for_receipt(client, client.ask("POST", path, body=body))
    typer.echo(summary(receipt))


def _show(listed: dict[str, Any]) -> None:
    for title, items in (("Says it:", listed["items"]), ("Perhaps says it:", listed["perhaps"])):
        if items:
            typer.echo(title)
        for item in items:
            typer.echo(f"  {item['id']}")
            for sentence in item["excerpts"]:
                typer.echo(f"    {sentence}")
    for sentence in listed["remains"]:
        typer.echo(sentence)
    if listed["is_cut"]:
        typer.echo("There are more items than this list shows.")
