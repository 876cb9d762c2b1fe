"""Care of memory: erasure, audit and review."""

from ricordo.plugins import Commands, Feature

feature = Feature(
    routes=("ricordo.features.memory_care.erasure.routes",),
    jobs=("ricordo.features.memory_care.erasure.jobs:HANDLERS",),
    commands=(
        Commands(
            "memory",
            "ricordo.features.memory_care.audit.cli",
            help="Users' memory: review, audit, remotes, erasure.",
            commands={"audit": "Find junk, duplicates and secrets in all memory."},
        ),
        Commands(
            "memory",
            "ricordo.features.memory_care.erasure.cli",
            commands={
                "forget": "Forget a user, and give a signed receipt.",
                "receipt": "Show the receipt of an erasure, and check its signature.",
            },
        ),
        Commands(
            "memory",
            "ricordo.features.memory_care.review.cli",
            commands={
                "show": "Show a user's blocks, or the text of one.",
                "proposals": "List the waiting proposals, each with its changes.",
                "approve": "Approve proposals.",
                "reject": "Reject proposals: their blocks stay as they are.",
                "history": "List a block's versions with time, author and reason.",
                "blame": "Show each line of a block with its version and author.",
            },
        ),
    ),
)
