"""The stored tools follow what the server can run."""

from ricordo.domain.scope import Scope
from ricordo.domain.tool import Tool
from ricordo.storage import tools
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.tools.builtin import plugin
from ricordo.tools.catalogue import sync_tools
from ricordo.tools.toolbox import ServerTool, Toolbox, ToolContext, schema_of
from tests.seams import make

SCOPE = Scope()


def roll(context: ToolContext, sides: int = 6) -> int:
    """Roll a die."""
    return sides


async def sync(store: SqliteStore, *offered: ServerTool) -> dict[str, Tool]:
    await store.write(lambda tx: sync_tools(tx, SCOPE, Toolbox(offered)))
    names = [*(tool.name for tool in offered), "roll", "by_hand"]
    return await store.read(lambda tx: tools.by_names(tx, SCOPE, names))


async def test_every_tool_of_the_toolbox_is_stored_as_models_see_it(store: SqliteStore) -> None:
    offered = plugin.tools()
    stored = await sync(store, *offered)
    assert set(stored) == {tool.name for tool in offered}
    for tool in offered:
        one = stored[tool.name]
        assert schema_of(one) == tool.schema
        assert one.json_schema["name"] == tool.name
        assert (one.tool_type, one.runs_in_parallel) == (tool.tool_type, tool.runs_in_parallel)


async def test_a_second_start_changes_nothing(store: SqliteStore) -> None:
    first = await sync(store, *plugin.tools())
    assert await sync(store, *plugin.tools()) == first


async def test_a_changed_tool_keeps_its_id_and_what_people_set(store: SqliteStore) -> None:
    before = (await sync(store, ServerTool(roll, "custom")))["roll"]
    people = make.tool("roll", id=before.id, return_limit=99, needs_approval=True, json_schema=before.json_schema)
    await store.write(lambda tx: tools.update(tx, people))
    after = (await sync(store, ServerTool(roll, "letta_core", runs_in_parallel=True)))["roll"]
    assert (after.id, after.created_at) == (before.id, before.created_at)
    assert (after.tool_type, after.runs_in_parallel, after.description) == ("letta_core", True, "Roll a die.")
    assert (after.return_limit, after.needs_approval) == (99, True)


async def test_a_tool_that_is_not_the_servers_is_left_alone(store: SqliteStore) -> None:
    by_hand = make.tool("by_hand")
    await store.write(lambda tx: tools.insert_all(tx, [by_hand]))
    assert (await sync(store, *plugin.tools()))["by_hand"] == by_hand
