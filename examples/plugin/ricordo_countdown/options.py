"""The setting of the countdown."""

from ricordo.setting_types import FeatureSettings, about


class CountdownSettings(FeatureSettings):
    """Counting days."""

    countdown_timezone: str = about("Time zone in which a day begins for the countdown.", "UTC")
