"""The secrets of an agent, for the processes of its tools, and their removal from what those say."""

from collections.abc import Mapping
from typing import Any

from ricordo.domain.agent import Agent
from ricordo.secret import Secret
from ricordo.settings import Settings

_SHORTEST = (
    6  # characters of a value that is removed from what a tool says; shorter ones are in many words
)


def secrets_of(settings: Settings, agent: Agent) -> dict[str, str]:
    """Return the agent's secrets by name. Raises Unavailable where they were encrypted with another secret key."""
    sealed: Mapping[str, str] = agent.settings.get("secrets", {})
    if not sealed:
        return {}
    secret = Secret(settings.data_dir)
    return {name: secret.decrypt(value) for name, value in sealed.items()}


def without_secrets(value: Any, secrets: Mapping[str, str]) -> Any:
    """The value with the names of secrets in place of the secrets, in all its texts."""
    longest_first = sorted(secrets.items(), key=lambda each: -len(each[1]))
    known = [(name, value) for name, value in longest_first if len(value) >= _SHORTEST]
    return _without(value, known) if known else value


def _without(value: Any, known: list[tuple[str, str]]) -> Any:
    if isinstance(value, str):
        for name, secret in known:
            value = value.replace(secret, f"[secret {name}]")
        return value
    if isinstance(value, dict):
        return {_without(name, known): _without(each, known) for name, each in value.items()}
    return [_without(each, known) for each in value] if isinstance(value, list | tuple) else value
