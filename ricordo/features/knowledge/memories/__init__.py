"""Add and search user memory, for programs that need no agent.

An agent files the facts of the messages that a program adds.
"""

from typing import Any


class MemoriesPlugin:
    """Adds the two routes.

    The agent that files is created when it is first needed.
    """

    def routes(self) -> list[Any]:
        return ["ricordo.features.knowledge.memories.routes"]


plugin = MemoriesPlugin()
