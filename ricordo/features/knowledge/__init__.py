"""Questions about people: memories, facts with evidence, answers with sources, and Honcho."""

from ricordo.plugins import Feature

feature = Feature(
    requires=("librarian", "memory_care", "web"),
    settings=(
        "ricordo.features.knowledge.facts.options:FactSettings",
        "ricordo.features.knowledge.honcho.options:HonchoSettings",
    ),
    tables=(
        "ricordo.features.knowledge.honcho.queries:honcho_sessions",
        "ricordo.features.knowledge.facts.tables:user_facts",
        "ricordo.features.knowledge.facts.tables:fact_marks",
        "ricordo.features.knowledge.facts.tables:fact_policies",
        "ricordo.features.knowledge.facts.tables:fact_egress",
    ),
    routes=(
        "ricordo.features.knowledge.ask.routes",
        "ricordo.features.knowledge.memories.routes",
        "ricordo.features.knowledge.facts.routes",
        "ricordo.features.knowledge.facts.pages",
    ),
    jobs=(
        "ricordo.features.knowledge.honcho.jobs:SEND",
        "ricordo.features.knowledge.honcho.jobs:CATCH_UP",
        "ricordo.features.knowledge.facts.jobs:HANDLERS",
    ),
    tools=("ricordo.features.knowledge.ask.tools:TOOLS",),
    complete_agents=("ricordo.features.knowledge.facts.about_block:ADDITION",),
    after_turn=("ricordo.features.knowledge.honcho.jobs:SENDING",),
    waiting=("ricordo.features.knowledge.facts.queries:waiting",),
    known_facts=("ricordo.features.knowledge.facts.search:beside_hits",),
    user_files=("ricordo.features.knowledge.facts.archives:FILE",),
    forget_sources=("ricordo.features.knowledge.facts.forgetting:SOURCE",),
    audits=("ricordo.features.knowledge.facts.audit:audit_facts",),
    at_erasure=("ricordo.features.knowledge.honcho.jobs:forget",),
    at_forgetting=("ricordo.features.knowledge.honcho.forgetting:forget_thing",),
)
