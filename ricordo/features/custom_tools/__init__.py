"""Tools from source code, running code, and tools that read the web."""

from ricordo.plugins import Feature, PluginPage

feature = Feature(
    settings=(
        "ricordo.features.custom_tools.source.options:CustomToolsSettings",
        "ricordo.features.custom_tools.web.options:WebSettings",
    ),
    tables=("ricordo.features.custom_tools.source.queries:tool_variables",),
    routes=(
        "ricordo.features.custom_tools.source.routes",
        "ricordo.features.custom_tools.source.variable_routes",
        "ricordo.features.custom_tools.source.tool_pages",
    ),
    jobs=("ricordo.features.custom_tools.source.runner:BUILD",),
    tools=(
        "ricordo.features.custom_tools.run_code.tools:TOOLS",
        "ricordo.features.custom_tools.web.tools:TOOLS",
    ),
    tool_runners=("ricordo.features.custom_tools.source.runner:CustomTools",),
    pages=(PluginPage("Tools", "/ui/tools"),),
)
