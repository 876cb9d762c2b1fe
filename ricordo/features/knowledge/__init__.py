"""Questions about people: memories, answers with sources, and Honcho."""

from ricordo.plugins import Feature

feature = Feature(
    tables=("ricordo.features.knowledge.honcho.queries:honcho_sessions",),
    routes=(
        "ricordo.features.knowledge.ask.routes",
        "ricordo.features.knowledge.memories.routes",
    ),
    jobs=(
        "ricordo.features.knowledge.honcho.jobs:SEND",
        "ricordo.features.knowledge.honcho.jobs:CATCH_UP",
    ),
    tools=("ricordo.features.knowledge.ask.tools:TOOLS",),
    after_turn=("ricordo.features.knowledge.honcho.jobs:SENDING",),
    at_erasure=("ricordo.features.knowledge.honcho.jobs:forget",),
)
