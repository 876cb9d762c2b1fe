"""MCP servers: their secrets, how they are connected to, and how their tools become stored tools and stay what was accepted.

A server may change the words and the schema of a tool at any time, and what a model reads there it may follow. So what was
accepted stays in use, and what the server says now is held until somebody accepts it.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import orjson

from ricordo.agents.step_decisions import rulebook
from ricordo.domain.ids import new_id
from ricordo.domain.scope import Scope
from ricordo.domain.tool import Tool
from ricordo.errors import Collision, Conflict, Invalid, NotFound, RicordoError, Stale, Unavailable
from ricordo.features.mcp import queries
from ricordo.features.mcp.commands import program_of
from ricordo.features.mcp.listed_tools import ListedTool, fingerprint_of
from ricordo.features.mcp.options import McpSettings
from ricordo.features.mcp.tables import McpServer, ServedTool
from ricordo.llm.addresses import PROVIDERS, require_callable
from ricordo.secret import Secret
from ricordo.settings import Settings
from ricordo.storage import agents, tools
from ricordo.storage.engine.store import Store, Transaction

_LONGEST_TOOL_NAME = 64  # characters; what providers of models take
_REMOVED = "The server does not offer this tool any more."
_NOT_ALLOWED = "It is not among the server's allowed tools."


@dataclass(frozen=True, slots=True)
class ServerSecrets:
    """What a server is told and nobody else: a token, values of headers and of environment variables, and what OAuth gave."""

    token: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    oauth: Mapping[str, Any] = field(default_factory=dict)

    def sealed(self, settings: Settings) -> str | None:
        """Return them as they are stored; None where there are none."""
        given = {name: value for name, value in asdict(self).items() if value}
        return Secret(settings.data_dir).encrypt(orjson.dumps(given).decode()) if given else None


def secrets_of(settings: Settings, server: McpServer) -> ServerSecrets:
    """Return a server's secrets. Raises Unavailable where they were encrypted with another key."""
    if server.secret is None:
        return ServerSecrets()
    try:
        return ServerSecrets(**orjson.loads(Secret(settings.data_dir).decrypt(server.secret)))
    except (RicordoError, ValueError, TypeError):
        # `from None`: the cause may hold what was decrypted.
        raise Unavailable(
            "Its token and headers cannot be read: they were encrypted with another secret.key. Enter them again."
        ) from None


async def keep_oauth(
    store: Store,
    settings: Settings,
    server: McpServer,
    given: Mapping[str, Any],
    *,
    is_new: bool = False,
) -> None:
    """Store what OAuth gave for a server; sessions that are open go on, unless it `is_new`. Nothing where the server is gone."""

    def save(tx: Transaction) -> None:
        scope = Scope(server.organization_id)
        with suppress(NotFound):
            stored = queries.get(tx, scope, server.id)
            kept = replace(secrets_of(settings, stored), oauth=given).sealed(settings)
            changed = replace(stored, secret=kept, config={**stored.config, "oauth": True})
            queries.save(
                tx,
                replace(changed, last_error=None, updated_at=tx.clock.now()) if is_new else changed,
            )

    await store.write(save)


def headers_of(server: McpServer, secrets: ServerSecrets) -> dict[str, str]:
    headers = dict(secrets.headers)
    if secrets.token:
        name = server.config.get("auth_header") or "Authorization"
        is_bare = name.lower() == "authorization" and " " not in secrets.token
        headers[name] = f"Bearer {secrets.token}" if is_bare else secrets.token
    return headers


def require_usable(settings: Settings, server: McpServer) -> None:
    """Raise Invalid where the server could never be connected to, Forbidden for a program that may not be started."""
    if server.kind == "stdio":
        program_of(McpSettings(), server.config.get("command"))
        return
    if not server.config.get("server_url"):
        raise Invalid("A server that is not started by a command needs server_url.")
    allowed = settings.allow_private_providers
    require_callable(server.config["server_url"], allow_private=allowed, setting=PROVIDERS)


@dataclass(frozen=True, slots=True)
class Changes:
    """What a list of tools changes: tools to add, tools whose state is another, tools that nobody has and that are gone."""

    added: tuple[ListedTool, ...]
    states: tuple[ServedTool, ...]
    removed: tuple[str, ...]
    refused: Mapping[str, str]


def compare(
    tx: Transaction,
    server: McpServer,
    listed: Iterable[ListedTool],
    refused: Mapping[str, str],
    *,
    adds: bool,
) -> Changes:
    """Compare what the server lists with what is stored; unless it `adds`, nothing is new and nothing goes."""
    known = {served.remote_name: served for served, _ in queries.tools_of(tx, server.id)}
    allowed = server.config.get("allowed_tools")
    reasons = dict(refused)
    offered = {}
    for tool in listed:
        if allowed is None or tool.name in allowed:
            offered[tool.name] = tool
        else:
            reasons[tool.name] = _NOT_ALLOWED
    gone = [served.tool_id for name, served in known.items() if name not in offered]
    used = queries.agents_with(tx, gone) if gone and adds else dict.fromkeys(gone)
    states = []
    for name, served in known.items():
        state = replace(served, held=None, reason=None)
        if name not in offered:
            state = replace(state, reason=reasons.get(name, _REMOVED))
        elif (tool := offered[name]).fingerprint != served.fingerprint:
            held = {
                "description": tool.description,
                "parameters": tool.parameters,
                "fingerprint": tool.fingerprint,
            }
            state = replace(state, held={**held, "warnings": list(tool.warnings)})
        if state != served and (name in offered or served.tool_id in used):
            states.append(state)
    added = tuple(tool for name, tool in offered.items() if name not in known) if adds else ()
    removed = tuple(id for id in gone if id not in used)
    return Changes(
        added,
        tuple(states),
        removed,
        {name: reasons[name] for name in reasons if name not in known},
    )


def save(
    tx: Transaction, scope: Scope, server: McpServer, changes: Changes
) -> Mapping[str, list[str]]:
    """Store the changes, and that the server answered; returns the names of tools that were added, updated and deleted."""
    tools.lock(tx, scope)
    now = tx.clock.now()
    named, refused = _named(tx, scope, server, changes.added)
    made = [_made(scope, server, tool, name, now) for tool, name in named]
    tools.insert_all(tx, made)
    served = [
        ServedTool(tool.id, server.id, new.name, new.fingerprint)
        for tool, (new, _) in zip(made, named, strict=True)
    ]
    if made:
        queries.add_served(tx, served)
    by_id = {served.tool_id: served.remote_name for served, _ in queries.tools_of(tx, server.id)}
    for state in changes.states:
        queries.keep(tx, state)
    queries.delete_tools(tx, changes.removed)
    refused = {**changes.refused, **refused}
    queries.note(tx, replace(server, refused=refused, last_error=None, last_at=now))
    return {
        "added": [tool.name for tool in made],
        "updated": [state.remote_name for state in changes.states],
        "deleted": [by_id[id] for id in changes.removed if id in by_id],
    }


def _named(
    tx: Transaction, scope: Scope, server: McpServer, added: Sequence[ListedTool]
) -> tuple[list[tuple[ListedTool, str]], dict[str, str]]:
    """Return the new tools with names that nothing else has: the server's name goes before where one is taken."""
    names = {tool.name: (_name(tool.name), _name(f"{server.name}_{tool.name}")) for tool in added}
    taken = (
        set(tools.by_names(tx, scope, [name for both in names.values() for name in both]))
        if added
        else set()
    )
    named, refused = [], {}
    for tool in added:
        free = next((name for name in names[tool.name] if name not in taken), None)
        if free is None:
            first, second = names[tool.name]
            refused[tool.name] = (
                f"There are tools named {first} and {second} already. Rename one of them, and refresh."
            )
        else:
            taken.add(free)
            named.append((tool, free))
    return named, refused


def _name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", text)[:_LONGEST_TOOL_NAME]


def _made(scope: Scope, server: McpServer, listed: ListedTool, name: str, now: int) -> Tool:
    tool = Tool(
        new_id("tool"),
        scope.organization_id,
        name,
        "external_mcp",
        {},
        source_type="json",
        tags=(f"mcp:{server.name}",),
        metadata={
            "mcp": {"server_id": server.id, "server_name": server.name, "tool_name": listed.name}
        },
        created_by=scope.user_id,
        updated_by=scope.user_id,
        created_at=now,
        updated_at=now,
    )
    return _described(tool, listed.description, listed.parameters, listed.warnings)


def _described(
    tool: Tool, description: str, parameters: Mapping[str, Any], warnings: Sequence[str]
) -> Tool:
    status = {"mcp:SCHEMA_STATUS": "NON_STRICT_ONLY" if warnings else "STRICT_COMPLIANT"}
    return replace(
        tool,
        description=description,
        json_schema={"name": tool.name, "description": description, "parameters": dict(parameters)},
        metadata={**tool.metadata, **status, "mcp:SCHEMA_WARNINGS": list(warnings)},
    )


def tool_of(tx: Transaction, scope: Scope, server_id: str, tool_id: str) -> tuple[ServedTool, Tool]:
    queries.get(tx, scope, server_id)
    for served, tool in queries.tools_of(tx, server_id):
        if tool.id == tool_id:
            return served, tool
    raise NotFound(f"Tool with ID {tool_id} not found")


def accept(tx: Transaction, scope: Scope, server_id: str, tool_id: str, fingerprint: str) -> Tool:
    """Let models see what the server says about a tool now. Raises Stale where that is not what the caller saw."""
    served, tool = tool_of(tx, scope, server_id, tool_id)
    held = served.held
    if held is None:
        raise Conflict(
            f"No change of {tool.name} waits. Refresh the server to see what it says now."
        )
    if held["fingerprint"] != fingerprint:
        raise Stale(
            f"The server changed {tool.name} again since you read it. Read the change again, then accept it."
        )
    changed = _described(tool, held["description"], held["parameters"], held["warnings"])
    changed = replace(changed, updated_by=scope.user_id, updated_at=tx.clock.now())
    tools.update(tx, changed)
    accepted = fingerprint_of(held["description"], held["parameters"])
    queries.keep(tx, replace(served, fingerprint=accepted, held=None))
    return changed


def delete(tx: Transaction, scope: Scope, server: McpServer) -> None:
    """Delete a server with its tools, which agents lose. Raises Collision where a rule of an agent needs one of them."""
    tools.lock(tx, scope)
    ids = [tool.id for _, tool in queries.tools_of(tx, server.id)]
    having = {agent for used in queries.agents_with(tx, ids).values() for agent in used}
    queries.delete_tools(tx, ids)
    queries.delete_one(tx, server)
    for agent_id in sorted(having):
        try:
            rulebook(agents.load(tx, Scope(scope.organization_id), agent_id))
        except Invalid as error:
            raise Collision(f"The agent {agent_id} needs a tool of this server: {error}") from error
