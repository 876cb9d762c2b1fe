"""Background tasks: what an agent does for each user by itself, at certain times or once they were away for a while."""

from typing import Any

from ricordo.plugins import PluginPage


class TasksPlugin:
    """Adds the tables of tasks and of their runs, the jobs that carry them out, their routes, and a page."""

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
