"""Small routes of the retired Letta V1 server that its clients still call: tags, environments, one answer without a turn."""

from typing import Any


class LettaExtrasPlugin:
    def routes(self) -> list[Any]:
        """Routes beside those of the core."""
        return ["ricordo.features.letta.routes"]


plugin = LettaExtrasPlugin()
