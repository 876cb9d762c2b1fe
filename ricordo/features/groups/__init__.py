"""Agents together: groups that talk, agents that tidy memory while another sleeps, and tools by which agents ask each other."""

from typing import Any


class GroupsPlugin:
    """Adds groups to the API, runs sleeping agents after the turns of others, and offers tools between agents."""

    def tables(self) -> list[Any]:
        from ricordo.features.groups import tables
        from ricordo.features.groups.queries import TABLES

        return [*TABLES, *tables.TABLES]

    def tools(self) -> list[Any]:
        from ricordo.features.groups import agent_tools, talk_tool

        return [*agent_tools.TOOLS, talk_tool.TOOL]

    def routes(self) -> list[Any]:
        from ricordo.api.routing import LazyRouter

        talks = ("/v1/groups/*/messages", "/v1/groups/*/reset-messages")
        return [
            LazyRouter("ricordo.features.groups.talk_routes", talks),
            LazyRouter("ricordo.features.groups.routes", ("/v1/groups",)),
            LazyRouter("ricordo.features.groups.agent_routes", ("/v1/agents/*/groups",)),
        ]

    def jobs(self) -> list[Any]:
        from ricordo.features.groups import agent_jobs, sleeptime, talk_record

        return [*sleeptime.HANDLERS, talk_record.HANDLER, *agent_jobs.HANDLERS]

    def agent_followers(self) -> list[Any]:
        from ricordo.features.groups.pairs import PairFollower

        return [PairFollower()]


plugin = GroupsPlugin()
