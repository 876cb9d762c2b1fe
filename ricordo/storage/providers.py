"""Providers that organizations brought with keys of their own. Keys come here encrypted, and leave encrypted."""

from typing import Any

from sqlalchemy import Row, bindparam, delete, insert, select

from ricordo.domain.model import OrganizationProvider
from ricordo.domain.scope import Scope
from ricordo.errors import Collision
from ricordo.storage.engine.repository import equal, found, names_of, new_values, setter, values_of
from ricordo.storage.engine.store import Transaction
from ricordo.storage.paging import Page, read_page
from ricordo.storage.schema.core_tables import providers

_SETTINGS = ("region", "api_version", "last_synced")
_PLAIN = names_of(providers, "settings")
_BY_ID = select(providers).where(equal(providers, "id", "organization_id"))
_BY_NAME = select(providers.c.id).where(equal(providers, "name", "organization_id"))
_ALL = select(providers).where(equal(providers, "organization_id")).order_by(providers.c.created_at, providers.c.seq)
_INSERT = insert(providers)
_CHANGED = ("base_url", "secret", "settings", "updated_by", "updated_at")
_UPDATE = setter(providers, *_CHANGED, where=providers.c.id == bindparam("provider_id"))
_DELETE = delete(providers).where(equal(providers, "id"))


def insert_one(tx: Transaction, provider: OrganizationProvider) -> None:
    """Store a new provider; raises Collision where the organization has one of this name."""
    if tx.first(_BY_NAME, {"name": provider.name, "organization_id": provider.organization_id}) is not None:
        raise Collision(f'There is a provider "{provider.name}" already. Change that one, or choose another name.')
    tx.run(_INSERT, _values(provider))


def get(tx: Transaction, scope: Scope, provider_id: str) -> OrganizationProvider:
    row = tx.first(_BY_ID, {"id": provider_id, "organization_id": scope.organization_id})
    return _provider(found(row, "Provider", provider_id))


def page(
    tx: Transaction, scope: Scope, wanted: Page, *, name: str | None = None, provider_type: str | None = None
) -> list[OrganizationProvider]:
    """Return one page of the organization's providers; those with this very name, or of this type."""
    statement = select(providers).where(providers.c.organization_id == scope.organization_id)
    for column, value in ((providers.c.name, name), (providers.c.provider_type, provider_type)):
        if value is not None:
            statement = statement.where(column == value)
    return [_provider(row) for row in read_page(tx, statement, providers, wanted)]


def of_organization(tx: Transaction, organization_id: str) -> tuple[OrganizationProvider, ...]:
    return tuple(_provider(row) for row in tx.all(_ALL, {"organization_id": organization_id}))


def update(tx: Transaction, provider: OrganizationProvider) -> None:
    values = _values(provider)
    tx.run(_UPDATE, {**new_values({name: values[name] for name in _CHANGED}), "provider_id": provider.id})


def delete_one(tx: Transaction, scope: Scope, provider_id: str) -> None:
    get(tx, scope, provider_id)
    tx.run(_DELETE, {"id": provider_id})


def _values(provider: OrganizationProvider) -> dict[str, Any]:
    settings = {name: value for name in _SETTINGS if (value := getattr(provider, name)) is not None}
    return values_of(provider, _PLAIN) | {"settings": settings}


def _provider(row: Row[Any]) -> OrganizationProvider:
    return OrganizationProvider(**values_of(row, _PLAIN), **{name: row.settings.get(name) for name in _SETTINGS})
