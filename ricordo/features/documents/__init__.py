"""Agents and memory as files: agent files, memory archives, templates, and imports."""

from ricordo.plugins import Commands, Feature, PluginPage

feature = Feature(
    requires=("automation", "custom_tools", "files", "groups", "identity"),
    tables=(
        "ricordo.features.documents.imports.queries:TABLES",
        "ricordo.features.documents.templates.tables:TABLES",
    ),
    routes=(
        "ricordo.features.documents.agent_files.routes",
        "ricordo.features.documents.memory_archives.routes",
        "ricordo.features.documents.imports.routes",
        "ricordo.features.documents.imports.pages",
        "ricordo.features.documents.templates.routes",
        "ricordo.features.documents.templates.pages",
    ),
    jobs=(
        "ricordo.features.documents.imports.jobs:HANDLERS",
        "ricordo.features.documents.templates.jobs:HANDLERS",
    ),
    pages=(
        PluginPage("Moving in and out", "/ui/imports"),
        PluginPage("Templates", "/ui/templates", ("agents:write",)),
    ),
    commands=(
        Commands(
            "import",
            "ricordo.features.documents.imports.cli",
            help="Import agents, chats and memories.",
        ),
    ),
)
