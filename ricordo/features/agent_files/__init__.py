"""Agent files: an agent with its memory, history, tools and files as one JSON document, and back; other servers read it too."""

from typing import Any


class AgentFilesPlugin:
    """Adds export and import. What an agent has is stored by the features that are required."""

    requires = ("custom_tools", "files", "groups", "schedules")

    def routes(self) -> list[Any]:
        """Export, import."""
        return ["ricordo.features.agent_files.routes"]


plugin = AgentFilesPlugin()
