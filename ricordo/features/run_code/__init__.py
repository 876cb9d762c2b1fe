"""The tools `run_code` and `run_code_with_tools`."""

from typing import Any


class RunCodePlugin:
    """Offers the two tools; an agent has them only where it was given them."""

    requires = ("custom_tools",)

    def tools(self) -> list[Any]:
        from ricordo.features.run_code.tools import run_code, run_code_with_tools
        from ricordo.tools.toolbox import ServerTool

        how: Any = {"acts_outside": True, "brings_untrusted": True}
        return [
            ServerTool(run_code, "letta_builtin", **how),
            ServerTool(run_code_with_tools, "letta_builtin", **how),
        ]


plugin = RunCodePlugin()
