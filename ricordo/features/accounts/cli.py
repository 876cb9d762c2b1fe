"""`ricordo key`, `ricordo user` and `ricordo organization`, in the words of `/v1/keys/`, `/v1/users/` and `/v1/organizations/`.

The running server does it; without one, a server is started just for the command. Whoever may read the data folder of a server
on this machine needs no key.
"""

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer

from ricordo.errors import Invalid

if TYPE_CHECKING:
    from ricordo.cli.client import Client

Json = dict[str, Any]
_SERVER = typer.Option(
    None, help="Address of the server.  [the one of RICORDO_HOST and RICORDO_PORT]"
)
_ORGANIZATION = typer.Option(None, help="Another organization, by name or id.")
_SECONDS = {"m": 60, "h": 3600, "d": 24 * 3600, "w": 7 * 24 * 3600}

app = typer.Typer()
key = typer.Typer(help="API keys: who may ask this server, and what.", no_args_is_help=True)
app.add_typer(key, name="key")
user = typer.Typer(help="The people whom memory is about, and who have keys.", no_args_is_help=True)
app.add_typer(user, name="user")
organization = typer.Typer(
    help="Organizations: worlds of their own on one server.", no_args_is_help=True
)
app.add_typer(organization, name="organization")
_WHO = typer.Argument(help="Name or id of the user.")


@key.command("create")
def create_key(
    user: str | None = typer.Option(
        None, help="Whose key it is: name or id; made where they are new."
    ),
    role: str = typer.Option("user", help="admin, developer, user or service."),
    name: str = typer.Option("", help="What the key is for.  [the user's name]"),
    scopes: str = typer.Option("", help="Scopes, separated by commas.  [those of the role]"),
    expires: str | None = typer.Option(
        None, help="When it ends: 90m, 12h, 30d, 4w, or a date.  [never]"
    ),
    limits: tuple[int, int] = typer.Option(
        (0, 0),
        metavar="REQUESTS BYTES",
        help="Requests a minute, and bytes of one; 0 0 are those of the settings.",
    ),
    organization: str | None = _ORGANIZATION,
    server: str | None = _SERVER,
) -> None:
    """Make a key. It stands alone on the last line of the output, and is shown this once."""
    body: Json = {
        "name": name,
        "role": role,
        "scopes": [one.strip() for one in scopes.split(",") if one.strip()],
    }
    body |= ({"user": user} if user else {}) | (_end(expires) if expires else {})
    body |= {"requests_per_minute": limits[0] or None, "max_body_bytes": limits[1] or None}
    with _client(server) as client:
        made = client.ask("POST", "/v1/keys/", query=_there(organization), body=body)
    until = f", until {made['expires_at']}" if made["expires_at"] else ""
    typer.echo(
        f"{made['id']}: {_plain(made['name'])}, {made['role']}{until}. Keep the key; it is not shown again.",
        err=True,
    )
    if made["is_first"]:
        typer.echo(
            "This is the first key: from now on every request to this server needs one.", err=True
        )
    typer.echo(made["key"])


@key.command("list")
def list_keys(organization: str | None = _ORGANIZATION, server: str | None = _SERVER) -> None:
    """List the keys, the oldest first."""
    with _client(server) as client:
        found = every(client, "/v1/keys/", _there(organization))
    for one in found:
        typer.echo(
            f"{one['id']}  {one['hint']}…  {one['role']:<9} {_plain(one['name'])}{_state(one)}"
        )
    if not found:
        typer.echo("There are no keys.", err=True)


@key.command("revoke")
def revoke_key(
    key_id: str = typer.Argument(help="Id of the key, as `ricordo key list` shows it."),
    organization: str | None = _ORGANIZATION,
    server: str | None = _SERVER,
) -> None:
    """Revoke a key for good."""
    with _client(server) as client:
        client.ask("DELETE", f"/v1/keys/{_part(key_id)}", query=_there(organization))
    typer.echo(f"{key_id} is revoked.")


@user.command("create")
def create_user(
    name: str = typer.Argument(help="Name of the user, by which the server is asked for them."),
    full_name: str | None = typer.Option(
        None, "--full-name", help="How the user is called in histories.  [the name]"
    ),
    email: str | None = typer.Option(None, help="Commits with this address are the user's."),
    server: str | None = _SERVER,
) -> None:
    """Make a user."""
    body = {"name": full_name or name, "identifier": name, "email": email}
    with _client(server) as client:
        typer.echo(_user_line(client.ask("POST", "/v1/users/", body=body)))


@user.command("list")
def list_users(server: str | None = _SERVER) -> None:
    """List the users, the oldest first."""
    with _client(server) as client:
        for one in every(client, "/v1/users/", {}):
            typer.echo(_user_line(one))


@user.command("rename")
def rename_user(
    name: str = _WHO,
    new_name: str = typer.Argument(help="The new name."),
    server: str | None = _SERVER,
) -> None:
    """Give a user another name. Memory, conversations and keys stay the user's."""
    with _client(server) as client:
        before = client.ask("GET", f"/v1/users/{_part(name)}")
        full_name = {"name": new_name} if before["name"] == before["identifier"] else {}
        body = {"identifier": new_name, **full_name}
        typer.echo(_user_line(client.ask("PATCH", f"/v1/users/{before['id']}", body=body)))


@user.command("disable")
def disable_user(name: str = _WHO, server: str | None = _SERVER) -> None:
    """Refuse a user's keys, and whoever acts for the user. What is remembered stays."""
    with _client(server) as client:
        typer.echo(
            _user_line(client.ask("PATCH", f"/v1/users/{_part(name)}", body={"disabled": True}))
        )


@user.command("enable")
def enable_user(name: str = _WHO, server: str | None = _SERVER) -> None:
    """Let a disabled user in again."""
    with _client(server) as client:
        typer.echo(
            _user_line(client.ask("PATCH", f"/v1/users/{_part(name)}", body={"disabled": False}))
        )


@user.command("delete")
def delete_user(
    name: str = _WHO,
    yes: bool = typer.Option(False, "--yes", help="Do not ask."),
    server: str | None = _SERVER,
) -> None:
    """Forget a user, as `ricordo memory forget` does."""
    from ricordo.features.erasure.cli import forget_user

    forget_user(name, yes=yes, with_agents=False, server=server)


@organization.command("create")
def create_organization(name: str, server: str | None = _SERVER) -> None:
    """Make an organization. Then make its first key: ricordo key create --organization NAME --user WHO --role admin."""
    with _client(server) as client:
        made = client.ask("POST", "/v1/organizations/", body={"name": name})
    typer.echo(f"{made['id']}  {_plain(made['name'])}")


@organization.command("list")
def list_organizations(server: str | None = _SERVER) -> None:
    """List the organizations, the oldest first."""
    with _client(server) as client:
        for one in every(client, "/v1/organizations/", {}):
            typer.echo(f"{one['id']}  {_plain(one['name'])}")


def every(client: "Client", path: str, query: Mapping[str, Any]) -> list[Json]:
    """Return all items of a list, the oldest first."""
    found: list[Json] = []
    asked: Json = {"limit": 1000, "order": "asc", **query}
    while page := client.ask("GET", path, query=asked):
        found += page
        asked["after"] = page[-1]["id"]
    return found


def _client(server: str | None) -> AbstractContextManager["Client"]:
    from ricordo.cli.client import any_server

    return any_server(server, lambda _settings: None)


def _there(organization: str | None) -> Json:
    return {"organization": organization} if organization else {}


def _end(expires: str) -> Json:
    if found := re.fullmatch(r"(\d{1,6})([mhdw])", expires):
        return {"expires_in": int(found[1]) * _SECONDS[found[2]]}
    try:
        time = datetime.fromisoformat(expires)
    except ValueError:
        raise Invalid(
            f"--expires {expires} is no duration such as 30d, and no date such as 2027-01-31."
        ) from None
    return {"expires_at": (time if time.tzinfo else time.replace(tzinfo=UTC)).isoformat()}


def _user_line(user: Json) -> str:
    name = _plain(user["identifier"] or user["name"])
    more = [user["name"] if user["name"] != user["identifier"] else None, user["email"]]
    disabled = f"  disabled {user['disabled_at']}" if user["disabled_at"] else ""
    return f"{user['id']}  {name}{''.join(f'  {_plain(one)}' for one in more if one)}{disabled}"


def _state(key: Json) -> str:
    if key["revoked_at"]:
        return f"  revoked {key['revoked_at']}"
    used = f"  last used {key['last_used_at']}" if key["last_used_at"] else "  never used"
    limits = (
        (key["requests_per_minute"], "requests a minute"),
        (key["max_body_bytes"], "bytes a request"),
    )
    most = "".join(f"  {number:,} {what}" for number, what in limits if number)
    return used + (f"  until {key['expires_at']}" if key["expires_at"] else "") + most


def _plain(text: str) -> str:
    return "".join(sign if sign.isprintable() else " " for sign in text)


def _part(name: str) -> str:
    from urllib.parse import quote

    return quote(name, safe="")
