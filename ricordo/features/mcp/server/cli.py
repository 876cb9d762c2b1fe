"""`ricordo mcp`: the MCP server over standard input and output.

It forwards messages to `/mcp` of a running server.
"""

import json
import sys
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any
from urllib.parse import quote

import typer

from ricordo.cli.client import Client, any_server, set_up_quiet_logs
from ricordo.errors import RicordoError

app = typer.Typer()
_AT_ONCE = 32  # messages, subscriptions among them
# The parameter that names the object of each method.
_NAME_PARAMETERS = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}


@app.command("mcp")
def mcp(
    server: str | None = typer.Option(
        None, "--server", help="Use the server at this address, with the key in RICORDO_API_KEY."
    ),
    user: str | None = typer.Option(
        None, "--user", help="Identifier of the user, for keys that act for others."
    ),
) -> None:
    """Give your memory to Claude, Cursor and others, by MCP.

    For programs that start an MCP server themselves. It uses a running server, or starts one.
    """
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
    """Return the headers that newer versions of the protocol require for a message."""
    parameters = _object(message, "params")
    version = _object(parameters, "_meta").get("io.modelcontextprotocol/protocolVersion")
    if not version:
        return {}
    headers = {
        "mcp-protocol-version": version,
        "mcp-method": message.get("method"),
        "mcp-name": parameters.get(_NAME_PARAMETERS.get(str(message.get("method")), "")),
    }
    return {name: _as_header(text) for name, text in headers.items() if isinstance(text, str)}


def _object(message: Any, name: str) -> dict[str, Any]:
    field = message.get(name) if isinstance(message, dict) else None
    return field if isinstance(field, dict) else {}


def _as_header(text: str) -> str:
    """Return the text, or the protocol's Base64 form of a text that no header can hold."""
    if (
        text.isascii()
        and text.isprintable()
        and text == text.strip()
        and not text.startswith("=?base64?")
    ):
        return text
    return f"=?base64?{b64encode(text.encode()).decode()}?="


def _answers(client: "Client", line: str, user: str | None) -> Iterator[str]:
    """Yield the server's answers to a message, one on each line.

    A refusal becomes the protocol's error if the message expects an answer.
    """
    message: Any = {}
    try:
        message = json.loads(line)
        headers = _headers(message)
        if user:
            headers["X-Ricordo-User"] = quote(user)
        yield from client.events_of("/mcp", message, headers)
    except (ValueError, RicordoError) as error:
        id = message.get("id") if isinstance(message, dict) else None
        if id is not None or not isinstance(message, dict) or not message:
            code = -32700 if isinstance(error, ValueError) else -32603
            yield json.dumps(
                {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": str(error)}}
            )
