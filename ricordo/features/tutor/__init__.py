"""Tutoring: courses, chats, tasks, learner state, and pages of teachers and guardians."""

from ricordo.plugins import Commands, Feature, PluginPage

feature = Feature(
    requires=("automation", "documents", "files", "knowledge", "openai", "typed_memory", "web"),
    settings=("ricordo.features.tutor.courses.options:CourseSettings",),
    tables=(
        "ricordo.features.tutor.courses.queries:courses",
        "ricordo.features.tutor.tasks.queries:tasks",
        "ricordo.features.tutor.tasks.queries:task_runs",
        "ricordo.features.tutor.learning.queries:learner_choices",
        "ricordo.features.tutor.guardians.queries:guardianships",
    ),
    routes=(
        "ricordo.features.tutor.chat.routes",
        "ricordo.features.tutor.courses.routes",
        "ricordo.features.tutor.guardians.routes",
        "ricordo.features.tutor.guardians.pages",
        "ricordo.features.tutor.learning.routes",
        "ricordo.features.tutor.learning.pages",
        "ricordo.features.tutor.tasks.routes",
        "ricordo.features.tutor.tasks.pages",
        "ricordo.features.tutor.teachers.routes",
        "ricordo.features.tutor.teachers.pages",
    ),
    jobs=(
        "ricordo.features.tutor.courses.jobs:HANDLERS",
        "ricordo.features.tutor.tasks.jobs:HANDLERS",
        "ricordo.features.tutor.learning.jobs:HANDLERS",
    ),
    user_files=("ricordo.features.tutor.learning.archives:FILE",),
    tools=("ricordo.features.tutor.learning.tools:TOOLS",),
    complete_agents=("ricordo.features.tutor.learning.prompt:ADDITION",),
    findings=("ricordo.features.tutor.courses.course_file:findings",),
    pages=(
        PluginPage("Tasks", "/ui/tasks"),
        PluginPage("What I can do", "/ui/learning", ("memory:read",)),
        PluginPage("Courses", "/ui/courses", ("agents:write",)),
        PluginPage("My students", "/ui/guardian", ("students:read",)),
    ),
    commands=(
        Commands(
            "course",
            "ricordo.features.tutor.courses.cli",
            help="Courses: agents and student memory, configured in one file.",
        ),
        Commands(
            "guardian",
            "ricordo.features.tutor.guardians.cli",
            help="Guardians: who sees a student's skills.",
        ),
    ),
)
