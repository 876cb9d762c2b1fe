"""Formats: blocks as Markdown and TOML, their schemas, and a user's whole memory as a zip archive."""

from typing import Any

from ricordo.plugins import Commands


class FormatsPlugin:
    """Adds the formats of blocks, the routes of the export and of schemas, and `ricordo schema`."""

    def block_formats(self) -> list[Any]:
        from ricordo.features.formats.service import FORMATS

        return [*FORMATS]

    def routes(self) -> list[Any]:
        return [
            "ricordo.features.formats.routes",
            "ricordo.features.formats.schema_routes",
        ]

    def commands(self) -> list[Commands]:
        return [Commands("schema", "ricordo.features.formats.cli")]


plugin = FormatsPlugin()
