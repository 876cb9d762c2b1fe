"""Pages of the API at `/docs`, made from the OpenAPI document.

They load nothing from other servers.
"""

from typing import Any


class ApiDocsPlugin:
    """The routes of the pages."""

    requires = ("web",)

    def routes(self) -> list[Any]:
        return ["ricordo.features.api_docs.pages"]


plugin = ApiDocsPlugin()
