"""Courses: agents, memory blocks and tasks in one TOML file."""

from typing import Any

from ricordo.plugins import Commands


class CoursesPlugin:
    """Adds courses: their table, routes and job, and `ricordo course`."""

    def tables(self) -> list[Any]:
        from ricordo.features.tutor.courses.queries import courses

        return [courses]

    def jobs(self) -> list[Any]:
        from ricordo.features.tutor.courses.jobs import HANDLERS

        return [*HANDLERS]

    def routes(self) -> list[Any]:
        return ["ricordo.features.tutor.courses.routes"]

    def commands(self) -> list[Commands]:
        return [Commands("course", "ricordo.features.tutor.courses.cli")]


plugin = CoursesPlugin()
