"""Templates: numbered versions of an agent's settings, prompt, tools and memory.

Agents are created from a version, and can be brought to newer ones.
"""

from typing import Any

from ricordo.plugins import PluginPage


class TemplatesPlugin:
    """Adds templates to the API, a page for them, and the migration job."""

    def tables(self) -> list[Any]:
        from ricordo.features.documents.templates.tables import TABLES

        return [*TABLES]

    def jobs(self) -> list[Any]:
        from ricordo.features.documents.templates.jobs import HANDLERS

        return [*HANDLERS]

    def routes(self) -> list[Any]:
        return [
            "ricordo.features.documents.templates.routes",
            "ricordo.features.documents.templates.pages",
        ]

    def pages(self) -> list[PluginPage]:
        return [PluginPage("Templates", "/ui/templates", ("agents:write",))]


plugin = TemplatesPlugin()
