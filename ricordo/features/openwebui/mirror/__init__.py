"""Open WebUI: the sync of workspaces and memory, and its pipe.

Users' workspaces are synced with its knowledge bases, and their memory with its notes.
"""

from typing import Any

from ricordo.plugins import Commands


class OpenWebUIPlugin:
    """Adds remotes of the kind `openwebui` and a route that syncs one at once.

    Each user of Open WebUI gets a remote.
    """

    def commands(self) -> list[Commands]:
        return [Commands("openwebui", "ricordo.features.openwebui.mirror.cli")]

    def tables(self) -> list[Any]:
        from ricordo.features.openwebui.mirror.queries import openwebui_items

        return [openwebui_items]

    def memory_remotes(self) -> list[Any]:
        from ricordo.features.openwebui.mirror.sync import OpenWebUIRemotes

        return [OpenWebUIRemotes()]

    def jobs(self) -> list[Any]:
        from ricordo.features.openwebui.mirror.sync import ALL_USERS

        return [ALL_USERS]

    def routes(self) -> list[Any]:
        return ["ricordo.features.openwebui.mirror.routes"]


plugin = OpenWebUIPlugin()
