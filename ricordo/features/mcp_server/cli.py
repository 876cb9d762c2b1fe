"""`ricordo mcp`: the MCP server over standard input and output. It passes messages on to `/mcp` of a running server."""

import json
import sys
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TYPE_CHECKING, Any

import typer

from ricordo.errors import RicordoError

if TYPE_CHECKING:
    from ricordo.cli.client import Client

app = typer.Typer()
_AT_ONCE = 32  # messages, subscriptions among them
# By method: the parameter that names what it is about.
_NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}


@app.command("mcp")
def mcp(
    server: str | None = typer.Option(
        None, "--server", help="Use the server at this address, with the key in RICORDO_API_KEY."
    ),
    user: str | None = typer.Option(
        None, "--user", help="Whose memory: an identifier. For keys that act for others."
    ),
) -> None:
    """Give your memory to Claude, Cursor and others, by MCP.

    For programs that start an MCP server themselves. Uses the server that runs, or starts one.
    """
    from ricordo.cli.client import any_server, set_up_quiet_logs

    with any_server(server, set_up_quiet_logs) as client, ThreadPoolExecutor(_AT_ONCE) as threads:
        writing = Lock()
        for line in sys.stdin:
            if line.strip():
                threads.submit(_pass_on, client, line, user, writing)


def _pass_on(client: "Client", line: str, user: str | None, writing: Lock) -> None:
    for answer in _answers(client, line, user):
        with writing:
            sys.stdout.write(answer + "\n")
            sys.stdout.flush()


def _headers(message: Any) -> dict[str, str]:
    """What newer versions of the protocol want to see of a message outside its body."""
    params = _object(message, "params")
    version = _object(params, "_meta").get("io.modelcontextprotocol/protocolVersion")
    named = params.get(_NAMED.get(str(message.get("method")), ""))
    given = (
        {"mcp-protocol-version": version, "mcp-method": message.get("method"), "mcp-name": named}
        if version
        else {}
    )
    return {name: _as_header(value) for name, value in given.items() if isinstance(value, str)}


def _object(message: Any, name: str) -> dict[str, Any]:
    found = message.get(name) if isinstance(message, dict) else None
    return found if isinstance(found, dict) else {}


def _as_header(value: str) -> str:
    """The value, or its Base64 form for what a header cannot hold, as the protocol writes it."""
    if (
        value.isascii()
        and value.isprintable()
        and value == value.strip()
        and not value.startswith("=?base64?")
    ):
        return value
    return f"=?base64?{b64encode(value.encode()).decode()}?="


def _answers(client: "Client", line: str, user: str | None) -> Iterator[str]:
    """What the server says to a message, a line each; a refusal as the protocol's error where the message wants an answer."""
    message: Any = {}
    try:
        message = json.loads(line)
        yield from client.events_of(
            "/mcp", message, _headers(message) | ({"X-Ricordo-User": user} if user else {})
        )
    except (ValueError, RicordoError) as error:
        id = message.get("id") if isinstance(message, dict) else None
        if id is not None or not isinstance(message, dict) or not message:
            code = -32700 if isinstance(error, ValueError) else -32603
            yield json.dumps(
                {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": str(error)}}
            )
