"""Tools made from source code, which agents call and the sandbox runs."""

from typing import TYPE_CHECKING, Any

from ricordo.plugins import PluginPage

if TYPE_CHECKING:
    from ricordo.settings import Settings


class CustomToolsPlugin:
    """Routes to create and try tools, and the runner of their calls."""

    def routes(self) -> list[Any]:
        return [
            "ricordo.features.custom_tools.source.routes",
            "ricordo.features.custom_tools.source.variable_routes",
            "ricordo.features.custom_tools.source.tool_pages",
        ]

    def tables(self) -> list[Any]:
        from ricordo.features.custom_tools.source.queries import tool_variables

        return [tool_variables]

    def jobs(self) -> list[Any]:
        from ricordo.features.custom_tools.source.environments import HANDLER

        return [HANDLER]

    def pages(self) -> list[PluginPage]:
        return [PluginPage("Tools", "/ui/tools")]

    def tool_runners(self, settings: "Settings", _sandbox: Any) -> list[Any]:
        from ricordo.features.custom_tools.source.runner import CustomTools

        return [CustomTools(settings)]


plugin = CustomToolsPlugin()
