"""Workspaces: files of a user that agents read, write and run commands on.

Agents get the text of a workspace's CLAUDE.md in their prompts.
"""

from typing import TYPE_CHECKING, Any

from ricordo.plugins import PluginPage

if TYPE_CHECKING:
    from ricordo.domain.agent import AgentState
    from ricordo.storage.engine.store import Transaction

# The names of the tools, for features that give them to agents.
TOOLS = (
    "list_workspace",
    "search_workspace",
    "read_workspace_file",
    "write_workspace_file",
    "edit_workspace_file",
    "run_in_workspace",
)


class WorkspacesPlugin:
    """Adds workspace files to the API, the tools, and a page."""

    def tables(self) -> list[Any]:
        from ricordo.features.files.workspaces.queries import workspace_files

        return [workspace_files]

    def routes(self) -> list[Any]:
        return [
            "ricordo.features.files.workspaces.routes",
            "ricordo.features.files.workspaces.pages",
        ]

    def tools(self) -> list[Any]:
        from ricordo.features.files.workspaces import tools
        from ricordo.tools.toolbox import ServerTool

        reads: Any = {"brings_untrusted": True, "runs_in_parallel": True, "is_read_only": True}
        return [
            ServerTool(tools.list_workspace, "letta_builtin", **reads),
            ServerTool(tools.search_workspace, "letta_builtin", **reads),
            ServerTool(tools.read_workspace_file, "letta_builtin", **reads),
            ServerTool(tools.write_workspace_file, "letta_builtin", acts_outside=True),
            ServerTool(tools.edit_workspace_file, "letta_builtin", acts_outside=True),
            ServerTool(
                tools.run_in_workspace, "letta_builtin", acts_outside=True, brings_untrusted=True
            ),
        ]

    def complete_agent(self, tx: "Transaction", state: "AgentState") -> "AgentState":
        """Add the text of the workspace's CLAUDE.md to the state.

        An agent without workspace tools costs no statement.
        """
        if not any(tool.name in TOOLS for tool in state.tools):
            return state
        from ricordo.features.files.workspaces.service import with_instructions

        return with_instructions(tx, state)

    def pages(self) -> list[PluginPage]:
        return [PluginPage("Workspace", "/ui/workspace")]


plugin = WorkspacesPlugin()
