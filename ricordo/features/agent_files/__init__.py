"""Export an agent as a JSON file, and import such files.

The file holds the agent with its memory, history, tools and files. Other servers can read it.
"""

from typing import Any


class AgentFilesPlugin:
    """Adds export and import of agents.

    The required features store the parts of an agent.
    """

    requires = ("custom_tools", "files", "groups", "schedules")

    def routes(self) -> list[Any]:
        """Return the routes for export and import."""
        from ricordo.api.routing import LazyRouter

        return [
            LazyRouter(
                "ricordo.features.agent_files.routes", ("/v1/agents/*/export", "/v1/agents/import")
            )
        ]


plugin = AgentFilesPlugin()
