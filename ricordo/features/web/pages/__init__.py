"""The pages for people: server-rendered, below `/ui`, and `/` itself. They load nothing from anywhere else."""

from typing import Any


class WebPlugin:
    def routes(self) -> list[Any]:
        # A label may hold slashes: what can follow one, as in history, is matched first.
        # The last has a page for every other address below /ui.
        return [
            "ricordo.features.web.pages.home",
            "ricordo.features.web.pages.decisions",
            "ricordo.features.web.pages.agents",
            "ricordo.features.web.pages.chat",
            "ricordo.features.web.pages.context",
            "ricordo.features.web.pages.archive",
            "ricordo.features.web.pages.answers",
            "ricordo.features.web.pages.personal_data",
            "ricordo.features.web.pages.history",
            "ricordo.features.web.pages.lines",
            "ricordo.features.web.pages.memory",
            "ricordo.features.web.pages.search",
            "ricordo.features.web.pages.runs",
            "ricordo.features.web.pages.models",
            "ricordo.features.web.pages.connect",
            "ricordo.features.web.pages.settings",
            "ricordo.features.web.pages.login",
        ]


plugin = WebPlugin()
