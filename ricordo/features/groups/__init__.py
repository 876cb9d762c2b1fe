"""Agents together: groups that talk in turn, agents that tidy memory while another sleeps, tools by which agents ask each other."""

from typing import Any


class GroupsPlugin:
    """Adds groups to the API, runs sleeping agents after the turns of others, and offers tools between agents."""

    def tables(self) -> list[Any]:
        from ricordo.features.groups.queries import TABLES

        return [*TABLES]

    def tools(self) -> list[Any]:
        from ricordo.features.groups.agent_tools import TOOLS

        return [*TOOLS]

    def jobs(self) -> list[Any]:
        from ricordo.features.groups.agent_jobs import HANDLERS

        return [*HANDLERS]


plugin = GroupsPlugin()
