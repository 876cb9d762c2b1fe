"""The pages of the documentation at `/help`."""

from typing import Any

from ricordo.plugins import PluginPage


class HelpPlugin:
    """Adds the pages."""

    requires = ("web",)

    def pages(self) -> list[PluginPage]:
        return [PluginPage("Help", "/help")]

    def routes(self) -> list[Any]:
        return ["ricordo.features.help.routes"]


plugin = HelpPlugin()
