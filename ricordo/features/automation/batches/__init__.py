"""Batches: many requests to agents, sent at once and answered by a job.

They are for older clients of the retired Letta V1 server.
"""

from typing import Any


class BatchesPlugin:
    """Adds batches to the API.

    Their messages have the format of agent files, and their turns the scope of schedules' turns.
    """

    def tables(self) -> list[Any]:
        from ricordo.features.automation.batches.queries import batch_items

        return [batch_items]

    def jobs(self) -> list[Any]:
        from ricordo.features.automation.batches.jobs import HANDLERS

        return [*HANDLERS]

    def routes(self) -> list[Any]:
        return ["ricordo.features.automation.batches.routes"]


plugin = BatchesPlugin()
