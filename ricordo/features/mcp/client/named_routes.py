"""MCP servers by name, as older clients address them.

The routes that use ids do the work.
"""

from typing import Any

from fastapi import Response

from ricordo.api.answers import answer
from ricordo.api.call import RequestContext
from ricordo.api.models.tools import ToolResponse, ToolRunRequest, ToolRunResponse
from ricordo.api.routing import Routes
from ricordo.domain.text import Json
from ricordo.domain.tool import Tool
from ricordo.errors import NotFound, Unavailable
from ricordo.features.mcp.client import queries, routes, service
from ricordo.features.mcp.client.models import (
    NamedServerRequest,
    NamedServerUpdate,
    named_response,
    tool_response,
)
from ricordo.features.mcp.client.service import ServerSecrets
from ricordo.features.mcp.client.tables import McpServer, ServedTool
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/v1/tools/mcp/servers", tags=["MCP servers"], scope="tools")


async def _named(context: RequestContext, name: str) -> McpServer:
    return await context.store.read(lambda tx: queries.named(tx, context.scope, name))


async def _served(context: RequestContext, name: str, tool_name: str) -> tuple[ServedTool, Any]:
    def find(tx: Transaction) -> tuple[ServedTool, Any]:
        for served, tool in queries.tools_of(tx, queries.named(tx, context.scope, name).id):
            if tool_name in (served.remote_name, tool.name):
                return served, tool
        raise NotFound(
            f"MCP server {name} has no tool named {tool_name}. Refresh it to see what it offers."
        )

    return await context.store.read(find)


@router.get("", response_model=dict[str, Json])
def list_servers(tx: Transaction, context: RequestContext) -> dict[str, Json]:
    """Return the MCP servers by name."""
    return {server.name: named_response(server) for server in queries.every(tx, context.scope)}


@router.put("", response_model=list[Json])
async def add(context: RequestContext, body: NamedServerRequest) -> list[Json]:
    """Add an MCP server; returns all of them."""
    await routes.add(context, body.request())
    return await context.store.read(
        lambda tx: [named_response(server) for server in queries.every(tx, context.scope)]
    )


@router.post("/test", response_model=list[Json])
async def test(context: RequestContext, body: NamedServerRequest) -> Response:
    """List the tools of a server that is not stored."""
    blank = McpServer("", context.scope.organization_id, body.server_name, "streamable_http", {})
    server, secrets = body.request().applied(blank, ServerSecrets())
    service.require_usable(context.runtime.settings, server)
    try:
        listed, _ = await routes.runner_of(context).preview(server, secrets)
    except Unavailable as error:
        return routes.failure(error)
    tools = [
        {"name": tool.name, "description": tool.description, "inputSchema": tool.parameters}
        for tool in listed
    ]
    health = [
        {"health": {"status": tool.health, "reasons": list(tool.warnings)}} for tool in listed
    ]
    return answer([{**tool, **state} for tool, state in zip(tools, health, strict=True)])


@router.patch("/{mcp_server_name}", response_model=Json)
async def update(context: RequestContext, mcp_server_name: str, body: NamedServerUpdate) -> Json:
    """Change an MCP server; omitted fields keep their values."""
    server = await _named(context, mcp_server_name)
    return named_response(await routes.change(context, server, body.request()))


@router.delete("/{mcp_server_name}", response_model=list[Json])
async def delete(context: RequestContext, mcp_server_name: str) -> list[Json]:
    """Delete an MCP server with its tools, and return the remaining servers."""
    await routes.remove(context, await _named(context, mcp_server_name))
    return await context.store.read(
        lambda tx: [named_response(server) for server in queries.every(tx, context.scope)]
    )


@router.get("/{mcp_server_name}/tools", response_model=list[Json])
def list_tools(tx: Transaction, context: RequestContext, mcp_server_name: str) -> list[Json]:
    """Return the tools of a server under the server's names."""
    server = queries.named(tx, context.scope, mcp_server_name)
    return [
        {
            "name": served.remote_name,
            "description": tool.description,
            "inputSchema": tool.json_schema["parameters"],
            "health": _health(served, tool),
        }
        for served, tool in queries.tools_of(tx, server.id)
    ]


def _health(served: ServedTool, tool: Tool) -> Json:
    if served.reason:
        return {"status": "INVALID", "reasons": [served.reason]}
    return {
        "status": tool.metadata.get("mcp:SCHEMA_STATUS"),
        "reasons": tool.metadata.get("mcp:SCHEMA_WARNINGS", []),
    }


@router.post("/{mcp_server_name}/resync", response_model=dict[str, list[str]])
async def resync(
    context: RequestContext, mcp_server_name: str, agent_id: str | None = None
) -> Response:
    """Read the server's tools again. `agent_id` is ignored."""
    return await routes.refresh(context, (await _named(context, mcp_server_name)).id, agent_id)


@router.post("/{mcp_server_name}/{mcp_tool_name}", response_model=ToolResponse)
async def add_tool(context: RequestContext, mcp_server_name: str, mcp_tool_name: str) -> Json:
    """Return a tool of the server.

    It was stored when the server was added or refreshed.
    """
    return tool_response(*await _served(context, mcp_server_name, mcp_tool_name))


@router.post("/{mcp_server_name}/tools/{mcp_tool_name}/execute", response_model=ToolRunResponse)
async def execute(
    context: RequestContext, mcp_server_name: str, mcp_tool_name: str, body: ToolRunRequest
) -> Any:
    """Call a tool of the server."""
    _, tool = await _served(context, mcp_server_name, mcp_tool_name)
    return await routes.run(context, tool.id, body.args)
