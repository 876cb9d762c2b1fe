"""Dolt: databases with versions, on a Dolt server or in a file of doltlite, as remotes of a user's memory."""

from typing import Any


class DoltPlugin:
    """Adds remotes of the kind `dolt`."""

    requires = ("remotes",)

    def memory_remotes(self) -> list[Any]:
        from ricordo.features.dolt.sync import DoltRemotes

        return [DoltRemotes()]


plugin = DoltPlugin()
