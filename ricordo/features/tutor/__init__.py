"""Tutoring: courses, their chats and tasks, and the pages of teachers."""

from ricordo.plugins import Commands, Feature, PluginPage

feature = Feature(
    requires=("automation", "documents", "files", "knowledge", "openai", "typed_memory"),
    settings=("ricordo.features.tutor.courses.options:CourseSettings",),
    tables=(
        "ricordo.features.tutor.courses.queries:courses",
        "ricordo.features.tutor.tasks.queries:tasks",
        "ricordo.features.tutor.tasks.queries:task_runs",
        "ricordo.features.tutor.learning.queries:learner_choices",
    ),
    routes=(
        "ricordo.features.tutor.chat.routes",
        "ricordo.features.tutor.courses.routes",
        "ricordo.features.tutor.tasks.routes",
        "ricordo.features.tutor.tasks.pages",
        "ricordo.features.tutor.teachers.routes",
        "ricordo.features.tutor.teachers.pages",
    ),
    jobs=(
        "ricordo.features.tutor.courses.jobs:HANDLERS",
        "ricordo.features.tutor.tasks.jobs:HANDLERS",
    ),
    tools=("ricordo.features.tutor.learning.tools:TOOLS",),
    complete_agents=("ricordo.features.tutor.learning.prompt:ADDITION",),
    findings=("ricordo.features.tutor.courses.course_file:findings",),
    pages=(
        PluginPage("Tasks", "/ui/tasks"),
        PluginPage("Courses", "/ui/courses", ("agents:write",)),
    ),
    commands=(
        Commands(
            "course",
            "ricordo.features.tutor.courses.cli",
            help="Courses: agents and memory for students, in one file.",
        ),
    ),
)
