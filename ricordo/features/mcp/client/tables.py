"""The tables of MCP servers and their tools, and the values of their rows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sqlalchemy import JSON, Column, UniqueConstraint

from ricordo.storage.schema.columns import (
    json_value,
    names,
    reference,
    root,
    seq,
    strings,
    table,
    timestamps,
)

ServerKind = Literal["stdio", "sse", "streamable_http"]


@dataclass(frozen=True, slots=True)
class McpServer:
    """An MCP server of an organization.

    `config` has `server_url` and `auth_header`, or `command` and `args`; it also has
    `allowed_tools` if not all may be used. The names of headers and variables are in `config`, and
    their encrypted values in `secret`. `refused` contains the reason for each tool that cannot be
    used, `last_error` the reason for the last failed connection.
    """

    id: str
    organization_id: str
    name: str
    kind: ServerKind
    config: Mapping[str, Any]
    secret: str | None = None
    refused: Mapping[str, str] = field(default_factory=dict)
    last_error: str | None = None
    last_at: int | None = None
    created_by: str | None = None
    updated_by: str | None = None
    created_at: int = 0
    updated_at: int = 0


@dataclass(frozen=True, slots=True)
class ServedTool:
    """The state of a stored tool of a server.

    `remote_name` is the tool's name at the server. `fingerprint` belongs to the accepted
    description and schema. `held` is the server's current version if it differs from the accepted
    one; `reason` is set if the tool cannot be called.
    """

    tool_id: str
    server_id: str
    remote_name: str
    fingerprint: str
    held: Mapping[str, Any] | None = None
    reason: str | None = None


mcp_servers = table(
    "mcp_servers",
    *root(),
    *names("name", null=False),
    *strings("kind", null=False),
    json_value("config"),
    *strings("secret"),
    json_value("refused"),
    *strings("last_error"),
    *timestamps("last_at", null=True),
    *strings("created_by", "updated_by", erasure="blank"),
    *timestamps("created_at", "updated_at"),
    UniqueConstraint("organization_id", "name"),
    erasure="keep",
)
mcp_tools = table(
    "mcp_tools",
    seq(),
    reference("tool_id", "tools"),
    reference("server_id", "mcp_servers"),
    *strings("remote_name", "fingerprint", null=False),
    Column("held", JSON(none_as_null=True)),
    *strings("reason"),
    UniqueConstraint("tool_id"),
    UniqueConstraint("server_id", "remote_name"),
    erasure="keep",
)


TABLES = (mcp_servers, mcp_tools)
