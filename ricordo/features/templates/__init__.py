"""Templates: an agent's settings, prompt, tools and memory in numbered versions, from which agents are made and brought on."""

from typing import Any

from ricordo.plugins import PluginPage


class TemplatesPlugin:
    """Adds templates to the API, a page for them, and the job that brings agents to a new version."""

    requires = ("agent_files", "files", "web")

    def tables(self) -> list[Any]:
        from ricordo.features.templates.tables import TABLES

        return [*TABLES]

    def jobs(self) -> list[Any]:
        from ricordo.features.templates.jobs import HANDLERS

        return [*HANDLERS]

    def routes(self) -> list[Any]:
        return [
            "ricordo.features.templates.routes",
            "ricordo.features.templates.pages",
        ]

    def pages(self) -> list[PluginPage]:
        return [PluginPage("Templates", "/ui/templates", ("agents:write",))]


plugin = TemplatesPlugin()
