"""Export an agent as a JSON file, and import such files.

The file holds the agent with its memory, history, tools and files. Other servers can read it.
"""

from typing import Any


class AgentFilesPlugin:
    """Adds export and import of agents.

    The required features store the parts of an agent.
    """

    def routes(self) -> list[Any]:
        """Return the routes for export and import."""
        return ["ricordo.features.documents.agent_files.routes"]


plugin = AgentFilesPlugin()
