"""Agents together: groups that talk, agents that tidy memory while another sleeps, and tools by which agents ask each other."""

from typing import Any


class GroupsPlugin:
    """Adds groups to the API, runs sleeping agents after the turns of others, and offers tools between agents."""

    def tables(self) -> list[Any]:
        from ricordo.features.groups import tables
        from ricordo.features.groups.queries import TABLES

        return [*TABLES, *tables.TABLES]

    def routes(self) -> list[Any]:
        from ricordo.api.routing import LazyRouter

        talks = ("/v1/groups/*/messages", "/v1/groups/*/reset-messages")
        return [LazyRouter("ricordo.features.groups.talk_routes", talks)]

    def tools(self) -> list[Any]:
        from ricordo.features.groups.talk_tool import TOOL

        return [TOOL]

    def jobs(self) -> list[Any]:
        from ricordo.features.groups.talk_record import HANDLER

        return [HANDLER]


plugin = GroupsPlugin()
