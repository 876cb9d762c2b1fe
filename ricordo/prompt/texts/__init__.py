"""The words of the built-in system prompts, one file a prompt."""

from functools import cache
from importlib import resources

from ricordo.domain.agent import AgentType

_PROMPT_OF: dict[AgentType, str] = {"letta_v1_agent": "letta_v1", "split_thread_agent": "letta_v1"}


@cache
def text(key: str) -> str:
    """The built-in text with this key."""
    return resources.files(__package__).joinpath(f"{key}.md").read_text("utf-8").strip()


def default_system(agent_type: AgentType) -> str | None:
    """The system prompt a new agent of this type gets; None where this version has none for the type."""
    key = _PROMPT_OF.get(agent_type)
    return text(key) if key else None
