"""Settings of courses."""

from ricordo.setting_types import FeatureSettings, Folder, about


class CourseSettings(FeatureSettings):
    """The folder of the courses."""

    courses_dir: Folder | None = about(
        "Folder with the courses, each in a folder of its own. "
        "Without it: `courses` in the data folder."
    )
