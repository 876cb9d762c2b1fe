"""Providers with an organization's API keys, which are encrypted in the database."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import bindparam, delete, insert, select

from ricordo.domain.model import OrganizationProvider
from ricordo.domain.scope import Scope
from ricordo.errors import Collision
from ricordo.storage.engine.repository import (
    Page,
    Repository,
    equal,
    known_to,
    new_values,
    read_page,
    require_found,
    setter,
)
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import providers

_ROWS = Repository(OrganizationProvider, providers)
# Fields that are stored in the column `settings`.
_SETTINGS = ("region", "api_version", "last_synced")
_SELECT = select(*_ROWS.columns, providers.c.settings)
_BY_ID = _SELECT.where(equal(providers, "id", "organization_id"))
_BY_NAME = select(providers.c.id).where(equal(providers, "name", "organization_id"))
_ALL = _SELECT.where(equal(providers, "organization_id")).order_by(
    providers.c.created_at, providers.c.seq
)
_LOCK = select(providers.c.id).where(equal(providers, "id")).with_for_update(key_share=True)
_CHANGED = ("base_url", "secret", "settings", "updated_by", "updated_at")
_UPDATE = setter(providers, *_CHANGED, where=providers.c.id == bindparam("provider_id"))


def insert_one(tx: Transaction, provider: OrganizationProvider) -> None:
    """Store a new provider.

    Args:
        tx: The transaction.
        provider: The provider, whose secret is already encrypted.

    Raises:
        Collision: The organization has a provider with this name.
    """
    name = {"name": provider.name, "organization_id": provider.organization_id}
    if tx.first(_BY_NAME, name) is not None:
        raise Collision(
            f'A provider "{provider.name}" already exists. Change that one, or choose another name.'
        )
    tx.run(insert(providers), _values(provider))


def get(tx: Transaction, scope: Scope, provider_id: str) -> OrganizationProvider:
    """Return the organization's provider with this id, its secret still encrypted.

    Args:
        tx: The transaction.
        scope: The caller.
        provider_id: The provider's id.

    Raises:
        NotFound: The organization has no such provider.
    """
    row = tx.first(_BY_ID, {"id": provider_id, "organization_id": scope.organization_id})
    return _provider(require_found(row, "Provider", provider_id))


def get_for_change(tx: Transaction, scope: Scope, provider_id: str) -> OrganizationProvider:
    """Lock the provider until this transaction ends, and return it. Raises NotFound."""
    get(tx, scope, provider_id)
    tx.lock(_LOCK, {"id": provider_id})
    return get(tx, scope, provider_id)


def page(
    tx: Transaction,
    scope: Scope,
    page: Page,
    *,
    name: str | None = None,
    provider_type: str | None = None,
) -> list[OrganizationProvider]:
    """Return one page of the organization's providers.

    Args:
        tx: The transaction.
        scope: The caller.
        page: The part of the list.
        name: Only the provider with exactly this name; None: any.
        provider_type: Only providers of this type, such as "openai"; None: any.
    """
    columns = {
        "organization_id": scope.organization_id,
        "name": name,
        "provider_type": provider_type,
    }
    conditions = [
        providers.c[column] == wanted for column, wanted in columns.items() if wanted is not None
    ]
    statement = _SELECT.where(*conditions)
    rows = read_page(tx, statement, providers, page, marks=known_to(providers, scope))
    return [_provider(row) for row in rows]


def of_organization(tx: Transaction, organization_id: str) -> tuple[OrganizationProvider, ...]:
    """Return the organization's providers, the oldest first.

    Args:
        tx: The transaction.
        organization_id: The organization.
    """
    return tuple(_provider(row) for row in tx.all(_ALL, {"organization_id": organization_id}))


def update(tx: Transaction, provider: OrganizationProvider) -> None:
    """Store the changed address, secret and settings of a provider.

    Args:
        tx: The transaction.
        provider: The provider that `get_for_change` returned, with its changes.
    """
    columns = _values(provider)
    tx.run(
        _UPDATE,
        {**new_values({name: columns[name] for name in _CHANGED}), "provider_id": provider.id},
    )


def delete_one(tx: Transaction, scope: Scope, provider_id: str) -> None:
    """Delete the organization's provider with this id.

    Args:
        tx: The transaction.
        scope: The caller.
        provider_id: The provider's id.

    Raises:
        NotFound: The organization has no such provider.
    """
    get(tx, scope, provider_id)
    tx.run(delete(providers).where(providers.c.id == provider_id))


def _values(provider: OrganizationProvider) -> dict[str, Any]:
    settings = {
        name: setting for name in _SETTINGS if (setting := getattr(provider, name)) is not None
    }
    return _ROWS.values(provider) | {"settings": settings}


def _provider(row: Sequence[Any]) -> OrganizationProvider:
    return replace(_ROWS.of(row[:-1]), **row[-1])
