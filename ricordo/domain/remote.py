"""Remotes: places outside the database that are kept in step with a user's memory."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Remote:
    """One place that follows a chain. `followed` is the number of the last version it has, `seen` what it was at then.

    `last_error` is why it does not follow just now, None where it does; times are microseconds.
    """

    id: str
    organization_id: str
    chain_id: str
    kind: str
    address: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    followed: int = 0
    seen: str | None = None
    last_error: str | None = None
    last_at: int | None = None
    created_at: int = 0
