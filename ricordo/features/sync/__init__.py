"""Sync of memory with copies elsewhere: remotes, git and Dolt."""

from ricordo.plugins import Commands, Feature

feature = Feature(
    requires=("memory_care", "tutor", "typed_memory"),
    settings=("ricordo.features.sync.dolt.options:DoltSettings",),
    routes=(
        "ricordo.features.sync.git.routes",
        "ricordo.features.sync.remotes.routes",
    ),
    jobs=(
        "ricordo.features.sync.dolt.sync:ALL_USERS",
        "ricordo.features.sync.remotes.service:HANDLERS",
    ),
    memory_remotes=(
        "ricordo.features.sync.dolt.sync:REMOTES",
        "ricordo.features.sync.git.sync:REMOTES",
    ),
    commands=(
        Commands(
            "memory",
            "ricordo.features.sync.remotes.cli",
            commands={"remotes": "Git repositories and databases that a memory is in sync with."},
        ),
    ),
)
