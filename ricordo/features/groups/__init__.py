"""Several agents: group talks, sleeptime agents that edit memory, and messages between agents."""

from ricordo.plugins import Commands, Feature, PluginPage

feature = Feature(
    requires=("files", "web"),
    settings=(
        "ricordo.features.groups.options:AgentCallSettings",
        "ricordo.features.groups.options:GroupSettings",
    ),
    tables=(
        "ricordo.features.groups.queries:TABLES",
        "ricordo.features.groups.document_queries:TABLES",
    ),
    routes=(
        "ricordo.features.groups.talk_routes",
        "ricordo.features.groups.routes",
        "ricordo.features.groups.agent_routes",
        "ricordo.features.groups.sleep_routes",
        "ricordo.features.groups.pages",
        "ricordo.features.groups.sleep_pages",
    ),
    jobs=(
        "ricordo.features.groups.sleeptime:HANDLERS",
        "ricordo.features.groups.talk_record:HANDLER",
        "ricordo.features.groups.talk_resume:HANDLER",
        "ricordo.features.groups.agent_jobs:HANDLERS",
        "ricordo.features.groups.documents:HANDLERS",
    ),
    tools=(
        "ricordo.features.groups.agent_tools:TOOLS",
        "ricordo.features.groups.talk_tool:TOOL",
        "ricordo.features.groups.voice_tools:VOICE_TOOLS",
    ),
    agent_followers=("ricordo.features.groups.pairs:FOLLOWER",),
    after_turn=("ricordo.features.groups.talk_resume:RESUMPTION",),
    open="ricordo.features.groups.agent_calls:open_waits",
    pages=(
        PluginPage("Groups", "/ui/groups", ("agents:read",)),
        PluginPage("Sleeping agents", "/ui/sleeptime", ("memory:read",)),
    ),
    commands=(
        Commands(
            "group", "ricordo.features.groups.cli", help="Groups of agents that talk together."
        ),
    ),
)
