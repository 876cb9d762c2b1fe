"""The page of instructions for clients.

It contains this server's address and the caller's name, ready to be copied.
"""

import re
from typing import Any

from fastapi import Request, Response

from ricordo.api.routing import needs
from ricordo.domain.scope import ADMIN, REQUEST_SCOPE, Scope
from ricordo.features.web.pages.home import address_of_server
from ricordo.pages.shell import Pages, render

router = Pages("/ui/connect")
# Text that needs no quotes in a shell, an address or a program.
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,100}")
_EXAMPLE_USER = "ada"


@router.get("")
@needs("agents:read", "messages:read", "memory:read")
async def show(request: Request) -> Response:
    """Show the clients with their settings.

    No key is shown, since the programs read one from the environment.
    """
    me: Scope = request.scope[REQUEST_SCOPE]
    name = me.subject
    if me.identifier and _PLAIN.fullmatch(me.identifier):
        name = me.identifier
    variables: dict[str, Any] = {
        "address": address_of_server(request),
        "user": name if me.role == "user" and name else _EXAMPLE_USER,
        "needs_key": bool(me.key_id or me.caller),
        "makes_keys": me.may(ADMIN),
    }
    return await render(request, "connect.html", **variables)
