"""The pages for people: server-rendered, below `/ui`, and `/` itself.

They load nothing from other servers.
"""

from typing import Any

STATIC = "/ui/static"
# The styles and scripts, which anybody may load.
TYPES = {
    "ui.css": "text/css; charset=utf-8",
    "ui.js": "text/javascript; charset=utf-8",
    "chat.js": "text/javascript; charset=utf-8",
    "htmx.min.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


class WebPlugin:
    requires = ("audit",)

    def routes(self) -> list[Any]:
        # A label may hold slashes: what can follow one, as in history, is matched first.
        # The last has a page for every other address below /ui.
        return [
            "ricordo.features.web.home",
            "ricordo.features.web.decisions",
            "ricordo.features.web.agents",
            "ricordo.features.web.chat",
            "ricordo.features.web.context",
            "ricordo.features.web.archive",
            "ricordo.features.web.answers",
            "ricordo.features.web.personal_data",
            "ricordo.features.web.history",
            "ricordo.features.web.memory",
            "ricordo.features.web.search",
            "ricordo.features.web.runs",
            "ricordo.features.web.models",
            "ricordo.features.web.connect",
            "ricordo.features.web.settings",
            "ricordo.features.web.statics",
            "ricordo.features.web.login",
        ]


plugin = WebPlugin()
