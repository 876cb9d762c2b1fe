"""Agent files: an agent with its memory, history, tools and files as one JSON document, and back; other servers read it too."""

from typing import Any


class AgentFilesPlugin:
    """Adds export and import. Tools are stored by `custom_tools`, folders by `files`, schedules by `schedules`."""

    requires = ("custom_tools", "files", "schedules")

    def routes(self) -> list[Any]:
        """Export, import."""
        from ricordo.api.routing import LazyRouter

        return [LazyRouter("ricordo.features.agent_files.routes", ("/v1/agents/*/export", "/v1/agents/import"))]


plugin = AgentFilesPlugin()
