"""An agent's secrets: passed to its tools, and removed from their output."""

from collections.abc import Mapping
from typing import Any

from ricordo.domain.agent import Agent
from ricordo.secret import Secret
from ricordo.settings import Settings

# The fewest characters of a secret that is removed from output. A shorter one may be part of many
# words.
_SHORTEST = 6


def secrets_of(settings: Settings, agent: Agent) -> dict[str, str]:
    """Return the agent's secrets by name.

    Raises Unavailable if they were encrypted with another secret key.
    """
    sealed: Mapping[str, str] = agent.settings.get("secrets", {})
    if not sealed:
        return {}
    secret = Secret(settings.data_dir)
    return {name: secret.decrypt(encrypted) for name, encrypted in sealed.items()}


def without_secrets(value: Any, secrets: Mapping[str, str]) -> Any:
    """Replace each secret by its name in all texts of the value."""
    longest_first = sorted(secrets.items(), key=lambda secret: -len(secret[1]))
    hidden = [(name, secret) for name, secret in longest_first if len(secret) >= _SHORTEST]
    if hidden:
        return _redact(value, hidden)
    return value


def _redact(value: Any, hidden: list[tuple[str, str]]) -> Any:
    if isinstance(value, str):
        for name, secret in hidden:
            value = value.replace(secret, f"[secret {name}]")
        return value
    if isinstance(value, dict):
        return {_redact(name, hidden): _redact(field, hidden) for name, field in value.items()}
    if isinstance(value, list | tuple):
        return [_redact(element, hidden) for element in value]
    return value
