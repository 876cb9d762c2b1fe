"""`ricordo memory forget` and `ricordo memory receipt`: erase a user, check a receipt.

A running server does the work. Without one, a server runs in this process until the work is done.
"""

import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import typer

from ricordo.cli.client import any_server, require_database
from ricordo.errors import NotFound, Unavailable
from ricordo.features.memory_care.erasure.receipts import path_of, read, verify
from ricordo.secret import FILE, Secret
from ricordo.settings import load_settings

app = typer.Typer()
_ASKED_EVERY = 0.2  # seconds


@app.command("forget")
def forget_user(
    user: str = typer.Argument(help="Id or name of the user to forget."),
    yes: bool = typer.Option(False, "--yes", help="Do not ask."),
    with_agents: bool = typer.Option(
        False, "--with-agents", help="Also delete agents that only this user has."
    ),
    server: str | None = typer.Option(
        None, help="Address of the server.  [from RICORDO_HOST and RICORDO_PORT]"
    ),
) -> None:
    """Forget a user, and give a signed receipt.

    The user's memory, conversations and all other data about the user are deleted.
    """
    with any_server(
        server, lambda settings: require_database(settings, "no user to forget")
    ) as client:
        if not yes:
            _require_user(client, user)
            agents = ", and the agents that are theirs alone" if with_agents else ""
            typer.confirm(
                f'Forget "{user}"? Their memory with all its versions, their conversations and '
                f"what was kept about them{agents} are deleted. This cannot be undone.",
                abort=True,
            )
        receipt = _forget(client, user, with_agents=with_agents)
    typer.echo(summary(receipt))
    if (path := path_of(load_settings()[0].data_dir, receipt["id"])).exists():
        typer.echo(f"Receipt: {path}")


@app.command("receipt")
def check_receipt(
    file: Path = typer.Argument(help="Path of a receipt, such as a file in <data>/receipts."),
) -> None:
    """Show the receipt of an erasure, and check its signature."""
    receipt = read(file)
    if receipt is None:
        raise NotFound(f"There is no file {file}. Give the path of a receipt.")
    data_dir = load_settings()[0].data_dir
    if not verify(receipt):
        typer.echo("This receipt was changed after it was signed. Do not rely on it.")
        raise typer.Exit(1)
    typer.echo(summary(receipt))
    if not (data_dir / FILE).exists():
        typer.echo(
            "It is unchanged since it was signed. Who signed it cannot be told here: "
            f"{data_dir} has no secret key."
        )
        return
    if not verify(receipt, Secret(data_dir)):
        typer.echo("It was signed, but not by this installation.")
        raise typer.Exit(1)
    typer.echo("It is unchanged since this installation signed it.")
    raise typer.Exit(0)


def summary(receipt: dict[str, Any]) -> str:
    """Return a receipt as lines of text for a terminal.

    Args:
        receipt: The facts of a receipt, as its file holds them.
    """
    agents = receipt["agents"]
    affected = {
        agent["id"]: agent["versions"]
        for agent in agents
        if agent["versions"] and not agent.get("is_deleted")
    }
    staying = {agent["id"]: agent["stays"] for agent in agents if agent.get("stays")}
    lines = [f"{receipt['id']}: asked {receipt['asked_at']}, done {receipt['finished_at']}"]
    for title, facts in (
        ("Removed:", receipt["removed"] or {"nothing": 0}),
        (
            "Changed:" if receipt.get("scope") else "Changed in data of others:",
            receipt["changed"],
        ),
        ("Not removable:", receipt["remaining"]),
        ("Files:", receipt["files"]),
        ("Agents that stay, with the reason:", staying),
        ("Agents whose blocks have versions from the user's turns (check them):", affected),
    ):
        if facts:
            rows = (
                (name, f"{fact:,}" if isinstance(fact, int) else fact)
                for name, fact in sorted(facts.items())
            )
            lines += [title, *(f"  {name}: {fact}" for name, fact in rows)]
    if receipt["elsewhere"]:
        lines += [
            "Data that remains, here or elsewhere:",
            *(f"  {sentence}" for sentence in receipt["elsewhere"]),
        ]
    return "\n".join(lines)


def _require_user(client: Any, name: str) -> None:
    try:
        client.ask("GET", f"/users/{quote(name, safe='')}/diffs", query={"limit": 1})
    except NotFound as error:
        raise NotFound(
            f"{error} If this user was forgotten before, --yes shows the receipt."
        ) from None


def _forget(client: Any, name: str, *, with_agents: bool) -> dict[str, Any]:
    query = {"with_agents": True} if with_agents else None
    try:
        receipt: dict[str, Any] = client.ask(
            "DELETE", f"/users/{quote(name, safe='')}", query=query
        )
        receipt = wait_for_receipt(client, receipt)
    except Unavailable as error:
        raise Unavailable(
            f"{error} It continues the erasure; repeat the command to see how it ended."
        ) from None
    return receipt


def wait_for_receipt(client: Any, receipt: dict[str, Any]) -> dict[str, Any]:
    """Ask for the receipt until the work is done.

    Args:
        client: The client of a server.
        receipt: The state of the erasure, as the server last gave it.
    """
    while receipt["status"] != "done":
        time.sleep(_ASKED_EVERY)
        receipt = client.ask("GET", f"/v1/receipts/{receipt['id']}")
    return receipt
