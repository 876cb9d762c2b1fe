"""Tools in storage."""

from dataclasses import replace

import pytest

from ricordo.domain.scope import Scope
from ricordo.errors import NotFound
from ricordo.storage import tools
from ricordo.storage.engine.sqlite import SqliteStore
from tests.seams import make

ELSEWHERE = Scope(organization_id="org-2")


async def test_a_tool_reads_back_as_it_was_written_and_as_it_was_changed(store: SqliteStore, scope: Scope) -> None:
    tool = make.tool(
        source_type="python",
        source_code="def roll_dice():\n    return 6\n",
        return_limit=99,
        needs_approval=True,
        runs_in_parallel=True,
        tags=("b", "a"),
        metadata={"x": [1]},
        created_by="user-1",
    )
    other = make.tool("other")
    await store.write(lambda tx: tools.insert_all(tx, [tool, other]))
    assert await store.read(lambda tx: tools.get(tx, scope, tool.id)) == tool
    changed = replace(tool, description="Throws.", needs_approval=False, tags=(), updated_by="user-2", updated_at=9)
    await store.write(lambda tx: tools.update(tx, changed))
    assert await store.read(lambda tx: tools.by_ids(tx, scope, [other.id, tool.id])) == [other, changed]


async def test_tools_are_found_by_name_and_only_in_their_organization(store: SqliteStore, scope: Scope) -> None:
    one, two = make.tool("one"), make.tool("two")
    await store.write(lambda tx: tools.insert_all(tx, [one, two]))
    found = await store.read(lambda tx: tools.by_names(tx, scope, ["two", "three"]))
    assert found == {"two": two}
    assert await store.read(lambda tx: tools.by_names(tx, ELSEWHERE, ["two"])) == {}
    with pytest.raises(NotFound, match=f"Tool with ID {one.id} not found"):
        await store.read(lambda tx: tools.get(tx, ELSEWHERE, one.id))
