"""Agents together: group talks, sleeping agents that tidy memory, and messages between agents."""

from typing import Any

from ricordo.plugins import Commands, PluginPage

REQUIRES = ("files", "web")


class GroupsPlugin:
    """Adds groups, sleeping agents, and tools between agents."""

    def tables(self) -> list[Any]:
        from ricordo.features.groups import document_queries, queries

        return [*queries.TABLES, *document_queries.TABLES]

    def tools(self) -> list[Any]:
        from ricordo.features.groups import agent_tools, talk_tool, voice_tools

        return [*agent_tools.TOOLS, talk_tool.TOOL, *voice_tools.VOICE_TOOLS]

    def routes(self) -> list[Any]:
        return [
            "ricordo.features.groups.talk_routes",
            "ricordo.features.groups.routes",
            "ricordo.features.groups.agent_routes",
            "ricordo.features.groups.sleep_routes",
            "ricordo.features.groups.pages",
            "ricordo.features.groups.sleep_pages",
        ]

    def pages(self) -> list[PluginPage]:
        return [
            PluginPage("Groups", "/ui/groups", ("agents:read",)),
            PluginPage("Sleeping agents", "/ui/sleeptime", ("memory:read",)),
        ]

    def jobs(self) -> list[Any]:
        from ricordo.features.groups import (
            agent_jobs,
            documents,
            sleeptime,
            talk_record,
            talk_resume,
        )

        return [
            *sleeptime.HANDLERS,
            talk_record.HANDLER,
            talk_resume.HANDLER,
            *agent_jobs.HANDLERS,
            *documents.HANDLERS,
        ]

    async def after_turn(self, runtime: Any, run: Any) -> None:
        """Resume a talk whose member's approval was answered outside of the group."""
        if "group_id" in run.metadata and "talk_id" not in run.metadata:
            from ricordo.features.groups.talk_record import is_answer_elsewhere
            from ricordo.features.groups.talk_resume import resume_talk

            if is_answer_elsewhere(run):
                await resume_talk(runtime, run)

    def commands(self) -> list[Commands]:
        return [Commands("group", "ricordo.features.groups.cli")]

    def agent_followers(self) -> list[Any]:
        from ricordo.features.groups.pairs import PairFollower

        return [PairFollower()]


plugin = GroupsPlugin()
