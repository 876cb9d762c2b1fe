"""Servers that are added at the same time."""

import pytest

from ricordo.domain.ids import new_id
from ricordo.domain.scope import LOCAL_ORGANIZATION, Scope
from ricordo.errors import Conflict
from ricordo.features.mcp.client import queries
from ricordo.features.mcp.client.tables import McpServer
from ricordo.storage.engine.store import Store
from tests.seams.stores import overlapped

DATABASES = ("postgresql",)


async def test_only_so_many_servers_are_added_at_the_same_time(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "MOST_SERVERS", 1)

    def server(name: str) -> McpServer:
        return McpServer(new_id("mcp_server"), LOCAL_ORGANIZATION, name, "sse", {})

    _, second = await overlapped(
        store,
        lambda tx: queries.insert_one(tx, server("one")),
        lambda tx: queries.insert_one(tx, server("two")),
    )
    assert isinstance(second, Conflict)
    assert [one.name for one in await store.read(lambda tx: queries.every(tx, Scope()))] == ["one"]
