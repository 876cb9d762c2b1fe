"""Settings of agents that work together."""

from ricordo.setting_types import FeatureSettings, about


class AgentCallSettings(FeatureSettings):
    """Agents that send messages to each other."""

    agent_call_depth: int = about(
        "Most agents in a chain in which each asks the next, including the first agent.",
        5,
        ge=1,
        le=20,
    )
    agent_call_seconds: float = about(
        "Seconds for which an agent waits for the answer of another agent. The other agent's "
        "turn continues after that.",
        120,
        gt=0,
        le=3600,
    )


class GroupSettings(FeatureSettings):
    """Groups of agents."""

    group_turns: int = about(
        "Most turns of agents that one message to a group may start.", 50, ge=1, le=1000
    )
