"""Imports: agents of a Letta database, exported chats, and memories of mem0.

The database is that of the retired Letta V1 server 0.16.8. Chats come from ChatGPT, Claude and Open
WebUI.
"""

from typing import Any

from ricordo.plugins import Commands, PluginPage


class ImportsPlugin:
    """Adds `ricordo import`, uploads to the API, and a page.

    `agent_files` reads the messages of other servers.
    """

    def tables(self) -> list[Any]:
        from ricordo.features.documents.imports.queries import TABLES

        return [*TABLES]

    def jobs(self) -> list[Any]:
        from ricordo.features.documents.imports.jobs import HANDLERS

        return [*HANDLERS]

    def routes(self) -> list[Any]:
        return [
            "ricordo.features.documents.imports.routes",
            "ricordo.features.documents.imports.pages",
        ]

    def pages(self) -> list[PluginPage]:
        return [PluginPage("Moving in and out", "/ui/imports")]

    def commands(self) -> list[Commands]:
        return [Commands("import", "ricordo.features.documents.imports.cli")]


plugin = ImportsPlugin()
