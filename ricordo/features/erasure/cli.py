"""`ricordo memory forget` and `ricordo memory receipt`: erasing a user, and checking the receipt of it.

The server does it where one runs. Where none does, one runs in this process until all is done.
"""

from pathlib import Path
from typing import Any

import typer

app = typer.Typer()
_ASKED_EVERY = 0.2  # seconds


@app.command("forget")
def forget_user(
    user: str = typer.Argument(help="Who shall be forgotten: their id or name."),
    yes: bool = typer.Option(False, "--yes", help="Do not ask."),
    with_agents: bool = typer.Option(
        False, "--with-agents", help="Delete the agents too that are theirs alone."
    ),
    server: str | None = typer.Option(
        None, help="Address of the server.  [the one of RICORDO_HOST and RICORDO_PORT]"
    ),
) -> None:
    """Forget a user, and give a signed receipt. Their memory, conversations and what was kept about them are deleted."""
    from ricordo.cli.client import any_server, require_database
    from ricordo.features.erasure.receipts import path_of
    from ricordo.settings import load_settings

    with any_server(
        server, lambda settings: require_database(settings, "no user to forget")
    ) as client:
        if not yes:
            _require_user(client, user)
            too = ", and the agents that are theirs alone" if with_agents else ""
            what = f"Their memory with all its versions, their conversations and what was kept about them{too}"
            typer.confirm(
                f'Forget "{user}"? {what} are deleted. This cannot be undone.', abort=True
            )
        receipt = _forget(client, user, with_agents=with_agents)
    typer.echo(summary(receipt))
    if (path := path_of(load_settings()[0].data_dir, receipt["id"])).exists():
        typer.echo(f"Receipt: {path}")


@app.command("receipt")
def check_receipt(
    file: Path = typer.Argument(help="A receipt, as <data>/receipts has them."),
) -> None:
    """Show the receipt of an erasure, and check its signature."""
    from ricordo.errors import NotFound
    from ricordo.features.erasure.receipts import read, verify
    from ricordo.secret import FILE, Secret
    from ricordo.settings import load_settings

    receipt = read(file)
    if receipt is None:
        raise NotFound(f"There is no file {file}. Name a receipt.")
    data_dir = load_settings()[0].data_dir
    if not verify(receipt):
        typer.echo("This receipt was changed after it was signed. Do not rely on it.")
        raise typer.Exit(1)
    typer.echo(summary(receipt))
    if not (data_dir / FILE).exists():
        typer.echo(
            f"It is as it was signed. Whose key that was cannot be told here: {data_dir} has no secret key."
        )
        return
    is_ours = verify(receipt, Secret(data_dir))
    typer.echo(
        "It is as this installation signed it."
        if is_ours
        else "It was signed, but not by this installation."
    )
    raise typer.Exit(0 if is_ours else 1)


def summary(receipt: dict[str, Any]) -> str:
    agents = receipt["agents"]
    seen = {
        one["id"]: one["versions"]
        for one in agents
        if one["versions"] and not one.get("is_deleted")
    }
    lines = [f"{receipt['id']}: asked {receipt['asked_at']}, done {receipt['finished_at']}"]
    for title, facts in (
        ("Removed:", receipt["removed"] or {"nothing": 0}),
        ("Changed in data of others:", receipt["changed"]),
        ("Not removable:", receipt["remaining"]),
        ("Files:", receipt["files"]),
        (
            "Agents that stay, and why:",
            {one["id"]: one["stays"] for one in agents if one.get("stays")},
        ),
        ("Agents whose blocks have versions from the user's turns (check them):", seen),
    ):
        if facts:
            rows = (
                (name, f"{fact:,}" if isinstance(fact, int) else fact)
                for name, fact in sorted(facts.items())
            )
            lines += [title, *(f"  {name}: {fact}" for name, fact in rows)]
    if receipt["elsewhere"]:
        lines += [
            "What remains elsewhere or stays:",
            *(f"  {sentence}" for sentence in receipt["elsewhere"]),
        ]
    return "\n".join(lines)


def _require_user(client: Any, name: str) -> None:
    from urllib.parse import quote

    from ricordo.errors import NotFound

    try:
        client.ask("GET", f"/users/{quote(name, safe='')}/diffs", query={"limit": 1})
    except NotFound as error:
        raise NotFound(f"{error} If they were forgotten before, --yes shows the receipt.") from None


def _forget(client: Any, name: str, *, with_agents: bool) -> dict[str, Any]:
    import time
    from urllib.parse import quote

    from ricordo.errors import Unavailable

    query = {"with_agents": True} if with_agents else None
    try:
        receipt: dict[str, Any] = client.ask(
            "DELETE", f"/users/{quote(name, safe='')}", query=query
        )
        while receipt["status"] != "done":
            time.sleep(_ASKED_EVERY)
            receipt = client.ask("GET", f"/v1/receipts/{receipt['id']}")
    except Unavailable as error:
        raise Unavailable(
            f"{error} It goes on with what it began; repeat the command to see how it ended."
        ) from None
    return receipt
