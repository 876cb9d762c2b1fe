"""Providers of an organisation on the wire. Their keys are never among it."""

from datetime import datetime
from typing import Any, Literal

from ricordo.api.wire.schemas import Shape
from ricordo.api.wire.times import stamp
from ricordo.domain.provider import OrganizationProvider


class ProviderShape(Shape):
    """A provider with a key of the organisation's own. The fields for keys are always null."""

    id: str
    name: str
    provider_type: str
    provider_category: Literal["byok"]
    base_url: str | None
    region: str | None
    api_version: str | None
    api_key: None
    access_key: None
    api_key_enc: None
    access_key_enc: None
    organization_id: str
    created_at: datetime
    updated_at: datetime
    last_synced: datetime | None


class CheckedShape(Shape):
    """What was done."""

    message: str


def provider_to_wire(provider: OrganizationProvider) -> dict[str, Any]:
    """A provider, without its keys."""
    return {
        "id": provider.id,
        "name": provider.name,
        "provider_type": provider.provider_type,
        "provider_category": "byok",
        "base_url": provider.base_url,
        "region": provider.region,
        "api_version": provider.api_version,
        "api_key": None,
        "access_key": None,
        "api_key_enc": None,
        "access_key_enc": None,
        "organization_id": provider.organization_id,
        "created_at": stamp(provider.created_at),
        "updated_at": stamp(provider.updated_at),
        "last_synced": stamp(provider.last_synced),
    }
