"""All settings with their descriptions.

An option takes precedence over the environment, the environment over `.env`, and `.env` over the
default. Ricordo's settings are named RICORDO_…; with an unknown or malformed one the server does
not start. Providers are configured by their usual variables (OPENAI_API_KEY and so on).
"""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from dotenv import dotenv_values
from pydantic import AliasChoices, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from ricordo.errors import Invalid
from ricordo.setting_types import (
    PACKAGE,
    PREFIX,
    Address,
    Folder,
    Key,
    about,
    absolute,
    feature_settings,
    variables_of,
)

log = logging.getLogger(__name__)
SQLITE = "sqlite:///"
POSTGRES = ("postgresql://", "postgres://")
# The port of a server that does not listen (see `ricordo.open`). `ricordo serve` replaces 0 by the
# port that it opened.
NO_PORT = 0
LOOPBACK = ("127.0.0.1", "localhost", "::1")

_SHORTEST_KEY = 20  # characters of the administrator's key, if other machines can try keys
_TWO_NAMES = (("openai_base_url", "openai_api_base"), ("gemini_api_key", "google_api_key"))
_Read = TypeVar("_Read", bound=BaseSettings)
_REGION = r"^[a-z]{2,4}(-[a-z]+){1,3}-[0-9]{1,2}$"  # it becomes part of a host's name


class ProviderSettings(BaseSettings):
    """Model providers, by their usual variables.

    A provider without a key or address is not called, except for model servers that are found on
    this machine.
    """

    model_config = SettingsConfigDict(
        env_file=".env", extra="ignore", populate_by_name=True, env_ignore_empty=True
    )

    openai_api_key: Key | None = about("Key for OpenAI, or for the server at OPENAI_BASE_URL.")
    openai_base_url: Address | None = about(
        "Address of another server with OpenAI's chat completions API; its models have the handles "
        "openai/<model>.",
        validation_alias=AliasChoices(*_TWO_NAMES[0]),
    )
    openai_api: Literal["chat", "responses"] | None = about(
        "OpenAI API: chat, or responses (needs the extra `openai`). By default responses for its "
        "reasoning models."
    )
    anthropic_api_key: Key | None = about("Key for Anthropic (needs the extra `anthropic`).")
    anthropic_base_url: Address | None = about(
        "Address of another server with Anthropic's messages API."
    )
    azure_api_key: Key | None = about("Key for Azure OpenAI; also needs AZURE_BASE_URL.")
    azure_base_url: Address | None = about(
        "Address of the Azure resource, such as https://name.openai.azure.com; models are named by "
        "deployment. "
        "With /openai/v1 at the end, Azure's v1 API is used."
    )
    azure_api_version: str | None = about(
        "Version of Azure's API, such as 2024-10-21.", pattern=r"^[A-Za-z0-9.-]+$"
    )
    openrouter_api_key: Key | None = about("Key for OpenRouter.")
    groq_api_key: Key | None = about("Key for Groq.")
    deepseek_api_key: Key | None = about("Key for DeepSeek.")
    xai_api_key: Key | None = about("Key for xAI.")
    mistral_api_key: Key | None = about("Key for Mistral.")
    together_api_key: Key | None = about("Key for Together.")
    gemini_api_key: Key | None = about(
        "Key for Google AI (needs the extra `google`).",
        validation_alias=AliasChoices(*_TWO_NAMES[1]),
    )
    aws_region: str | None = about(
        "Region of AWS Bedrock, such as eu-central-1; uses AWS's standard credentials (needs the "
        "extra `bedrock`).",
        pattern=_REGION,
    )
    google_cloud_project: str | None = about(
        "Project of Google's Vertex AI; uses Google's standard credentials (needs the extra "
        "`google`).",
        pattern=r"^[a-z][a-z0-9-]{4,28}[a-z0-9]$",
    )
    google_cloud_location: str | None = about(
        "Region of Vertex AI, such as europe-west4; by default us-central1.",
        pattern=r"^[a-z0-9-]{2,30}$",
    )
    ollama_base_url: Address | None = about(
        "Address of an Ollama server, such as http://host:11434."
    )
    ollama_context_length: int | None = about(
        "Context window in tokens that the Ollama server was started with (the same variable as "
        "Ollama's). "
        "Without it, Ollama's smallest default is assumed for models that are not loaded and set "
        "none.",
        gt=0,
    )
    lmstudio_base_url: Address | None = about(
        "Address of an LM Studio server, such as http://host:1234."
    )
    vllm_api_base: Address | None = about("Address of a vLLM server, such as http://host:8000.")
    llamacpp_base_url: Address | None = about(
        "Address of a llama.cpp server, such as http://host:8080."
    )


class Settings(BaseSettings):
    """Settings of the server.

    Set a field as RICORDO_<NAME>, in the environment or in a file `.env`.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_file=".env", extra="ignore", env_ignore_empty=True
    )

    host: str = about(
        "Address to listen on. Any address but loopback requires a key: RICORDO_API_KEY, or a "
        "stored one.",
        "127.0.0.1",
    )
    port: int = about("Port to listen on; 0 takes a free one.", 8283, ge=0, le=65535)
    root_path: str = about(
        "Path below which a proxy serves this server, like /ricordo.", "", pattern=r"^(/[\w.~-]+)*$"
    )
    trusted_proxies: str = about(
        "Proxies whose X-Forwarded headers count: addresses or networks.",
        "127.0.0.1,::1",
        pattern="^[0-9a-fA-F.:/,]+$",
    )
    data_dir: Folder = about(
        "Folder for the database, backups and the secret key.", Path("~/.ricordo")
    )
    database_url: SecretStr | None = about(
        "Address of the database: sqlite:///path, or postgresql://user:password@host/database "
        "(needs the "
        "extra `postgres`). By default ricordo.db in the data folder."
    )
    database_connections: int = about(
        "Most connections to PostgreSQL at once. Does not apply to SQLite.", 8, ge=2, le=200
    )
    durability: Literal["normal", "full"] = about(
        "normal: saved data survives a kill of the server. full: it also survives a power cut, and "
        "writes are "
        "slower. PostgreSQL uses its own configuration with normal.",
        "normal",
    )
    api_key: SecretStr | None = about(
        "The administrator's key, sent as `Authorization: Bearer …`. If it or a stored key "
        "exists, each request needs a key. It needs at least 20 characters unless the server only "
        "listens on loopback."
    )
    oidc_issuer: Address | None = about(
        "Address of the OpenID Connect provider that people log in with, as its discovery document "
        "names it. With it every "
        "request needs a key or a login."
    )
    oidc_client_id: str | None = about("This server's client id at the login provider.")
    oidc_client_secret: Key | None = about("This server's client secret at the login provider.")
    oidc_claim: str | None = about(
        "Claim that identifies the user, such as preferred_username. By default sub, prefixed "
        "with the issuer.",
        pattern=r"^[A-Za-z0-9_.:/-]{1,100}$",
    )
    model: str | None = about(
        "Handle of the model for agents created without one, such as openai/gpt-4.1. By default "
        "the best model of a configured provider, or a local model that can call tools; see "
        "`ricordo doctor`."
    )
    model_profile: Literal["auto", "full", "small", "notes"] = about(
        "Prompt and tools for models. full: the agent's prompt and tools. small: a short prompt "
        "and three tools. notes: a short prompt; after each message, a separate model call takes "
        "notes. auto: small for models of at most 4 billion parameters or 8k tokens of context, "
        "else full.",
        "auto",
    )
    memory_in_prompt: Literal["auto", "step", "turn", "lazy"] = about(
        "When the memory in the prompt is rendered again after an agent's own edits. step: before "
        "the next call to the model. turn: in the next turn. lazy: at a compaction, on a new day, "
        "or after an edit by others; until then the transcript shows the edit. auto: lazy for "
        "OpenAI, Azure, Anthropic, Ollama, LM Studio, vLLM and llama.cpp, else step.",
        "auto",
    )
    tool_search_from: int = about(
        "An agent with at least this many tools gets find_tools instead of most tool schemas. 0: "
        "never.",
        31,
        ge=0,
        le=10_000,
    )
    embedding: str | None = about(
        "Handle of the embedding model for search, such as openai/text-embedding-3-small, or none. "
        "By default the embedded model, if the extra `embeddings` is installed."
    )
    find_local_models: bool = about(
        "Look for Ollama, LM Studio, vLLM and llama.cpp on this machine, at start and later.", True
    )
    max_output_tokens: int | None = about(
        "Most tokens of an answer for agents that set none. By default a quarter of the context "
        "window, at most 16384; 1024 for small models; no limit for OpenAI's reasoning models.",
        ge=16,
    )
    model_timeout: float = about(
        "Seconds to wait for the model's next data. A whole answer may take six times as long.",
        600,
        gt=0,
    )
    model_retries: int = about("How often a failed call to a model is retried.", 3, ge=0, le=10)
    approval_expiry: float = about(
        "Seconds after which tool calls that wait for approval count as denied.", 86_400, gt=0
    )
    proposal_expiry: float = about("Days after which an open proposal expires; 0: never.", 30, ge=0)
    keepalive: float = about("Seconds between pings in a silent stream.", 20, gt=0)
    stream_hours: float = about(
        "Hours after its end for which the stream of a background run can be resumed.",
        3,
        gt=0,
        le=24 * 30,
    )
    allow_private_providers: bool = about(
        "Allow organization providers at private addresses.", False
    )
    egress_local: str | None = about(
        'Networks and names of hosts that count as "local" in egress policies, separated by '
        "commas. By default this machine and private networks."
    )
    egress_refuses: bool = about(
        "Refuse a turn if an egress policy withholds a part of its prompt. By default the turn "
        "runs, and the prompt names the missing parts.",
        False,
    )
    allow_private_callbacks: bool = about(
        "Allow callbacks to private addresses, including this machine.", False
    )
    allow_private_remotes: bool = about(
        "Allow remotes at private addresses, including this machine.", False
    )
    remote_folders: str | None = about(
        "Folders for remotes on this machine, separated by colons. By default <data>/remotes."
    )
    daily_tokens: int | None = about(
        "Tokens that all agents of an organization may use in a day (UTC); background work stops at "
        "80 %.",
        ge=1,
    )
    traces: Literal["off", "errors", "all"] = about(
        "Which model calls are stored for GET /v1/steps/{id}/trace: none (off), failed ones "
        "(errors), or all. "
        "Traces hold message text.",
        "off",
    )
    trace_kb: int = about(
        "Most kilobytes of a request, and of a response, in a trace.", 200, ge=1, le=10_000
    )
    trace_days: int = about("Days after which traces are deleted.", 14, ge=1, le=3650)
    trace_count: int = about(
        "Most traces to keep; older ones are deleted.", 1000, ge=1, le=1_000_000
    )
    timezone: str = about(
        "Time zone of agents created without one, such as Europe/Berlin. It applies to times in "
        "prompts, schedules and tasks.",
        "UTC",
    )
    shutdown_grace: float = about("Seconds for running turns to finish at shutdown.", 15, ge=0)
    max_body_mb: int = about("Largest accepted request, in megabytes.", 32, ge=1, le=1024)
    key_requests_per_minute: int | None = about(
        "Requests a minute for keys without their own limit.", ge=1, le=10**6
    )
    key_max_body_bytes: int | None = about(
        "Largest request in bytes, for keys that set no limit. By default only "
        "RICORDO_MAX_BODY_MB limits it.",
        ge=1,
    )
    max_block_kb: int = about(
        "Largest memory block, in kilobytes of its text, description and metadata.",
        512,
        ge=1,
        le=64 * 1024,
    )
    max_memory_mb: int = about(
        "Most megabytes of all blocks of one user or agent.",
        8,
        ge=1,
        le=1024,
    )
    max_memory_blocks: int = about(
        "Most blocks of one user, or of one agent.", 1000, ge=1, le=100_000
    )
    max_history_mb: int = about(
        "Most stored megabytes of the history of one user, agent or shared block.",
        100,
        ge=1,
        le=1024 * 1024,
    )
    max_listed_characters: int = about(
        "Most characters of a block's text in lists of blocks or agents. A shortened text ends "
        "with the address of the whole one.",
        100_000,
        ge=4096,
        le=10**8,
    )
    max_answer_mb: int = about("Largest answer in JSON, in megabytes.", 32, ge=1, le=1024)
    max_answers_mb: int = about(
        "Most megabytes of large answers being sent at once; one caller may have half. Further "
        "ones wait, or get 503.",
        64,
        ge=2,
        le=4096,
    )
    max_lines: int = about(
        "Most lines in one answer with the authors or changes of a block's lines. Ask again for "
        "further lines.",
        2000,
        ge=10,
        le=100_000,
    )
    max_header_kb: int = about(
        "Largest accepted headers of a request, in kilobytes.", 32, ge=4, le=1024
    )
    max_connections: int = about(
        "Most connections at once. At the limit, a new one closes the one that is idle longest; if "
        "none is idle, it gets 503.",
        800,
        ge=10,
    )
    max_client_connections: int = about(
        "Most connections from one address. Connections from this machine are not counted.",
        200,
        ge=4,
    )
    client_timeout: float = about(
        "Seconds to wait for a request's headers, and for the next bytes of its body or answer.",
        30,
        gt=0,
    )
    log_level: Literal["debug", "info", "warning", "error"] = about(
        "Lowest level of log lines to show.", "info"
    )
    log_format: Literal["text", "json"] = about(
        "Log lines as text, or as one JSON object each.", "text"
    )
    message_vectors: str = about(
        "Where vectors of messages are stored: native, or the name of a vector database, such as "
        "pgvector.",
        "native",
    )

    @field_validator("api_key")
    @classmethod
    def _drop_blank_key(cls, key: SecretStr | None) -> SecretStr | None:
        return key if key and key.get_secret_value().strip() else None

    @field_validator("timezone")
    @classmethod
    def _require_zone(cls, name: str) -> str:
        try:
            ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ValueError(
                f'"{name}" is not an IANA time zone, such as Europe/Rome or UTC'
            ) from error
        return name

    @field_validator("embedding")
    @classmethod
    def _require_handle(cls, handle: str | None) -> str | None:
        provider, slash, name = (handle or "none").partition("/")
        if (provider, slash, name) != ("none", "", "") and not (provider and name):
            raise ValueError("must be the handle of an embedding model, provider/model, or none")
        return handle

    @field_validator("database_url")
    @classmethod
    def _require_database(cls, secret: SecretStr | None) -> SecretStr | None:
        url = secret.get_secret_value() if secret else ""
        if not url or _is_postgres(url):
            return secret
        file = url.removeprefix(SQLITE)
        if file in (url, "", ":memory:"):
            raise ValueError(
                "must be sqlite:///path/to/file or postgresql://user:password@host/database"
            )
        return SecretStr(f"{SQLITE}{absolute(Path(file))}")

    @field_validator("oidc_issuer")
    @classmethod
    def _require_https(cls, issuer: str | None) -> str | None:
        parts = urlsplit(issuer or "https:")
        if (
            (parts.scheme != "https" and parts.hostname not in LOOPBACK)
            or parts.query
            or parts.fragment
        ):
            raise ValueError(
                "must be an https address without ? and #, as the client secret is sent there"
            )
        return issuer

    @model_validator(mode="after")
    def _check(self) -> "Settings":
        login = {
            name: getattr(self, name)
            for name in ("oidc_issuer", "oidc_client_id", "oidc_client_secret")
        }
        missing = [f"{PREFIX}{name.upper()}" for name, value in login.items() if not value]
        if missing and (len(missing) < len(login) or self.oidc_claim):
            raise ValueError(
                f"The login is only set up in part. Missing: {', '.join(missing)}. Set all of its "
                "settings, or none."
            )
        if (
            self.api_key
            and len(self.api_key.get_secret_value()) < _SHORTEST_KEY
            and self.host not in LOOPBACK
        ):
            raise ValueError(
                f"{PREFIX}API_KEY has fewer than {_SHORTEST_KEY} characters, and other machines "
                "can reach "
                f"{PREFIX}HOST={self.host}. Set a longer one; `openssl rand -hex 32` makes one."
            )
        remotes = (("REMOTE_FOLDERS", folder) for folder in self.folders_of_remotes)
        for name, path in (
            ("DATA_DIR", self.data_dir),
            ("DATABASE_URL", self.database_path),
            *remotes,
        ):
            if PACKAGE in (path, *path.parents):
                raise ValueError(
                    f"{PREFIX}{name} is inside the folder of the program, {PACKAGE}. Choose "
                    "another folder."
                )
        return self

    @property
    def postgres_url(self) -> str | None:
        """The address of the PostgreSQL database with its password; None for SQLite."""
        url = self.database_url.get_secret_value() if self.database_url else ""
        return url if url and not url.startswith(SQLITE) else None

    @property
    def folders_of_remotes(self) -> tuple[Path, ...]:
        named = (self.remote_folders or f"{self.data_dir}/remotes").split(os.pathsep)
        return tuple(absolute(Path(folder)) for folder in named if folder)

    @property
    def database_path(self) -> Path:
        """The SQLite file. With PostgreSQL it is the file that would be used without PostgreSQL."""
        if self.database_url and not self.postgres_url:
            return Path(self.database_url.get_secret_value().removeprefix(SQLITE))
        return self.data_dir / "ricordo.db"


# Settings of YouLab's first server, by their names after RALPH_. Each maps to our name of the
# setting, and to the text that is put before its value.
_OLDER = "RALPH_"
_NAMES: Mapping[str, tuple[str, str]] = {
    "OPENROUTER_API_KEY": ("OPENROUTER_API_KEY", ""),
    "OPENROUTER_MODEL": ("RICORDO_MODEL", "openrouter/"),
    "OPENWEBUI_URL": ("RICORDO_OPENWEBUI_URL", ""),
    "OPENWEBUI_API_KEY": ("RICORDO_OPENWEBUI_API_KEY", ""),
    **{
        f"HONCHO_{name}": (f"RICORDO_HONCHO_{name}", "")
        for name in ("WORKSPACE_ID", "ENVIRONMENT", "API_KEY")
    },
}
# Values of older settings that have no meaning any more, each with advice.
_GONE: Mapping[tuple[str, str], str] = {
    ("HONCHO_ENVIRONMENT", "demo"): "Honcho's demo server is gone, so Honcho stays off. "
    "Set RICORDO_HONCHO_URL or RICORDO_HONCHO_ENVIRONMENT to use another.",
}
# Advice for older settings without a new name.
_ADVICE: Mapping[str, str] = {
    "USER_DATA_DIR": "Files of users are in the database: docs/agents/workspaces.md",
    "AGENT_WORKSPACE": 'Write workspace = "shared" into the course, and upload the files: '
    "docs/agents/workspaces.md",
    "DOLT_": "Memory is in the database, and a Dolt database can follow it as a remote: "
    "docs/people/remotes.md",
}


def load_settings(**options: Any) -> tuple[Settings, ProviderSettings]:
    """Read all settings; options that are None are ignored.

    Raises Invalid with a sentence for each fault.
    """
    set_options = {name: option for name, option in options.items() if option is not None}
    features = feature_settings()
    file = settings_file()
    _adopt_older_settings(file)
    kinds: list[type[BaseSettings]] = [Settings, *features]
    known_variables = {variable for kind in kinds for variable in variables_of(kind)}
    faults = [
        f"{variable} is not a setting of Ricordo. `ricordo settings` lists them all."
        for variable in sorted({*os.environ, *file})
        if variable.upper().startswith(PREFIX) and variable.upper() not in known_variables
    ]
    settings = _read(Settings, PREFIX, faults, **set_options)
    providers = _read(ProviderSettings, "", faults)
    for kind in features:
        _read(kind, str(kind.model_config.get("env_prefix", "")), faults)
    if faults or settings is None or providers is None:
        raise Invalid("\n".join(faults))
    return settings, providers


def _read(kind: type[_Read], prefix: str, faults: list[str], **options: Any) -> _Read | None:
    """Return the settings. If some are wrong, add sentences to `faults` and return None."""
    try:
        return kind(**options)
    except ValidationError as error:
        for fault in error.errors():
            reason = fault["msg"]
            if fault["type"] == "string_pattern_mismatch":
                reason = f"It needs another form. {_meaning(kind, str(fault['loc'][0]))}"
            faults.append(_sentence(prefix, fault["loc"], reason))
        return None


def _meaning(kind: type[BaseSettings], location: str) -> str:
    """Return a setting's description, whose examples say more to a person than a pattern.

    Args:
        kind: The class of the setting.
        location: The field's name, or the variable in small letters.
    """
    for name, field in kind.model_fields.items():
        if name == location or location.upper() in variables_of(kind, name):
            return (field.description or "").removesuffix(".")
    return ""


def settings_file() -> dict[str, str | None]:
    """Return the variables of the file `.env` in the current folder.

    Raises:
        Invalid: The file cannot be read.
    """
    try:
        return dotenv_values(".env")
    except OSError as error:
        reason = error.strerror
    except UnicodeDecodeError:
        reason = "it is not UTF-8"
    raise Invalid(
        f"The file {Path('.env').absolute()} cannot be read: {reason}. Mend or remove it: settings "
        "of the current folder's .env count for each command."
    )


def _is_postgres(url: str) -> bool:
    """Return True for a PostgreSQL address.

    Raises ValueError for an incomplete address; its message does not quote the address.
    """
    if not url.startswith(POSTGRES):
        return False
    try:
        parts = urlsplit(url)
        has_port = parts.port != 0  # raises ValueError for text that is not a number
    except ValueError:
        has_port = False
    # The folder of a socket is in the query: postgresql://user@/database?host=/var/run/postgresql
    has_host = has_port and bool(parts.hostname or "host=" in parts.query)
    has_database = has_host and bool(parts.path.strip("/"))
    if not has_database or "@" in parts.path or parts.netloc.count("@") > 1:
        raise ValueError(
            "must be postgresql://user:password@host/database, "
            "with %40 for @, %2F for / and %23 for # in a password"
        )
    return True


def _sentence(prefix: str, location: tuple[int | str, ...], message: str) -> str:
    message = message.removeprefix("Value error, ")
    if not location:
        return message
    return f"{_variable(prefix, str(location[0]))}: {message}."


def _variable(prefix: str, name: str) -> str:
    """Return the variable of a setting; if it has two names, the one that is set."""
    names = next((names for names in _TWO_NAMES if name.lower() in names), (name,))
    variables = {**settings_file(), **os.environ}
    set_names = {variable.lower() for variable, text in variables.items() if text}
    return prefix + next((other for other in names if other in set_names), name).upper()


def _adopt_older_settings(file: Mapping[str, str | None]) -> None:
    """Set the new names of older settings, and log a warning for each.

    A new name that is also set is not changed. `file` is the content of `.env`.
    """
    variables = {**file, **os.environ}
    for name, text in sorted(variables.items()):
        if not name.startswith(_OLDER) or not text:
            continue
        rest = name.removeprefix(_OLDER)
        if advice := _GONE.get((rest, text.strip().lower())):
            log.warning("%s=%s: %s", name, text.strip(), advice)
        elif rest in _NAMES:
            new_name, begin = _NAMES[rest]
            if not variables.get(new_name):
                os.environ[new_name] = text if text.startswith(begin) else f"{begin}{text}"
            log.warning("%s is an older name. Set %s instead.", name, new_name)
        else:
            advice = next(
                (sentence for start, sentence in _ADVICE.items() if rest.startswith(start)),
                "It has no effect.",
            )
            log.warning("%s is a setting of an older server. %s", name, advice)
