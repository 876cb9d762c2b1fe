"""The pages of the documentation at `/help`."""

from typing import Any

from ricordo.plugins import PluginPage


class HelpPlugin:
    """Adds the pages."""

    def pages(self) -> list[PluginPage]:
        return [PluginPage("Help", "/help")]

    def routes(self) -> list[Any]:
        return ["ricordo.features.web.help.routes"]


plugin = HelpPlugin()
