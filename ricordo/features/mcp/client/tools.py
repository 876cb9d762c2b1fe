"""The runner of tools of MCP servers, stored with the type `external_mcp`."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson

from ricordo.domain.scope import NOBODY, Scope
from ricordo.domain.tool import Tool, ToolType
from ricordo.errors import RicordoError, Unavailable, require_others_failure
from ricordo.features.mcp.client import queries, service
from ricordo.features.mcp.client.commands import over_stdio
from ricordo.features.mcp.client.listed_tools import ListedTool, plain, read_tools
from ricordo.features.mcp.client.oauth import Consents, KeptTokens, SharedTokens
from ricordo.features.mcp.client.options import McpSettings
from ricordo.features.mcp.client.sessions import (
    CallTimedOut,
    McpSession,
    McpSessions,
    Open,
    SessionLost,
    over_http,
    words_of,
)
from ricordo.features.mcp.client.tables import McpServer, ServedTool
from ricordo.sandbox.service import Sandbox
from ricordo.settings import Settings
from ricordo.storage.engine.store import Store, Transaction
from ricordo.tools.toolbox import ToolContext, ToolOutput

if TYPE_CHECKING:
    from mcp import Client

log = logging.getLogger(__name__)
LIST_SECONDS = 20.0
FIRST_LOOK_SECONDS = 5.0  # the request that adds a server waits this long for its tools
# The library's codes for a lost connection, an unreadable answer, and a time-out.
_LOST = (-32000, -32700, -32001)
_MOST_BLOCKS = 500  # of one result
_LONGEST_REFUSAL = 50_000  # characters of a server's error message for a refused call


class McpRunner:
    """Calls tools of MCP servers, and keeps the sessions with these servers."""

    tool_types: Sequence[ToolType] = ("external_mcp",)

    def __init__(self, settings: Settings, sandbox: Sandbox) -> None:
        self._settings = settings
        self._sandbox = sandbox
        self.seconds = McpSettings().mcp_timeout
        self._sessions = McpSessions()
        self.consents = Consents()
        self._tokens_by_server: dict[tuple[str, int], KeptTokens] = {}
        self._reading: set[asyncio.Task[Any]] = set()

    async def run(
        self, tool: Tool, context: ToolContext, arguments: Mapping[str, Any]
    ) -> ToolOutput:
        """Run one call.

        Args:
            tool: The stored tool.
            context: The agent's call, whose user has a separate session with the server.
            arguments: The arguments that the model wrote; only the server checks them.

        Raises:
            NotFound: if the tool or its server was deleted.
            Unavailable: if the server fails or no longer offers the tool.
        """
        return await self.call(
            context.store, context.scope, tool.id, arguments, user=context.subject_id
        )

    async def call(
        self,
        store: Store,
        scope: Scope,
        tool_id: str,
        arguments: Mapping[str, Any],
        *,
        user: str = NOBODY,
    ) -> ToolOutput:
        """Call a tool of a server in the session of this user.

        Args:
            store: The database.
            scope: The caller.
            tool_id: The stored tool.
            arguments: The arguments; only the server checks them.
            user: The id of the user whose session is used, or NOBODY.

        Returns:
            The server's result; it may be the server's refusal (`is_error`).

        Raises:
            NotFound: if the tool or its server was deleted.
            Unavailable: if the server fails or no longer offers the tool.
        """
        server, _ = await store.read(lambda tx: queries.of_tool(tx, scope, tool_id))

        async def send() -> tuple[ToolOutput | None, ServedTool]:
            session = await self._session(store, scope, server, user)
            _, served = await store.read(lambda tx: queries.of_tool(tx, scope, tool_id))
            if served.reason is not None:
                return None, served
            call = _Call(served.remote_name, arguments, session)
            return await session.ask(call.send, self.seconds), served

        try:
            try:
                output, served = await send()
            except SessionLost:  # the server was restarted, and did not act on the call
                output, served = await send()
            if output is not None:
                return output
        except Unavailable as error:
            require_others_failure(error)
            await self._note(store, server, error)
            advice = " Its tools do not work until it answers again."
            if isinstance(error, CallTimedOut):  # other tools may work
                advice = ""
            raise type(error)(f'The MCP server "{server.name}" failed: {error}{advice}') from error
        raise Unavailable(
            f'This tool of the MCP server "{server.name}" cannot be called: {served.reason}'
        )

    async def refresh(
        self, store: Store, scope: Scope, server: McpServer
    ) -> Mapping[str, list[str]]:
        """Read the server's tools again.

        New tools are stored, changes are held, and missing tools are deleted or switched off.

        Args:
            store: The database.
            scope: The caller, who becomes the creator of new tools.
            server: The server. Its sessions are closed first.

        Returns:
            The names of the tools that were added, updated and deleted, by these three words.

        Raises:
            Unavailable: if the server fails.
        """
        await self.forget(server.id)
        try:
            session = self._open(store, server, scope.user_id)
            listed = await self._listed(session)
        except Unavailable as error:
            require_others_failure(error)
            await self._note(store, server, error)
            raise type(error)(f'The MCP server "{server.name}" failed: {error}') from error
        refused = dict(session.traffic.tools.refused)

        def work(tx: Transaction) -> Mapping[str, list[str]]:
            return service.save(tx, scope, server.id, listed, refused, adds=True)

        return await store.write(work)

    async def read_soon(self, store: Store, scope: Scope, server: McpServer) -> None:
        """Read a server's tools; wait a moment for them, and then continue in the background.

        A program such as `npx` may install packages first. Errors are recorded with the server.

        Args:
            store: The database.
            scope: The caller, who becomes the creator of new tools.
            server: The server.
        """
        reading = asyncio.create_task(self.refresh(store, scope, server))
        self._reading.add(reading)
        reading.add_done_callback(self._finish_reading)
        await asyncio.wait({reading}, timeout=FIRST_LOOK_SECONDS)

    def _finish_reading(self, reading: asyncio.Task[Any]) -> None:
        self._reading.discard(reading)
        if reading.cancelled():
            error = None
        else:
            error = reading.exception()
        # Do not log known errors. The reason is stored with a failed server, and a server may be
        # deleted or changed while it is read.
        if error is not None and not isinstance(error, RicordoError):
            log.error("the tools of an MCP server could not be read", exc_info=error)

    async def preview(
        self, server: McpServer, secrets: service.ServerSecrets
    ) -> tuple[list[ListedTool], Mapping[str, str]]:
        """Read the tools of a server that is not stored.

        Args:
            server: The server; its stored secrets are not used.
            secrets: The secrets for the connection.

        Returns:
            The tools, and the reasons for tools that cannot be used, by name.

        Raises:
            Unavailable: if the server fails.
        """
        session = self._new_session(server, secrets=secrets)
        try:
            return await self._listed(session), session.traffic.tools.refused
        finally:
            await session.close()

    async def forget(self, server_id: str) -> None:
        await self._sessions.forget(server_id)

    async def close(self) -> None:
        """Close all sessions, and cancel waiting consents."""
        for reading in self._reading:
            reading.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)
        await self.consents.close()
        await self._sessions.close()

    async def _session(
        self, store: Store, scope: Scope, server: McpServer, user: str
    ) -> McpSession:
        """Return a session whose tools were compared with the accepted tools."""
        session = self._open(store, server, user)
        async with session.comparing:
            if not session.is_compared:
                listed = await self._listed(session)
                refused = dict(session.traffic.tools.refused)
                changes = await store.read(
                    lambda tx: service.compare(tx, server, listed, refused, adds=False)
                )
                if changes.states or server.last_error is not None or server.last_at is None:
                    await store.write(
                        lambda tx: service.save(tx, scope, server.id, listed, refused, adds=False)
                    )
                session.is_compared = True
        return session

    def _open(self, store: Store, server: McpServer, user: str) -> McpSession:
        return self._sessions.of(
            server.id, server.updated_at, user, lambda: self._new_session(server, store=store)
        )

    def _new_session(
        self,
        server: McpServer,
        *,
        secrets: service.ServerSecrets | None = None,
        store: Store | None = None,
    ) -> McpSession:
        streams = self._streams(server, secrets, store)
        kind = server.kind
        return McpSession(streams, probes=kind == "streamable_http", is_program=kind == "stdio")

    def _streams(
        self,
        server: McpServer,
        secrets: service.ServerSecrets | None = None,
        store: Store | None = None,
    ) -> Open:
        require_extra()
        service.require_usable(self._settings, server)
        secrets = secrets or service.secrets_of(self._settings, server)
        if server.kind == "stdio":
            return over_stdio(self._sandbox, McpSettings(), server.config, secrets.environment)
        return over_http(
            server.config["server_url"],
            service.headers_of(server, secrets),
            is_sse=server.kind == "sse",
            seconds=self.seconds,
            allow_private=self._settings.allow_private_providers,
            tokens=self._tokens(store, server, secrets) if store and secrets.oauth else None,
        )

    def _tokens(
        self, store: Store, server: McpServer, secrets: service.ServerSecrets
    ) -> SharedTokens:
        """Return the OAuth tokens of a server; refreshed tokens are stored."""
        key = (server.id, server.updated_at)
        if key not in self._tokens_by_server:
            # A changed server may have other tokens, so drop those from before the change.
            self._tokens_by_server = {
                server_key: tokens
                for server_key, tokens in self._tokens_by_server.items()
                if server_key[0] != server.id
            }
            self._tokens_by_server[key] = KeptTokens(
                secrets.oauth, partial(service.keep_oauth, store, self._settings, server)
            )
        return SharedTokens(server.config["server_url"], self._tokens_by_server[key])

    async def connect(self, store: Store, scope: Scope, server: McpServer, callback: str) -> str:
        """Return the address where a person consents to the use of an MCP server.

        Args:
            store: The database, which gets the tokens.
            scope: The caller who connects to it.
            server: The server, reached by HTTP.
            callback: The address of Ricordo to which the browser returns.

        Raises:
            Unavailable, Conflict: as `Consents.begin` does.
            Invalid: if the server's address may not be called.
        """
        require_extra()
        service.require_usable(self._settings, server)
        keep = partial(service.keep_oauth, store, self._settings, server, is_new=True)
        allowed = self._settings.allow_private_providers
        return await self.consents.begin(
            server, callback, keep, begun_by=scope, allow_private=allowed
        )

    async def _listed(self, session: McpSession) -> list[ListedTool]:
        return await session.ask(
            lambda client: read_tools(client, session.traffic.tools), LIST_SECONDS
        )

    async def _note(self, store: Store, server: McpServer, error: Unavailable) -> None:
        """Record in this process and in the server's row that the server fails."""
        reason = str(error)
        if not isinstance(error, CallTimedOut):  # other tools may work although one hangs
            self._sessions.failed(server.id, error)
        if server.last_error != reason:

            def work(tx: Transaction) -> None:
                stored = queries.get_for_change(tx, Scope(server.organization_id), server.id)
                queries.note(tx, replace(stored, last_error=reason, last_at=tx.clock.now()))

            await store.write(work)


class _Call:
    """One call of a tool."""

    def __init__(self, name: str, arguments: Mapping[str, Any], session: McpSession) -> None:
        self._name = name
        self._arguments = arguments
        self._session = session

    async def send(self, client: "Client") -> ToolOutput:
        """Return the server's answer to the call; it may be a refusal."""
        from mcp import MCPError

        try:
            result = await client.call_tool(self._name, dict(self._arguments))
        except MCPError as error:
            if error.code in _LOST or self._session.traffic.status is not None:
                raise
            reason = words_of(error, _LONGEST_REFUSAL)
            return ToolOutput(f"The MCP server refused the call{reason}", is_error=True)
        is_error = bool(result.is_error)
        text = text_of(result.content, result.structured_content)
        if is_error and not text.strip():
            text = "The tool failed, and its MCP server did not say why."
        return ToolOutput(text, is_error=is_error)


def text_of(content: Sequence[Any], structured: Any) -> str:
    """Return a result as text, with a note for each picture, sound or file.

    Args:
        content: The parts of an MCP result, of which the first 500 are shown.
        structured: The result as JSON, shown only if there are no parts; None without one.
    """
    lines = [_text(block) for block in content[:_MOST_BLOCKS]]
    if len(content) > _MOST_BLOCKS:
        lines.append(f"[{len(content) - _MOST_BLOCKS} more parts are not shown]")
    if not lines and structured is not None:
        return orjson.dumps(structured, default=str).decode()
    return "\n".join(lines)


def _text(block: Any) -> str:
    match block.type:
        case "text":
            return str(block.text)
        case "image" | "audio":
            size = len(block.data) * 3 // 4
            return f"[{block.type}: {plain(block.mime_type)[:100]}, {size:,} bytes, not shown]"
        case "resource_link":
            return f"[resource: {plain(block.name)[:200]}, {plain(str(block.uri))[:1000]}]"
        case "resource" if hasattr(block.resource, "text"):
            return str(block.resource.text)
    size = len(getattr(block.resource, "blob", "")) * 3 // 4
    return f"[resource: {plain(str(block.resource.uri))[:1000]}, {size:,} bytes, not shown]"


def require_extra() -> None:
    try:
        import mcp  # noqa: F401
    except ImportError as error:
        raise Unavailable("MCP servers need the extra `mcp`: install ricordo[mcp].") from error
