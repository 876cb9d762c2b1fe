"""Request and response models of MCP servers, and their older form by name."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, SecretStr, model_validator

from ricordo.api.models.base import (
    From,
    RequestModel,
    RequestPart,
    ResponseModel,
    Timestamp,
    without_none,
)
from ricordo.api.models.tools import ToolResponse
from ricordo.domain.text import Json
from ricordo.domain.tool import Tool
from ricordo.errors import Invalid
from ricordo.features.mcp.client.service import ServerSecrets
from ricordo.features.mcp.client.tables import McpServer, ServedTool, ServerKind

MASK = "********"
"""The mark that responses show for a secret. A request with it keeps the stored secret."""
# The fields that decide which address or program gets the secrets.
_DESTINATION = ("server_url", "command", "args")


def _require_header(name: str) -> str:
    if not name.isascii() or not name.replace("-", "").replace("_", "").isalnum():
        raise ValueError("must be the name of a header: letters, digits and dashes")
    return name


def _require_value(secret: SecretStr) -> SecretStr:
    text = secret.get_secret_value()
    if text != text.strip(" ") or not all(" " <= character <= "~" for character in text):
        raise ValueError("must be printable ASCII, and not begin or end with a space")
    return secret


def _require_name(name: str) -> str:
    if "/" in name or not name.isprintable() or name.strip() != name:
        raise ValueError("must not hold a slash or a line break, nor begin or end with a space")
    return name


Header = Annotated[str, Field(min_length=1, max_length=100), AfterValidator(_require_header)]
Value = Annotated[SecretStr, Field(max_length=10_000), AfterValidator(_require_value)]
Line = Annotated[str, Field(max_length=2_000)]
Arguments = Annotated[list[Line], Field(max_length=100)]
Environment = Annotated[
    dict[Line, Annotated[SecretStr, Field(max_length=10_000)]], Field(max_length=100)
]
Name = Annotated[str, Field(min_length=1, max_length=100), AfterValidator(_require_name)]


class ServerConfig(RequestPart):
    """The connection to a server: a command with environment, or an address with headers."""

    mcp_server_type: ServerKind | None = None
    server_url: Line | None = None
    auth_header: Header | None = None
    auth_token: Value | None = None
    custom_headers: Annotated[dict[Header, Value], Field(max_length=50)] | None = None
    command: Line | None = None
    args: Arguments | None = None
    env: Environment | None = None

    def applied(self, before: McpServer, secrets: ServerSecrets) -> tuple[McpServer, ServerSecrets]:
        """Return the server and its secrets after this change; an omitted field keeps its value.

        Args:
            before: The server before the change; a new one has the id "".
            secrets: Its secrets in plain text. They are dropped if the address or the command
                changes.

        Raises:
            Invalid: A server with an address would become a program, or a program a server with an
                address. Or secrets are stored, and a new address or command comes without a token,
                headers or environment. Or new variables are mixed with stored ones.
        """
        if self.command:
            default_kind: ServerKind = "stdio"
        else:
            default_kind = "streamable_http"
        if before.id:
            default_kind = before.kind
        kind = self.mcp_server_type or default_kind
        if before.id and (kind == "stdio") != (before.kind == "stdio"):
            raise Invalid(
                "A server with an address cannot become a program, and a program cannot become a "
                "server with an address. Delete it, and add another."
            )
        config = {
            **before.config,
            **without_none(server_url=self.server_url, auth_header=self.auth_header),
        }
        config |= without_none(command=self.command, args=self.args)
        is_moved = any(
            (config.get(name) or None) != (before.config.get(name) or None) for name in _DESTINATION
        )
        if is_moved and before.secret:
            # Without this check, a caller who does not know the token could send it to any address,
            # or give it to any program.
            if not (self.auth_token or self.custom_headers or self.env):
                raise Invalid(
                    "Send the token, headers and variables together with a new address or "
                    "command: stored ones are never sent to another address or program."
                )
            secrets = ServerSecrets()
        self._require_known_variables(secrets)
        token = secrets.token
        oauth = secrets.oauth
        if self.auth_token is not None:
            token = self.auth_token.get_secret_value()
            oauth = {}
        changed = ServerSecrets(
            token=token,
            headers=_merged(secrets.headers, self.custom_headers),
            environment=_merged(secrets.environment, self.env),
            oauth=oauth,
        )
        config |= {"headers": sorted(changed.headers), "env": sorted(changed.environment)}
        config["oauth"] = bool(changed.oauth)
        return replace(before, kind=kind, config=config), changed

    def _require_known_variables(self, secrets: ServerSecrets) -> None:
        """Raise Invalid if stored variables are kept beside new ones.

        A variable such as HTTPS_PROXY or NODE_OPTIONS decides where a program sends its secrets.
        """
        sent = {name: secret.get_secret_value() for name, secret in (self.env or {}).items()}
        masked_names = [name for name, text in sent.items() if text == MASK]
        is_changed = any(
            text not in (MASK, secrets.environment.get(name)) for name, text in sent.items()
        )
        if masked_names and is_changed:
            raise Invalid(
                f"Send the value of {masked_names[0]} too: a stored variable is never given to a "
                "program together with new variables."
            )


def _merged(before: Mapping[str, str], update: Mapping[str, SecretStr] | None) -> dict[str, str]:
    if update is None:
        return dict(before)
    merged = {}
    for name, field in update.items():
        text = field.get_secret_value()
        if text != MASK:
            merged[name] = text
        elif name in before:
            merged[name] = before[name]
        else:
            raise Invalid(
                f"{name} was sent as {MASK}, but this server has no stored value to keep. Send the "
                "value."
            )
    return merged


class ServerUpdate(RequestModel):
    """A change of a server; missing fields are not changed."""

    server_name: Name | None = None
    config: ServerConfig = ServerConfig()
    allowed_tools: Annotated[list[Line], Field(max_length=1000)] | None = Field(
        None,
        description="The names of the allowed tools, as the server calls them. If never sent, all may be "
        "used.",
    )

    def applied(self, before: McpServer, secrets: ServerSecrets) -> tuple[McpServer, ServerSecrets]:
        """Return the server and its secrets after this change.

        Args:
            before: The server before the change; a new one has the id "".
            secrets: Its secrets in plain text.

        Raises:
            Invalid: The change of the connection is not allowed.
        """
        server, secrets = self.config.applied(before, secrets)
        config = {**server.config, **without_none(allowed_tools=self.allowed_tools)}
        return replace(server, name=self.server_name or before.name, config=config), secrets


class ServerRequest(ServerUpdate):
    """A server to add."""

    server_name: Name
    config: ServerConfig


class StdioConfig(RequestPart):
    """The start of a server as a program, in the form of older clients."""

    command: Line | None = None
    args: Arguments | None = None
    env: Environment | None = None
    ignored: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("server_name", "type"), "The kind of the request already implies it."
    )


class NamedServerRequest(RequestModel):
    """A new server, in the form of older clients."""

    server_name: Name
    type: ServerKind
    server_url: Line | None = None
    auth_header: Header | None = None
    auth_token: Value | None = None
    custom_headers: Annotated[dict[Header, Value], Field(max_length=50)] | None = None
    stdio_config: StdioConfig | None = None

    def request(self) -> ServerRequest:
        config = {"mcp_server_type": self.type, **_config(self)}
        return ServerRequest.model_validate({"server_name": self.server_name, "config": config})


def _config(request: "NamedServerRequest | NamedServerUpdate") -> Json:
    """Return the configuration in the form of today's clients."""
    names = ("server_url", "auth_header", "auth_token", "custom_headers")
    fields = {name: _revealed(getattr(request, name)) for name in names}
    if request.stdio_config:
        for name in ("command", "args", "env"):
            fields[name] = _revealed(getattr(request.stdio_config, name))
    return without_none(**fields)


def _revealed(field: Any) -> Any:
    """Return a field with its secrets in plain text."""
    if isinstance(field, dict):
        return {name: _revealed(inner) for name, inner in field.items()}
    if isinstance(field, SecretStr):
        return field.get_secret_value()
    return field


class NamedServerUpdate(RequestModel):
    """A change of a server, in the form of older clients."""

    server_url: Line | None = None
    auth_header: Header | None = None
    auth_token: Value | None = None
    token: Value | None = None
    custom_headers: Annotated[dict[Header, Value], Field(max_length=50)] | None = None
    stdio_config: StdioConfig | None = None

    @model_validator(mode="after")
    def _take_token(self) -> "NamedServerUpdate":
        self.auth_token = self.auth_token or self.token
        return self

    def request(self) -> ServerUpdate:
        return ServerUpdate.model_validate({"config": _config(self)})


class ServerResponse(ResponseModel):
    """An MCP server without its secrets.

    `last_error` is the reason of the last failed connection.
    """

    id: str
    server_name: Annotated[str, From("name")]
    mcp_server_type: Annotated[ServerKind, From("kind")]
    server_url: str | None
    auth_header: str | None
    auth_token: None = None
    custom_headers: dict[str, str] | None
    command: str | None
    args: list[str] | None
    env: dict[str, str] | None
    allowed_tools: list[str] | None
    status: Literal["new", "working", "failing"]
    last_error: str | None
    last_at: Timestamp | None
    refused_tools: Annotated[dict[str, str], From("refused")]
    is_connected: bool = Field(description="True if a person gave consent by OAuth.")
    created_at: Timestamp
    updated_at: Timestamp

    @classmethod
    def from_server(cls, server: McpServer) -> Json:
        """Return the response for a server, without its secrets.

        Args:
            server: The stored server. Its headers and variables are shown by name, with `MASK` as
                values.
        """
        config = server.config
        names = ("server_url", "auth_header", "command", "allowed_tools")
        is_started = server.kind == "stdio"
        status = "working" if server.last_at else "new"
        if server.last_error:
            status = "failing"
        return cls.of(
            server,
            **{name: config.get(name) for name in names},
            args=config.get("args", []) if is_started else None,
            custom_headers=dict.fromkeys(config.get("headers", ()), MASK) or None,
            env=dict.fromkeys(config.get("env", ()), MASK) or None,
            is_connected=bool(config.get("oauth")),
            status=status,
        )


ServerUpdate.take_back(ServerResponse)


class ConsentResponse(ResponseModel):
    """The address for a person's consent in a browser; valid for ten minutes."""

    authorization_url: str


def named_response(server: McpServer) -> Json:
    """Return a server in the form of older clients.

    Args:
        server: The stored server. Its headers and variables are shown by name, with `MASK` as
            values.
    """
    config = server.config
    masked = {name: dict.fromkeys(config.get(name, ()), MASK) for name in ("headers", "env")}
    common = {"server_name": server.name, "type": server.kind}
    if server.kind == "stdio":
        command = {
            "command": config.get("command"),
            "args": config.get("args", []),
            "env": masked["env"] or None,
        }
        return {**common, "stdio_config": {**common, **command}}
    fields = {
        "server_url": config.get("server_url"),
        "auth_header": config.get("auth_header"),
        "auth_token": None,
    }
    return {**common, **fields, "custom_headers": masked["headers"] or None}


def tool_response(served: ServedTool, tool: Tool) -> Json:
    """Return a tool, with its fault and its server's waiting version, if any.

    Args:
        served: The state of the tool at its server.
        tool: The stored tool, as models see it.
    """
    state: dict[str, Any] = without_none(**{"mcp:DISABLED": served.reason, "mcp:HELD": served.held})
    return ToolResponse.of(replace(tool, metadata={**tool.metadata, **state}))


class AcceptRequest(RequestModel):
    """The accepted version of a tool, named by its `fingerprint`."""

    fingerprint: str = Field(max_length=100)
