"""Backups of the whole database: `ricordo backup` and `ricordo restore`."""

from ricordo.plugins import Commands


class BackupsPlugin:
    """Adds the two commands."""

    requires = ("move",)

    def commands(self) -> list[Commands]:
        return [Commands("", "ricordo.features.backups.cli")]


plugin = BackupsPlugin()
