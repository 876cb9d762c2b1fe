"""Block formats (Markdown, TOML), block schemas, and exports of a memory."""

from typing import Any

from ricordo.plugins import Commands


class FormatsPlugin:
    """Adds block formats, the routes of exports and schemas, and `ricordo schema`."""

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
