"""Backups of the whole database, and upgrades of it: `ricordo backup`, `ricordo restore` and `ricordo upgrade`."""

from ricordo.plugins import Commands


class BackupsPlugin:
    """Adds the commands."""

    requires = ("move", "audit_log")

    def commands(self) -> list[Commands]:
        return [Commands("", "ricordo.features.backups.cli")]


plugin = BackupsPlugin()
