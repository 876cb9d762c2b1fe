"""Settings of tools made from source code."""

from ricordo.setting_types import FeatureSettings, about


class CustomToolsSettings(FeatureSettings):
    """Your own tools."""

    tool_seconds: float = about(
        "Longest time that a call of a tool made from source code may take.", 180, gt=0, le=3600
    )
    tool_memory_mb: int = about(
        "Most memory that such a call may use, in MB.", 512, ge=64, le=65_536
    )
