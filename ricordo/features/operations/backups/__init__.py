"""Backups, restores and upgrades of the whole database.

The commands are `ricordo backup`, `ricordo restore` and `ricordo upgrade`; there is a page too.
"""

from typing import Any

from ricordo.domain.scope import ADMIN
from ricordo.plugins import Commands, PluginPage


class BackupsPlugin:
    """Adds the commands, the API of backups, their job, and a page."""

    def routes(self) -> list[Any]:
        return [
            "ricordo.features.operations.backups.routes",
            "ricordo.features.operations.backups.pages",
        ]

    def jobs(self) -> list[Any]:
        from ricordo.features.operations.backups.jobs import HANDLERS

        return [*HANDLERS]

    def commands(self) -> list[Commands]:
        return [Commands("", "ricordo.features.operations.backups.cli")]

    def pages(self) -> list[PluginPage]:
        return [PluginPage("Backups", "/ui/backups", (ADMIN,))]


plugin = BackupsPlugin()
