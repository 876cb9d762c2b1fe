"""The tools `run_code` and `run_code_with_tools`."""

from typing import Any


class RunCodePlugin:
    """The two tools; an agent has them only if they were attached to it."""

    def tools(self) -> list[Any]:
        from ricordo.features.custom_tools.run_code.tools import run_code, run_code_with_tools
        from ricordo.tools.toolbox import ServerTool

        traits: Any = {"acts_outside": True, "brings_untrusted": True}
        return [
            ServerTool(run_code, "letta_builtin", **traits),
            ServerTool(run_code_with_tools, "letta_builtin", **traits),
        ]


plugin = RunCodePlugin()
