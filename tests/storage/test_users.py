"""Users in storage: found by id or identifier, made once, and known to nobody outside of their organization."""

import asyncio

import pytest

from ricordo.domain.ids import is_id
from ricordo.domain.scope import LOCAL_USER, Scope
from ricordo.errors import Invalid, NotFound
from ricordo.storage import users
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.schema.core_tables import organizations
from ricordo.storage.schema.core_tables import users as table
from tests.seams.stores import overlapped

ELSEWHERE = Scope(organization_id="org-2")


async def test_a_user_is_found_by_id_and_by_identifier(store: SqliteStore, scope: Scope) -> None:
    made = await store.write(lambda tx: users.find_or_make(tx, scope, "ada@example.org"))
    assert (is_id(made.id, "user"), made.identifier, made.name) == (True, "ada@example.org", "ada@example.org")
    for name in (made.id, "ada@example.org"):
        assert await store.read(lambda tx, name=name: users.find(tx, scope, name)) == made  # type: ignore[misc]
        assert await store.write(lambda tx, name=name: users.find_or_make(tx, scope, name)) == made  # type: ignore[misc]
    assert await store.read(lambda tx: users.find(tx, scope, "Ada@example.org")) is None
    assert await store.read(lambda tx: users.require(tx, scope, LOCAL_USER).id) == LOCAL_USER


async def test_an_id_stands_above_an_identifier(store: SqliteStore, scope: Scope) -> None:
    ada = await store.write(lambda tx: users.find_or_make(tx, scope, "ada"))
    row = {"id": "user-x", "organization_id": scope.organization_id, "name": "x", "identifier": ada.id, "created_at": 1}
    await store.write(lambda tx: tx.run(table.insert(), row))
    assert await store.read(lambda tx: users.find(tx, scope, ada.id)) == ada


async def test_organisations_have_users_of_their_own(store: SqliteStore, scope: Scope) -> None:
    row = {"id": "org-2", "name": "Elsewhere", "created_at": 1}
    await store.write(lambda tx: tx.run(organizations.insert(), row))
    ada = await store.write(lambda tx: users.find_or_make(tx, scope, "ada"))
    assert await store.read(lambda tx: users.find(tx, ELSEWHERE, "ada")) is None
    other = await store.write(lambda tx: users.find_or_make(tx, ELSEWHERE, "ada"))
    assert (other.identifier, other.id != ada.id) == ("ada", True)
    with pytest.raises(NotFound, match='no user "user-'):
        await store.read(lambda tx: users.require(tx, ELSEWHERE, ada.id))


async def test_who_acts_for_one_user_knows_of_no_other_and_makes_none(store: SqliteStore, scope: Scope) -> None:
    ada = await store.write(lambda tx: users.find_or_make(tx, scope, "ada"))
    await store.write(lambda tx: users.find_or_make(tx, scope, "bob"))
    narrowed = Scope(subject_id=ada.id)
    assert await store.read(lambda tx: users.find(tx, narrowed, "ada")) == ada
    assert await store.read(lambda tx: users.find(tx, narrowed, "bob")) is None
    for name in ("bob", "carl"):
        with pytest.raises(NotFound):
            await store.write(lambda tx, name=name: users.find_or_make(tx, narrowed, name))  # type: ignore[misc]
    assert await store.read(lambda tx: users.find(tx, scope, "carl")) is None


async def test_a_name_that_would_break_an_address_or_a_commit_is_refused_and_an_id_that_is_nobodys(
    store: SqliteStore, scope: Scope
) -> None:
    for name in ("", " ada", "ada ", "a/b", "a\\b", ".", "..", "a\nb", "a\0b", "<ada>", "x" * 256):
        with pytest.raises(Invalid, match="cannot be called"):
            await store.write(lambda tx, name=name: users.find_or_make(tx, scope, name))  # type: ignore[misc]
    with pytest.raises(NotFound, match="Check the name"):
        await store.write(lambda tx: users.find_or_make(tx, scope, "user-00000000-0000-4000-8000-00000000000a"))


async def test_two_that_make_one_user_at_once_make_her_once(store: SqliteStore, scope: Scope) -> None:
    one, two = await overlapped(
        store, lambda tx: users.find_or_make(tx, scope, "ada"), lambda tx: users.find_or_make(tx, scope, "ada")
    )
    assert one == two
    made = await asyncio.gather(*(store.write(lambda tx: users.find_or_make(tx, scope, "bob")) for _ in range(8)))
    assert len({user.id for user in made}) == 1
    assert len(await store.read(lambda tx: tx.all(table.select()))) == 3
