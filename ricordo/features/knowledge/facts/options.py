"""Settings of facts about users."""

from typing import Literal

from ricordo.setting_types import FeatureSettings, about

FactPolicy = Literal["off", "propose", "direct"]


class FactSettings(FeatureSettings):
    """Facts that are read from conversations."""

    facts: FactPolicy = about(
        "Whether facts about users are read from their conversations: off, propose (each waits for "
        "its owner), or direct. Organizations and users may choose otherwise.",
        "off",
    )
    facts_by: Literal["model", "rules"] = about(
        "What reads the facts: the agent's own model, or rules, which cost no tokens. The "
        "librarian always reads by rules.",
        "model",
    )
    facts_turns: int = about(
        "Messages of a user from which the agent's model reads facts in one call. Fewer messages "
        "wait for more.",
        4,
        ge=1,
        le=100,
    )
    facts_idle_seconds: float = about(
        "Seconds without a message after which a conversation is read for facts.",
        300,
        ge=0,
        le=86_400,
    )
