"""Notes: a user's memory blocks in the format of Open WebUI's notes."""

from typing import Any


class NotesPlugin:
    """Adds the three routes."""

    def routes(self) -> list[Any]:
        return ["ricordo.features.openwebui.notes.routes"]


plugin = NotesPlugin()
