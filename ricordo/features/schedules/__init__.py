"""Schedules: messages that are sent to an agent at a time, or again and again."""

from typing import Any


class SchedulesPlugin:
    """Adds scheduled messages to the API, and the job that sends them."""

    def tables(self) -> list[Any]:
        from ricordo.features.schedules.tables import schedules

        return [schedules]

    def routes(self) -> list[Any]:
        from ricordo.api.routing import LazyRouter

        return [LazyRouter("ricordo.features.schedules.routes", ("/v1/agents/*/schedule",))]

    def jobs(self) -> list[Any]:
        from ricordo.features.schedules.service import HANDLER

        return [HANDLER]


plugin = SchedulesPlugin()
