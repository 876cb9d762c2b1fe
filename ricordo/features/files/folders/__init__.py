"""Folders of uploaded files, which are parsed, cut into chunks and searched.

Agents that have a folder attached open its files in their prompts.
"""

from typing import TYPE_CHECKING, Any

from ricordo.plugins import PluginPage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ricordo.domain.agent import Agent, AgentState
    from ricordo.domain.scope import Scope
    from ricordo.storage.engine.store import Transaction


class FilesPlugin:
    """Adds folders to the API, ingests uploads, and shows agents their open files."""

    def tables(self) -> list[Any]:
        from ricordo.features.files.folders.tables import TABLES

        return [*TABLES]

    def jobs(self) -> list[Any]:
        from ricordo.features.files.folders.ingestion import HANDLERS

        return [*HANDLERS]

    def routes(self) -> list[Any]:
        return [
            "ricordo.features.files.folders.routes",
            "ricordo.features.files.folders.folder_pages",
            "ricordo.features.files.folders.agent_routes",
        ]

    def pages(self) -> list[PluginPage]:
        return [PluginPage("Files", "/ui/files")]

    def tools(self) -> list[Any]:
        from ricordo.features.files.folders.tools import (
            grep_files,
            open_files,
            semantic_search_files,
        )
        from ricordo.tools.toolbox import ServerTool

        flags: Any = {"brings_untrusted": True, "runs_in_parallel": True, "is_read_only": True}
        return [
            ServerTool(open_files, "letta_files_core"),
            ServerTool(grep_files, "letta_files_core", **flags),
            ServerTool(semantic_search_files, "letta_files_core", **flags),
        ]

    def complete_agent(self, tx: "Transaction", state: "AgentState") -> "AgentState":
        """Add the files that the turn sees.

        An agent without folders costs no statement.
        """
        if not state.agent.settings.get("has_folders"):
            return state
        from ricordo.features.files.folders.windows import with_directories

        return with_directories(tx, state)

    def complete_agents(
        self, tx: "Transaction", states: "Sequence[AgentState]"
    ) -> "Sequence[AgentState]":
        """Add the files that each agent's turn sees, for many agents at once."""
        if not any(state.agent.settings.get("has_folders") for state in states):
            return states
        from ricordo.features.files.folders.windows import with_all_directories

        return with_all_directories(tx, states)

    def set_folders(
        self, tx: "Transaction", scope: "Scope", agent_id: str, folder_ids: "Sequence[str]"
    ) -> None:
        from ricordo.features.files.folders.service import set_folders

        set_folders(tx, scope, agent_id, folder_ids)

    def make_folder(self, tx: "Transaction", scope: "Scope", agent: "Agent") -> None:
        from ricordo.features.files.folders.service import make_folder_for

        make_folder_for(tx, scope, agent)


plugin = FilesPlugin()
