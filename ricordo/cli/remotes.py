"""`ricordo memory remotes …`: where a user's memory is kept in step elsewhere, in the words of `/users/{user}/remotes`.

The server does it where one runs. Where none does, one is started just for this command. No password is printed, or taken from
the command line, where others could read it.
"""

import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from getpass import getpass
from urllib.parse import quote

import typer

from ricordo.cli.background import background_server
from ricordo.cli.client import Client, Json, key_of, running_server
from ricordo.errors import Conflict, Invalid, NotFound, Unavailable
from ricordo.settings import load_settings

_LOOK_EVERY = 0.1  # seconds
_PATIENCE = 120.0  # seconds that a remote may take
_EMBEDDED = re.compile(r"[^/]*://[^/]*:[^/]*@")


def list_remotes(user: str, *, as_json: bool = False, server: str | None = None) -> None:
    """Print the remotes of a user's memory. Raises NotFound, Unavailable."""
    with _client(server) as client:
        found = client.remotes(user)
    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=False, indent=2))
    else:
        typer.echo("\n".join(map(line, found)) if found else f'Nothing follows the memory of "{user}".')


def add_remote(user: str, body: Json, options: Sequence[str], *, asks: bool = False, server: str | None = None) -> None:
    """Let the memory be followed there, and print the remote; `asks` has the password typed, or read from the first line of input.

    `body` is that of the request, `options` are what a plugin's kind wants as `name=value`. Raises Invalid, Conflict, Unavailable.
    """
    body = {name: value for name, value in body.items() if value not in (None, False)}
    if _EMBEDDED.match(body["address"]):
        raise Invalid(
            "The address holds a password, which others can read here. Leave it out, and give it by --password."
        )
    if options:
        body["options"] = dict(map(_option, options))
    if asks:
        body["password"] = getpass("Password: ") if sys.stdin.isatty() else sys.stdin.readline().rstrip("\r\n")
        if not body["password"]:
            raise Invalid("No password was given. Type it, or put it into the first line of the input.")
    with _client(server) as client:
        typer.echo(line(client.add(user, body)))


def remove_remote(user: str, remote: str, *, server: str | None = None) -> None:
    """Follow there no more: at the remote with this id or address. Raises NotFound, Unavailable."""
    with _client(server) as client:
        typer.echo(client.remove(user, _named(client.remotes(user), remote)["id"]))


def sync_remotes(user: str, remote: str | None = None, *, server: str | None = None) -> bool:
    """Bring one remote, or all of a user's, and her memory together now, and print how that went; tells whether all went well.

    Raises NotFound, Unavailable where that takes too long.
    """
    with _client(server) as client:
        before = client.remotes(user)
        wanted = before if remote is None else [_named(before, remote)]
        for one in wanted:
            client.follow(user, one["id"])
        done = [client.followed(user, one) for one in wanted]
    typer.echo("\n".join(map(line, done)) if done else f'Nothing follows the memory of "{user}".')
    return all(one["last_error"] is None for one in done)


def line(remote: Json) -> str:
    """A remote as people read it."""
    state = "was not followed yet" if remote["last_at"] is None else f"looked at {remote['last_at']}"
    # A remote's own words may hold what a terminal would obey.
    fault = f"\n    {_plain(remote['last_error'])}" if remote["last_error"] else ""
    return f"{remote['id']}  {remote['kind']}  {_plain(remote['address'])}\n    version {remote['followed']}, {state}{fault}"


class _Client(Client):
    def remotes(self, user: str) -> list[Json]:
        """Her remotes, the oldest first."""
        return list(self.ask("GET", _path(user)))

    def add(self, user: str, body: Json) -> Json:
        """Make a remote."""
        return self.object("PUT", _path(user), body=body)

    def remove(self, user: str, remote_id: str) -> str:
        """End a remote; returns what the server says of that."""
        return str(self.object("DELETE", f"{_path(user)}/{remote_id}")["message"])

    def follow(self, user: str, remote_id: str) -> None:
        """Have a remote follow now."""
        self.ask("POST", f"{_path(user)}/{remote_id}/follow")

    def followed(self, user: str, before: Json) -> Json:
        """The remote as it is once it was looked at again."""
        deadline = time.monotonic() + _PATIENCE
        while (now := _named(self.remotes(user), before["id"]))["last_at"] == before["last_at"]:
            if time.monotonic() > deadline:
                raise Unavailable(f"{before['address']} takes long. It goes on; `ricordo memory remotes list` tells.")
            time.sleep(_LOOK_EVERY)
        return now


@contextmanager
def _client(server: str | None) -> Iterator[_Client]:
    settings, providers = load_settings()
    with running_server(_Client, settings, server) as client:
        if client:
            yield client
            return
    if settings.postgres_url is None and not settings.database_path.exists():
        raise NotFound(f"There is no database at {settings.database_path}, so nobody's memory is there to be followed.")
    with background_server(settings, providers) as own:
        client = _Client(own, key_of(settings))
        try:
            yield client
        finally:
            client.close()


def _named(found: Sequence[Json], remote: str) -> Json:
    named = [one for one in found if remote in (one["id"], one["address"])]
    if not named:
        raise NotFound(f"There is no remote {remote}. `ricordo memory remotes list` shows them, with their ids.")
    if len(named) > 1:
        raise Conflict(f"There are {len(named)} remotes at {remote}. Name one by its id.")
    return named[0]


def _plain(text: str) -> str:
    return "".join(sign if sign.isprintable() else " " for sign in text)


def _option(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise Invalid(f"--option {text} is not understood. Write it as name=value.")
    return name, value


def _path(user: str) -> str:
    return f"/users/{quote(user, safe='')}/remotes"
