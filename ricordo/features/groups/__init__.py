"""Agents together: groups that talk, agents that tidy memory while another sleeps, and tools by which agents ask each other."""

from typing import Any


class GroupsPlugin:
    """Adds groups to the API, runs sleeping agents after the turns of others, and offers tools between agents."""

    def tools(self) -> list[Any]:
        from ricordo.features.groups.voice_tools import VOICE_TOOLS

        return [*VOICE_TOOLS]

    def tables(self) -> list[Any]:
        from ricordo.features.groups.queries import TABLES

        return [*TABLES]

    def routes(self) -> list[Any]:
        from ricordo.api.routing import LazyRouter

        return [
            LazyRouter("ricordo.features.groups.routes", ("/v1/groups",)),
            LazyRouter("ricordo.features.groups.agent_routes", ("/v1/agents/*/groups",)),
        ]

    def jobs(self) -> list[Any]:
        from ricordo.features.groups.sleeptime import HANDLERS

        return [*HANDLERS]

    def agent_followers(self) -> list[Any]:
        from ricordo.features.groups.pairs import PairFollower

        return [PairFollower()]


plugin = GroupsPlugin()
