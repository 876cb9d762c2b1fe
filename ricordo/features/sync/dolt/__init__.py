"""Dolt databases as remotes of a user's memory.

They have versions, and are on a Dolt server or in a file of doltlite.
"""

from typing import Any


class DoltPlugin:
    """Adds remotes of the kind `dolt`, and one for all users by a setting."""

    def memory_remotes(self) -> list[Any]:
        from ricordo.features.sync.dolt.sync import DoltRemotes

        return [DoltRemotes()]

    def jobs(self) -> list[Any]:
        from ricordo.features.sync.dolt.sync import ALL_USERS

        return [ALL_USERS]


plugin = DoltPlugin()
