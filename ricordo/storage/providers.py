"""Providers that organisations brought with keys of their own. Keys come here encrypted, and leave encrypted."""

from typing import Any

from sqlalchemy import Row, bindparam, delete, insert, select

from ricordo.domain.model import OrganizationProvider
from ricordo.domain.scope import Scope
from ricordo.errors import Collision
from ricordo.storage.paging import Page, read_page
from ricordo.storage.repository import found, new_values, setter
from ricordo.storage.store import Transaction
from ricordo.storage.tables import providers

_SETTINGS = ("region", "api_version", "last_synced")
_PLAIN = ("id", "organization_id", "name", "provider_type", "base_url", "secret", "created_at", "updated_at")
_AUTHORS = ("created_by", "updated_by")
_MINE = providers.c.organization_id == bindparam("organization_id")
_BY_ID = select(providers).where(providers.c.id == bindparam("provider_id"), _MINE)
_BY_NAME = select(providers.c.id).where(providers.c.name == bindparam("wanted_name"), _MINE)
_ALL = select(providers).where(_MINE).order_by(providers.c.created_at, providers.c.seq)
_INSERT = insert(providers)
_CHANGED = ("base_url", "secret", "settings", "updated_by", "updated_at")
_UPDATE = setter(providers, *_CHANGED, where=providers.c.id == bindparam("provider_id"))
_DELETE = delete(providers).where(providers.c.id == bindparam("provider_id"))


def insert_one(tx: Transaction, provider: OrganizationProvider) -> None:
    """Store a new provider; raises Collision where the organisation has one of this name."""
    if tx.first(_BY_NAME, {"wanted_name": provider.name, "organization_id": provider.organization_id}) is not None:
        raise Collision(f'There is a provider "{provider.name}" already. Change that one, or choose another name.')
    tx.run(_INSERT, _values(provider))


def get(tx: Transaction, scope: Scope, provider_id: str) -> OrganizationProvider:
    """One provider; raises NotFound."""
    row = tx.first(_BY_ID, {"provider_id": provider_id, "organization_id": scope.organization_id})
    return _provider(found(row, "Provider", provider_id))


def page(
    tx: Transaction, scope: Scope, wanted: Page, *, name: str | None = None, provider_type: str | None = None
) -> list[OrganizationProvider]:
    """One page of the organisation's providers; those with this very name, or of this type."""
    statement = select(providers).where(providers.c.organization_id == scope.organization_id)
    if name is not None:
        statement = statement.where(providers.c.name == name)
    if provider_type is not None:
        statement = statement.where(providers.c.provider_type == provider_type)
    return [_provider(row) for row in read_page(tx, statement, providers, wanted)]


def of_organization(tx: Transaction, organization_id: str) -> tuple[OrganizationProvider, ...]:
    """All providers of an organisation, oldest first."""
    return tuple(_provider(row) for row in tx.all(_ALL, {"organization_id": organization_id}))


def update(tx: Transaction, provider: OrganizationProvider) -> None:
    """Store what can change of a provider: everything but its name and type."""
    values = _values(provider)
    tx.run(_UPDATE, {**new_values({name: values[name] for name in _CHANGED}), "provider_id": provider.id})


def delete_one(tx: Transaction, scope: Scope, provider_id: str) -> None:
    """Delete a provider with its keys; raises NotFound."""
    get(tx, scope, provider_id)
    tx.run(_DELETE, {"provider_id": provider_id})


def _values(provider: OrganizationProvider) -> dict[str, Any]:
    settings = {name: value for name in _SETTINGS if (value := getattr(provider, name)) is not None}
    return {name: getattr(provider, name) for name in (*_PLAIN, *_AUTHORS)} | {"settings": settings}


def _provider(row: Row[Any]) -> OrganizationProvider:
    return OrganizationProvider(
        **{name: getattr(row, name) for name in (*_PLAIN, *_AUTHORS)},
        **{name: row.settings.get(name) for name in _SETTINGS},
    )
