"""The address of the MCP server."""

from fastapi import Response

from ricordo.api.call import RequestContext
from ricordo.api.routing import Routes, needs
from ricordo.features.mcp_server.server import McpResponse
from ricordo.features.mcp_server.tools import Memory

router = Routes(tags=["mcp"], scope="memory")


@router.post("/mcp", include_in_schema=False)
@needs("memory:read", "messages:read", "agents:read")
async def serve_mcp(context: RequestContext) -> Response:
    """Messages of an MCP client, by the streamable HTTP transport (https://modelcontextprotocol.io), without sessions."""
    return McpResponse(Memory(context.request, context))
