"""Pages for people: the server's pages, the documentation of the API, and help.

The pages load nothing from other hosts.
"""

from ricordo.plugins import Feature, PluginPage

feature = Feature(
    requires=("memory_care",),
    routes=(
        "ricordo.features.web.api_docs.pages",
        "ricordo.features.web.help.routes",
        "ricordo.features.web.pages.home",
        "ricordo.features.web.pages.decisions",
        "ricordo.features.web.pages.agents",
        "ricordo.features.web.pages.chat",
        "ricordo.features.web.pages.chats",
        "ricordo.features.web.pages.context",
        "ricordo.features.web.pages.archive",
        "ricordo.features.web.pages.answers",
        "ricordo.features.web.pages.personal_data",
        "ricordo.features.web.pages.forgetting",
        "ricordo.features.web.pages.history",
        "ricordo.features.web.pages.lines",
        "ricordo.features.web.pages.memory",
        "ricordo.features.web.pages.search",
        "ricordo.features.web.pages.runs",
        "ricordo.features.web.pages.models",
        "ricordo.features.web.pages.connect",
        "ricordo.features.web.pages.settings",
        "ricordo.features.web.pages.login",
    ),
    pages=(PluginPage("Help", "/help"),),
)
