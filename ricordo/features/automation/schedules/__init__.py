"""Schedules: messages that are sent to an agent later, once or repeatedly."""

from typing import Any

from ricordo.plugins import PluginPage


class SchedulesPlugin:
    """Adds schedules to the API, sends due messages, and lists schedules on a page."""

    def tables(self) -> list[Any]:
        from ricordo.features.automation.schedules.queries import schedules

        return [schedules]

    def jobs(self) -> list[Any]:
        from ricordo.features.automation.schedules.jobs import HANDLERS

        return [*HANDLERS]

    def routes(self) -> list[Any]:
        return [
            "ricordo.features.automation.schedules.routes",
            "ricordo.features.automation.schedules.pages",
        ]

    def pages(self) -> list[PluginPage]:
        return [PluginPage("Schedules", "/ui/schedules")]


plugin = SchedulesPlugin()
