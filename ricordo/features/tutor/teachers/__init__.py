"""Teachers: the pages of courses, the students of a course with what waits for them, and the blocks that students' policy shows."""

from typing import Any

from ricordo.plugins import PluginPage


class TeachersPlugin:
    """Adds the students of a course to the API, and pages for courses and students."""

    def routes(self) -> list[Any]:
        return [
            "ricordo.features.tutor.teachers.routes",
            "ricordo.features.tutor.teachers.pages",
        ]

    def pages(self) -> list[PluginPage]:
        return [PluginPage("Courses", "/ui/courses", ("agents:write",))]


plugin = TeachersPlugin()
