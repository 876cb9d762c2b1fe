"""The pages of the documentation at `/help`."""

from typing import Any

from ricordo.plugins import PluginPage


class HelpPlugin:
    """Adds the pages."""

    requires = ("web",)

    def pages(self) -> list[PluginPage]:
        return [PluginPage("Help", "/help")]

    def routes(self) -> list[Any]:
        from ricordo.api.routing import LazyRouter

        return [LazyRouter("ricordo.features.help.routes", ("/help",))]


plugin = HelpPlugin()
