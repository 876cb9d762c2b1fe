"""Remotes: git repositories, databases and other copies in sync with a user's memory."""

from typing import Any

from ricordo.plugins import Commands


class RemotesPlugin:
    """Adds remotes to the API, the command line and the background work.

    The kinds of remotes come from other plugins.
    """

    def routes(self) -> list[Any]:
        return ["ricordo.features.sync.remotes.routes"]

    def jobs(self) -> list[Any]:
        from ricordo.features.sync.remotes.service import HANDLERS

        return [*HANDLERS]

    def commands(self) -> list[Commands]:
        return [Commands("memory", "ricordo.features.sync.remotes.cli")]


plugin = RemotesPlugin()
