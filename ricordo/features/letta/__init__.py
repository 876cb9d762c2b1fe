"""Small routes of the retired Letta V1 server that its clients still call.

They are for tags, environments, and an answer without a turn.
"""

from typing import Any


class LettaExtrasPlugin:
    def routes(self) -> list[Any]:
        """Return the routes that the core does not have."""
        return ["ricordo.features.letta.routes"]


plugin = LettaExtrasPlugin()
