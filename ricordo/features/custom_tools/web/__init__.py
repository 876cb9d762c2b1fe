"""The tools `web_search` and `fetch_webpage`."""

from typing import Any


class WebToolsPlugin:
    """The two tools; an agent has them only if they were attached to it."""

    def tools(self) -> list[Any]:
        from ricordo.features.custom_tools.web.tools import fetch_webpage, web_search
        from ricordo.tools.toolbox import ServerTool

        traits: Any = {
            "acts_outside": True,
            "brings_untrusted": True,
            "runs_in_parallel": True,
            "is_read_only": True,
        }
        return [
            ServerTool(web_search, "letta_builtin", **traits),
            ServerTool(fetch_webpage, "letta_builtin", **traits),
        ]


plugin = WebToolsPlugin()
