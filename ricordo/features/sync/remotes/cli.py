"""`ricordo memory remotes …`: manage the remotes of a user's memory.

The commands call `/users/{user}/remotes` of the running server. Without one, a server is started
for the command. Passwords are never printed. They are not read from the command line either, since
other users of the machine could see them.
"""

import json
import re
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from getpass import getpass
from typing import Any
from urllib.parse import quote

import typer

from ricordo.cli.client import Client, any_server, require_database
from ricordo.errors import Conflict, Invalid, NotFound, Unavailable

Json = dict[str, Any]
_PAUSE = 0.1  # seconds between two reads of a remote's state
_PATIENCE = 120.0  # the most seconds that a command waits for a sync
_EMBEDDED = re.compile(r"[^/]*://[^/]*:[^/]*@")
_SERVER = typer.Option(None, help="Address of the server.  [from RICORDO_HOST and RICORDO_PORT]")
_USER = typer.Option(..., "--user", help="Id or name of the user who owns the memory.")
_REMOTE = "The remote's id or address."

app = typer.Typer()
remotes = typer.Typer(
    help="Git repositories and databases that a memory is in sync with.", no_args_is_help=True
)
app.add_typer(remotes, name="remotes")


@remotes.command("list")
def list_remotes(
    user: str = _USER,
    as_json: bool = typer.Option(False, "--json", help="Everything, as JSON."),
    server: str | None = _SERVER,
) -> None:
    """Show the remotes, their last synced versions, and errors."""
    with _client(server) as client:
        rows = client.ask("GET", _path(user))
    if as_json:
        typer.echo(json.dumps(rows, ensure_ascii=False, indent=2))
    else:
        typer.echo("\n".join(map(line, rows)) if rows else _none(user))


@remotes.command("add")
def add_remote(
    kind: str = typer.Argument(help="git, dolt, or a plugin's kind."),
    address: str = typer.Argument(
        help="https://…, a folder, mysql://user@host/database, doltlite:///file.db"
    ),
    user: str = _USER,
    username: str | None = typer.Option(None, help="User name at a git server.  [git]"),
    password: bool = typer.Option(
        False,
        "--password",
        help="Ask for a password or token; it may also be the first line of the input.",
    ),
    shows_toml: bool = typer.Option(
        False, "--shows-toml", help="For git: push a branch `toml` with the blocks as TOML."
    ),
    option: list[str] = typer.Option([], help="Option of a plugin's kind: name=value. Repeatable."),
    server: str | None = _SERVER,
) -> None:
    """Keep a remote in sync from now on.

    Its content is pulled first.
    """
    fields = {"kind": kind, "address": address, "username": username, "shows_toml": shows_toml}
    body: Json = {name: field for name, field in fields.items() if field not in (None, False)}
    if _EMBEDDED.match(address):
        raise Invalid(
            "The address holds a password, which others on this machine can read. Leave it out, "
            "and use --password."
        )
    if option:
        body["options"] = dict(map(_option, option))
    if password:
        body["password"] = _read_password()
    with _client(server) as client:
        typer.echo(line(client.ask("PUT", _path(user), body=body)))


@remotes.command("remove")
def remove_remote(
    remote: str = typer.Argument(help=_REMOTE), user: str = _USER, server: str | None = _SERVER
) -> None:
    """Stop syncing a remote. Its content stays there."""
    with _client(server) as client:
        row = _named(client.ask("GET", _path(user)), remote)
        typer.echo(client.ask("DELETE", f"{_path(user)}/{row['id']}")["message"])


@remotes.command("sync")
def sync_remotes(
    remote: str | None = typer.Argument(None, help=f"{_REMOTE}  [all]"),
    user: str = _USER,
    server: str | None = _SERVER,
) -> None:
    """Sync memory and remote now, and wait for the end.

    Commits at the remote become versions.
    """
    with _client(server) as client:
        before = client.ask("GET", _path(user))
        chosen = before if remote is None else [_named(before, remote)]
        for row in chosen:
            client.ask("POST", f"{_path(user)}/{row['id']}/follow")
        synced = [_wait_for_sync(client, user, row) for row in chosen]
    typer.echo("\n".join(map(line, synced)) if synced else _none(user))
    has_failed = any(row["last_error"] is not None for row in synced)
    raise typer.Exit(1 if has_failed else 0)


def line(remote: Json) -> str:
    """Return a remote as two or three lines of text.

    Args:
        remote: The API's response for a remote.
    """
    state = "was not synced yet" if remote["last_at"] is None else f"checked at {remote['last_at']}"
    # The remote's error text may contain control characters for the terminal.
    error = f"\n    {_plain(remote['last_error'])}" if remote["last_error"] else ""
    return (
        f"{remote['id']}  {remote['kind']}  {_plain(remote['address'])}\n"
        f"    version {remote['followed']}, {state}{error}"
    )


def _wait_for_sync(client: "Client", user: str, before: Json) -> Json:
    deadline = time.monotonic() + _PATIENCE
    while True:
        row = _named(client.ask("GET", _path(user)), before["id"])
        if row["last_at"] != before["last_at"]:
            return row
        if time.monotonic() > deadline:
            raise Unavailable(
                f"{before['address']} takes long. The sync continues; `ricordo memory remotes "
                "list` shows its state."
            )
        time.sleep(_PAUSE)


def _client(server: str | None) -> AbstractContextManager["Client"]:
    return any_server(server, lambda settings: require_database(settings, "no memory to sync"))


def _read_password() -> str:
    password = getpass("Password: ") if sys.stdin.isatty() else sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise Invalid("No password was given. Type it, or put it into the first line of the input.")
    return password


def _named(rows: Sequence[Json], remote: str) -> Json:
    named = [row for row in rows if remote in (row["id"], row["address"])]
    if not named:
        raise NotFound(
            f"There is no remote {remote}. `ricordo memory remotes list` shows them, with their "
            "ids."
        )
    if len(named) > 1:
        raise Conflict(f"There are {len(named)} remotes at {remote}. Name one by its id.")
    return named[0]


def _plain(text: str) -> str:
    return "".join(sign if sign.isprintable() else " " for sign in text)


def _option(text: str) -> tuple[str, str]:
    name, sign, setting = text.partition("=")
    if not name or not sign:
        raise Invalid(f"--option {text} is not understood. Write it as name=value.")
    return name, setting


def _none(user: str) -> str:
    return f'The memory of "{user}" has no remotes.'


def _path(user: str) -> str:
    return f"/users/{quote(user, safe='')}/remotes"
