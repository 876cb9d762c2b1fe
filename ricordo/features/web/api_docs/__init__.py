"""Pages of the API at `/docs`, made from the OpenAPI document.

They load nothing from other servers.
"""

from typing import Any


class ApiDocsPlugin:
    """The routes of the pages."""

    def routes(self) -> list[Any]:
        return ["ricordo.features.web.api_docs.pages"]


plugin = ApiDocsPlugin()
