"""Limits of an organization hold for requests at the same time."""

import pytest

from ricordo.domain.scope import LOCAL_ORGANIZATION, Scope
from ricordo.errors import Invalid
from ricordo.features.custom_tools.source import queries
from ricordo.features.custom_tools.source.queries import Variable
from ricordo.storage.engine.store import Store
from tests.seams.stores import overlapped

DATABASES = ("postgresql",)


async def test_only_so_many_variables_are_created_at_the_same_time(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "MOST", 1)

    def variable(name: str) -> Variable:
        return Variable("", LOCAL_ORGANIZATION, name, "sealed")

    _, second = await overlapped(
        store,
        lambda tx: queries.create(tx, Scope(), variable("ONE")),
        lambda tx: queries.create(tx, Scope(), variable("TWO")),
    )
    assert isinstance(second, Invalid)
    stored = await store.read(lambda tx: queries.of_organization(tx, Scope()))
    assert [one.name for one in stored] == ["ONE"]
