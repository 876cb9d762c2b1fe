"""Settings of forgetting one thing."""

from typing import Literal

from ricordo.setting_types import FeatureSettings, about

ForgetPolicy = Literal["propose", "direct"]


class ForgetSettings(FeatureSettings):
    """What happens when someone asks an agent to forget something."""

    forget_policy: ForgetPolicy = about(
        "What an agent's tool `forget` does: propose (the owner sees a list and decides), or direct "
        "(what says the thing in the same words is removed at once, where the person asked for it "
        "in this turn).",
        "propose",
    )
