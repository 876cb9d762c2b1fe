"""Pages of the API at `/docs`, made of the OpenAPI document, which load nothing from anywhere else."""

from typing import Any


class ApiDocsPlugin:
    """Adds the pages."""

    requires = ("web",)

    def routes(self) -> list[Any]:
        return ["ricordo.features.api_docs.pages"]


plugin = ApiDocsPlugin()
