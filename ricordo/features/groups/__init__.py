"""Agents together: groups that talk in turn, agents that tidy memory while another sleeps, and tools by which agents ask each other."""

from typing import Any


class GroupsPlugin:
    """Adds groups to the API, runs sleeping agents after the turns of others, and offers tools between agents."""

    def tables(self) -> list[Any]:
        from ricordo.features.groups.queries import TABLES

        return [*TABLES]


plugin = GroupsPlugin()
