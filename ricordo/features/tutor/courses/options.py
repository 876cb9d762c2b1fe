"""Settings of courses."""

from ricordo.setting_types import FeatureSettings, Folder, about


class CourseSettings(FeatureSettings):
    """The folder of the courses."""

    courses_dir: Folder | None = about(
        "Folder that has a folder for each course. By default `courses` in the data folder."
    )
