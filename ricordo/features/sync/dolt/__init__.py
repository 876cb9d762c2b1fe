"""Dolt: databases with versions, on a Dolt server or in a file of doltlite, as remotes of a user's memory."""

from typing import Any


class DoltPlugin:
    """Adds remotes of the kind `dolt`, and one for all users where a setting says so."""

    def memory_remotes(self) -> list[Any]:
        from ricordo.features.sync.dolt.sync import DoltRemotes

        return [DoltRemotes()]

    def jobs(self) -> list[Any]:
        from ricordo.features.sync.dolt.sync import ALL_USERS

        return [ALL_USERS]


plugin = DoltPlugin()
