"""Small routes of the retired Letta V1 server that its clients still call.

They are for tags, environments, and an answer without a turn.
"""

from typing import Any


class LettaExtrasPlugin:
    def routes(self) -> list[Any]:
        """Return the routes that the core does not have."""
        from ricordo.api.routing import LazyRouter

        agents = "/v1/agents/*"
        paths = (
            "/v1/tags",
            "/v1/environments",
            "/v1/tools/add-base-tools",
            f"{agents}/generate",
            f"{agents}/groups",
        )
        return [
            LazyRouter("ricordo.features.letta_extras.routes", (*paths, f"{agents}/messages/*"))
        ]


plugin = LettaExtrasPlugin()
