"""Servers that are added or read at the same time."""

from typing import Any

import pytest

from ricordo.domain.ids import new_id
from ricordo.domain.scope import LOCAL_ORGANIZATION, Scope
from ricordo.errors import Conflict
from ricordo.features.mcp.client import queries, service
from ricordo.features.mcp.client.listed_tools import ListedTool
from ricordo.features.mcp.client.tables import McpServer
from ricordo.storage.engine.store import Store, Transaction
from tests.seams.stores import overlapped

DATABASES = ("postgresql",)


async def test_two_readings_of_a_server_store_its_tools_once(store: Store) -> None:
    server = McpServer(new_id("mcp_server"), LOCAL_ORGANIZATION, "one", "sse", {})
    await store.write(lambda tx: queries.insert_one(tx, server))
    listed = [ListedTool("greet", "Greet.", {"type": "object", "properties": {}}, ())]

    def read(tx: Transaction) -> Any:
        return service.save(tx, Scope(), server.id, listed, {}, adds=True)

    first, second = await overlapped(store, read, read)
    assert (first["added"], second["added"]) == (["greet"], [])
    stored = await store.read(lambda tx: queries.tools_of(tx, server.id))
    assert [tool.name for _, tool in stored] == ["greet"]


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
