"""MCP servers: secrets, connections, and the tools that were accepted.

A server may change a tool's description and schema at any time, and a model may follow instructions
in them. So the accepted version stays in use, and the server's new version waits until a person
accepts it.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import orjson

from ricordo.agents.step_decisions import rulebook
from ricordo.domain.ids import new_id
from ricordo.domain.scope import Scope
from ricordo.domain.tool import Tool
from ricordo.errors import Collision, Conflict, Invalid, NotFound, RicordoError, Stale, Unavailable
from ricordo.features.mcp.client import queries
from ricordo.features.mcp.client.commands import program_of
from ricordo.features.mcp.client.listed_tools import ListedTool, fingerprint_of
from ricordo.features.mcp.client.options import McpSettings
from ricordo.features.mcp.client.tables import McpServer, ServedTool
from ricordo.llm.addresses import PROVIDERS, require_callable
from ricordo.secret import Secret
from ricordo.settings import Settings
from ricordo.storage import agents, tools
from ricordo.storage.engine.store import Store, Transaction

_LONGEST_TOOL_NAME = 64  # characters that providers of models accept
_REMOVED = "The server no longer offers this tool."
_NOT_ALLOWED = "It is not among the server's allowed tools."


@dataclass(frozen=True, slots=True)
class ServerSecrets:
    """Secrets of a server: a token, headers, environment variables, OAuth tokens."""

    token: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    oauth: Mapping[str, Any] = field(default_factory=dict)

    def sealed(self, settings: Settings) -> str | None:
        """Return the secrets encrypted for storage, None if there are none.

        Args:
            settings: The settings, with the folder of the key.
        """
        secrets = {name: secret for name, secret in asdict(self).items() if secret}
        if not secrets:
            return None
        return Secret(settings.data_dir).encrypt(orjson.dumps(secrets).decode())


def secrets_of(settings: Settings, server: McpServer) -> ServerSecrets:
    """Return a server's secrets.

    Args:
        settings: The settings, with the folder of the key that encrypted them.
        server: The server; one without secrets has empty ones.

    Raises:
        Unavailable: if they were encrypted with another key.
    """
    if server.secret is None:
        return ServerSecrets()
    try:
        return ServerSecrets(**orjson.loads(Secret(settings.data_dir).decrypt(server.secret)))
    except (RicordoError, ValueError, TypeError):
        # `from None`, because the cause may contain decrypted text.
        raise Unavailable(
            "Its token and headers cannot be read: they were encrypted with another secret.key. "
            "Enter them again."
        ) from None


async def keep_oauth(
    store: Store,
    settings: Settings,
    server: McpServer,
    oauth: Mapping[str, Any],
    *,
    is_new: bool = False,
) -> None:
    """Store a server's OAuth tokens, unless the server was deleted or changed its access.

    Refreshed tokens are stored only if the server still has the registration that they belong to.
    They are dropped if the server got another address, a token or a new consent meanwhile.

    Args:
        store: The database.
        settings: The settings, with the folder of the key that encrypts the tokens.
        server: The server; its other secrets stay.
        oauth: The result of OAuth, as `Keep` gets it.
        is_new: The tokens come from a new consent, so open sessions are replaced. After a refresh
            they continue.

    Raises:
        Conflict: The consent was given for another address than the server has now.
    """

    def save(tx: Transaction) -> None:
        scope = Scope(server.organization_id)
        with suppress(NotFound):
            stored = queries.get_for_change(tx, scope, server.id)
            secrets = secrets_of(settings, stored)
            if is_new and stored.config.get("server_url") != server.config.get("server_url"):
                raise Conflict("The server's address was changed. Connect to it again.")
            if not is_new and secrets.oauth.get("client") != oauth.get("client"):
                return
            sealed = replace(secrets, oauth=oauth).sealed(settings)
            changed = replace(stored, secret=sealed, config={**stored.config, "oauth": True})
            if is_new:
                changed = replace(changed, last_error=None, updated_at=tx.clock.now())
            queries.save(tx, changed)

    await store.write(save)


def headers_of(server: McpServer, secrets: ServerSecrets) -> dict[str, str]:
    """Return the headers of each request to the server.

    Args:
        server: The server, whose `auth_header` may name the header of the token.
        secrets: Its secrets in plain text. In the header Authorization, a token without a scheme is
            sent as a bearer token.
    """
    headers = dict(secrets.headers)
    if secrets.token:
        name = server.config.get("auth_header") or "Authorization"
        is_bare = name.lower() == "authorization" and " " not in secrets.token
        if is_bare:
            headers[name] = f"Bearer {secrets.token}"
        else:
            headers[name] = secrets.token
    return headers


def require_usable(settings: Settings, server: McpServer) -> None:
    """Raise an error if no connection to the server is possible.

    Args:
        settings: The settings, which may allow addresses of private networks.
        server: The server, stored or not.

    Raises:
        Invalid: without an address, for an address that may not be called, or a missing program.
        Forbidden: for a program that may not be started.
    """
    if server.kind == "stdio":
        program_of(McpSettings(), server.config.get("command"))
        return
    if not server.config.get("server_url"):
        raise Invalid("A server that is not started by a command needs server_url.")
    allowed = settings.allow_private_providers
    require_callable(server.config["server_url"], allow_private=allowed, setting=PROVIDERS)


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes that a list of tools causes.

    `added` are new tools, `states` are tools whose state changed, `removed` are the ids of missing
    tools that no agent has, and `refused` are the reasons for unusable tools.
    """

    added: tuple[ListedTool, ...]
    states: tuple[ServedTool, ...]
    removed: tuple[str, ...]
    refused: Mapping[str, str]


def _allowed_tools(
    listed: Mapping[str, ListedTool], allowed: Collection[str] | None
) -> dict[str, ListedTool]:
    """Return the listed tools that may be used. If `allowed` is None, all may be."""
    return {name: tool for name, tool in listed.items() if allowed is None or name in allowed}


def compare(
    tx: Transaction,
    server: McpServer,
    listed: Iterable[ListedTool],
    refused: Mapping[str, str],
    *,
    adds: bool,
) -> Changes:
    """Compare the tools that the server lists with the stored tools.

    Args:
        tx: The transaction.
        server: The server, whose `allowed_tools` limit the result.
        listed: The tools that the server lists now.
        refused: The reasons for tools that it lists but that cannot be used, by name.
        adds: Add new tools, and remove missing tools that no agent has. Otherwise only states of
            stored tools change.
    """
    stored = {served.remote_name: served for served, _ in queries.tools_of(tx, server.id)}
    allowed = server.config.get("allowed_tools")
    listed_tools = {tool.name: tool for tool in listed}
    offered = _allowed_tools(listed_tools, allowed)
    not_allowed = {name: _NOT_ALLOWED for name in listed_tools if name not in offered}
    reasons = {**refused, **not_allowed}
    gone = [served.tool_id for name, served in stored.items() if name not in offered]
    used_ids = set(gone)
    if gone and adds:
        used_ids = set(tools.agents_with(tx, gone))
    states = []
    for name, served in stored.items():
        state = _state_now(served, offered.get(name), reasons.get(name, _REMOVED))
        if state != served and (name in offered or served.tool_id in used_ids):
            states.append(state)
    new_tools = [tool for name, tool in offered.items() if name not in stored]
    return Changes(
        added=tuple(new_tools) if adds else (),
        states=tuple(states),
        removed=tuple(id for id in gone if id not in used_ids),
        refused={name: reasons[name] for name in reasons if name not in stored},
    )


def _state_now(served: ServedTool, tool: ListedTool | None, reason: str) -> ServedTool:
    """Return the new state of a stored tool, from the server's present list.

    If there is no `tool`, `reason` says why the server does not offer it.
    """
    if tool is None:
        return replace(served, held=None, reason=reason)
    if tool.fingerprint == served.fingerprint:
        return replace(served, held=None, reason=None)
    held = {
        "description": tool.description,
        "parameters": tool.parameters,
        "fingerprint": tool.fingerprint,
        "warnings": list(tool.warnings),
    }
    return replace(served, held=held, reason=None)


def save(
    tx: Transaction,
    scope: Scope,
    server_id: str,
    listed: Iterable[ListedTool],
    refused: Mapping[str, str],
    *,
    adds: bool,
) -> Mapping[str, list[str]]:
    """Store the changes that `compare` finds, and record that the server answered.

    Args:
        tx: The transaction.
        scope: The caller, who becomes the creator of new tools.
        server_id: The server.
        listed: The tools that the server lists now.
        refused: The reasons for tools that it lists but that cannot be used, by name.
        adds: As for `compare`.

    Returns:
        The names of the tools that were added, updated and deleted, by these three words.

    Raises:
        NotFound: The server was deleted.
    """
    # Lock before you compare. Otherwise another request could store the same tools, or accept one
    # of them, at the same time.
    tools.lock(tx, scope)
    server = queries.get(tx, scope, server_id)
    changes = compare(tx, server, listed, refused, adds=adds)
    now = tx.clock.now()
    named, without_name = _named(tx, scope, server, changes.added)
    new_tools = [_new_tool(scope, server, tool, name, now) for tool, name in named]
    tools.insert_all(tx, new_tools)
    served = [
        ServedTool(tool.id, server.id, new.name, new.fingerprint)
        for tool, (new, _) in zip(new_tools, named, strict=True)
    ]
    if new_tools:
        queries.add_served(tx, served)
    by_id = {served.tool_id: served.remote_name for served, _ in queries.tools_of(tx, server.id)}
    for state in changes.states:
        queries.keep(tx, state)
    tools.delete_all(tx, changes.removed)
    all_refused = {**changes.refused, **without_name}
    queries.note(tx, replace(server, refused=all_refused, last_error=None, last_at=now))
    return {
        "added": [tool.name for tool in new_tools],
        "updated": [state.remote_name for state in changes.states],
        "deleted": [by_id[id] for id in changes.removed if id in by_id],
    }


def _named(
    tx: Transaction, scope: Scope, server: McpServer, added: Sequence[ListedTool]
) -> tuple[list[tuple[ListedTool, str]], dict[str, str]]:
    """Give each new tool a free name.

    If a tool's name is taken, it gets the server's name as a prefix.
    """
    names = {tool.name: (_name(tool.name), _name(f"{server.name}_{tool.name}")) for tool in added}
    used_names: set[str] = set()
    if added:
        used_names |= set(
            tools.by_names(tx, scope, [name for pair in names.values() for name in pair])
        )
    named = []
    refused = {}
    for tool in added:
        free = next((name for name in names[tool.name] if name not in used_names), None)
        if free is None:
            first, second = names[tool.name]
            refused[tool.name] = (
                f"There are tools named {first} and {second} already. Rename one of them, and "
                "refresh."
            )
        else:
            used_names.add(free)
            named.append((tool, free))
    return named, refused


def _name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", text)[:_LONGEST_TOOL_NAME]


def _new_tool(scope: Scope, server: McpServer, listed: ListedTool, name: str, now: int) -> Tool:
    tool = Tool(
        new_id("tool"),
        scope.organization_id,
        name,
        tool_type="external_mcp",
        json_schema={},
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
    """Return a tool of the server, with its state.

    Args:
        tx: The transaction, or a read.
        scope: The caller.
        server_id: The server.
        tool_id: The stored tool.

    Raises:
        NotFound: The organization has no such server, or the server has no such tool.
    """
    queries.get(tx, scope, server_id)
    for served, tool in queries.tools_of(tx, server_id):
        if tool.id == tool_id:
            return served, tool
    raise NotFound(f"Tool with ID {tool_id} not found")


def accept(tx: Transaction, scope: Scope, server_id: str, tool_id: str, fingerprint: str) -> Tool:
    """Let models see the server's current version of a tool.

    Args:
        tx: The transaction.
        scope: The caller.
        server_id: The server.
        tool_id: The stored tool.
        fingerprint: The fingerprint of the version that the caller saw.

    Raises:
        NotFound: if the server or the tool is missing.
        Conflict: if no new version waits.
        Stale: if the caller saw another version.
    """
    tools.lock(tx, scope)
    served, tool = tool_of(tx, scope, server_id, tool_id)
    version = served.held
    if version is None:
        raise Conflict(
            f"There is no new version of {tool.name} to accept. Refresh the server to ask for one."
        )
    if version["fingerprint"] != fingerprint:
        raise Stale(
            f"The server changed {tool.name} again. Read the newest change, then accept it."
        )
    changed = _described(tool, version["description"], version["parameters"], version["warnings"])
    changed = replace(changed, updated_by=scope.user_id, updated_at=tx.clock.now())
    tools.update(tx, changed)
    new_fingerprint = fingerprint_of(version["description"], version["parameters"])
    queries.keep(tx, replace(served, fingerprint=new_fingerprint, held=None))
    return changed


def delete(tx: Transaction, scope: Scope, server: McpServer) -> None:
    """Delete a server with its tools; agents lose them.

    Args:
        tx: The transaction.
        scope: The caller.
        server: The server.

    Raises:
        Collision: if a rule of an agent needs one of the tools.
    """
    tools.lock(tx, scope)
    ids = [tool.id for _, tool in queries.tools_of(tx, server.id)]
    agent_ids = {agent for ids_ in tools.agents_with(tx, ids).values() for agent in ids_}
    tools.delete_all(tx, ids)
    queries.delete_one(tx, server)
    for agent_id in sorted(agent_ids):
        try:
            rulebook(agents.load(tx, Scope(scope.organization_id), agent_id))
        except Invalid as error:
            raise Collision(f"The agent {agent_id} needs a tool of this server: {error}") from error
