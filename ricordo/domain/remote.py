"""Remotes: places outside the database that are kept in step with a user's memory."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ricordo.domain.clock import SECOND
from ricordo.domain.job import Job

# The kind of the jobs that bring a remote and its memory together.
SYNC = "memory_follow"
# How long such a job waits for what else comes, in microseconds: an agent seldom makes one edit alone.
SETTLES = SECOND


@dataclass(frozen=True, slots=True)
class Access:
    """Where a remote is, and what it takes to get in: the address holds no password, and `options` are its kind's own."""

    address: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Remote:
    """One place that follows a chain. `followed` is the number of the last version it has, `seen` what it was at then.

    `last_error` is why it does not follow just now, None where it does; times are microseconds. `settings` hold what is
    needed for access beside the address, the password encrypted.
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

    @property
    def options(self) -> Mapping[str, Any]:
        """What its kind was told when it was added."""
        options: Mapping[str, Any] = self.settings.get("options", {})
        return options

    def job(self, not_before: int = 0) -> Job:
        """The job that brings it and its memory together, at this time (microseconds) at the earliest."""
        return sync_job(self.organization_id, self.id, not_before)


def sync_job(organization_id: str, remote_id: str, not_before: int = 0) -> Job:
    """The job that brings a remote and its memory together, at this time (microseconds) at the earliest."""
    payload, key = {"remote_id": remote_id}, f"remote:{remote_id}"
    return Job(SYNC, organization_id, payload, key=key, is_single=True, not_before=not_before)
