"""Care of memory: erasure, forgetting, audit, review, and notifications of waiting proposals."""

from ricordo.plugins import Commands, Feature, PluginPage

feature = Feature(
    settings=(
        "ricordo.features.memory_care.forgetting.options:ForgetSettings",
        "ricordo.features.memory_care.notifications.options:NotificationSettings",
    ),
    tables=(
        "ricordo.features.memory_care.forgetting.queries:forget_requests",
        "ricordo.features.memory_care.notifications.queries:preferences",
        "ricordo.features.memory_care.notifications.queries:notices",
        "ricordo.features.memory_care.notifications.queries:decision_links",
        "ricordo.features.memory_care.notifications.queries:owner_visits",
    ),
    routes=(
        "ricordo.features.memory_care.erasure.routes",
        "ricordo.features.memory_care.forgetting.routes",
        "ricordo.features.memory_care.notifications.routes",
        "ricordo.features.memory_care.notifications.pages",
    ),
    jobs=(
        "ricordo.features.memory_care.erasure.jobs:HANDLERS",
        "ricordo.features.memory_care.forgetting.jobs:HANDLERS",
        "ricordo.features.memory_care.notifications.jobs:HANDLERS",
    ),
    tools=("ricordo.features.memory_care.forgetting.tools:TOOLS",),
    middleware=("ricordo.features.memory_care.notifications.visits:NotedVisits",),
    pages=(PluginPage("Notifications", "/ui/notifications", ("memory:approve",)),),
    gauges=("ricordo.features.memory_care.notifications.queries:gauges",),
    waiting=("ricordo.features.memory_care.forgetting.queries:waiting",),
    findings=("ricordo.features.memory_care.notifications.options:findings",),
    commands=(
        Commands(
            "memory",
            "ricordo.features.memory_care.audit.cli",
            help="Users' memory: review, audit, remotes, erasure.",
            commands={"audit": "Find junk, duplicates, contradictions and secrets."},
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
