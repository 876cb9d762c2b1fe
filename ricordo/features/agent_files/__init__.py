"""Agent files: an agent with its memory, history, tools and files as one JSON document, and back; other servers read it too."""

from typing import Any


class AgentFilesPlugin:
    """Adds export and import. What an agent has is stored by the features that are required."""

    requires = ("custom_tools", "files", "groups", "schedules")

    def routes(self) -> list[Any]:
        """Export, import."""
        from ricordo.api.routing import LazyRouter

        return [
            LazyRouter(
                "ricordo.features.agent_files.routes", ("/v1/agents/*/export", "/v1/agents/import")
            )
        ]


plugin = AgentFilesPlugin()
