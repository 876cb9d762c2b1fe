"""`add` and `search` for programs that want a memory and no agent: messages in, what is worth keeping is filed, and found again."""

from typing import Any


class MemoriesPlugin:
    """Adds the two routes. The agent that files is made when it is first needed."""

    def routes(self) -> list[Any]:
        return ["ricordo.features.knowledge.memories.routes"]


plugin = MemoriesPlugin()
