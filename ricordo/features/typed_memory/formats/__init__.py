"""Block formats (Markdown, TOML), block schemas, and exports of a memory."""

from typing import Any

from ricordo.plugins import Commands


class FormatsPlugin:
    """Adds block formats, the routes of exports and schemas, and `ricordo schema`."""

    def block_formats(self) -> list[Any]:
        from ricordo.features.typed_memory.formats.service import FORMATS

        return [*FORMATS]

    def routes(self) -> list[Any]:
        return [
            "ricordo.features.typed_memory.formats.routes",
            "ricordo.features.typed_memory.formats.schema_routes",
        ]

    def commands(self) -> list[Commands]:
        return [Commands("schema", "ricordo.features.typed_memory.formats.cli")]


plugin = FormatsPlugin()
