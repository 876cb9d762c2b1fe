"""Courses: agents, memory blocks and tasks in one TOML file."""

from typing import TYPE_CHECKING, Any

from ricordo.plugins import Commands

if TYPE_CHECKING:
    from ricordo.settings import Settings


class CoursesPlugin:
    """Adds courses: their table, routes and job, and `ricordo course`."""

    def tables(self) -> list[Any]:
        from ricordo.features.tutor.courses.queries import courses

        return [courses]

    def jobs(self) -> list[Any]:
        from ricordo.features.tutor.courses.jobs import handlers

        return [*handlers()]

    def routes(self) -> list[Any]:
        return ["ricordo.features.tutor.courses.routes"]

    def findings(self, settings: "Settings") -> list[str]:
        from ricordo.errors import RicordoError
        from ricordo.features.tutor.courses.course_file import read_courses
        from ricordo.features.tutor.courses.options import CourseSettings

        folder = CourseSettings().courses_dir or settings.data_dir / "courses"
        try:
            courses, faults = read_courses(folder)
        except RicordoError as error:
            return [f"!{error}"]
        lines = [f"!{line}" for fault in faults.values() for line in fault.splitlines()]
        if courses:
            names = ", ".join(courses)
            lines.append(f"courses: {names} (their tools and models: ricordo course check)")
        return lines

    def commands(self) -> list[Commands]:
        return [Commands("course", "ricordo.features.tutor.courses.cli")]


plugin = CoursesPlugin()
