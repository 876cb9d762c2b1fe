"""MCP servers over HTTP, and their tools.

Servers are added, changed, refreshed and deleted; tools are listed, accepted and run.
"""

import hmac
from dataclasses import replace
from typing import Any

from fastapi import Request, Response
from fastapi.responses import RedirectResponse

from ricordo.api.answers import answer
from ricordo.api.call import RequestContext
from ricordo.api.models.base import NoteResponse
from ricordo.api.models.tools import ToolResponse, ToolRunRequest, ToolRunResponse
from ricordo.api.routing import Routes, needs
from ricordo.domain.ids import new_id
from ricordo.domain.scope import REQUEST_SCOPE, Scope
from ricordo.domain.text import Json
from ricordo.errors import Conflict, DatabaseFailed, Invalid, Unavailable
from ricordo.features.mcp.client import queries, service
from ricordo.features.mcp.client.models import (
    AcceptRequest,
    ConsentResponse,
    ServerRequest,
    ServerResponse,
    ServerUpdate,
    tool_response,
)
from ricordo.features.mcp.client.oauth import WaitingConsent
from ricordo.features.mcp.client.service import ServerSecrets
from ricordo.features.mcp.client.sessions import TimedOut
from ricordo.features.mcp.client.tables import McpServer
from ricordo.features.mcp.client.tools import McpRunner
from ricordo.pages.shell import address_of, base_of, render
from ricordo.runtime import Runtime
from ricordo.secret import Secret
from ricordo.storage.engine.store import Transaction

router = Routes(
    prefix="/v1/mcp-servers",
    tags=["MCP servers"],
    scope="tools",
    open_paths=("/v1/mcp-servers/oauth/callback",),
)
CALLBACK = "/v1/mcp-servers/oauth/callback"


def runner_of(context: RequestContext) -> McpRunner:
    """Return the runner of MCP servers' tools.

    Args:
        context: The request's context.

    Raises:
        Unavailable: A plugin has replaced the runner.
    """
    return runner_in(context.runtime)


def runner_in(runtime: Runtime) -> McpRunner:
    """Return the runner of MCP servers' tools.

    Args:
        runtime: The running server.

    Raises:
        Unavailable: A plugin has replaced the runner.
    """
    runner = runtime.toolbox.runner("external_mcp")
    if not isinstance(runner, McpRunner):
        raise Unavailable("Another plugin runs the tools of MCP servers on this server.")
    return runner


def failure(error: Unavailable) -> Response:
    """Return the response for a server's failure, with the statuses that clients know.

    The status is 408 if the server took too long, otherwise 502.

    Args:
        error: The failure of the MCP server.

    Raises:
        DatabaseFailed: The error is a failure of this server's database.
    """
    if isinstance(error, DatabaseFailed):
        raise error
    if isinstance(error, TimedOut):
        return answer({"detail": str(error)}, 408)
    return answer(
        {"error": {"type": "mcp_connection_error", "message": str(error), "detail": None}}, 502
    )


async def add(context: RequestContext, body: ServerRequest) -> McpServer:
    """Store a new server, reachable or not, and read its tools.

    Args:
        context: The request's context.
        body: The requested server.

    Raises:
        Invalid, Forbidden: No connection to the server is possible.
        Conflict: There are too many servers, or the name is taken.
    """
    scope = context.scope
    settings = context.runtime.settings
    blank = McpServer(
        "", scope.organization_id, body.server_name, "streamable_http", {}, created_by=scope.user_id
    )
    server, secrets = body.applied(blank, ServerSecrets())
    service.require_usable(settings, server)
    secret = secrets.sealed(settings)

    def insert(tx: Transaction) -> McpServer:
        now = tx.clock.now()
        new_server = replace(
            server,
            id=new_id("mcp_server"),
            secret=secret,
            updated_by=scope.user_id,
            created_at=now,
            updated_at=now,
        )
        queries.insert_one(tx, new_server)
        return new_server

    return await refreshed(context, await context.store.write(insert))


async def change(context: RequestContext, before: McpServer, body: ServerUpdate) -> McpServer:
    """Store a change of a server, and read its tools again.

    Args:
        context: The request's context.
        before: The server as it was read before the change.
        body: The changes; omitted fields keep their values.

    Raises:
        Invalid, Forbidden: if no connection to the changed server is possible.
        Unavailable: if its stored secrets cannot be read.
        NotFound: if it was deleted.
        Conflict: if it was changed since it was read, or its new name is taken.
    """
    settings = context.runtime.settings
    requested, _ = body.applied(before, service.secrets_of(settings, before))
    service.require_usable(settings, requested)

    def save(tx: Transaction) -> McpServer:
        stored = queries.get_for_change(tx, context.scope, before.id)
        if stored.updated_at != before.updated_at:
            raise Conflict(
                "The MCP server was changed by another request. Read it again, then repeat the "
                "change."
            )
        # The row may have newer tokens, since a refresh of them does not count as a change.
        server, secrets = body.applied(stored, service.secrets_of(settings, stored))
        changed = replace(
            server,
            secret=secrets.sealed(settings),
            last_error=None,
            updated_at=tx.clock.now(),
            updated_by=context.scope.user_id,
        )
        queries.require_free(tx, changed)
        queries.save(tx, changed)
        return changed

    return await refreshed(context, await context.store.write(save))


async def refreshed(context: RequestContext, server: McpServer) -> McpServer:
    """Read the tools of a server, and return the server after that.

    A slow server is read in the background, and is returned with its earlier status.

    Args:
        context: The request's context.
        server: The stored server.

    Raises:
        NotFound: It was deleted meanwhile.
    """
    await runner_of(context).read_soon(context.store, context.scope, server)
    return await stored(context, server.id)


async def remove(context: RequestContext, server: McpServer) -> None:
    """Delete a server with its tools, and close its session.

    Args:
        context: The request's context.
        server: The stored server.

    Raises:
        Collision: A rule of an agent needs one of the tools.
    """
    await context.store.write(lambda tx: service.delete(tx, context.scope, server))
    await runner_of(context).forget(server.id)


async def stored(context: RequestContext, server_id: str) -> McpServer:
    """Return the server as it is stored now.

    Args:
        context: The request's context.
        server_id: The server.

    Raises:
        NotFound: The organization has no such server.
    """
    return await context.store.read(lambda tx: queries.get(tx, context.scope, server_id))


@router.get("/", response_model=list[ServerResponse])
def list_servers(tx: Transaction, context: RequestContext) -> list[Json]:
    """Return the organization's MCP servers, the oldest first."""
    return [ServerResponse.from_server(server) for server in queries.every(tx, context.scope)]


@router.post("/", response_model=ServerResponse)
async def create(context: RequestContext, body: ServerRequest) -> Json:
    """Add an MCP server, reachable or not; its tools can be attached to agents."""
    return ServerResponse.from_server(await add(context, body))


@router.get("/{mcp_server_id}", response_model=ServerResponse)
def retrieve(tx: Transaction, context: RequestContext, mcp_server_id: str) -> Json:
    """Return one MCP server."""
    return ServerResponse.from_server(queries.get(tx, context.scope, mcp_server_id))


@router.patch("/{mcp_server_id}", response_model=ServerResponse)
async def update(context: RequestContext, mcp_server_id: str, body: ServerUpdate) -> Json:
    """Change an MCP server; omitted fields keep their values."""
    return ServerResponse.from_server(
        await change(context, await stored(context, mcp_server_id), body)
    )


@router.delete("/{mcp_server_id}", status_code=204)
async def delete(context: RequestContext, mcp_server_id: str) -> Response:
    """Delete an MCP server with its tools; agents lose them."""
    await remove(context, await stored(context, mcp_server_id))
    return Response(status_code=204)


@router.get("/oauth/callback", response_model=NoteResponse)
@needs()
async def finish_consent(request: Request) -> Response:
    """Handle the browser's answer after a consent, and redirect to the page of the server.

    If another person began to connect the server, the caller is asked first. Otherwise a person
    could get the use of the caller's account by sending the address of the consent page.
    """
    query = request.query_params
    consents = runner_in(request.app.state.runtime).consents
    state, code = query.get("state", ""), query.get("code")
    consent = consents.find(state)
    proof = _proof(request, state, code or "")
    is_confirmed = hmac.compare_digest(query.get("confirmed", "").encode(), proof.encode())
    if code and not (is_confirmed or _has_begun(request, consent)):
        # The authorization server may add other parameters. They are left out.
        answered = {
            name: query[name] for name in ("state", "code", "iss", "error") if name in query
        }
        return await render(
            request,
            "mcp.client/confirm.html",
            server=consent.server,
            by=consent.begun_by,
            address=f"{base_of(request)}{address_of(CALLBACK, **answered, confirmed=proof)}",
        )
    server_id = await consents.finish(state, code, query.get("iss"), query.get("error"))
    return RedirectResponse(f"{base_of(request)}/ui/mcp/{server_id}", 303)


def _has_begun(request: Request, consent: WaitingConsent) -> bool:
    """Return True if the browser's user began to connect the server."""
    caller: Scope | None = request.scope.get(REQUEST_SCOPE)
    begun_by = consent.begun_by
    return caller is not None and (caller.organization_id, caller.user_id) == (
        begun_by.organization_id,
        begun_by.user_id,
    )


def _proof(request: Request, state: str, code: str) -> str:
    """Return the text by which the browser shows that its user was asked about this answer."""
    secret = Secret(request.app.state.runtime.settings.data_dir).derive("mcp consent")
    return hmac.digest(secret, f"{state} {code}".encode(), "sha256").hex()


@router.post("/{mcp_server_id}/connect", response_model=ConsentResponse)
async def connect(context: RequestContext, mcp_server_id: str) -> Any:
    """Start OAuth with the server, and return the address of the consent.

    A person opens that address in a browser and decides.
    """
    server = await stored(context, mcp_server_id)
    if server.kind == "stdio":
        raise Invalid("This server is a program on this machine, so it needs no consent.")
    callback = f"{str(context.request.base_url).rstrip('/')}{CALLBACK}"
    try:
        address = await runner_of(context).connect(context.store, context.scope, server, callback)
    except Unavailable as error:
        return failure(error)
    return ConsentResponse.of(None, authorization_url=address)


@router.patch("/{mcp_server_id}/refresh", response_model=dict[str, list[str]])
async def refresh(
    context: RequestContext,
    mcp_server_id: str,
    agent_id: str | None = None,  # noqa: ARG001
) -> Response:
    """Read the server's tools again.

    New tools are added, changed tools wait until a person accepts them, and missing tools are
    deleted. A missing tool is kept if an agent has it, with the reason why it cannot be called.
    `agent_id` changes nothing.
    """
    server = await stored(context, mcp_server_id)
    try:
        return answer(await runner_of(context).refresh(context.store, context.scope, server))
    except Unavailable as error:
        return failure(error)


@router.get("/{mcp_server_id}/tools", response_model=list[ToolResponse])
def list_tools(tx: Transaction, context: RequestContext, mcp_server_id: str) -> list[Json]:
    """Return the server's tools, each with its health and its waiting change."""
    queries.get(tx, context.scope, mcp_server_id)
    return [tool_response(served, tool) for served, tool in queries.tools_of(tx, mcp_server_id)]


@router.get("/{mcp_server_id}/tools/{mcp_tool_id}", response_model=ToolResponse)
def retrieve_tool(
    tx: Transaction, context: RequestContext, mcp_server_id: str, mcp_tool_id: str
) -> Json:
    """Return one tool of the server."""
    return tool_response(*service.tool_of(tx, context.scope, mcp_server_id, mcp_tool_id))


@router.post("/{mcp_server_id}/tools/{mcp_tool_id}/accept", response_model=ToolResponse)
def accept(
    tx: Transaction,
    context: RequestContext,
    mcp_server_id: str,
    mcp_tool_id: str,
    body: AcceptRequest,
) -> Json:
    """Let models see the server's current version of the tool."""
    service.accept(tx, context.scope, mcp_server_id, mcp_tool_id, body.fingerprint)
    return tool_response(*service.tool_of(tx, context.scope, mcp_server_id, mcp_tool_id))


@router.post("/{mcp_server_id}/tools/{mcp_tool_id}/run", response_model=ToolRunResponse)
async def run_tool(
    context: RequestContext,
    mcp_server_id: str,
    mcp_tool_id: str,
    body: ToolRunRequest | None = None,
) -> Any:
    """Call the tool as an agent would."""
    await context.store.read(
        lambda tx: service.tool_of(tx, context.scope, mcp_server_id, mcp_tool_id)
    )
    return await run(context, mcp_tool_id, body.args if body else {})


async def run(context: RequestContext, tool_id: str, arguments: Json) -> Any:
    """Call a tool of a server, and return the response.

    Args:
        context: The request's context.
        tool_id: The stored tool.
        arguments: The arguments by name; only the MCP server checks them.

    Returns:
        The result; a response with status 408 or 502 if the MCP server fails.

    Raises:
        NotFound: The tool or its server was deleted.
    """
    try:
        output = await runner_of(context).call(
            context.store, context.scope, tool_id, arguments, user=context.scope.user_id
        )
    except Unavailable as error:
        return failure(error)
    return ToolRunResponse.of(
        output,
        status="error" if output.is_error else "success",
        func_return=output.value,
        stdout=[],
        stderr=[str(output.value)] if output.is_error else [],
    )
