"""Git access to a user's memory, and git repositories elsewhere as its remotes.

Users clone, fetch and push their memory.
"""

from typing import Any


class GitPlugin:
    """Adds smart HTTP at `/users/{user_id}/memory.git`, and remotes of the kind `git`."""

    def routes(self) -> list[Any]:
        return ["ricordo.features.sync.git.routes"]

    def memory_remotes(self) -> list[Any]:
        from ricordo.features.sync.git.sync import GitRemotes

        return [GitRemotes()]


plugin = GitPlugin()
