"""Traces over HTTP: requests and replies of model calls.

The core stores them with the steps, as the settings say.
"""

from typing import Any


class TracesPlugin:
    def routes(self) -> list[Any]:
        """Return the routes for traces of a step and of a run."""
        from ricordo.api.routing import LazyRouter

        paths = ("/v1/steps/*/trace", "/v1/telemetry", "/v1/runs/*/trace")
        return [LazyRouter("ricordo.features.traces.routes", paths)]


plugin = TracesPlugin()
