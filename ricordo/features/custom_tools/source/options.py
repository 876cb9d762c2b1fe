"""Settings of tools made from source code."""

from ricordo.setting_types import FeatureSettings, about


class CustomToolsSettings(FeatureSettings):
    """Tools made from source code."""

    tool_seconds: float = about("Most seconds for a call of a custom tool.", 180, gt=0, le=3600)
    tool_memory_mb: int = about(
        "Most megabytes of memory for a call of a custom tool.", 512, ge=64, le=65_536
    )
