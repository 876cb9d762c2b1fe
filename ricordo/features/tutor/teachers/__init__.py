"""Teachers: pages of courses, and the students of a course.

Teachers see numbers of each student, and the blocks that the student's own block lets them see.
"""

from typing import Any

from ricordo.plugins import PluginPage


class TeachersPlugin:
    """Adds a course's students to the API, and pages for both."""

    def routes(self) -> list[Any]:
        return [
            "ricordo.features.tutor.teachers.routes",
            "ricordo.features.tutor.teachers.pages",
        ]

    def pages(self) -> list[PluginPage]:
        return [PluginPage("Courses", "/ui/courses", ("agents:write",))]


plugin = TeachersPlugin()
