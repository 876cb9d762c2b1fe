"""`ricordo key`, `ricordo user` and `ricordo organization`.

They use the terms of `/v1/keys/`, `/v1/users/` and `/v1/organizations/`. A running server does the
work; without one, a server is started just for the command. No key is needed on the server's
machine if the caller may read the data folder.
"""

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import typer

from ricordo.cli.client import Client, any_server
from ricordo.cli.named_files import read_file
from ricordo.domain.text import decoded
from ricordo.errors import Invalid
from ricordo.features.memory_care.erasure.cli import forget_user
from ricordo.features.memory_care.forgetting.cli import forget_thing

Json = dict[str, Any]
_SERVER = typer.Option(None, help="Address of the server.  [from RICORDO_HOST and RICORDO_PORT]")
_ORGANIZATION = typer.Option(None, help="Another organization, by name or id.")
_SECONDS = {"m": 60, "h": 3600, "d": 24 * 3600, "w": 7 * 24 * 3600}

app = typer.Typer()
key = typer.Typer(help="API keys and their rights.", no_args_is_help=True)
app.add_typer(key, name="key")
user = typer.Typer(help="The users: people with memory and keys.", no_args_is_help=True)
app.add_typer(user, name="user")
organization = typer.Typer(
    help="Organizations, which share a server but no data.", no_args_is_help=True
)
app.add_typer(organization, name="organization")
_WHO = typer.Argument(help="Name or id of the user.")


@key.command("create")
def create_key(
    user: str | None = typer.Option(
        None, help="The user of the key, by name or id. An unknown name creates a user."
    ),
    role: str = typer.Option("user", help="admin, developer, user, service or guardian."),
    name: str = typer.Option("", help="Purpose of the key.  [the user's name]"),
    scopes: str = typer.Option("", help="Scopes, separated by commas.  [those of the role]"),
    expires: str | None = typer.Option(
        None, help="The end of the key: 90m, 12h, 30d, 4w, or a date.  [never]"
    ),
    limits: tuple[int, int] = typer.Option(
        (0, 0),
        metavar="REQUESTS BYTES",
        help="Most requests a minute, and most bytes of a request. 0 0 uses the settings.",
    ),
    organization: str | None = _ORGANIZATION,
    server: str | None = _SERVER,
) -> None:
    """Make a key.

    The last line of the output is the key. It is shown only this once.
    """
    body: Json = {
        "name": name,
        "role": role,
        "scopes": [scope.strip() for scope in scopes.split(",") if scope.strip()],
        "requests_per_minute": limits[0] or None,
        "max_body_bytes": limits[1] or None,
    }
    if user:
        body["user"] = user
    if expires:
        body |= _end(expires)
    with _client(server) as client:
        new_key = client.ask("POST", "/v1/keys/", query=_in_organization(organization), body=body)
    until = f", until {new_key['expires_at']}" if new_key["expires_at"] else ""
    typer.echo(
        f"{new_key['id']}: {_plain(new_key['name'])}, {new_key['role']}{until}. Keep the key; it "
        "is not shown again.",
        err=True,
    )
    if new_key["is_first"]:
        typer.echo(
            "This is the first key: from now on every request to this server needs one. Every user "
            "with a key can read the conversations that belong to no user, such as those of "
            "`ricordo chat` so far.",
            err=True,
        )
    typer.echo(new_key["key"])


@key.command("list")
def list_keys(organization: str | None = _ORGANIZATION, server: str | None = _SERVER) -> None:
    """List the keys, the oldest first."""
    with _client(server) as client:
        keys = every(client, "/v1/keys/", _in_organization(organization))
    for key in keys:
        typer.echo(
            f"{key['id']}  {key['hint']}…  {key['role']:<9} {_plain(key['name'])}{_state(key)}"
        )
    if not keys:
        typer.echo("There are no keys.", err=True)


@key.command("revoke")
def revoke_key(
    key_id: str = typer.Argument(help="Id of the key, as `ricordo key list` shows it."),
    organization: str | None = _ORGANIZATION,
    server: str | None = _SERVER,
) -> None:
    """Revoke a key for good."""
    with _client(server) as client:
        client.ask("DELETE", f"/v1/keys/{_part(key_id)}", query=_in_organization(organization))
    typer.echo(f"{key_id} is revoked.")


@user.command("create")
def create_user(
    name: str = typer.Argument(help="Name of the user in requests to the server."),
    full_name: str | None = typer.Option(
        None, "--full-name", help="Name of the user in histories.  [the name]"
    ),
    email: str | None = typer.Option(
        None, help="E-mail address of the user, by which commits are recognized."
    ),
    server: str | None = _SERVER,
) -> None:
    """Make a user."""
    body = {"name": full_name or name, "identifier": name, "email": email}
    with _client(server) as client:
        typer.echo(_user_line(client.ask("POST", "/v1/users/", body=body)))


@user.command("invite")
def invite_users(
    name: str | None = typer.Argument(None, help="Name of the person; not with --csv."),
    email: str | None = typer.Option(None, help="The person's e-mail address."),
    role: str = typer.Option("user", help="user (or student), developer (or teacher) or guardian."),
    course: str | None = typer.Option(None, help="The course whose chat opens first."),
    csv: Path | None = typer.Option(
        None, "--csv", help="Many people: a file with the columns name, email, role, course."
    ),
    days: int = typer.Option(14, help="The number of days for which the links work."),
    mail: bool = typer.Option(False, "--mail", help="Send each link by e-mail."),
    server: str | None = _SERVER,
) -> None:
    """Invite people by one-time links, which log them in without a key.

    The output has a line for each: the link, the name, the address.
    """
    if (name is None) == (csv is None):
        raise Invalid("Name one person, or a file with --csv.")
    body: Json = {"days": days, "mail": mail}
    if csv is not None:
        body["csv"] = decoded(read_file(csv))
    else:
        body["people"] = [{"name": name, "email": email, "role": role, "course": course}]
    with _client(server) as client:
        invitations = client.ask("POST", "/v1/invitations", body=body)
        address = client.address
    for row in invitations:
        link = row["url"] or f"{address}{row['path']}"
        parts = [link, _plain(row["user"]), _plain(row["email"] or "")]
        typer.echo("\t".join(part for part in parts if part))
    count = len(invitations)
    sent = " They are sent by e-mail." if mail else ""
    typer.echo(
        f"{count} {'link' if count == 1 else 'links'}, for {days} days. Each works once, for its "
        f"person alone.{sent} They are not shown again.",
        err=True,
    )


@user.command("list")
def list_users(server: str | None = _SERVER) -> None:
    """List the users, the oldest first."""
    with _client(server) as client:
        for row in every(client, "/v1/users/", {}):
            typer.echo(_user_line(row))


@user.command("rename")
def rename_user(
    name: str = _WHO,
    new_name: str = typer.Argument(help="The new name."),
    server: str | None = _SERVER,
) -> None:
    """Give a user another name. The user keeps memory, conversations and keys."""
    with _client(server) as client:
        before = client.ask("GET", f"/v1/users/{_part(name)}")
        full_name = {"name": new_name} if before["name"] == before["identifier"] else {}
        body = {"identifier": new_name, **full_name}
        typer.echo(_user_line(client.ask("PATCH", f"/v1/users/{before['id']}", body=body)))


@user.command("disable")
def disable_user(name: str = _WHO, server: str | None = _SERVER) -> None:
    """Refuse a user's keys, and calls on the user's behalf. Memory stays."""
    with _client(server) as client:
        typer.echo(
            _user_line(client.ask("PATCH", f"/v1/users/{_part(name)}", body={"disabled": True}))
        )


@user.command("enable")
def enable_user(name: str = _WHO, server: str | None = _SERVER) -> None:
    """Enable a disabled user again."""
    with _client(server) as client:
        typer.echo(
            _user_line(client.ask("PATCH", f"/v1/users/{_part(name)}", body={"disabled": False}))
        )


user.command("forget")(forget_thing)


@user.command("delete")
def delete_user(
    name: str = _WHO,
    yes: bool = typer.Option(False, "--yes", help="Do not ask."),
    server: str | None = _SERVER,
) -> None:
    """Forget a user, as `ricordo memory forget` does."""
    forget_user(name, yes=yes, with_agents=False, server=server)


@organization.command("create")
def create_organization(name: str, server: str | None = _SERVER) -> None:
    """Make an organization.

    Then make its first key: ricordo key create --organization NAME --user WHO --role admin.
    """
    with _client(server) as client:
        row = client.ask("POST", "/v1/organizations/", body={"name": name})
    typer.echo(f"{row['id']}  {_plain(row['name'])}")


@organization.command("list")
def list_organizations(server: str | None = _SERVER) -> None:
    """List the organizations, the oldest first."""
    with _client(server) as client:
        for row in every(client, "/v1/organizations/", {}):
            typer.echo(f"{row['id']}  {_plain(row['name'])}")


def every(client: "Client", path: str, query: Mapping[str, Any]) -> list[Json]:
    """Return all items of a list, the oldest first.

    Args:
        client: A client of the server.
        path: The path of the list, which takes `limit`, `order` and `after`.
        query: Other parameters of the query.
    """
    entries: list[Json] = []
    page_query: Json = {"limit": 1000, "order": "asc", **query}
    while page := client.ask("GET", path, query=page_query):
        entries += page
        page_query["after"] = page[-1]["id"]
    return entries


def _client(server: str | None) -> AbstractContextManager["Client"]:
    return any_server(server, lambda _settings: None)


def _in_organization(organization: str | None) -> Json:
    return {"organization": organization} if organization else {}


def _end(expires: str) -> Json:
    if duration := re.fullmatch(r"(\d{1,6})([mhdw])", expires):
        return {"expires_in": int(duration[1]) * _SECONDS[duration[2]]}
    try:
        time = datetime.fromisoformat(expires)
    except ValueError:
        raise Invalid(
            f"--expires {expires} is not a duration such as 30d, and no date such as 2027-01-31."
        ) from None
    return {"expires_at": (time if time.tzinfo else time.replace(tzinfo=UTC)).isoformat()}


def _user_line(user: Json) -> str:
    name = _plain(user["identifier"] or user["name"])
    parts = [user["id"], name]
    if user["identifier"] and user["name"] and user["name"] != user["identifier"]:
        parts.append(_plain(user["name"]))
    if user["email"]:
        parts.append(_plain(user["email"]))
    if user["disabled_at"]:
        parts.append(f"disabled {user['disabled_at']}")
    return "  ".join(parts)


def _state(key: Json) -> str:
    if key["revoked_at"]:
        return f"  revoked {key['revoked_at']}"
    state = f"  last used {key['last_used_at']}" if key["last_used_at"] else "  never used"
    if key["expires_at"]:
        state += f"  until {key['expires_at']}"
    if key["requests_per_minute"]:
        state += f"  {key['requests_per_minute']:,} requests a minute"
    if key["max_body_bytes"]:
        state += f"  {key['max_body_bytes']:,} bytes a request"
    return state


def _plain(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)


def _part(name: str) -> str:
    return quote(name, safe="")
