"""Traces over HTTP: requests and replies of model calls. The core stores them with the steps, as the settings say."""

from typing import Any


class TracesPlugin:
    def routes(self) -> list[Any]:
        """The trace of a step, and those of a run."""
        return ["ricordo.features.operations.traces.routes"]


plugin = TracesPlugin()
