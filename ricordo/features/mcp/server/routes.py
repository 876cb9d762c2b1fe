"""The address of the MCP server.

The server is imported at a client's first request, since the SDK takes 20 MB and a fifth of the
start.
"""

from fastapi import Response

from ricordo.api.call import RequestContext
from ricordo.api.routing import Routes, needs
from ricordo.features.mcp.server.tools import Memory
from ricordo.offload import import_in_thread

router = Routes(tags=["mcp"], scope="memory")


@router.post("/mcp", include_in_schema=False)
@needs("memory:read", "messages:read", "agents:read")
async def serve_mcp(context: RequestContext) -> Response:
    """Serve messages of an MCP client by the streamable HTTP transport, without sessions.

    See https://modelcontextprotocol.io.
    """
    server = await import_in_thread("ricordo.features.mcp.server.server")
    response: Response = server.McpResponse(Memory(context.request, context))
    return response
