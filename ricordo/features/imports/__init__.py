"""Moving in: agents of a Letta V1 server's database, chats of ChatGPT, Claude and Open WebUI, and memories of mem0."""

from typing import Any

from ricordo.plugins import Commands


class ImportsPlugin:
    """Adds `ricordo import`. Agents and messages are read by `agent_files`."""

    requires = ("accounts", "agent_files", "custom_tools", "files", "web")

    def tables(self) -> list[Any]:
        from ricordo.features.imports.tables import TABLES

        return [*TABLES]

    def commands(self) -> list[Commands]:
        return [Commands("import", "ricordo.features.imports.cli")]


plugin = ImportsPlugin()
