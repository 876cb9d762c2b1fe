"""The pages of MCP servers: their health, tools, and waiting changes."""

from fastapi import Request, Response

from ricordo.domain.text import Json
from ricordo.pages.inside import Api, RefusedByApi
from ricordo.pages.shell import Pages, done, form_of, render

router = Pages("/ui/mcp", scope="tools")
_LIST = "mcp.client/servers.html"
_SERVER = "mcp.client/server.html"
_EMPTY = {"name": "", "address": "", "kind": ""}


@router.get("")
async def list_servers(request: Request) -> Response:
    """Show the organization's MCP servers, and a form to add one."""
    return await _list(request, {})


@router.post("")
async def add_server(request: Request) -> Response:
    """Add a server at an address, reachable or not.

    The page of an unreachable server shows the reason.
    """
    form = await form_of(request)
    config = {
        "mcp_server_type": form.get("kind") or "streamable_http",
        "server_url": form.get("address", "").strip(),
    }
    if token := form.get("token", "").strip():
        config["auth_token"] = token
    body = {"server_name": form.get("name", "").strip(), "config": config}
    try:
        server = await Api(request).ask("POST", "/v1/mcp-servers/", body)
    except RefusedByApi as error:
        return await _list(request, dict(form), str(error), error.status)
    return done(request, f"/ui/mcp/{server['id']}", f"{server['server_name']} was added.")


@router.get("/{mcp_server_id}")
async def show_server(request: Request, mcp_server_id: str) -> Response:
    """Show one server with its tools."""
    api = Api(request)
    home = f"/v1/mcp-servers/{mcp_server_id}"
    tools = [
        {
            **tool,
            "held": tool["metadata_"].get("mcp:HELD"),
            "disabled": tool["metadata_"].get("mcp:DISABLED"),
        }
        for tool in await api.get(f"{home}/tools")
    ]
    return await render(request, _SERVER, server=await api.get(home), tools=tools)


@router.post("/{mcp_server_id}/refresh")
async def refresh(request: Request, mcp_server_id: str) -> Response:
    """Read the server's tools again."""
    notice = "The list of tools was read again."
    try:
        await Api(request).ask("PATCH", f"/v1/mcp-servers/{mcp_server_id}/refresh")
    except RefusedByApi as error:
        if error.status in (403, 404):
            raise
        notice = "The server could not be reached."
    return done(request, f"/ui/mcp/{mcp_server_id}", notice)


@router.post("/{mcp_server_id}/connect")
async def connect(request: Request, mcp_server_id: str) -> Response:
    """Show the address of the consent to the server's use."""
    consent = await Api(request).ask("POST", f"/v1/mcp-servers/{mcp_server_id}/connect")
    server = await Api(request).get(f"/v1/mcp-servers/{mcp_server_id}")
    return await render(
        request, "mcp.client/consent.html", server=server, address=consent["authorization_url"]
    )


@router.post("/{mcp_server_id}/tools/{mcp_tool_id}/accept")
async def accept(request: Request, mcp_server_id: str, mcp_tool_id: str) -> Response:
    """Accept the current version of a tool; the form has its fingerprint."""
    form = await form_of(request)
    body = {"fingerprint": form.get("fingerprint", "")}
    await Api(request).ask(
        "POST", f"/v1/mcp-servers/{mcp_server_id}/tools/{mcp_tool_id}/accept", body
    )
    return done(request, f"/ui/mcp/{mcp_server_id}", "The change was accepted.")


@router.post("/{mcp_server_id}/delete")
async def delete(request: Request, mcp_server_id: str) -> Response:
    """Delete the server with its tools."""
    await Api(request).ask("DELETE", f"/v1/mcp-servers/{mcp_server_id}")
    return done(request, "/ui/mcp", "The server was deleted with its tools.")


async def _list(request: Request, form: Json, problem: str = "", status: int = 200) -> Response:
    servers = await Api(request).get("/v1/mcp-servers/")
    return await render(
        request, _LIST, status=status, servers=servers, form={**_EMPTY, **form}, problem=problem
    )
