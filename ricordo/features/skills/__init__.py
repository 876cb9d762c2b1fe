"""Skills as owned memory: folders of instructions and files that agents open when needed."""

from ricordo.plugins import Commands, Feature, PluginPage

feature = Feature(
    routes=("ricordo.features.skills.routes", "ricordo.features.skills.pages"),
    tools=("ricordo.features.skills.tools:TOOLS",),
    complete_agents=("ricordo.features.skills.prompt:ADDITION",),
    pages=(PluginPage("Skills", "/ui/skills", ("memory:read",)),),
    commands=(
        Commands(
            "skill",
            "ricordo.features.skills.cli",
            help="Skills of people, agents and the organization.",
        ),
    ),
)
