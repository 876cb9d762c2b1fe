"""Open WebUI: the sync of files and notes, the pipe, and an API that serves memory as notes."""

from ricordo.plugins import Commands, Feature

feature = Feature(
    requires=("files", "memory_care", "openai", "sync"),
    settings=("ricordo.features.openwebui.mirror.options:OpenWebUISettings",),
    tables=("ricordo.features.openwebui.mirror.queries:openwebui_items",),
    routes=(
        "ricordo.features.openwebui.mirror.routes",
        "ricordo.features.openwebui.notes.routes",
    ),
    jobs=(
        "ricordo.features.openwebui.mirror.sync:ALL_USERS",
        "ricordo.features.openwebui.mirror.chats:DELETE_GONE",
    ),
    memory_remotes=("ricordo.features.openwebui.mirror.sync:REMOTES",),
    commands=(
        Commands(
            "openwebui",
            "ricordo.features.openwebui.mirror.cli",
            help="Open WebUI: its pipe to this server.",
        ),
    ),
)
