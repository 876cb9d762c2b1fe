"""Settings of facts about users."""

from typing import Literal

from ricordo.setting_types import FeatureSettings, about

FactPolicy = Literal["off", "propose", "direct"]


class FactSettings(FeatureSettings):
    """Facts that are read from conversations."""

    facts: FactPolicy = about(
        "Read facts about users from their conversations: off, propose (each waits for its "
        "owner's decision), or direct. Organizations and users may choose differently.",
        "off",
    )
    facts_by: Literal["model", "rules"] = about(
        "Read facts with the agent's model, or with rules, which cost no tokens. The librarian "
        "always uses rules.",
        "model",
    )
    facts_turns: int = about(
        "Least number of a user's messages that the agent's model reads for facts in one call. "
        "Fewer messages wait for more.",
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
