"""Formats: blocks as Markdown and TOML, their schemas, and a user's whole memory as a zip archive."""

from typing import Any

from ricordo.plugins import Commands


class FormatsPlugin:
    """Adds the formats of blocks, the routes of the export and of schemas, and `ricordo schema`."""

    def block_formats(self) -> list[Any]:
        from ricordo.features.formats.service import FORMATS

        return [*FORMATS]

    def routes(self) -> list[Any]:
        from ricordo.api.routing import LazyRouter

        return [
            LazyRouter("ricordo.features.formats.routes", ("/users/*/export",)),
            LazyRouter("ricordo.features.formats.schema_routes", ("/v1/schemas",)),
        ]

    def commands(self) -> list[Commands]:
        return [Commands("schema", "ricordo.features.formats.cli")]


plugin = FormatsPlugin()
