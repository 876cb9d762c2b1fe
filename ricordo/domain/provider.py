"""Providers of models that an organisation brings with a key of its own, besides those that the server's settings configure."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class OrganizationProvider:
    """A provider of one organisation. `secret` holds its keys, encrypted; times are microseconds, UTC.

    `name` is the first half of its models' handles; `provider_type` tells what it speaks.
    """

    id: str
    organization_id: str
    name: str
    provider_type: str
    created_at: int
    updated_at: int
    base_url: str | None = None
    region: str | None = None
    api_version: str | None = None
    last_synced: int | None = None
    created_by: str | None = None
    updated_by: str | None = None
    secret: str | None = field(default=None, repr=False)
