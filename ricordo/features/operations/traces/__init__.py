"""Traces over HTTP: requests and replies of model calls.

The core stores them with the steps, as the settings say.
"""

from typing import Any


class TracesPlugin:
    def routes(self) -> list[Any]:
        """Return the routes for traces of a step and of a run."""
        return ["ricordo.features.operations.traces.routes"]


plugin = TracesPlugin()
