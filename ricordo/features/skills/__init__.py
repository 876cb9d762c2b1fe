"""Skills as owned memory: folders of instructions and files that agents open when needed."""

from ricordo.plugins import Feature

feature = Feature(
    routes=("ricordo.features.skills.routes",),
    tools=("ricordo.features.skills.tools:TOOLS",),
    complete_agents=("ricordo.features.skills.prompt:ADDITION",),
)
