"""Formats: blocks as Markdown and TOML, and a user's whole memory as a zip archive."""

from typing import Any


class FormatsPlugin:
    """Adds the formats of blocks, and the route of the export."""

    def block_formats(self) -> list[Any]:
        from ricordo.features.formats.service import FORMATS

        return [*FORMATS]

    def routes(self) -> list[Any]:
        from ricordo.api.routing import LazyRouter

        return [LazyRouter("ricordo.features.formats.routes", ("/users/*/export",))]


plugin = FormatsPlugin()
