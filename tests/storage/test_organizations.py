"""Data of an organization: its tools, its users and its providers."""

import asyncio
from dataclasses import replace

import pytest

from ricordo.domain.ids import is_id, new_id
from ricordo.domain.model import OrganizationProvider
from ricordo.domain.scope import LOCAL_ORGANIZATION, LOCAL_USER, Scope
from ricordo.errors import Invalid, NotFound
from ricordo.storage import providers, tools, users
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import organizations
from ricordo.storage.schema.core_tables import users as table
from tests.seams import make
from tests.seams.stores import START, overlapped

ELSEWHERE = Scope(organization_id="org-2")


async def test_a_tool_reads_back_as_it_was_written_and_updated(
    store: SqliteStore, scope: Scope
) -> None:
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
    changed = replace(
        tool,
        description="Throws.",
        needs_approval=False,
        tags=(),
        updated_by="user-2",
        updated_at=9,
    )

    def change(tx: Transaction) -> None:
        tools.lock(tx, scope)
        tools.update(tx, changed)

    await store.write(change)
    assert await store.read(lambda tx: tools.by_ids(tx, scope, [other.id, tool.id])) == [
        other,
        changed,
    ]


async def test_tools_are_found_by_name_and_only_in_their_organization(
    store: SqliteStore, scope: Scope
) -> None:
    one, two = make.tool("one"), make.tool("two")
    await store.write(lambda tx: tools.insert_all(tx, [one, two]))
    found = await store.read(lambda tx: tools.by_names(tx, scope, ["two", "three"]))
    assert found == {"two": two}
    assert await store.read(lambda tx: tools.by_names(tx, ELSEWHERE, ["two"])) == {}
    with pytest.raises(NotFound, match=f"Tool with ID {one.id} not found"):
        await store.read(lambda tx: tools.get(tx, ELSEWHERE, one.id))


async def test_a_user_is_found_by_id_or_identifier_and_the_id_has_precedence(
    store: SqliteStore, scope: Scope
) -> None:
    made = await store.write(lambda tx: users.find_or_make(tx, scope, "ada@example.org"))
    assert (is_id(made.id, "user"), made.identifier, made.name) == (
        True,
        "ada@example.org",
        "ada@example.org",
    )
    for name in (made.id, "ada@example.org"):
        assert await store.read(lambda tx, name=name: users.find(tx, scope, name)) == made  # type: ignore[misc]
        assert await store.write(lambda tx, name=name: users.find_or_make(tx, scope, name)) == made  # type: ignore[misc]
    assert await store.read(lambda tx: users.find(tx, scope, "Ada@example.org")) is None
    assert await store.read(lambda tx: users.require(tx, scope, LOCAL_USER).id) == LOCAL_USER
    row = {
        "id": "user-x",
        "organization_id": scope.organization_id,
        "name": "x",
        "identifier": made.id,
        "created_at": 1,
    }
    await store.write(lambda tx: tx.run(table.insert(), row))
    assert await store.read(lambda tx: users.find(tx, scope, made.id)) == made


async def test_every_organization_has_separate_users(store: SqliteStore, scope: Scope) -> None:
    row = {"id": "org-2", "name": "Elsewhere", "created_at": 1}
    await store.write(lambda tx: tx.run(organizations.insert(), row))
    ada = await store.write(lambda tx: users.find_or_make(tx, scope, "ada"))
    assert await store.read(lambda tx: users.find(tx, ELSEWHERE, "ada")) is None
    other = await store.write(lambda tx: users.find_or_make(tx, ELSEWHERE, "ada"))
    assert (other.identifier, other.id != ada.id) == ("ada", True)
    with pytest.raises(NotFound, match='no user "user-'):
        await store.read(lambda tx: users.require(tx, ELSEWHERE, ada.id))


async def test_a_caller_for_one_user_can_neither_find_nor_create_others(
    store: SqliteStore, scope: Scope
) -> None:
    ada = await store.write(lambda tx: users.find_or_make(tx, scope, "ada"))
    await store.write(lambda tx: users.find_or_make(tx, scope, "bob"))
    narrowed = Scope(subject_id=ada.id)
    assert await store.read(lambda tx: users.find(tx, narrowed, "ada")) == ada
    assert await store.read(lambda tx: users.find(tx, narrowed, "bob")) is None
    for name in ("bob", "carl"):
        with pytest.raises(NotFound):
            await store.write(lambda tx, name=name: users.find_or_make(tx, narrowed, name))  # type: ignore[misc]
    assert await store.read(lambda tx: users.find(tx, scope, "carl")) is None


async def test_an_invalid_user_name_or_unknown_user_id_is_refused(
    store: SqliteStore, scope: Scope
) -> None:
    for name in ("", " ada", "ada ", "a/b", "a\\b", ".", "..", "a\nb", "a\0b", "<ada>", "x" * 256):
        with pytest.raises(Invalid, match="cannot be called"):
            await store.write(lambda tx, name=name: users.find_or_make(tx, scope, name))  # type: ignore[misc]
    with pytest.raises(NotFound, match="Check the name"):
        await store.write(
            lambda tx: users.find_or_make(tx, scope, "user-00000000-0000-4000-8000-00000000000a")
        )


async def test_two_concurrent_creations_of_a_user_create_one(
    store: SqliteStore, scope: Scope
) -> None:
    one, two = await overlapped(
        store,
        lambda tx: users.find_or_make(tx, scope, "ada"),
        lambda tx: users.find_or_make(tx, scope, "ada"),
    )
    assert one == two
    made = await asyncio.gather(
        *(store.write(lambda tx: users.find_or_make(tx, scope, "bob")) for _ in range(8))
    )
    assert len({user.id for user in made}) == 1
    assert len(await store.read(lambda tx: tx.all(table.select()))) == 3


async def test_a_provider_reads_back_only_in_its_organization_and_prints_no_key(
    store: SqliteStore, scope: Scope
) -> None:
    mine, bare = [
        OrganizationProvider(
            id=new_id("provider"),
            organization_id=LOCAL_ORGANIZATION,
            name=name,
            provider_type="openai",
            created_at=START,
            updated_at=START,
            **fields,
        )
        for name, fields in (
            (
                "mine",
                {"base_url": "https://a.example/v1", "secret": "sealed", "region": "eu-west-1"},
            ),
            (
                "bare",
                {
                    "api_version": "2024-10-21",
                    "last_synced": START + 5,
                    "created_by": "user-1",
                    "updated_by": "user-2",
                },
            ),
        )
    ]
    assert "sealed" not in repr(mine)
    await store.write(lambda tx: [providers.insert_one(tx, one) for one in (mine, bare)])
    assert await store.read(lambda tx: providers.of_organization(tx, LOCAL_ORGANIZATION)) == (
        mine,
        bare,
    )
    assert (
        await store.read(lambda tx: providers.of_organization(tx, ELSEWHERE.organization_id)) == ()
    )
    assert await store.read(lambda tx: providers.page(tx, ELSEWHERE, Page())) == []
    for reach in (providers.get, providers.delete_one):
        with pytest.raises(NotFound):
            await store.write(lambda tx, reach=reach: reach(tx, ELSEWHERE, mine.id))  # type: ignore[misc]
    assert await store.read(lambda tx: providers.get(tx, scope, mine.id)) == mine
