"""Settings of groups."""

from ricordo.setting_types import FeatureSettings, about


class GroupSettings(FeatureSettings):
    """Groups of agents"""

    group_turns: int = about("Most turns of agents that one message to a group may lead to.", 50, ge=1, le=1000)
