"""Background tasks: an agent's work for each user at set times or after silence."""

from typing import Any

from ricordo.plugins import PluginPage


class TasksPlugin:
    """Adds tasks and their runs: tables, jobs, routes and a page."""

    def tables(self) -> list[Any]:
        from ricordo.features.tutor.tasks.queries import task_runs, tasks

        return [tasks, task_runs]

    def jobs(self) -> list[Any]:
        from ricordo.features.tutor.tasks.jobs import HANDLERS

        return [*HANDLERS]

    def routes(self) -> list[Any]:
        return [
            "ricordo.features.tutor.tasks.routes",
            "ricordo.features.tutor.tasks.pages",
        ]

    def pages(self) -> list[PluginPage]:
        return [PluginPage("Tasks", "/ui/tasks")]


plugin = TasksPlugin()
