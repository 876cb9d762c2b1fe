"""The MCP server of one request, with the rights of the caller's key.

It has tools and prompts. Blocks and the person's profile are resources, and their changes are
announced.
"""

import asyncio
import logging
from collections.abc import Awaitable, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import quote, unquote

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated
from mcp.shared.exceptions import MCPError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ricordo import __version__
from ricordo.errors import RicordoError
from ricordo.features.mcp.server.tools import (
    Json,
    Memory,
    call,
    offered,
    read_memory,
    schema_of_tool,
)

log = logging.getLogger(__name__)
_BLOCK = "memory://blocks/"
_AGENTS_BLOCK = "memory://agents/"
_PROFILE = "memory://profile"
_LOOKS_EVERY = 2.0  # seconds between two checks of watched resources
_MOST_BYTES = 64 * 1024  # the most bytes of a message, since it is parsed on the event loop
_MOST_WATCHED = 50
_MOST_LISTED = 500
_MOST_AGENTS = 20
_INSTRUCTIONS = (
    "Ricordo keeps the memory of the person you talk with. Read it (read_memory) before you ask "
    "what you may already know, search past conversations with search_memory, and propose what is "
    "worth keeping. The person decides on proposals and sees every change."
)
# By name: title, description, and text.
_PROMPTS = {
    "about_me": (
        "What do you know about me?",
        "Tell me what Ricordo remembers of me, and what of it looks outdated or contradictory.",
        "Here is all that Ricordo remembers of me. Tell me what you know about me, in your own "
        "words, and name what looks outdated or contradictory.\n\n{memory}",
    ),
    "keep_this": (
        "What of this conversation is worth keeping?",
        "Propose what of this conversation is worth remembering, one change at a time, each with "
        "its reason.",
        "Look at our conversation so far. Propose with propose_memory what of it is worth "
        "remembering, one small change at a time, each with its reason. Leave out what is there "
        "already, what will not matter next week, and secrets.\n\n"
        "This is remembered now:\n\n{memory}",
    ),
}


class McpResponse(Response):
    """The response to a request of an MCP client.

    There are no sessions, so each request has a key.
    """

    def __init__(self, memory: Memory) -> None:
        super().__init__()
        self._memory = memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request."""
        manager = StreamableHTTPSessionManager(
            server_of(self._memory), stateless=True, max_request_body_size=_MOST_BYTES
        )
        try:
            async with manager.run():
                await manager.handle_request(scope, receive, send)
        except ExceptionGroup as group:  # raised in the tasks of the SDK's manager
            # Raise our own errors, such as for a body that is too long, so that they are answered
            # as on other routes.
            if (refusal := group.subgroup(HTTPException)) is None:
                raise
            raise refusal.exceptions[0] from group


def server_of(memory: Memory) -> "Server[Any]":
    """Return the server for this client."""

    async def list_tools(_context: Any, _params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=list(_tools(memory)))

    async def call_tool(_context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            text = await call(memory, params.name, params.arguments or {})
            is_error = False
        except RicordoError as error:
            text = str(error)
            is_error = True
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=text)], is_error=is_error
        )

    async def list_resources(_context: Any, _params: Any) -> types.ListResourcesResult:
        return types.ListResourcesResult(resources=await _resources(memory))

    async def list_templates(_context: Any, _params: Any) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(resource_templates=list(_templates(memory)))

    async def read_resource(
        _context: Any, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        text, _ = await _answered(_read(memory, params.uri))
        content = types.TextResourceContents(uri=params.uri, mime_type="text/markdown", text=text)
        return types.ReadResourceResult(contents=[content])

    async def listen(
        context: Any, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        bus = InMemorySubscriptionBus()
        uris = params.notifications.resource_subscriptions or []
        watching = asyncio.ensure_future(_watch(memory, uris[:_MOST_WATCHED], bus))
        try:
            return await ListenHandler(bus)(context, params)
        finally:
            watching.cancel()

    async def list_prompts(_context: Any, _params: Any) -> types.ListPromptsResult:
        return types.ListPromptsResult(prompts=list(_prompts()))

    async def get_prompt(
        _context: Any, params: types.GetPromptRequestParams
    ) -> types.GetPromptResult:
        if params.name not in _PROMPTS:
            raise MCPError(
                types.INVALID_PARAMS,
                f'There is no prompt "{params.name[:80]}": {", ".join(_PROMPTS)}.',
            )
        _, description, template = _PROMPTS[params.name]
        text = template.replace("{memory}", await _answered(read_memory(memory)))
        message = types.PromptMessage(
            role="user", content=types.TextContent(type="text", text=text)
        )
        return types.GetPromptResult(description=description, messages=[message])

    return Server(
        "ricordo",
        version=__version__,
        title="Ricordo",
        instructions=_INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
        on_subscriptions_listen=listen,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
    )


def _prompts() -> Iterator[types.Prompt]:
    for name, (title, description, _) in _PROMPTS.items():
        yield types.Prompt(name=name, title=title, description=description)


def _tools(memory: Memory) -> Iterator[types.Tool]:
    for name, tool in offered(memory).items():
        schema = schema_of_tool(name)
        hints = types.ToolAnnotations(
            read_only_hint=tool.reads, destructive_hint=tool.is_destructive, open_world_hint=False
        )
        yield types.Tool(
            name=name,
            description=schema.description,
            input_schema=dict(schema.parameters),
            annotations=hints,
        )


async def _resources(memory: Memory) -> list[types.Resource]:
    """Return what the client may read: the person's profile and blocks, and blocks of agents."""

    def resource_of(uri: str, name: str, block: Json) -> types.Resource:
        return types.Resource(
            uri=uri, name=name, description=block["description"], mime_type="text/markdown"
        )

    resources: list[types.Resource] = []
    if "memory:read" in memory.scopes and memory.user_id:
        resources.append(
            types.Resource(
                uri=_PROFILE,
                name="profile",
                description="A summary of what is known about the person, in a few hundred tokens.",
                mime_type="text/markdown",
            )
        )
        for block in await _answered(memory.get(memory.block(""))):
            resources.append(resource_of(_BLOCK + quote(block["label"]), block["label"], block))
    if "agents:read" in memory.scopes:
        for agent in await _answered(memory.get("/v1/agents/", limit=_MOST_AGENTS)):
            for block in agent["blocks"]:
                uri = f"{_AGENTS_BLOCK}{agent['id']}/blocks/{quote(block['label'])}"
                resources.append(resource_of(uri, f"{agent['name']}: {block['label']}", block))
    return resources[:_MOST_LISTED]


def _templates(memory: Memory) -> Iterator[types.ResourceTemplate]:
    """Yield the forms of addresses that the client may read."""
    if "memory:read" in memory.scopes and memory.user_id:
        yield types.ResourceTemplate(
            uri_template=f"{_BLOCK}{{+label}}",
            name="memory block",
            description="A block of the person's memory, by its label.",
            mime_type="text/markdown",
        )
    if "agents:read" in memory.scopes:
        yield types.ResourceTemplate(
            uri_template=f"{_AGENTS_BLOCK}{{agent_id}}/blocks/{{+label}}",
            name="agent's block",
            description="A memory block of an agent, by the agent's id and the block's label.",
            mime_type="text/markdown",
        )


async def _read(memory: Memory, uri: str) -> tuple[str, str]:
    """Return the text of a resource, and a mark that differs after each change of the text.

    Raises MCPError for an unknown address, and RicordoError if the API refuses the read.
    """
    if uri.startswith(_BLOCK):
        block = await memory.get(memory.block(unquote(uri.removeprefix(_BLOCK))))
        return block["body"], f"{block['version']} {block['updated_at']}"
    if uri == _PROFILE:
        profile = await memory.get(memory.profile_path)
        return profile["text"], profile["text"]
    agent, is_block, label = uri.removeprefix(_AGENTS_BLOCK).partition("/blocks/")
    if uri.startswith(_AGENTS_BLOCK) and is_block:
        # An agent's id is encoded, so that a slash in it cannot add a part to the path.
        agent_path = f"/v1/agents/{quote(unquote(agent), safe='')}"
        path = f"{agent_path}/core-memory/blocks/{unquote(label)}"
        block = await memory.get(path)
        return block["value"], f"{block['version']} {block['value']}"
    raise MCPError(
        types.INVALID_PARAMS,
        f'"{uri[:200]}" is not a resource of this server. resources/list shows them.',
    )


async def _watch(memory: Memory, uris: list[str], bus: InMemorySubscriptionBus) -> None:
    """Publish each change of these resources, by any writer."""
    marks: dict[str, str | None] = {}
    while True:
        for uri in uris:
            mark: str | None = None  # the resource does not exist
            with suppress(RicordoError, MCPError):
                _, mark = await _read(memory, uri)
            if marks.setdefault(uri, mark) != mark:
                marks[uri] = mark
                await bus.publish(ResourceUpdated(uri=uri))
        await asyncio.sleep(_LOOKS_EVERY)


async def _answered(answer: Awaitable[Any]) -> Any:
    """Await the API's answer; its refusal becomes the protocol's error."""
    try:
        return await answer
    except RicordoError as error:
        raise MCPError(types.INVALID_PARAMS, str(error)) from error
