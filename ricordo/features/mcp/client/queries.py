"""Queries of MCP servers and their tools."""

from collections.abc import Sequence

from sqlalchemy import bindparam, delete, select

from ricordo.domain.scope import Scope
from ricordo.domain.tool import Tool
from ricordo.errors import Collision, Conflict, NotFound
from ricordo.features.mcp.client.tables import McpServer, ServedTool, mcp_servers, mcp_tools
from ricordo.storage import tools
from ricordo.storage.engine.repository import Repository, equal, new_values, setter
from ricordo.storage.engine.store import Transaction

MOST_SERVERS = 200  # of an organization
_SERVERS = Repository(McpServer, mcp_servers, name="MCP server")
_SERVED = Repository(ServedTool, mcp_tools)
_ALL = _SERVERS.select.where(equal(mcp_servers, "organization_id")).order_by(mcp_servers.c.seq)
_BY_NAME = _SERVERS.select.where(equal(mcp_servers, "organization_id", "name"))
_OF_TOOL = (
    select(*_SERVERS.columns, *_SERVED.columns)
    .join(mcp_tools, mcp_tools.c.server_id == mcp_servers.c.id)
    .where(equal(mcp_tools, "tool_id"), equal(mcp_servers, "organization_id"))
)
_SERVED_BY = select(*_SERVED.columns).where(equal(mcp_tools, "server_id"))
_TOOLS_OF = tools.joined(_SERVED_BY, mcp_tools.c.tool_id).order_by(mcp_tools.c.seq)
_DELETE = delete(mcp_servers).where(equal(mcp_servers, "id"))
_STATE = ("fingerprint", "held", "reason")
_KEEP = setter(mcp_tools, *_STATE, where=mcp_tools.c.tool_id == bindparam("this_id"))
get = _SERVERS.get
get_for_change = _SERVERS.get_for_change
save = _SERVERS.updates(
    "name", "kind", "config", "secret", "refused", "last_error", "updated_by", "updated_at"
)
# The values are those of the last connection, whatever the row had.
note = _SERVERS.updates("refused", "last_error", "last_at", locked=None)


def insert_one(tx: Transaction, server: McpServer) -> None:
    """Store a new server.

    Args:
        tx: The transaction.
        server: The server with its encrypted secrets.

    Raises:
        Conflict: The organization has too many servers.
        Collision: It has one of this name.
    """
    scope = Scope(server.organization_id)
    tools.lock(tx, scope)  # so that no other request adds one at the same time
    if len(every(tx, scope)) >= MOST_SERVERS:
        raise Conflict(
            f"There are {MOST_SERVERS} MCP servers already, and no more are allowed. Delete one "
            "first."
        )
    require_free(tx, server)
    _SERVERS.insert(tx, server)


def require_free(tx: Transaction, server: McpServer) -> None:
    """Raise Collision if another server of the organization has this server's name.

    Args:
        tx: The transaction, or a read.
        server: The server, stored or not.
    """
    key = {"organization_id": server.organization_id, "name": server.name}
    namesake = _SERVERS.first(tx, _BY_NAME, key)
    if namesake and namesake.id != server.id:
        raise Collision(
            f'An MCP server "{server.name}" already exists. Change that one, or choose another '
            "name."
        )


def named(tx: Transaction, scope: Scope, name: str) -> McpServer:
    """Return the server with this name.

    Args:
        tx: The transaction, or a read.
        scope: The caller, whose organization is searched.
        name: The exact name.

    Raises:
        NotFound: There is no such server.
    """
    server = _SERVERS.first(tx, _BY_NAME, {"organization_id": scope.organization_id, "name": name})
    if server is None:
        raise NotFound(f"MCP server with name {name} not found")
    return server


def every(tx: Transaction, scope: Scope) -> list[McpServer]:
    """Return all servers of the caller's organization, oldest first.

    Args:
        tx: The transaction, or a read.
        scope: The caller.
    """
    return _SERVERS.all(tx, _ALL, {"organization_id": scope.organization_id})


def of_tool(tx: Transaction, scope: Scope, tool_id: str) -> tuple[McpServer, ServedTool]:
    """Return a tool's server and the tool's state.

    Args:
        tx: The transaction, or a read.
        scope: The caller.
        tool_id: A tool of the type `external_mcp`.

    Raises:
        NotFound: No server of the organization has the tool.
    """
    row = tx.first(_OF_TOOL, {"tool_id": tool_id, "organization_id": scope.organization_id})
    if row is None:
        raise NotFound(
            f"Tool {tool_id} has lost its MCP server. Delete the tool, or add the server again."
        )
    width = len(_SERVERS.columns)
    return _SERVERS.of(row[:width]), _SERVED.of(row[width:])


def tools_of(tx: Transaction, server_id: str) -> list[tuple[ServedTool, Tool]]:
    """Return the stored tools of a server, in the order of their creation.

    Args:
        tx: The transaction, or a read.
        server_id: The server of any organization.
    """
    width = len(_SERVED.columns)
    return [
        (_SERVED.of(row[:width]), tools.ROWS.of(row[width:]))
        for row in tx.all(_TOOLS_OF, {"server_id": server_id})
    ]


def add_served(tx: Transaction, served_tools: Sequence[ServedTool]) -> None:
    """Store the states of new tools.

    Args:
        tx: The transaction, which has stored the tools.
        served_tools: The states; may be empty.
    """
    _SERVED.insert(tx, *served_tools)


def keep(tx: Transaction, served: ServedTool) -> None:
    """Store the state of a tool: its accepted version, the waiting one, and its fault.

    Args:
        tx: The transaction.
        served: The new state.
    """
    tx.run(
        _KEEP,
        {**new_values({name: getattr(served, name) for name in _STATE}), "this_id": served.tool_id},
    )


def delete_one(tx: Transaction, server: McpServer) -> None:
    """Delete a server whose tools are already deleted.

    Args:
        tx: The transaction.
        server: The server.
    """
    tx.run(_DELETE, {"id": server.id})
