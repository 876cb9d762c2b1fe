"""Tools made from source code, which agents call and the sandbox runs."""

from typing import TYPE_CHECKING, Any

from ricordo.plugins import PluginPage

if TYPE_CHECKING:
    from ricordo.settings import Settings


class CustomToolsPlugin:
    """Routes to create and try tools, and the runner of their calls."""

    requires = ("sandbox", "web")

    def routes(self) -> list[Any]:
        from ricordo.api.routing import LazyRouter

        return [
            LazyRouter(
                "ricordo.features.custom_tools.routes", ("/v1/tools", "/v1/agents/*/tools/*/run")
            ),
            LazyRouter("ricordo.features.custom_tools.variable_routes", ("/v1/sandbox-config",)),
            LazyRouter("ricordo.features.custom_tools.tool_pages", ("/ui/tools",)),
        ]

    def tables(self) -> list[Any]:
        from ricordo.features.custom_tools.queries import tool_variables

        return [tool_variables]

    def jobs(self) -> list[Any]:
        from ricordo.features.custom_tools.environments import HANDLER

        return [HANDLER]

    def pages(self) -> list[PluginPage]:
        return [PluginPage("Tools", "/ui/tools")]

    def tool_runners(self, settings: "Settings") -> list[Any]:
        from ricordo.features.custom_tools.runner import CustomTools

        return [CustomTools(settings)]


plugin = CustomToolsPlugin()
