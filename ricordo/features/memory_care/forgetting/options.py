"""Settings of forgetting one thing."""

from typing import Literal

from ricordo.setting_types import FeatureSettings, about

ForgetPolicy = Literal["propose", "direct"]


class ForgetSettings(FeatureSettings):
    """The behaviour of agents that a person asks to forget something."""

    forget_policy: ForgetPolicy = about(
        "What an agent's tool `forget` does: propose (the owner sees a list and decides), or "
        "direct (texts with the same words are removed at once, if the person asked for it in "
        "this turn).",
        "propose",
    )
