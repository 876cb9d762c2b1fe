"""Providers of an organization: kept encrypted, found by their organization alone."""

from typing import Any

import pytest

from ricordo.domain.ids import new_id
from ricordo.domain.model import OrganizationProvider
from ricordo.domain.scope import LOCAL_ORGANIZATION, Scope
from ricordo.errors import NotFound
from ricordo.storage import providers
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.engine.store import Transaction
from tests.seams.stores import START

STRANGER = Scope(organization_id="org-00000000-0000-4000-8000-00000000000b")


def provider(name: str = "mine", **fields: Any) -> OrganizationProvider:
    given: dict[str, Any] = {"provider_type": "openai", "created_at": START, "updated_at": START, **fields}
    return OrganizationProvider(id=new_id("provider"), organization_id=LOCAL_ORGANIZATION, name=name, **given)


async def put(store: SqliteStore, *rows: OrganizationProvider) -> None:
    def insert(tx: Transaction) -> None:
        for row in rows:
            providers.insert_one(tx, row)

    await store.write(insert)


async def test_a_provider_reads_back_as_it_was_written(store: SqliteStore, scope: Scope) -> None:
    whole = provider(
        base_url="https://a.example/v1",
        secret="sealed",
        region="eu-west-1",
        api_version="2024-10-21",
        last_synced=START + 5,
        created_by="user-1",
        updated_by="user-2",
    )
    bare = provider("bare")
    await put(store, whole, bare)
    assert await store.read(lambda tx: providers.get(tx, scope, whole.id)) == whole
    assert await store.read(lambda tx: providers.of_organization(tx, LOCAL_ORGANIZATION)) == (whole, bare)


async def test_another_organisation_sees_changes_and_deletes_nothing(store: SqliteStore, scope: Scope) -> None:
    mine = provider(secret="sealed")
    await store.write(lambda tx: providers.insert_one(tx, mine))
    assert await store.read(lambda tx: providers.of_organization(tx, STRANGER.organization_id)) == ()
    assert await store.read(lambda tx: providers.page(tx, STRANGER, Page())) == []
    with pytest.raises(NotFound):
        await store.read(lambda tx: providers.get(tx, STRANGER, mine.id))
    with pytest.raises(NotFound):
        await store.write(lambda tx: providers.delete_one(tx, STRANGER, mine.id))
    assert await store.read(lambda tx: providers.get(tx, scope, mine.id)) == mine


def test_no_key_is_shown_where_a_provider_is_printed() -> None:
    assert "sealed" not in repr(provider(secret="sealed"))
